"""Every kind is saved and loaded alike: what comes back is what was saved, and nothing else is taken for it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stratoscope as ss
from results.result_cases import BARE, COMPARISON, RESULTS, assert_same
from stratoscope.core import record
from stratoscope.core.errors import DamagedResultError, ForeignResultError, StratoscopeError
from stratoscope.core.files import canonical_json, digest
from stratoscope.results.result import Result, load
from stratoscope.runs.kinds import KINDS

KIND_NAMES = [kind.name for kind in KINDS]


def test_there_is_a_case_of_every_kind() -> None:
    assert set(RESULTS) == set(KIND_NAMES)


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def changed(path: Path, **changes: object) -> None:
    """Change fields of a saved result and give it a right checksum."""
    plain = json.loads(path.read_bytes())
    plain = {k: v for k, v in plain.items() if k != "sha256"} | changes
    path.write_text(canonical_json(plain | {"sha256": digest(plain, length=64)}))


@pytest.mark.parametrize("name", [*KIND_NAMES, *BARE])
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    result = (RESULTS | BARE)[name]
    result.save(tmp_path)
    again = type(result).load(tmp_path)
    assert_same(again, result)
    assert_same(load(tmp_path), result)


@pytest.mark.parametrize("name", [*KIND_NAMES, *BARE])
def test_saved_again_it_is_the_same_bytes(name: str, tmp_path: Path) -> None:
    result = (RESULTS | BARE)[name]
    for place in ("a", "again", "b"):
        result.save(tmp_path / place)
    load(tmp_path / "a").save(tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "again") == files(tmp_path / "b")


@pytest.mark.parametrize("name", KIND_NAMES)
def test_a_record_is_strict_json_with_its_kind(name: str, tmp_path: Path) -> None:
    RESULTS[name].save(tmp_path)
    kind = RESULTS[name].kind()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    plain = json.loads((tmp_path / kind.file).read_text(encoding="utf-8"), parse_constant=refuse)
    assert (plain["kind"], plain["format"]) == (name, kind.format)
    assert record.header(tmp_path / kind.file) == (name, kind.format)


def test_a_checkpoints_folder_is_not_stored(tmp_path: Path) -> None:
    for name in ("cut", "finetuned"):
        replace(RESULTS[name], folder=Path("/some/where")).save(tmp_path)
        assert b"/some/where" not in b"".join(files(tmp_path).values())


@pytest.mark.parametrize("name", KIND_NAMES)
def test_nothing_saved_yet_names_the_file_and_the_command(name: str, tmp_path: Path) -> None:
    result = RESULTS[name]
    with pytest.raises(StratoscopeError, match=f"no {result.kind().file}.*stratoscope {result.kind().command} "):
        type(result).load(tmp_path / "nowhere")


def test_a_folder_without_a_result_names_one_inside(tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="holds no result"):
        load(tmp_path / "nowhere")
    COMPARISON.save(tmp_path / "inside")
    with pytest.raises(StratoscopeError, match=r"holds no result.*inside"):
        load(tmp_path)


@pytest.mark.parametrize("name", KIND_NAMES)
@pytest.mark.parametrize("change", [{"format": 99}, {"format": 0}, {"format": "3"}, {"kind": "mood"}, {"kind": None}])
def test_another_kind_or_format_is_foreign_not_damaged(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    result = RESULTS[name]
    result.save(tmp_path)
    changed(tmp_path / result.kind().file, **change)
    with pytest.raises(ForeignResultError, match=str(next(iter(change.values())))):
        type(result).load(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", "null", '"text"', "3", '{"kind": "comparison", "format": 3}', '{"a": 1}'])
def test_json_of_another_tool_is_foreign(text: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    assert record.header(path) is None
    with pytest.raises(ForeignResultError, match="not written by stratoscope"):
        load(tmp_path)


DEEP = 20_000
"""Deeper than Python's own stack."""


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\x00", b"{", b"\xff\xfe", b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"9" * 5000],
    ids=["empty", "zeros", "half", "not UTF-8", "deep lists", "deep mappings", "a number too long"],
)
def test_what_is_not_json_is_damaged(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(data)
    assert record.header(path) is None
    with pytest.raises(DamagedResultError, match=r"result\.json is damaged"):
        load(tmp_path)


def test_a_deeply_nested_value_in_a_record_is_damage(tmp_path: Path) -> None:
    COMPARISON.save(tmp_path)
    path = tmp_path / "result.json"
    deep = b"[" * DEEP + b"]" * DEEP
    path.write_bytes(path.read_bytes().replace(b'"few rows"', deep))
    with pytest.raises(DamagedResultError):
        load(tmp_path)


@pytest.mark.parametrize("field", ["kind", "format", "sha256"])
@pytest.mark.parametrize("value", ["1e999", "-1e999", "[]", "{}", "null", '"x"', "NaN", "true"])
def test_strange_headers_are_no_traceback(field: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    fields = {"kind": '"comparison"', "format": "3", "sha256": '"0"', field: value}
    path.write_text("{" + ", ".join(f'"{k}": {v}' for k, v in fields.items()) + "}")
    record.header(path)
    with pytest.raises(StratoscopeError):
        load(tmp_path)


@pytest.mark.parametrize("name", KIND_NAMES)
def test_a_record_cut_short_is_damaged(name: str, tmp_path: Path) -> None:
    RESULTS[name].save(tmp_path)
    path = tmp_path / RESULTS[name].kind().file
    whole = path.read_bytes()
    for length in (1, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedResultError):
            load(tmp_path)


@pytest.mark.parametrize("name", KIND_NAMES)
def test_a_flipped_byte_is_noticed_or_changes_nothing(name: str, tmp_path: Path) -> None:
    """The seventeenth digit of a number may be another for the same number."""
    RESULTS[name].save(tmp_path)
    path = tmp_path / RESULTS[name].kind().file
    whole, unnoticed = path.read_bytes(), 0
    for k in range(0, len(whole) - 1, max(1, len(whole) // 200)):
        flipped = bytearray(whole)
        flipped[k] ^= 1
        path.write_bytes(flipped)
        try:
            got = load(tmp_path)
        except StratoscopeError:
            continue
        unnoticed += 1
        assert_same(got, RESULTS[name])
    assert unnoticed < 10


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    COMPARISON.save(tmp_path)
    path = tmp_path / "result.json"
    plain = json.loads(path.read_bytes())
    path.write_text(json.dumps(plain | {"sha256": "0" * 64}))
    with pytest.raises(DamagedResultError, match="checksum"):
        load(tmp_path)
    assert record.header(path) == ("comparison", 3), "damaged, but ours"


ARRAYS = {k: record.arrays_name(r.kind().file) for k, r in RESULTS.items() if k in ("comparison", "depth", "study")}


@pytest.mark.parametrize("name", ARRAYS)
def test_missing_or_damaged_arrays(name: str, tmp_path: Path) -> None:
    RESULTS[name].save(tmp_path)
    path = tmp_path / ARRAYS[name]
    whole = path.read_bytes()
    for k in (0, len(whole) // 2, -1):
        flipped = bytearray(whole)
        flipped[k] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(DamagedResultError, match="arrays"):
            load(tmp_path)
    path.write_bytes(whole[:-8])
    with pytest.raises(DamagedResultError, match="arrays"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DamagedResultError, match="arrays"):
        load(tmp_path)
    path.mkdir()
    with pytest.raises(DamagedResultError, match="arrays"):
        load(tmp_path)


def test_arrays_of_another_result_are_not_taken(tmp_path: Path) -> None:
    COMPARISON.save(tmp_path / "a")
    replace(COMPARISON, arrays={"x": COMPARISON.arrays["neuronsim.match"] + 1}).save(tmp_path / "b")
    shutil.copy(tmp_path / "b" / ARRAYS["comparison"], tmp_path / "a")
    with pytest.raises(DamagedResultError, match="arrays"):
        load(tmp_path / "a")


def test_a_result_without_arrays_leaves_none_of_its_predecessor(tmp_path: Path) -> None:
    COMPARISON.save(tmp_path)
    assert sorted(files(tmp_path)) == ["result.arrays.safetensors", "result.json"]
    bare = BARE["a comparison without arrays"]
    bare.save(tmp_path)
    assert list(files(tmp_path)) == ["result.json"]
    assert_same(load(tmp_path), bare)


MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("depth", {"full": [1, 2]}),
    ("depth", {"model": {"name": "x"}}),
    ("depth", {"curves": [[]]}),
    ("depth", {"skip": [3]}),
    ("depth", {"full_replicates": "nowhere"}),
    ("comparison", {"matrices": 3}),
    ("comparison", {"arrays": ["arrays:nothing"]}),
    ("comparison", {"arrays_sha256": 5}),
    ("comparison", {"statements": [{"id": "x"}]}),
    ("study", {"tuned": 3}),
    ("cut", {"before": "high"}),
    ("perplexity", {"points": [None]}),
    ("finetuned", {"loss": [[1, "x"]]}),
]


@pytest.mark.parametrize(("name", "change"), MALFORMED)
def test_a_malformed_record_with_a_right_checksum_is_damaged(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    RESULTS[name].save(tmp_path)
    changed(tmp_path / RESULTS[name].kind().file, **change)
    with pytest.raises(DamagedResultError):
        load(tmp_path)


@pytest.mark.parametrize("name", KIND_NAMES)
def test_a_record_that_lacks_a_field_is_damaged(name: str, tmp_path: Path) -> None:
    RESULTS[name].save(tmp_path)
    path = tmp_path / RESULTS[name].kind().file
    plain = json.loads(path.read_bytes())
    needed = {
        "comparison": "matrices",
        "attention": "matrices",
        "depth": "full",
        "study": "tuned",
        "cut": "kept",
        "perplexity": "points",
        "reproduction": "done",
        "probing": "layers",
        "alignment": "fits",
        "injection": "own",
        "recovery": "recovered",
        "weights": "models",
        "decoder": "kept",
        "diff": "study",
    }
    for field in (needed.get(name, "weights"), "arrays_sha256"):
        less = {k: v for k, v in plain.items() if k not in (field, "sha256")}
        path.write_text(json.dumps(less | {"sha256": digest(less, length=64)}))
        with pytest.raises(DamagedResultError):
            load(tmp_path)


def everywhere(plain: Any) -> Any:
    """With a key more in every mapping that stands for a dataclass."""
    if isinstance(plain, list):
        return [everywhere(v) for v in plain]
    if isinstance(plain, dict):
        return {k: everywhere(v) for k, v in plain.items()} | {"of a later version": ["mood", 1]}
    return plain


def test_what_a_later_version_adds_is_ignored(tmp_path: Path) -> None:
    COMPARISON.save(tmp_path)
    path = tmp_path / "result.json"
    plain = json.loads(path.read_bytes())
    del plain["sha256"]
    more = {**plain, **{k: everywhere(plain[k]) for k in ("matrices", "models")}, "mood": "good"}
    more["statements"] = [{**s, "mood": 1, "value": everywhere(s["value"])} for s in plain["statements"]]
    path.write_text(json.dumps(more | {"sha256": digest(more, length=64)}))
    assert_same(load(tmp_path), COMPARISON)


@pytest.mark.parametrize("field", ["statements", "warnings", "provenance"])
@pytest.mark.parametrize("name", KIND_NAMES)
def test_what_an_earlier_version_lacks_is_at_its_default(name: str, field: str, tmp_path: Path) -> None:
    RESULTS[name].save(tmp_path)
    path = tmp_path / RESULTS[name].kind().file
    plain = json.loads(path.read_bytes())
    less = {k: v for k, v in plain.items() if k not in (field, "sha256")}
    path.write_text(json.dumps(less | {"sha256": digest(less, length=64)}))
    got: Result = load(tmp_path)
    assert len(getattr(got, field)) == 0


def test_the_public_load_reads_every_kind(tmp_path: Path) -> None:
    for name, result in RESULTS.items():
        result.save(tmp_path / name)
        assert type(ss.load(tmp_path / name)) is type(result)
