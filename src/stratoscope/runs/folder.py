"""Run folders: checksummed parts, one run or several shards of it at a time, and nothing touched that is not ours."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from stratoscope.core import record
from stratoscope.core.errors import InUseError, StratoscopeError
from stratoscope.core.files import ANOTHER, disk_errors, file_sha256, write_text
from stratoscope.engine.local import hand_back
from stratoscope.runs.kinds import KINDS

LOCK = ".lock"
MARK = "stratoscope run folder\n"
"""Content of our lock: a folder whose `.lock` says something else is not ours."""
SHARED = MARK + "it held other files before\n"
"""The same for a folder that a run does not have to itself: no checkpoint is written among the user's own files."""
PARTS = "parts"
CLAIMS = ".claims"
"""Among the parts: one byte of it is locked for each part that a shard is making. The lock goes with its process."""
FINISH = "finish"
"""Claimed by the shard that writes the result."""
WAIT = 0.25
"""Seconds between two looks at what another shard is making."""
TIDYING = 20.0
"""Seconds that the last shard may take to tidy up, in which another waits for the folder."""
FIGURES, TABLES = "figures", "tables"
PAGE, PROTOCOL = "report.html", "run.yaml"
WRITTEN = {name for kind in KINDS for name in (kind.file, record.arrays_name(kind.file))}
WRITTEN |= {PAGE, PROTOCOL, "citations.bib", "examples.csv", ".written.json"}
"""Files that runs and reports write beside `parts`, `figures` and `tables`."""
LEFTOVER = re.compile(r"\.(.+)\.\d+(-[0-9a-f]{8})?\.tmp")
"""Names under which a killed run of ours leaves a half-written file: `.name.pid-token.tmp`."""

TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip
"""What safetensors calls them."""
WRITTEN_BYTES = 2**25
"""Bytes written before memory is handed back."""


class RunFolder:
    """A folder one run, or several shards of it, own while it is open: finished parts survive a kill.

    A part is a file under `parts/` with a `.sha256` beside it; a part whose checksum is missing, unreadable or does
    not match is treated as missing. Names carry a digest of what the part was made from, so that a part made from
    something else is never picked up.
    """

    def __init__(self, path: Path, lock: int | None = None, *, shared: bool = False) -> None:
        self.path = path
        self.shared = shared
        self._lock, self._claims = lock, -1

    @classmethod
    @contextmanager
    def open(
        cls, path: str | Path, *, makes: str | None = None, alone: bool = False, shared: bool = False
    ) -> Iterator[RunFolder]:
        """Create the folder if needed and hold its lock; a second writer gets an error, not a race.

        Shards of a run hold it together (`shared`), and claim every part that they make.

        `makes` names the file of the result to come. A folder of another kind is refused, for figures and page of the
        two would replace each other; so is one with a file of that name, or a folder `parts`, that no run made. A run
        that is `alone` writes files of many names, as a checkpoint is: its folder must be ours, or empty.
        """
        folder = _checked(path, makes)
        known, empty = is_ours(folder), not folder.is_dir() or not _others(folder)
        if alone and not empty and not (known and _lock_says(folder) == MARK.encode()):
            raise StratoscopeError(f"{folder} is not empty: it holds files that no run of stratoscope made", ANOTHER)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            with disk_errors(folder):
                first = _flock(lock, folder, shared=shared)
            opened = cls(folder, lock, shared=shared)
            if first:
                if not os.fstat(lock).st_size:
                    os.write(lock, (MARK if empty else SHARED).encode())
                if known:
                    opened._clear_leftovers()
            if shared:
                fcntl.flock(lock, fcntl.LOCK_SH)
            try:
                yield opened
            finally:
                if opened._claims >= 0:
                    os.close(opened._claims)
        finally:
            os.close(lock)

    def claim(self, name: str) -> bool:
        """Take a part to make; False while another shard has it. Of a run alone every part is its own."""
        return not self.shared or self._locked(name, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self, name: str) -> None:
        """Let go of a part that was claimed."""
        if self.shared:
            self._locked(name, fcntl.LOCK_UN)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Be the only shard that looks for a result, or writes one."""
        while not self.claim(FINISH):
            time.sleep(WAIT)
        try:
            yield
        finally:
            self.release(FINISH)

    def is_last(self) -> bool:
        """Whether no other shard is at work here any more: then the parts may go. Otherwise the last one sees to it."""
        if self.shared and self._lock is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def _locked(self, name: str, how: int) -> bool:
        """Lock one byte of the file of claims, whose place follows from the name."""
        with disk_errors(self.path):
            if self._claims < 0:
                path = self.part(CLAIMS)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._claims = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
            try:
                fcntl.lockf(self._claims, how, 1, place)
            except (BlockingIOError, PermissionError):  # POSIX allows either
                return False
        return True

    def check(self) -> None:
        """Refuse to go on where the folder was removed: what is written now would be without what came before."""
        if not (self.path / LOCK).exists():
            raise StratoscopeError(f"{self.path} was removed during the run; run the same command again")

    def part(self, name: str) -> Path:
        """Where a part lives, finished or not."""
        return self.path / PARTS / name

    def has(self, name: str) -> bool:
        """Whether the part is finished and undamaged."""
        path, mark = self.part(name), self._mark(name)
        try:
            return mark.read_bytes().strip() == file_sha256(path).encode()
        except OSError:
            return False

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> Path:
        """Write a part whole, then its checksum."""
        path = self.part(name)
        tmp = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        with disk_errors(self.path):
            self.check()
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                write_tensors(tmp, tensors)
                os.replace(tmp, path)
            except BaseException:
                tmp.unlink(missing_ok=True)
                raise
            write_text(self._mark(name), file_sha256(path))
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
        """Delete what a killed run left half-written: files by our own names only, in the places where runs write."""
        parts = self.path / PARTS
        for place in (self.path, self.path / FIGURES, self.path / TABLES, parts, *parts.glob("*/")):
            for leftover in place.glob(".*.tmp"):
                name = LEFTOVER.fullmatch(leftover.name)
                if name and (place != self.path or name[1] in WRITTEN):
                    leftover.unlink(missing_ok=True)
        for leftover in parts.rglob(".tmp??????"):  # safetensors' own
            leftover.unlink(missing_ok=True)

    def _mark(self, name: str) -> Path:
        path = self.part(name)
        return path.with_name(path.name + ".sha256")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file as its own package does, and hand memory back on the way.

    Rows that wait in a mapped file would all be in memory at the end.
    """
    header, end = dict[str, object](), 0
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in names:
        size = tensors[name].numel() * tensors[name].element_size()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": TYPES[tensors[name].dtype], "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        since = 0
        for name in names:
            flat = tensors[name].detach().contiguous().reshape(-1)
            if len(flat) < 2:  # of which any stride is contiguous, 0 too
                flat = flat.clone(memory_format=torch.contiguous_format)
            flat = flat.view(torch.uint8)
            f.write(flat.numpy().data)
            since += len(flat)
            if since >= WRITTEN_BYTES:
                hand_back()
                since = 0


