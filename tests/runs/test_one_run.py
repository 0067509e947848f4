"""The one contract of every run: refused before work, resumed after a kill, recognised when finished, saved whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from results.result_cases import COMPARISON, PRUNED, RESULTS, assert_same
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.core.record import arrays_name
from stratoscope.engine.base import Engine
from stratoscope.engine.local import InProcess, ProcessPool
from stratoscope.results.comparison import Comparison
from stratoscope.results.result import Result, load
from stratoscope.runs import run as module
from stratoscope.runs.folder import LOCK, PARTS, RunFolder
from stratoscope.runs.run import Request, Run, part_name, run

REQUEST = Request("comparison", {"rows": "abc"}, {"seed": 0, "measures": ("ckasim",)}, said={"limit": 10})


@dataclass
class Watching(Silent):
    """Progress that keeps what it is told."""

    notes: list[str] = field(default_factory=list)
    steps: list[tuple[str, int, list[int]]] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def step(self, label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        from contextlib import nullcontext

        advanced: list[int] = []
        self.steps.append((label, total, advanced))
        return nullcontext(advanced.append)


def square(shared: float, item: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Work of one item; notes that it was done where it is told to."""
    if "log" in item:
        raise AssertionError("items are plain data of the question")
    return {"x": torch.tensor([item["k"] ** 2 * shared])}


class Counting:
    """What a run computes: a comparison made of ten parts, counted, with a kill at one of them."""

    def __init__(self, stop_at: int | None = None, error: BaseException | None = None) -> None:
        self.called = 0
        self.made: list[int] = []
        self.stop_at, self.error = stop_at, error or KeyboardInterrupt()

    def __call__(self, running: Run) -> Comparison:
        self.called += 1

        def work(shared: float, item: dict[str, Any]) -> dict[str, torch.Tensor]:
            if item["k"] == self.stop_at:
                raise self.error
            self.made.append(item["k"])
            return square(shared, item)

        items = [{"k": k} for k in range(10)]
        parts = running.map(work, items, name="square", key=["question", 1], label="squaring", shared=2.0)
        return replace(COMPARISON, arrays={"squares": torch.cat([p["x"] for p in parts]).numpy()})


def never(running: Run) -> Comparison:
    raise AssertionError("computed")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def finished_run(out: Path, **how: Any) -> Comparison:
    return run(REQUEST, out, Counting(), **how)


# --- done once -------------------------------------------------------------------------------------------------------


def test_a_result_is_saved_with_what_made_it_and_its_parts_are_dropped(tmp_path: Path) -> None:
    result = finished_run(tmp_path / "out")
    assert sorted(files(tmp_path / "out")) == [LOCK, "result.arrays.safetensors", "result.json"]
    assert_same(load(tmp_path / "out"), result)
    np.testing.assert_array_equal(result.arrays["squares"], [2.0 * k**2 for k in range(10)])
    made = result.provenance
    assert made["digest"] == REQUEST.digest
    assert made["code"] == module.code_key()
    assert made["versions"] == module.versions()
    assert made["seed"] == COMPARISON.provenance["seed"], "what the analysis itself says stays"
    assert made["request"]["options"] == {"seed": 0, "measures": ["ckasim"]}


def test_a_finished_run_is_recognised(tmp_path: Path) -> None:
    first, watching = finished_run(tmp_path), Watching()
    before = files(tmp_path)
    again = run(REQUEST, tmp_path, never, progress=watching, engine=no_engine)
    assert_same(again, first)
    assert files(tmp_path) == before
    assert any("already" in note for note in watching.notes)


def no_engine() -> Engine:
    raise AssertionError("workers were started")


