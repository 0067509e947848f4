"""Run folders: atomic files, checksummed parts, one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.kinds import KINDS

LOCK = ".lock"
PARTS = "parts"
FIGURES = "figures"
ANOTHER = "choose another --out"


def canonical_json(value: Any) -> str:
    """Serialise so that equal values give equal bytes; NaN is refused because JSON has none."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=1)


def digest(value: Any, length: int = 16) -> str:
    """Short stable hash of plain data."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def file_sha256(path: Path) -> str:
    """Hash a file without reading it into memory whole."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what goes wrong in writing into one sentence: a full disk, a read-only one, a file in a folder's place."""
    try:
        yield
    except (OSError, SafetensorError) as e:
        number = _error_number(e)
        if number is None:
            raise
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise StratoscopeError(f"no space left on the disk of {path}", "free some", ANOTHER) from e
        raise StratoscopeError(f"cannot write to {path}: {os.strerror(number)}", ANOTHER) from e


def _error_number(e: Exception) -> int | None:
    """The system's number of an error; safetensors' Rust side has it in its words only."""
    if isinstance(e, OSError):
        return e.errno
    found = re.search(r"\(os error (\d+)\)", str(e))
    return int(found[1]) if found else None


@contextmanager
def atomic(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Write a file that appears whole or not at all, even if the process is killed."""
    # Opened by name rather than by mkstemp, whose files only their owner may read.
    tmp = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tmp.open(mode, encoding=None if "b" in mode else "utf-8") as f:
                yield f
                f.flush()
                os.fsync(f.fileno())
            os.replace(tmp, path)
        except BaseException:
            tmp.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Atomically write text."""
    with atomic(path, "w") as f:
        f.write(text)


class RunFolder:
    """A folder one run owns while it is open: finished parts survive a kill and are reused by name.

    A part is a file under `parts/` with a `.sha256` beside it; a part whose checksum is missing or does not match is
    treated as absent. Names carry a digest of the part's inputs, so a part made from other inputs is never picked up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, makes: str | None = None) -> Iterator[RunFolder]:
        """Create the folder if needed and hold its lock; a second writer gets an error, not a race.

        `makes` names the file of the result to come: a folder of another kind is refused, for figures and page of the
        two would replace each other.
        """
        folder = Path(path)
        for kind in KINDS:
            if makes not in (None, kind.file) and (folder / kind.file).is_file():
                raise StratoscopeError(f"{folder} holds {kind.what} ({kind.file})", ANOTHER)
        if folder.exists() and not folder.is_dir():
            raise StratoscopeError(f"--out {folder} is a file; give a folder")
        if (folder / PARTS).exists() and not (folder / LOCK).exists():
            raise StratoscopeError(f"{folder} has a folder '{PARTS}' that no run made", ANOTHER)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK).open("w")
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                raise StratoscopeError(f"{folder} is in use by another run", "wait for it to end", ANOTHER) from e
            opened = cls(folder)
            opened._clear_leftovers()
            yield opened
        finally:
            lock.close()

    def part(self, name: str) -> Path:
        """Where a part lives, finished or not."""
        return self.path / PARTS / name

    def has(self, name: str) -> bool:
        """Whether the part is finished and undamaged."""
        path, mark = self.part(name), self._mark(name)
        return path.is_file() and mark.is_file() and mark.read_text(encoding="utf-8").strip() == file_sha256(path)

    def seal(self, name: str) -> None:
        """Declare a part finished by writing its checksum."""
        write_text(self._mark(name), file_sha256(self.part(name)))

    def save(self, name: str, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a temporary file, then put it in place and seal it."""
        path = self.part(name)
        with disk_errors(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
        tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with disk_errors(self.path):
            try:
                write(tmp)
                os.replace(tmp, path)
            except BaseException:
                tmp.unlink(missing_ok=True)
                raise
            self.seal(name)
        return path

    def drop_parts(self, keep: Callable[[str], bool] = lambda name: False) -> None:
        """Delete parts whose relative name is not kept."""
        root = self.path / PARTS
        for path in sorted(root.rglob("*"), reverse=True):  # what a folder holds before the folder
            if path.is_dir():
                _remove_if_empty(path)
            elif not keep(str(path.relative_to(root)).removesuffix(".sha256")):
                path.unlink()
        if root.is_dir():
            _remove_if_empty(root)

    def _clear_leftovers(self) -> None:
        """Delete what a killed run left half-written, in the places where runs write and nowhere below them."""
        parts = self.path / PARTS
        for place in (self.path, self.path / FIGURES, parts, *parts.glob("*/")):
            for pattern in (".*.tmp", ".tmp??????"):  # the second is safetensors' own
                for leftover in place.glob(pattern):
                    leftover.unlink(missing_ok=True)

    def _mark(self, name: str) -> Path:
        path = self.part(name)
        return path.with_name(path.name + ".sha256")


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
