"""Files that appear whole or not at all, and hashes of plain data and of files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from stratoscope.core.errors import StratoscopeError

ANOTHER = "choose another --out"


def at_home(path: str | Path) -> Path:
    """A path with `~` as the shell reads it; the home of a user who does not exist is left as it was typed."""
    return Path(os.path.expanduser(path))


def canonical_json(value: Any) -> str:
    """Serialise so that equal values give equal bytes; NaN is refused because JSON has none."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=1)


def digest(value: Any, length: int = 16) -> str:
    """Short stable hash of plain data."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()[:length]


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
        if number == errno.ENOENT:
            raise StratoscopeError(f"{path} was removed during the run; run the same command again") from e
        raise StratoscopeError(f"cannot write to {path}: {os.strerror(number)}", ANOTHER) from e


def _error_number(e: Exception) -> int | None:
    """The system's number of an error; safetensors' Rust side has it in its words only."""
    if isinstance(e, OSError):
        return e.errno
    match = re.search(r"\(os error (\d+)\)", str(e))
    return int(match[1]) if match else None


@contextmanager
def atomic(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Write a file that appears whole or not at all, even if the process is killed."""
    # Opened by name rather than by mkstemp, whose files only their owner may read.
    tmp = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half of a surrogate pair, which JSON may hold and UTF-8 may not, is written as JSON's own escape of it.
        how: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "backslashreplace"}
        try:
            with tmp.open(mode, **how) as f:
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
