"""Files that appear whole or not at all, hashes of plain data, and what goes wrong on a disk."""

from __future__ import annotations

import errno
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import atomic, canonical_json, digest, disk_errors, file_sha256, write_text

SOURCE = str(Path(__file__).parents[2] / "src")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*"))


# --- plain data ------------------------------------------------------------------------------------------------------


def test_equal_values_have_equal_digests_whatever_the_order_of_their_keys() -> None:
    assert digest({"a": 1, "b": [1.5, None]}) == digest({"b": (1.5, None), "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert len(digest("x")) == 16
    assert len(digest("x", length=64)) == 64


def test_a_digest_is_the_same_in_every_version_and_process() -> None:
    # Names of parts on users' disks: a changed digest throws finished work away.
    assert digest(["ä", 1, 0.1, True, {"k": None}]) == "a1849dd8515c3393"


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json([math.nan])


def test_a_file_hash_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert file_sha256(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# --- atomic files ----------------------------------------------------------------------------------------------------


def test_a_writer_that_raises_midway_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "f.txt"
    write_text(path, "old")

    def write_half() -> None:
        with atomic(path, "w") as f:
            f.write("new, but onl")
            f.flush()
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        write_half()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["deep", "f.txt"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    write_text(path, "old")
    with atomic(path, "w") as f:
        f.write("new")
        f.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_a_process_killed_midway_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_text(path, "old")
    script = (
        "from stratoscope.core.files import atomic; from pathlib import Path; import os\n"
        f"with atomic(Path({str(path)!r}), 'w') as f:\n"
        "    f.write('half'); f.flush(); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": SOURCE}, check=False)
    assert ended.returncode == -9
    assert path.read_text() == "old"
    assert len(names(tmp_path)) == 2


def test_files_are_readable_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "f", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644


# --- failures of the disk --------------------------------------------------------------------------------------------


def rust_error(number: int) -> SafetensorError:
    return SafetensorError(f"Error while serializing: I/O error: whatever (os error {number})")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("kind", [lambda n: OSError(n, os.strerror(n)), rust_error])
def test_a_full_disk_is_one_sentence(kind: type[Exception], number: int) -> None:
    with pytest.raises(StratoscopeError, match=r"no space left.*out.*--out"):
        raise_in_disk_errors(kind(number))


@pytest.mark.parametrize("kind", [lambda n: OSError(n, os.strerror(n)), rust_error])
def test_other_failures_say_what_the_system_said(kind: type[Exception]) -> None:
    with pytest.raises(StratoscopeError, match=r"out: Read-only file system.*--out"):
        raise_in_disk_errors(kind(errno.EROFS))


def test_what_is_no_failure_of_the_disk_passes_through() -> None:
    for error in (ValueError("x"), SafetensorError("no tensors"), OSError("no number")):
        with pytest.raises(type(error)):
            raise_in_disk_errors(error)


def raise_in_disk_errors(error: Exception) -> None:
    with disk_errors(Path("out")):
        raise error


def test_safetensors_tells_the_number_of_its_error(tmp_path: Path) -> None:
    """The words `disk_errors` reads are those the installed safetensors writes."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(StratoscopeError, match=r"Not a directory"),
        disk_errors(tmp_path),
    ):
        save_file({"x": torch.zeros(2)}, tmp_path / "file" / "x.safetensors")


def test_a_folder_that_is_gone_is_said_to_be_removed() -> None:
    with pytest.raises(StratoscopeError, match=r"out was removed.*again"):
        raise_in_disk_errors(FileNotFoundError(errno.ENOENT, "No such file or directory"))


def test_a_file_in_the_place_of_a_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StratoscopeError, match=r"cannot write to .*x\.txt"):
        write_text(tmp_path / "file" / "x.txt", "x")
