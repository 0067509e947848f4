"""Text files as numbered lines; bytes that are not UTF-8 are an error with a place, never a replacement character."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stratoscope.core.errors import StratoscopeError


def read_text(path: Path) -> str:
    """The whole file decoded as UTF-8, without a byte-order mark."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise StratoscopeError(f"{path}: cannot be read ({e.strerror}); check its permissions") from e
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise StratoscopeError(
            f"{path}: expected UTF-8 text, got byte 0x{data[e.start]:02x} on line {line}; "
            f"convert it first, for example with 'iconv -f latin1 -t utf-8 {path} > utf8-{path.name}'"
        ) from e


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines from 1 without their ends.

    Only LF and CRLF end a line: `str.splitlines` would also cut at form feeds and Unicode separators inside a sentence.
    """
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        yield number, line.removesuffix("\r")
