"""Decoding and line ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.formats.textfile import numbered_lines


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\u2028still\x0ctwo\x85\n\nfour".encode())
    assert list(numbered_lines(path)) == [(1, "one"), (2, "two\u2028still\x0ctwo\x85"), (3, ""), (4, "four")]


def test_a_byte_order_mark_inside_the_text_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("a\ufeffb".encode())
    assert list(numbered_lines(path)) == [(1, "a\ufeffb")]


def test_bytes_that_are_not_utf8_name_file_line_and_cure(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(
        StratoscopeError, match=r"old\.txt: expected UTF-8 text, got byte 0xe9 on line 2; convert.*iconv"
    ):
        list(numbered_lines(path))


def test_an_unreadable_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StratoscopeError, match=r"a\.txt: cannot be read \(Permission denied\); check its permissions"):
        list(numbered_lines(tmp_path / "a.txt"))
