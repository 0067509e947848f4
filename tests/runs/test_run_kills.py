"""Real processes killed at random: a run that is resumed gives the bytes of one that was never killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stratoscope.runs.folder import LOCK

SOURCE = Path(__file__).parents[2] / "src"
ROWS, WIDTH, LAYERS = 240, 24, 8
WORKERS = (2, 1, 2, 1, 1, 1)
"""Of each run that is killed: what one has finished serves the next, whatever their number."""
PARTS = 101
"""What the run below is made of; a kill comes when so many of them are finished, or soon after."""

SCRIPT = """
import os, sys
from pathlib import Path
import pytest
import torch
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.engine.local import local_engine
from stratoscope.measures.bootstrap import bootstrap
from stratoscope.measures.score import score_layers
from stratoscope.measures.table import parse
from stratoscope.results.comparison import Comparison
from stratoscope.runs.run import Request, run
from stratoscope.statistics.rows import StoredRows

stored = Path(sys.argv[1])
files = tuple(((str(stored / f"{k}.safetensors"), "a"), (str(stored / f"{k}.safetensors"), "b")) for k in range(8))
rows = StoredRows((140, 100), files, (1e-7,) * 8)
wanted = [parse(m) for m in ("ckasim", "svsim", "neuronsim", "rsa", "cca")]

def compute(running):
    scored = score_layers(rows, wanted, run=running, key="rows").scored
    values = {k: s.values for k, s in scored.items()}
    drawn = bootstrap(rows, torch.arange(240) // 4, wanted, values, replicates=20, run=running, key="rows")
    axis = tuple(Layer("m", k) for k in range(8))
    matrices = [Matrix(k, axis, axis, v.numpy(), drawn[k].low, drawn[k].high, drawn[k].interval, drawn[k].replicates)
                for k, v in values.items()]
    arrays = {k: a.numpy() for s in scored.values() for k, a in s.arrays.items()}
    return Comparison(tuple(matrices), (), {}, arrays=arrays)

def once(out, workers, memory):
    run(Request("comparison", {"rows": "x"}, {}), out, compute, engine=lambda: local_engine(int(workers)),
        memory=float(memory), protocol={"command": "compare"},
        draw=lambda folder, result: (folder / "report.html").write_text("page"))

# Each run is a process of its own, forked from this one to save the time of its imports.
for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if not child:
        once(*line.split())
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Runs:
    """Starts runs one at a time."""

    def __init__(self, rows: Path) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rows)],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, out: Path, workers: int, memory: float = 1e9) -> int:
        assert self.server.stdin is not None
        self.server.stdin.write(f"{out} {workers} {memory}\n")
        self.server.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        assert self.server.stdout is not None
        return int(self.server.stdout.readline())


@contextmanager
def serving(rows: Path) -> Iterator[Runs]:
    runs = Runs(rows)
    try:
        yield runs
    finally:
        runs.server.kill()
        runs.server.communicate()


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def finished(out: Path) -> dict[str, int]:
    """Finished parts and when they were written; those that a run drops at its end may go while they are counted."""
    found = {}
    for mark in out.glob("parts/*.sha256"):
        with suppress(FileNotFoundError):
            found[mark.stem] = mark.with_suffix("").stat().st_mtime_ns
    return found


def is_over(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads states of processes in /proc")
def test_a_run_killed_at_random_and_resumed_gives_the_same_bytes(tmp_path: Path) -> None:
    rows, out = tmp_path / "rows", tmp_path / "out"
    rows.mkdir()
    for k in range(LAYERS):
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(k))
        save_file({"a": x[:140].clone(), "b": x[140:].clone()}, rows / f"{k}.safetensors")
    chance, killed = random.Random(7), 0
    with serving(rows) as runs:
        runs.start(tmp_path / "whole", workers=1)
        assert runs.answer() == 0
        want = files(tmp_path / "whole")
        assert sorted(want) == [LOCK, "report.html", "result.arrays.safetensors", "result.json", "run.yaml"]
        before: dict[str, int] = {}
        for number, workers in zip(sorted(chance.sample(range(PARTS), len(WORKERS))), WORKERS, strict=True):
            pid = runs.start(out, workers)
            while len(finished(out)) < number and not is_over(pid):
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.03))
            if not is_over(pid):
                os.kill(pid, signal.SIGKILL)
            killed += runs.answer() == signal.SIGKILL
            if not (out / "result.json").exists():
                now = finished(out)
                assert now.items() >= before.items(), "what was finished is not made again"
                before = now
        assert before
        runs.start(out, workers=1, memory=4e6)
        assert runs.answer() == 0
    assert files(out) == want
    assert killed >= 5