def _flock(lock: int, folder: Path, *, shared: bool) -> bool:
    """Lock the folder: whether nobody else has it. A shard joins other shards, and waits for one that tidies up."""
    waited = 0.0
    while True:
        for how in (fcntl.LOCK_EX, fcntl.LOCK_SH)[: 1 + shared]:
            try:
                fcntl.flock(lock, how | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return how == fcntl.LOCK_EX
        if not shared or waited >= TIDYING:
            raise InUseError(f"{folder} is in use by another run", "wait for it to end", ANOTHER)
        time.sleep(WAIT)
        waited += WAIT


def is_ours(folder: Path) -> bool:
    """Whether a run of ours made this folder: its lock is a plain file with our mark, or all there is, still empty."""
    said = _lock_says(folder)
    return said in (MARK.encode(), SHARED.encode()) or (said == b"" and not _others(folder))


def _lock_says(folder: Path) -> bytes | None:
    """Content of the lock; None where there is none, or one that is no plain file."""
    lock = folder / LOCK
    try:
        return lock.read_bytes() if stat.S_ISREG(lock.lstat().st_mode) else None
    except OSError:
        return None


def _others(folder: Path) -> bool:
    """Whether a folder holds anything but a lock; one that cannot be read may."""
    try:
        return any(p.name != LOCK for p in folder.iterdir())
    except OSError:
        return True


def _checked(path: str | Path, makes: str | None) -> Path:
    """The folder, if a run may write to it; refused before any work otherwise."""
    if not str(path).strip():
        raise StratoscopeError("expected a folder for --out, got an empty name")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise StratoscopeError(f"--out {folder} is a file; give a folder")
    if folder.is_symlink() and not folder.exists():
        raise StratoscopeError(f"--out {folder} is a link to nothing", ANOTHER)
    lock = folder / LOCK
    if _exists(lock) and not is_ours(folder):
        raise StratoscopeError(f"{folder} has a file '{LOCK}' that no run of stratoscope made", ANOTHER)
    for kind in KINDS:
        there, arrays = folder / kind.file, record.arrays_name(kind.file)
        if not _exists(there):
            if _exists(folder / arrays) and not is_ours(folder):
                raise StratoscopeError(f"{folder} has '{arrays}', which no run of stratoscope made", ANOTHER)
            continue
        written = record.header(there)
        if written is None and not (is_ours(folder) and makes == kind.file):
            raise StratoscopeError(f"{folder} has a file '{kind.file}' that no run of stratoscope made", ANOTHER)
        if makes not in (None, kind.file):
            raise StratoscopeError(f"{folder} holds {kind.what} ({kind.file})", ANOTHER)
    if not is_ours(folder):
        for name in (PARTS, FIGURES, TABLES, PAGE, PROTOCOL, "citations.bib", ".written.json"):
            if _exists(folder / name):
                raise StratoscopeError(f"{folder} has '{name}', which no run of stratoscope made", ANOTHER)
    return folder


def _exists(path: Path) -> bool:
    """Whether there is anything of this name, be it a link to nothing."""
    return path.exists() or path.is_symlink()


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
