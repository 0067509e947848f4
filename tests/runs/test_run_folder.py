from __future__ import annotations

import errno
import math
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import atomic, canonical_json, digest, disk_errors, file_sha256, write_text
from stratoscope.runs.folder import LOCK, PARTS, RunFolder

SOURCE = str(Path(__file__).parents[2] / "src")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*"))


def put(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


@contextmanager
def child(script: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that prints a line when it has come to the point, and then waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


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


def test_a_process_killed_midway_leaves_the_old_file_and_its_litter_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_text(path, "old")
    script = (
        "from stratoscope.core.runfolder import atomic; from pathlib import Path; import time\n"
        f"with atomic(Path({str(path)!r}), 'w') as f:\n"
        "    f.write('half'); f.flush(); print('ready', flush=True); time.sleep(60)"
    )
    with child(script) as process:
        process.kill()
        process.wait()
        assert path.read_text() == "old"
        assert len(names(tmp_path)) == 2
    with RunFolder.open(tmp_path):
        assert names(tmp_path) == sorted([LOCK, "result.json"])


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
    with pytest.raises(StratoscopeError, match=r"no space left on the disk of out; free some or choose another --out"):
        raise_in_disk_errors(kind(number))


@pytest.mark.parametrize("kind", [lambda n: OSError(n, os.strerror(n)), rust_error])
def test_other_failures_say_what_the_system_said(kind: type[Exception]) -> None:
    with pytest.raises(StratoscopeError, match=r"cannot write to out: Read-only file system; choose another --out"):
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
        pytest.raises(StratoscopeError, match=r"cannot write to .*: Not a directory"),
        disk_errors(tmp_path),
    ):
        save_file({"x": torch.zeros(2)}, tmp_path / "file" / "x.safetensors")


# --- one run per folder ----------------------------------------------------------------------------------------------

HOLD = (
    "from stratoscope.core.runfolder import RunFolder; import time\n"
    "with RunFolder.open({path!r}):\n    print('ready', flush=True); time.sleep(60)"
)


def test_a_second_run_gets_a_sentence_until_the_first_ends(tmp_path: Path) -> None:
    with child(HOLD.format(path=str(tmp_path))) as process:
        with (
            pytest.raises(StratoscopeError, match="is in use by another run; wait for it to end or choose another"),
            RunFolder.open(tmp_path),
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with RunFolder.open(tmp_path) as folder:
            assert folder.path == tmp_path


def test_a_second_run_does_not_sweep_the_files_of_the_first(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path):
        (tmp_path / ".result.json.1.tmp").touch()
        with pytest.raises(StratoscopeError, match="in use"), RunFolder.open(tmp_path):
            pass
        assert (tmp_path / ".result.json.1.tmp").exists()


def test_a_folder_of_another_kind_of_result_is_refused(tmp_path: Path) -> None:
    """Figures and page of the two would replace each other."""
    (tmp_path / "result.json").write_text("{}")
    with (
        pytest.raises(StratoscopeError, match=r"holds a comparison \(result.json\); choose another --out"),
        RunFolder.open(tmp_path, makes="depth.json"),
    ):
        pass
    assert not (tmp_path / ".lock").exists()
    with RunFolder.open(tmp_path, makes="result.json"), RunFolder.open(tmp_path / "below", makes="depth.json"):
        pass


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(StratoscopeError, match=r"--out .*/f is a file; give a folder"), RunFolder.open(tmp_path / "f"):
        pass
    with (
        pytest.raises(StratoscopeError, match=r"cannot write to .*/f/out: Not a directory; choose another --out"),
        RunFolder.open(tmp_path / "f" / "out"),
    ):
        pass


def test_a_parts_folder_of_the_users_own_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "engine.step").touch()
    with (
        pytest.raises(StratoscopeError, match="has a folder 'parts' that no run made; choose another --out"),
        RunFolder.open(tmp_path),
    ):
        pass
    assert names(tmp_path) == ["engine.step", PARTS]


def test_only_litter_of_runs_is_swept(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as folder:
        folder.save("a.bin", partial(put, "a"))
    elsewhere = tmp_path / "other-run" / ".result.json.1.tmp"
    elsewhere.parent.mkdir()
    kept = [elsewhere, tmp_path / "mine.tmp", tmp_path / ".tmpdir-of-mine"]
    swept = [tmp_path / ".result.json.1.tmp", tmp_path / PARTS / ".a.bin.7.tmp", tmp_path / PARTS / ".tmpRFmee9"]
    for path in (*kept, *swept):
        path.touch()
    with RunFolder.open(tmp_path):
        assert all(p.exists() for p in kept)
        assert not any(p.exists() for p in swept)


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.open(tmp_path / "run") as opened:
        yield opened


def test_a_saved_part_is_there_for_the_next_run(folder: RunFolder) -> None:
    assert not folder.has("a.bin")
    assert folder.save("a.bin", partial(put, "whole")).read_text() == "whole"
    assert folder.has("a.bin")
    assert RunFolder(folder.path).has("a.bin")


def test_a_damaged_part_counts_as_absent(folder: RunFolder) -> None:
    folder.save("a.bin", partial(put, "whole"))
    folder.part("a.bin").write_text("whOle")
    assert not folder.has("a.bin")
    folder.save("a.bin", partial(put, "whole"))
    assert folder.has("a.bin")


@pytest.mark.parametrize("lost", ["a.bin", "a.bin.sha256"])
def test_a_part_without_its_file_or_seal_counts_as_absent(folder: RunFolder, lost: str) -> None:
    folder.save("a.bin", partial(put, "whole"))
    folder.part(lost).unlink()
    assert not folder.has("a.bin")


def test_a_part_whose_writer_fails_leaves_the_old_one(folder: RunFolder) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    folder.save("a.bin", partial(put, "old"))
    with pytest.raises(StratoscopeError, match="no space left on the disk of"):
        folder.save("a.bin", fail)
    assert folder.has("a.bin")
    assert folder.part("a.bin").read_text() == "old"
    assert names(folder.path / PARTS) == ["a.bin", "a.bin.sha256"]


def test_a_part_written_by_a_worker_counts_once_sealed(folder: RunFolder) -> None:
    path = folder.part("of/worker.bin")
    path.parent.mkdir(parents=True)
    path.write_text("x")
    assert not folder.has("of/worker.bin")
    folder.seal("of/worker.bin")
    assert folder.has("of/worker.bin")


def test_dropping_parts_keeps_those_asked_for_and_nothing_else(folder: RunFolder) -> None:
    for name in ("activations-1.bin", "basis-1.bin", "coordinates-1/0.bin"):
        folder.save(name, partial(put, "x"))
    folder.drop_parts(keep=lambda name: name.startswith("activations-"))
    assert folder.has("activations-1.bin")
    assert names(folder.path / PARTS) == ["activations-1.bin", "activations-1.bin.sha256"]
    folder.drop_parts()
    assert not (folder.path / PARTS).exists()


def test_dropping_parts_of_a_folder_without_any(folder: RunFolder) -> None:
    folder.drop_parts()
    assert names(folder.path) == [LOCK]
