"""Run folders: one writer, parts that are whole or missing, and nothing touched that no run made."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from results.result_cases import COMPARISON, RESULTS
from stratoscope.core.errors import StratoscopeError
from stratoscope.runs import folder as module
from stratoscope.runs.folder import LOCK, MARK, PARTS, RunFolder, is_ours
from stratoscope.runs.kinds import KINDS

SOURCE = str(Path(__file__).parents[2] / "src")
WHOLE = {"x": torch.arange(4.0)}
KINDS_OF_NUMBERS = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8,
)  # fmt: skip


def snapshot(folder: Path) -> dict[str, object]:
    """Everything in a folder: what files hold, where links lead."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
    return found


def refused(folder: Path, words: str, **how: object) -> None:
    """The folder is refused, and left as it was."""
    before = snapshot(folder) if folder.is_dir() else None
    with pytest.raises(StratoscopeError, match=words), RunFolder.open(folder, **how):  # type: ignore[arg-type]
        raise AssertionError("opened")
    assert before is None or snapshot(folder) == before


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


# --- one writer ------------------------------------------------------------------------------------------------------

HOLD = (
    "from stratoscope.runs.folder import RunFolder; import time\n"
    "with RunFolder.open({path!r}):\n    print('ready', flush=True); time.sleep(60)"
)


def test_a_second_run_gets_a_sentence_until_the_first_ends(tmp_path: Path) -> None:
    with child(HOLD.format(path=str(tmp_path))) as process:
        refused(tmp_path, "in use by another run")
        process.send_signal(signal.SIGKILL)
        process.wait()
        with RunFolder.open(tmp_path) as folder:
            assert folder.path == tmp_path


def test_a_second_run_does_not_remove_the_files_of_the_first(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path):
        (tmp_path / ".result.json.1-0123abcd.tmp").touch()
        refused(tmp_path, "in use")


def test_a_folder_is_ours_from_its_first_run_on(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    assert not is_ours(out)
    with RunFolder.open(out):
        assert is_ours(out)
    assert is_ours(out)
    assert list(snapshot(out)) == [LOCK]


def test_a_run_killed_while_it_made_its_lock_blocks_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with RunFolder.open(tmp_path):
        pass
    assert (tmp_path / LOCK).read_text() == MARK


# --- what is refused, and left as it is ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", " ", "\n"])
def test_an_empty_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StratoscopeError, match=r"--out.*empty"), RunFolder.open(name):
        pass
    assert not snapshot(tmp_path)


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    refused(tmp_path / "f", "is a file")
    refused(tmp_path / "f" / "out", "Not a directory")
    assert snapshot(tmp_path) == {"f": b"mine"}


