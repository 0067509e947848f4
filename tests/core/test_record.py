"""Any frozen dataclass as a record: fields by their types, large arrays beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stratoscope.core.errors import DamagedResultError, ForeignResultError, StratoscopeError
from stratoscope.core.files import digest
from stratoscope.core.record import from_plain, header, load, save, to_plain
from stratoscope.core.value import Value

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Inner:
    name: str
    drawn: Floats | None = field(default=None, metadata={"stored": "arrays"})


@dataclass(frozen=True)
class Outer:
    number: float
    count: int
    yes: bool
    text: str | None
    grid: Floats
    values: tuple[Value, ...]
    named: Mapping[str, Inner]
    several: tuple[Inner, ...]
    table: Mapping[str, tuple[float, ...]]
    anything: Mapping[str, Any]
    place: Path = field(default=Path("here"), metadata={"stored": "no"})
    extra: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict, metadata={"stored": "arrays"})


def outer(**changes: Any) -> Outer:
    fields: dict[str, Any] = {
        "number": 1 / 3,
        "count": 2**60,
        "yes": False,
        "text": None,
        "grid": np.array([[1.0, math.nan], [math.inf, -math.inf]]),
        "values": (Value(1.0), Value(math.inf, -math.inf, math.nan)),
        "named": {"a": Inner("x", np.array([1.0, math.nan, math.inf])), "b": Inner("y")},
        "several": (Inner("s", np.array([2.0])), Inner("t", np.array([3.0]))),
        "table": {"row": (0.1, math.nan, -math.inf)},
        "anything": {"list": [1, None, "ü"], "deep": {"er": True}},
        "extra": {"whole:numbers": np.array([[1, 2]], np.int64), "narrow": np.array([0.5], np.float16)},
    }
    return Outer(**{**fields, **changes})


def test_every_kind_of_field_comes_back(tmp_path: Path) -> None:
    want = outer(place=Path("elsewhere"))
    save(want, tmp_path / "outer.json", kind="outer", format=1)
    got = load(Outer, tmp_path / "outer.json", kind="outer", format=1)
    assert (got.number, got.count, got.yes, got.text) == (want.number, want.count, want.yes, want.text)
    np.testing.assert_array_equal(got.grid, want.grid)
    assert got.values[0].value == 1.0
    assert (got.values[1].value, got.values[1].low) == (math.inf, -math.inf)
    assert math.isnan(got.values[1].high)
    np.testing.assert_array_equal(got.named["a"].drawn, want.named["a"].drawn)
    assert got.named["b"] == Inner("y")
    assert [float(s.drawn[0]) for s in got.several if s.drawn is not None] == [2.0, 3.0], "each has its own array"
    np.testing.assert_array_equal(got.table["row"], want.table["row"])
    assert got.anything == want.anything
    assert got.place == Path("here"), "a field that is not stored has its default"
    assert set(got.extra) == set(want.extra)
    for name, array in want.extra.items():
        assert got.extra[name].dtype == array.dtype
        np.testing.assert_array_equal(got.extra[name], array)


def test_views_and_strides_do_not_matter(tmp_path: Path) -> None:
    square = np.arange(9.0).reshape(3, 3)
    save(Inner("x", square.T), tmp_path / "a.json", kind="inner", format=1)
    got = load(Inner, tmp_path / "a.json", kind="inner", format=1)
    assert got.drawn is not None
    np.testing.assert_array_equal(got.drawn, square.T)


def test_the_order_of_mappings_changes_no_byte(tmp_path: Path) -> None:
    a = outer()
    b = outer(
        named=dict(reversed(a.named.items())),
        anything=dict(reversed(a.anything.items())),
        extra=dict(reversed(a.extra.items())),
    )
    for name, value in (("a", a), ("b", b)):
        save(value, tmp_path / name / "x.json", kind="outer", format=1)
    for file in ("x.json", "x.arrays.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_flipped_byte_of_a_record_or_of_its_arrays_is_noticed(tmp_path: Path) -> None:
    save(outer(), tmp_path / "x.json", kind="outer", format=1)
    for file in ("x.json", "x.arrays.safetensors"):
        whole = (tmp_path / file).read_bytes()
        for k in range(0, len(whole) - 1, 3 if file == "x.json" else 11):  # a record ends with an end of line
            flipped = bytearray(whole)
            flipped[k] ^= 1
            (tmp_path / file).write_bytes(flipped)
            with pytest.raises(ForeignResultError if is_header(whole, k) else DamagedResultError):
                load(Outer, tmp_path / "x.json", kind="outer", format=1)
        (tmp_path / file).write_bytes(whole)
    load(Outer, tmp_path / "x.json", kind="outer", format=1)


def is_header(whole: bytes, k: int) -> bool:
    """Whether a byte is of what tells whose record it is: what cannot be read there is not called damaged."""
    for text in (b'"kind"', b'"outer"', b'"format"', b'"sha256"'):
        start = whole.find(b"\n " + text) + 2 if text != b'"outer"' else whole.find(b'"kind": "outer"') + 8
        if start < k < start + len(text) - 1 and whole[start : start + len(text)] == text:
            return True
    digit = whole.find(b'"format": ') + len(b'"format": ')
    return k == digit and whole.startswith(b"{")


@pytest.mark.parametrize("strange", [object(), {1, 2}, 1j, b"bytes"])
def test_what_cannot_be_stored_is_refused_before_anything_is_written(strange: object, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=type(strange).__name__):
        save(outer(anything={"x": strange}), tmp_path / "x.json", kind="outer", format=1)
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_record(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    save(Inner("old"), path, kind="inner", format=1)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        save(outer(anything={"x": object()}), path, kind="outer", format=1)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_numpy_numbers_are_plain(tmp_path: Path) -> None:
    made = {"i": np.int64(3), "f": np.float32(0.5), "n": np.float64("nan"), "p": Path("a/b")}
    assert to_plain(made) == {"i": 3, "f": 0.5, "n": None, "p": "a/b"}
    assert json.dumps(to_plain(made))


@pytest.mark.parametrize("value", [0.1, 1e-300, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan])
def test_a_float_comes_back_to_the_last_bit(value: float) -> None:
    again = from_plain(float, json.loads(json.dumps(to_plain(value))))
    assert math.copysign(1, again) == math.copysign(1, value)
    assert again == value or (math.isnan(again) and math.isnan(value))


@pytest.mark.parametrize(
    "text",
    ['{"kind": "x"}', "[1]", "3", "", "{", '{"kind": "a", "format": 1, "sha256": 5}', "[" * 10**5, '{"kind": 1}'],
)
def test_the_header_of_what_is_not_ours_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    assert header(tmp_path / "x.json") is None


def test_the_header_of_what_is_no_file_is_none(tmp_path: Path) -> None:
    assert header(tmp_path) is None
    assert header(tmp_path / "nothing") is None
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert header(tmp_path / "loop") is None
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    assert header(tmp_path / "bytes") is None


def test_the_header_of_ours_is_read_though_it_is_damaged(tmp_path: Path) -> None:
    save(Inner("x"), tmp_path / "x.json", kind="inner", format=7)
    assert header(tmp_path / "x.json") == ("inner", 7)
    plain = json.loads((tmp_path / "x.json").read_bytes()) | {"name": "other"}
    (tmp_path / "x.json").write_text(json.dumps(plain))
    assert header(tmp_path / "x.json") == ("inner", 7)
    with pytest.raises(StratoscopeError, match="checksum"):
        load(Inner, tmp_path / "x.json", kind="inner", format=7)


def test_the_checksum_is_over_content_not_layout(tmp_path: Path) -> None:
    """A file that an editor or git has laid out anew is still whole."""
    save(Inner("x"), tmp_path / "x.json", kind="inner", format=1)
    plain = json.loads((tmp_path / "x.json").read_bytes())
    (tmp_path / "x.json").write_text(json.dumps(dict(reversed(plain.items())), indent=4) + "\r\n")
    assert load(Inner, tmp_path / "x.json", kind="inner", format=1) == Inner("x")
    assert plain["sha256"] == digest({k: v for k, v in plain.items() if k != "sha256"}, length=64)