def test_with_overwrite_a_finished_run_of_this_very_code_is_not_repeated(tmp_path: Path) -> None:
    finished_run(tmp_path)
    run(REQUEST, tmp_path, never, overwrite=True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": {"seed": 1, "measures": ("ckasim",)}}, r"seed \(0, now 1\)"),
        ({"options": {"seed": 0, "measures": ("ckasim", "cca")}}, r"measures \(ckasim, now ckasim, cca\)"),
        ({"options": {"seed": 0, "measures": ("ckasim",), "layers": (1, 2)}}, r"layers \(none, now 1, 2\)"),
        ({"inputs": {"rows": "xyz"}, "said": {"limit": 20}}, r"limit \(10, now 20\)"),
        ({"inputs": {"rows": "xyz"}}, "rows"),
        ({"inputs": {"rows": {"deep": ["x" * 99]}}}, "rows"),
    ],
)
def test_another_request_is_refused_before_work_and_says_what_differs(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    finished_run(tmp_path)
    before = files(tmp_path)
    with pytest.raises(StratoscopeError, match=f"another result.*{words}"):
        run(replace(REQUEST, **changed), tmp_path, never, engine=no_engine)
    assert files(tmp_path) == before


def test_with_overwrite_another_request_replaces_it(tmp_path: Path) -> None:
    finished_run(tmp_path)
    other = replace(REQUEST, options={"seed": 1})
    counting = Counting()
    run(other, tmp_path, counting, overwrite=True)
    assert counting.called == 1
    assert load(tmp_path).provenance["digest"] == other.digest


def test_what_was_said_but_changes_no_answer_is_no_other_request(tmp_path: Path) -> None:
    finished_run(tmp_path)
    run(replace(REQUEST, said={"limit": 10, "workers": 7}), tmp_path, never)


@pytest.mark.parametrize("kind", [k for k in RESULTS if k != "comparison"])
def test_another_kind_is_refused_before_work(kind: str, tmp_path: Path) -> None:
    with RunFolder.open(tmp_path):
        RESULTS[kind].save(tmp_path)
    before = files(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(StratoscopeError, match=RESULTS[kind].kind().file):
            run(REQUEST, tmp_path, never, overwrite=overwrite)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["result.json", "report.html", "run.yaml"])
def test_foreign_files_are_refused_before_work_even_with_overwrite(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(StratoscopeError, match=name):
            run(REQUEST, tmp_path, never, overwrite=overwrite)
    assert files(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("format", [2, 99])
def test_a_result_of_another_format_is_replaced_only_when_asked(format: int, tmp_path: Path) -> None:
    finished_run(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": format}))
    before = files(tmp_path)
    with pytest.raises(StratoscopeError, match=rf"format {format}.*--overwrite"):
        run(REQUEST, tmp_path, never)
    assert files(tmp_path) == before
    counting = Counting()
    run(REQUEST, tmp_path, counting, overwrite=True)
    assert counting.called == 1


def test_a_result_made_by_other_code_is_reused_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_run(tmp_path)
    monkeypatch.setattr(module, "code_key", lambda: "0" * 64)
    watching = Watching()
    run(REQUEST, tmp_path, never, progress=watching)
    assert any("source files" in note and "--overwrite" in note for note in watching.notes)
    monkeypatch.setattr(module, "versions", lambda: {"torch": "99"})
    run(REQUEST, tmp_path, never, progress=watching)
    assert any(f"torch {torch.__version__}" in note for note in watching.notes)
    counting = Counting()
    run(REQUEST, tmp_path, counting, overwrite=True)
    assert counting.called == 1
    assert load(tmp_path).provenance["code"] == "0" * 64


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: flip(out / "result.json"),
        lambda out: flip(out / arrays_name("result.json")),
        lambda out: (out / arrays_name("result.json")).unlink(),
        lambda out: (out / "result.json").write_bytes(b""),
        lambda out: (out / "result.json").unlink(),
    ],
    ids=["record", "arrays", "no arrays", "empty", "no record"],
)
def test_a_damaged_result_is_made_again(damage: Callable[[Path], object], tmp_path: Path) -> None:
    finished_run(tmp_path)
    whole = files(tmp_path)
    damage(tmp_path)
    counting = Counting()
    run(REQUEST, tmp_path, counting)
    assert counting.called == 1
    assert files(tmp_path) == whole


# --- resumed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StratoscopeError("nothing to cut"), RuntimeError("x")])
def test_what_was_finished_before_a_kill_or_an_error_is_not_made_again(error: BaseException, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    finished_run(whole)
    first = Counting(stop_at=6, error=error)
    with pytest.raises(type(error)):
        run(REQUEST, tmp_path / "out", first)
    assert len(list((tmp_path / "out" / PARTS).glob("square-*.safetensors"))) == 6
    second = Counting()
    run(REQUEST, tmp_path / "out", second)
    assert (first.made, second.made) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
    assert files(tmp_path / "out") == files(whole)


def test_a_damaged_part_is_made_again_on_resuming(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(REQUEST, tmp_path, Counting(stop_at=6))
    parts = sorted((tmp_path / PARTS).glob("square-*.safetensors"))
    flip(parts[0])
    parts[1].with_name(parts[1].name + ".sha256").write_bytes(b"\xff")
    second = Counting()
    run(REQUEST, tmp_path, second)
    assert len(second.made) == 6
    assert set(second.made) > {6, 7, 8, 9}


def test_parts_made_by_other_code_are_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(REQUEST, tmp_path, Counting(stop_at=6))
    monkeypatch.setattr(module, "code_key", lambda: "0" * 64)
    second = Counting()
    run(REQUEST, tmp_path, second)
    assert second.made == list(range(10))
    assert not (tmp_path / PARTS).exists()


def test_another_engine_and_memory_reuse_what_is_finished(tmp_path: Path) -> None:
    finished_run(tmp_path / "whole")
    out, watching = tmp_path / "out", Watching()
    with pytest.raises(KeyboardInterrupt):
        run(REQUEST, out, Counting(stop_at=6), memory=1e9)
    done = {p: p.stat().st_mtime_ns for p in (out / PARTS).iterdir()}
    run(REQUEST, out, pooled, engine=lambda: ProcessPool(2), memory=2e6, progress=watching, keep=bool)
    assert len(done) == 12
    assert all(path.stat().st_mtime_ns == before for path, before in done.items())
    assert len(list((out / PARTS).iterdir())) == 20
    (label, total, advanced) = watching.steps[0]
    assert (label, total, sum(advanced)) == ("squaring", 10, 10)
    shutil.rmtree(out / PARTS)
    assert files(out) == files(tmp_path / "whole")


def pooled(running: Run) -> Comparison:
    items = [{"k": k} for k in range(10)]
    parts = running.map(square, items, name="square", key=["question", 1], label="squaring", shared=2.0)
    return replace(COMPARISON, arrays={"squares": torch.cat([p["x"] for p in parts]).numpy()})


def test_progress_counts_finished_parts_by_their_weights(tmp_path: Path) -> None:
    watching = Watching()
    with RunFolder.open(tmp_path) as folder:
        for items in ([1, 2], [1, 2, 3]):
            Run(folder, progress=watching).map(
                square,
                [{"k": k} for k in items],
                name="s",
                key=1,
                label="x",
                shared=1.0,
                weights=[k * 10 for k in items],
            )
    assert [(total, advanced) for _, total, advanced in watching.steps] == [(30, [10, 20]), (60, [10, 20, 30])]


def test_a_part_is_named_after_its_question() -> None:
    names = {part_name("a", k) for k in (1, 2, [1], {"x": 1}, "1")} | {part_name("b", 1)}
    assert len(names) == 6
    assert part_name("a", {"x": 1, "y": (2, 3)}) == part_name("a", {"y": [2, 3], "x": 1})
    assert all(name.endswith(".safetensors") for name in names)


def test_one_part_and_its_file(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"x": torch.ones(2)}

    with RunFolder.open(tmp_path) as folder:
        running = Run(folder)
        for _ in range(2):
            assert torch.equal(running.part("a", 1, make)["x"], torch.ones(2))
            path = running.file("a", 1, make)
        assert len(made) == 1
        assert path.is_absolute()
        path.write_bytes(b"x")
        running.file("a", 1, make)
        assert len(made) == 2
        running.part("a", 2, make)
        assert len(made) == 3


def test_a_run_in_memory_keeps_nothing() -> None:
    running = Run()
    assert torch.equal(running.part("a", 1, lambda: {"x": torch.ones(1)})["x"], torch.ones(1))
    (kept,) = running.map_files(square, [{"k": 3}], name="s", key=1, label="x", shared=1.0)
    assert isinstance(kept, dict)
    with pytest.raises(ValueError, match="no files"):
        running.file("a", 1, dict)


def test_files_of_results_too_large_to_hold(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as folder:
        kept = Run(folder).map_files(square, [{"k": 3}, {"k": 4}], name="s", key=1, label="x", shared=1.0)
        assert all(isinstance(path, Path) and path.is_file() and path.is_absolute() for path in kept)


def test_parts_that_are_kept_stay(tmp_path: Path) -> None:
    finished_run(tmp_path, keep=lambda part: part.startswith("square-"))
    assert len(list((tmp_path / PARTS).glob("*.safetensors"))) == 10
    finished_run(tmp_path)
    assert not (tmp_path / PARTS).exists(), "kept no longer"


# --- around the work -------------------------------------------------------------------------------------------------


def test_the_folder_is_held_while_computing_and_drawing(tmp_path: Path) -> None:
    held = []

    def check(folder: Path) -> None:
        with pytest.raises(StratoscopeError, match="in use"), RunFolder.open(folder):
            pass
        held.append(folder)

    def compute(running: Run) -> Comparison:
        assert running.folder is not None
        check(running.folder.path)
        return COMPARISON

    def draw(folder: Path, result: Any) -> None:
        assert_same(load(folder), result)
        check(folder)
        (folder / "report.html").write_text("page")

    run(REQUEST, tmp_path, compute, draw=draw)
    assert held == [tmp_path, tmp_path]
    with RunFolder.open(tmp_path):
        pass


def test_a_page_is_drawn_once_and_again_where_it_is_missing(tmp_path: Path) -> None:
    drawn = []

    def draw(folder: Path, result: Any) -> None:
        drawn.append(result)
        (folder / "report.html").write_text("page")

    finished_run(tmp_path, draw=draw)
    run(REQUEST, tmp_path, never, draw=draw)
    assert len(drawn) == 1
    (tmp_path / "report.html").unlink()
    run(REQUEST, tmp_path, never, draw=draw)
    assert len(drawn) == 2


def test_a_kill_while_drawing_leaves_a_finished_result(tmp_path: Path) -> None:
    def interrupted(folder: Path, result: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finished_run(tmp_path, draw=interrupted)
    drawn = []
    run(REQUEST, tmp_path, never, draw=lambda *given: drawn.append(given))
    assert len(drawn) == 1


@pytest.mark.parametrize("dies", ["saved", "drawing"])
def test_a_kill_between_a_new_result_and_its_page_leaves_no_page_of_the_one_before(
    dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(folder: Path, result: Any) -> None:
        (folder / "report.html").write_text(result.provenance["digest"])

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    finished_run(tmp_path, draw=draw, protocol={"command": "compare", "seed": 0})
    other = replace(REQUEST, options={"seed": 1})
    how: dict[str, Any] = {"overwrite": True, "protocol": {"command": "compare", "seed": 1}}
    with monkeypatch.context() as patch:
        if dies == "saved":
            patch.setattr(module, "write_protocol", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(other, tmp_path, Counting(), draw=interrupted, **how)
    run(other, tmp_path, never, draw=draw, **how)
    assert (tmp_path / "report.html").read_text() == other.digest
    assert "seed: 1" in (tmp_path / "run.yaml").read_text()
    assert not (tmp_path / "parts").exists()
    run(other, tmp_path, never, draw=interrupted, **how)


def test_run_yaml_is_written_for_a_new_and_for_a_finished_run(tmp_path: Path) -> None:
    protocol = {"command": "compare", "models": ["a", "b"], "seed": 3}
    finished_run(tmp_path, protocol=protocol)
    text = (tmp_path / "run.yaml").read_text()
    assert "compare" in text
    (tmp_path / "run.yaml").unlink()
    run(REQUEST, tmp_path, never, protocol=protocol)
    assert (tmp_path / "run.yaml").read_text() == text


def test_without_a_folder_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    places = []

    def compute(running: Run) -> Comparison:
        assert running.folder is not None
        places.append(running.folder.path)
        assert running.folder.path.parent == tmp_path
        return Counting()(running)

    def draw(folder: Path, result: Any) -> None:
        raise AssertionError("drawn")

    result = run(REQUEST, None, compute, draw=draw, protocol={"command": "compare"})
    assert result.provenance["digest"] == REQUEST.digest
    with pytest.raises(KeyboardInterrupt):
        run(REQUEST, None, Counting(stop_at=3))
    assert places
    assert not list(tmp_path.iterdir())


def test_workers_are_let_go_whatever_happens(tmp_path: Path) -> None:
    class Closing(InProcess):
        def close(self) -> None:
            closed.append(1)

    closed: list[int] = []
    finished_run(tmp_path / "a", engine=Closing)
    with pytest.raises(KeyboardInterrupt):
        run(REQUEST, tmp_path / "b", Counting(stop_at=3), engine=Closing)
    assert len(closed) == 2


# --- results that are more than a record -----------------------------------------------------------------------------

PRUNE = Request("pruned", {"base": "f"}, {"drop": "top:1"})


def checkpoint(running: Run) -> Result:
    assert running.folder is not None
    (running.folder.path / "model.safetensors").write_text("weights")
    return PRUNED


def is_whole(folder: Path, result: Any) -> bool:
    path = folder / "model.safetensors"
    return path.is_file() and path.read_text() == "weights"


def test_a_result_whose_other_files_are_damaged_is_made_again(tmp_path: Path) -> None:
    run(PRUNE, tmp_path, checkpoint, whole=is_whole, alone=True)
    run(PRUNE, tmp_path, never, whole=is_whole, alone=True)
    (tmp_path / "model.safetensors").write_text("wieghts")
    watching = Watching()
    run(PRUNE, tmp_path, checkpoint, whole=is_whole, alone=True, progress=watching)
    assert (tmp_path / "model.safetensors").read_text() == "weights"
    assert any("damaged" in note for note in watching.notes)


def test_such_a_result_is_not_written_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(StratoscopeError, match="no run"):
            run(PRUNE, tmp_path, never, alone=True, overwrite=overwrite)
    with pytest.raises(KeyboardInterrupt):
        run(REQUEST, tmp_path, Counting(stop_at=1))
    with pytest.raises(StratoscopeError, match="no run"):
        run(PRUNE, tmp_path, never, alone=True)
    assert (tmp_path / "model.safetensors").read_text() == "mine"


# --- the disk --------------------------------------------------------------------------------------------------------


def removed(out: Path, at: str) -> Callable[[Run], Comparison]:
    """A computation during which the user removes the folder."""

    def make() -> dict[str, torch.Tensor]:
        return {"x": torch.ones(1)}

    def compute(running: Run) -> Comparison:
        assert running.folder is not None
        path = running.file("a", 1, make)
        shutil.rmtree(out)
        if at == "reading":
            load_file(path)
        if at == "reading a file":
            path.read_bytes()
        if at == "a part":
            running.part("b", 2, make)
        if at == "a map":
            running.map(square, [{"k": 1}], name="s", key=1, label="x", shared=1.0)
        return COMPARISON

    return compute


@pytest.mark.parametrize("at", ["reading", "reading a file", "a part", "a map", "the end"])
def test_a_folder_removed_while_computing_is_one_sentence(at: str, tmp_path: Path) -> None:
    with pytest.raises(StratoscopeError, match="was removed"):
        run(REQUEST, tmp_path / "out", removed(tmp_path / "out", at), protocol={"command": "compare"})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_removed_while_drawing_is_one_sentence(again: bool, tmp_path: Path) -> None:
    def draw(folder: Path, result: Any) -> None:
        shutil.rmtree(folder)
        if again:
            folder.mkdir()
            (folder / "report.html").write_text("page")

    with pytest.raises(StratoscopeError, match="was removed"):
        finished_run(tmp_path / "out", draw=draw, protocol={"command": "compare"})


def test_a_full_disk_is_one_sentence_and_what_is_finished_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def full(source: str | Path, target: str | Path) -> None:
        if Path(target).name == "result.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StratoscopeError, match="no space left"):
        finished_run(tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "result.json").exists()
    counting = Counting()
    run(REQUEST, tmp_path, counting)
    assert counting.made == [], "all parts were there"


def test_a_folder_given_as_text_and_its_parts_by_any_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finished_run("out")  # type: ignore[arg-type]
    assert (tmp_path / "out" / "result.json").is_file()
    with pytest.raises(StratoscopeError, match="empty"):
        run(REQUEST, "", never)