def test_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nothing")
    refused(tmp_path / "out", "link to nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_link_to_a_folder_is_that_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with RunFolder.open(tmp_path / "out") as folder:
        folder.save("a.safetensors", WHOLE)
    assert (tmp_path / "real" / PARTS / "a.safetensors").is_file()


def text_file(path: Path) -> None:
    path.write_bytes(b'{"mine": 1}\xff')


def json_file(path: Path) -> None:
    path.write_text('{"mine": 1}')


def folder_with_file(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("mine")


def link_to_file(path: Path) -> None:
    (path.parent / "elsewhere").write_text("mine")
    path.symlink_to(path.parent / "elsewhere")


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def empty_file(path: Path) -> None:
    path.touch()


FOREIGN: list[Callable[[Path], None]] = [text_file, json_file, folder_with_file, link_to_file, link_to_nothing]
NAMES = [*(k.file for k in KINDS), "report.html", "figures", "parts", "run.yaml", "result.arrays.safetensors"]


@pytest.mark.parametrize("make", [*FOREIGN, empty_file])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_user_has_under_our_names(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    make(out / name)
    refused(out, f"'{name}'.*no run|holds", makes="result.json")
    refused(out, f"'{name}'.*no run|holds", makes="result.json", alone=True)
    assert not (out / LOCK).exists()


@pytest.mark.parametrize("make", FOREIGN)
def test_a_lock_of_another_tool(make: Callable[[Path], None], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    make(out / LOCK)
    refused(out, rf"'{LOCK}'.*no run")


def test_an_empty_lock_beside_files_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    (tmp_path / "mine.txt").write_text("mine")
    refused(tmp_path, rf"'{LOCK}'.*no run")


def test_a_lock_that_links_to_a_lock_of_ours(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "a"):
        pass
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / LOCK).symlink_to(tmp_path / "a" / LOCK)
    refused(tmp_path / "b", rf"'{LOCK}'.*no run")


@pytest.mark.parametrize("kind", KINDS, ids=[k.name for k in KINDS])
def test_a_folder_of_another_kind(kind: object, tmp_path: Path) -> None:
    """Figures and page of the two would replace each other."""
    row = next(k for k in KINDS if k is kind)
    with RunFolder.open(tmp_path):
        RESULTS[row.name].save(tmp_path)
    for other in KINDS:
        if other is not row:
            refused(tmp_path, rf"holds {row.what} \({row.file}\)", makes=other.file)
    with RunFolder.open(tmp_path, makes=row.file):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b'{"mine": 1}'])
def test_a_result_of_ours_that_is_past_recognition_can_be_made_again_by_its_own_kind_only(
    content: bytes, tmp_path: Path
) -> None:
    with RunFolder.open(tmp_path):
        (tmp_path / "result.json").write_bytes(content)
    with RunFolder.open(tmp_path, makes="result.json"):
        pass
    refused(tmp_path, r"result\.json", makes="depth.json")


def test_a_saved_result_without_a_lock_is_ours(tmp_path: Path) -> None:
    COMPARISON.save(tmp_path)
    with RunFolder.open(tmp_path, makes="result.json"):
        pass
    refused(tmp_path, "holds a comparison", makes="depth.json")


def test_a_checkpoint_is_not_written_among_a_users_own_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("mine")
    refused(tmp_path, "no run", alone=True)


def test_nor_is_it_once_another_run_has_been_there(tmp_path: Path) -> None:
    """A comparison may share a folder; that does not make the user's files ours."""
    (tmp_path / "README.md").write_text("mine")
    with RunFolder.open(tmp_path, makes="result.json"):
        pass
    with RunFolder.open(tmp_path, makes="result.json"):
        pass
    refused(tmp_path, "no run", alone=True)


def test_a_checkpoint_goes_to_a_folder_that_a_run_made_for_itself(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder.open(tmp_path / "out", alone=True) as folder:
            (folder.path / "config.json").write_text("ours")


# --- what survives ---------------------------------------------------------------------------------------------------


def users_own(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


KEPT = [
    "notes.txt",
    ".x.tmp",
    ".notes.txt.12.tmp",
    ".tmpdir1",
    "mine.tmp",
    "result.json.bak",
    "other-run/.result.json.1.tmp",
    "data/parts/a",
]


def test_a_users_own_files_survive_a_run(tmp_path: Path) -> None:
    users_own(tmp_path, KEPT)
    for _ in range(2):
        with RunFolder.open(tmp_path, makes="result.json") as folder:
            folder.save("a.safetensors", WHOLE)
            folder.drop_parts()
    left = {k: v for k, v in snapshot(tmp_path).items() if v is not None}
    assert left.pop(LOCK)
    assert left == {name: name.encode() for name in KEPT}


def test_what_a_killed_run_left_half_written_is_removed(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as folder:
        folder.save("a.safetensors", WHOLE)
        folder.save("sub/b.safetensors", WHOLE)
    leftovers = [
        ".result.json.1-0123abcd.tmp",
        ".result.arrays.safetensors.77-0123abcd.tmp",
        ".run.yaml.1-0123abcd.tmp",
        ".report.html.1-0123abcd.tmp",
        "figures/.ckasim.png.1-0123abcd.tmp",
        "parts/.a.safetensors.7.tmp",
        "parts/.tmpRFmee9",
        "parts/sub/.b.safetensors.9.tmp",
        "parts/sub/.b.safetensors.sha256.9-0123abcd.tmp",
    ]
    users_own(tmp_path, [*leftovers, *KEPT])
    with RunFolder.open(tmp_path) as folder:
        assert folder.has("a.safetensors")
        assert folder.has("sub/b.safetensors")
        there = snapshot(tmp_path)
        assert not [name for name in leftovers if name in there]
        assert not [name for name in KEPT if name not in there]


def test_a_folder_that_no_run_made_has_no_leftovers_of_ours(tmp_path: Path) -> None:
    users_own(tmp_path, [".result.json.1.tmp", ".result.json.1-0123abcd.tmp"])
    with RunFolder.open(tmp_path, makes="result.json"):
        assert len(snapshot(tmp_path)) == 3


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.open(tmp_path / "run") as opened:
        yield opened


def test_a_saved_part_is_there_for_the_next_run(folder: RunFolder) -> None:
    assert not folder.has("a")
    assert folder.save("a", WHOLE) == folder.part("a")
    assert folder.has("a")
    assert RunFolder(folder.path).has("a")
    assert torch.equal(load_file(folder.part("a"))["x"], WHOLE["x"])


def test_tensors_need_not_be_contiguous(folder: RunFolder) -> None:
    square = torch.arange(9.0).reshape(3, 3)
    folder.save("a", {"t": square.T, "row": square[1]})
    assert torch.equal(load_file(folder.part("a"))["t"], square.T)
    assert torch.equal(load_file(folder.part("a"))["row"], square[1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "a flipped byte": lambda part, mark: flip(part),
    "cut short": lambda part, mark: part.write_bytes(part.read_bytes()[:-1]),
    "an empty part": lambda part, mark: part.write_bytes(b""),
    "no part": lambda part, mark: part.unlink(),
    "no checksum": lambda part, mark: mark.unlink(),
    "an empty checksum": lambda part, mark: mark.write_bytes(b""),
    "a checksum cut short": lambda part, mark: mark.write_bytes(mark.read_bytes()[:40]),
    "a flipped checksum": lambda part, mark: flip(mark),
    "a checksum that is not UTF-8": lambda part, mark: mark.write_bytes(b"\xff\xfe" + mark.read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_part_counts_as_missing_and_is_made_again(
    folder: RunFolder, damage: Callable[[Path, Path], object]
) -> None:
    folder.save("a", WHOLE)
    damage(folder.part("a"), folder.part("a.sha256"))
    assert not folder.has("a")
    folder.save("a", WHOLE)
    assert folder.has("a")
    assert torch.equal(load_file(folder.part("a"))["x"], WHOLE["x"])


def test_a_checksum_that_ends_with_a_line_is_as_good(folder: RunFolder) -> None:
    folder.save("a", WHOLE)
    mark = folder.part("a.sha256")
    mark.write_bytes(mark.read_bytes() + b"\n")
    assert folder.has("a")


def fail_with(number: int) -> Callable[..., None]:
    def fail(path: Path, tensors: object) -> None:
        path.write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_leaves_the_old_part_and_is_one_sentence(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save("a", WHOLE)
    before = snapshot(folder.path)
    monkeypatch.setattr(module, "write_tensors", fail_with(errno.ENOSPC))
    with pytest.raises(StratoscopeError, match="no space left"):
        folder.save("a", {"x": torch.zeros(3)})
    assert snapshot(folder.path) == before
    assert folder.has("a")


def test_a_folder_removed_in_the_middle_is_one_sentence_and_is_not_made_again(folder: RunFolder) -> None:
    folder.save("a", WHOLE)
    folder.check()
    shutil.rmtree(folder.path)
    for go_on in (folder.check, lambda: folder.save("b", WHOLE)):
        with pytest.raises(StratoscopeError, match="was removed"):
            go_on()
    assert not folder.path.exists()


def test_dropping_parts_keeps_those_asked_for_and_nothing_else(folder: RunFolder) -> None:
    for name in ("activations-1", "basis-1", "coordinates-1/0"):
        folder.save(name, WHOLE)
    folder.drop_parts(keep=lambda name: name.startswith("activations-"))
    assert folder.has("activations-1")
    assert set(snapshot(folder.path / PARTS)) == {"activations-1", "activations-1.sha256"}
    folder.drop_parts()
    assert list(snapshot(folder.path)) == [LOCK]
    folder.drop_parts()


def test_parts_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every type, shape and layout, by the package whose format it is; memory is handed back on the way."""
    monkeypatch.setattr(module, "WRITTEN_BYTES", 64)
    handed: list[int] = []
    monkeypatch.setattr(module, "hand_back", lambda: handed.append(1))
    tensors = {f"{d}".removeprefix("torch."): torch.arange(6).to(d) for d in KINDS_OF_NUMBERS}
    tensors |= {"é.0": torch.tensor(1.5), "none": torch.zeros(0, 3), "turned": torch.arange(6.0).view(2, 3).T}
    module.write_tensors(tmp_path / "x", tensors)
    got = load_file(tmp_path / "x")
    assert got.keys() == tensors.keys()
    assert all(torch.equal(got[k], t) and got[k].dtype == t.dtype for k, t in tensors.items())
    assert 1 < len(handed) < len(tensors)
