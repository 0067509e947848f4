"""Text files as numbered lines; bytes that are not UTF-8 are an error with a place, never a replacement character."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stratoscope.core.errors import StratoscopeError

MARK = "\ufeff"
"""A byte-order mark some programs write before the text."""


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines from 1 without their ends, read as they are asked for.

    Only LF and CRLF end a line: `str.splitlines` would also cut at form feeds and Unicode separators inside a sentence.
    """
    with _opened(path) as f:
        for number, line in enumerate(f, start=1):
            try:
                text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as e:
                raise StratoscopeError(
                    f"{path}: expected UTF-8 text, got byte 0x{line[e.start]:02x} on line {number}; "
                    f"convert it first, for example with 'iconv -f latin1 -t utf-8 {path} > utf8-{path.name}'"
                ) from e
            yield number, text.removeprefix(MARK) if number == 1 else text


@contextmanager
def text_stream(path: Path) -> Iterator[IO[str]]:
    """The file as text whose line ends stay as they are, as the csv module wants it, without a byte-order mark."""
    try:
        with _opened(path) as f, io.TextIOWrapper(f, encoding="utf-8-sig", newline="") as text:
            yield text
    except UnicodeDecodeError:
        for _ in numbered_lines(path):  # finds the place
            pass
        raise


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a FIFO or a device may never end
        raise StratoscopeError(f"{path}: expected a file, got a pipe or a device; save the data to a file first")
    try:
        f = path.open("rb")
        f.peek(1)  # a folder or a broken disk shows at the first byte
    except OSError as e:
        raise StratoscopeError(f"{path}: cannot be read ({e.strerror}); check its permissions") from e
    with f:
        yield f
