"""`run.yaml`: what is written is read back; what it may not say is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stratoscope.core.errors import StratoscopeError
from stratoscope.runs.protocol import read_protocol, write_protocol

KNOWN: dict[str, Any] = dict.fromkeys(["models", "data", "seed", "layers", "share", "standardise", "text"])
SAID: dict[str, Any] = {
    "models": ["a b", "org/ü"],
    "data": "no",
    "seed": 3,
    "layers": [0, 2],
    "share": 1e-05,
    "standardise": True,
    "text": "1e5",
}


def read(path: Path, command: str = "compare") -> dict[str, Any]:
    return read_protocol(path, command=command, known=KNOWN)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_protocol(tmp_path, {"command": "compare", **SAID, "layers": (0, 2), "data": Path("no")})
    assert read(tmp_path / "run.yaml") == SAID


def test_what_was_not_said_is_left_out(tmp_path: Path) -> None:
    write_protocol(tmp_path, {"command": "compare", "seed": 0, "text": None, "layers": (), "models": []})
    assert read(tmp_path / "run.yaml") == {"seed": 0}


def test_equal_runs_write_equal_bytes_and_say_who_wrote_them(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_protocol(tmp_path / place, {"command": "compare", **SAID})
    assert (tmp_path / "a" / "run.yaml").read_bytes() == (tmp_path / "b" / "run.yaml").read_bytes()
    plain = yaml.safe_load((tmp_path / "a" / "run.yaml").read_text())
    assert plain["command"] == "compare"
    assert "stratoscope" in plain


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("sed: 3\n")
    with pytest.raises(StratoscopeError, match=r"'sed'.*'seed'"):
        read(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_text("3: 4\n")
    with pytest.raises(StratoscopeError, match="'3'"):
        read(tmp_path / "r.yaml")


def test_another_command_is_refused(tmp_path: Path) -> None:
    write_protocol(tmp_path, {"command": "depth", "seed": 3})
    with pytest.raises(StratoscopeError, match=r"depth.*compare"):
        read(tmp_path / "run.yaml")
    assert read(tmp_path / "run.yaml", "depth") == {"seed": 3}


def test_by_hand_the_command_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("seed: 3\n")
    assert read(tmp_path / "r.yaml") == {"seed": 3}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "NoneType"),
        (b"- a\n- b\n", "list"),
        (b"seed", "str"),
        (b"seed: [1", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"\x00", "not YAML"),
        (b"a: !!python/object/apply:os.system ['true']", "not YAML"),
        (b"? [a, b]\n: 3\n", "not YAML|unknown"),
        (b"? {a: b}\n: 3\n", "not YAML|unknown"),
        (b"[" * 5000, "not YAML"),
        (b"seed: 2020-13-45", "not YAML"),
    ],
)
def test_what_is_no_protocol(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(content)
    with pytest.raises(StratoscopeError, match=words):
        read(tmp_path / "r.yaml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.yaml", tmp_path):
        with pytest.raises(StratoscopeError, match="cannot read --config"):
            read(path)
