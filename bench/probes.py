"""How fast all penalties of a probe are trained, layer by layer: the solver against the published schedule.

CPU seconds of one thread, the ways in turn, over all layers of a model or some; with `--alone N` also one probe at a
time, N of the 64 penalties timed. Rows stay in FOLDER for the next time. `--check` compares every reported gap with a
long run of the solver.

`python bench/probes.py MODEL CORPUS FOLDER --property upos --layers 0-12`
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stratoscope.core.options import parse_layers
from stratoscope.core.progress import Silent
from stratoscope.probes import solve as solver
from stratoscope.probes.features import Features
from stratoscope.probes.objective import Penalties, accuracy, slope
from stratoscope.probes.published import PUBLISHED, shuffled, train
from stratoscope.probes.solve import Fit, solve
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run
from stratoscope.statistics.rows import MemoryRows, gather
from stratoscope.studies.probing.options import ProbeOptions
from stratoscope.studies.probing.plan import make_plan
from stratoscope.studies.probing.study import read_models

WORDS = {"train": 20_000, "dev": 8_000}
SENTENCES = 1500
"""Drawn of each split with the seed 0, enough for so many words of English."""
MOST_STARTING_PASSES = (0, 1, 2, 3, 4, 5, 6, 8, 10)
"""After the two steps, tried until no objective is above the schedule's."""
CHECKED_GAP, CHECKED_PASSES = 2e-4, 1500
"""Of the long run."""


@dataclass(frozen=True)
class Timing:
    """CPU seconds at one layer."""

    schedule: float
    start: float
    solved: float
    alone: float


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def layer_features(model: str, corpus: str, name: str, folder: Path) -> list[tuple[Features, Features]]:
    """(train, dev) of every layer, its rows in memory."""
    plan = make_plan([model], corpus, name, ProbeOptions(limit=SENTENCES), Silent())
    with RunFolder.open(folder) as held:
        stored = read_models(plan, Run(held))[0]
        return [
            (cut(stored["train"], k, plan, "train"), cut(stored["dev"], k, plan, "dev"))
            for k in range(stored["train"].layers)
        ]


def cut(rows: Any, layer: int, plan: Any, split: str) -> Features:
    x, y = gather(rows, layer)[: WORDS[split]].float(), plan.tags[split][: WORDS[split]]
    if len(x) < WORDS[split]:
        raise SystemExit(f"expected {WORDS[split]} words of {split}, got {len(x)}; raise SENTENCES")
    return Features(MemoryRows([x]), (0,), y, len(plan.corpus.tags))


def one_at_a_time(features: Features, l1: float, l2: float, seed: int) -> None:
    """nn.Linear, autograd and Adam, as NeuroX trains a probe (here with the squared norm and shuffled batches)."""
    torch.manual_seed(seed)
    linear = torch.nn.Linear(features.width, features.classes)
    adam = torch.optim.Adam(linear.parameters(), lr=PUBLISHED.rate)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(PUBLISHED.epochs):
        for x, y in shuffled(features, PUBLISHED.batch, generator):
            adam.zero_grad()
            loss = torch.nn.functional.cross_entropy(linear(x), y)
            loss = loss + l1 * linear.weight.abs().sum() + l2 * linear.weight.square().sum()
            loss.backward()
            adam.step()


def objective(features: Features, weight: torch.Tensor, bias: torch.Tensor, grid: Penalties) -> torch.Tensor:
    return slope(features, weight, bias, mean=torch.zeros(features.width)).loss + grid.of(weight)


def report(layer: int, fit: Features, dev: Features, *, alone: int, check: bool) -> Timing:
    grid = Penalties.grid()
    pairs = [round(k * 63 / max(1, alone - 1)) for k in range(alone)]
    single = [timed(partial(one_at_a_time, fit, float(grid.l1[k]), float(grid.l2[k]), 0))[1] for k in pairs]
    batched, together = timed(lambda: train(fit, grid, seed=0))
    of_adam = objective(fit, batched.weight, batched.bias, grid)
    better: list[int] = []
    for passes in MOST_STARTING_PASSES:
        start, begun = timed(partial(solve, fit, grid, passes=passes))
        better.append(int((objective(fit, start.weight, start.bias, grid) <= of_adam + 1e-9).sum()))
        if better[-1] == len(grid):
            break
    solved, whole = timed(lambda: solve(fit, grid))
    gap, sure = float(solved.gap.max()), int(solved.certified.sum())
    best = " ".join(f"{float(accuracy(dev, p.weight, p.bias).max()):.4f}" for p in (batched, start, solved))
    print(
        f"layer {layer}: schedule {together:.1f} | as good after two steps for {better[0]} of 64, after {passes} more"
        f" passes for {better[-1]}: {begun:.2f} |"
        f" solved {whole:.1f}, {solved.passes} passes, gap <= {gap:.4f} ({sure} certified)"
        f" | best dev accuracy {best}",
        flush=True,
    )
    if check:
        checked(fit, grid, solved)
    return Timing(together, begun, whole, sum(single) / alone * 64 if alone else float("nan"))


def checked(features: Features, grid: Penalties, solved: Fit) -> None:
    """The distance to a long run in which no probes share weights, over the reported gap."""
    shared, solver.SHARED = solver.SHARED, 0.01
    long = solve(features, grid, gap=CHECKED_GAP, passes=CHECKED_PASSES)
    solver.SHARED = shared
    away = solved.objective - torch.minimum(long.objective, solved.objective)
    share = away / solved.gap
    k = int(share.argmax())
    print(
        f"  long run ({long.passes} passes, itself within {float(long.gap.max()):.4f}): distance at most"
        f" {float(away.max()):.4f}, at worst {float(share[k]):.2f} of the reported gap ({float(grid.l1[k]):.0e},"
        f" {float(grid.l2[k]):.0e}: {float(away[k]):.4f} of {float(solved.gap[k]):.4f})",
        flush=True,
    )


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--property", default="upos")
    parser.add_argument("--layers", type=parse_layers)
    parser.add_argument("--alone", type=int, default=0, metavar="N")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    every = layer_features(given.model, given.corpus, given.property, given.folder)
    fit = every[0][0]
    print(
        f"{Path(given.model).name} {given.property}: {len(fit)} words x {fit.width} x {fit.classes} tags, 64 penalties"
    )
    chosen = given.layers or range(len(every))
    timings = [report(k, *every[k], alone=given.alone, check=given.check) for k in chosen]
    names = ("schedule", "start", "solved", "alone")
    totals = ", ".join(f"{name} {sum(getattr(t, name) for t in timings):.1f}" for name in names)
    print(f"all of these layers, CPU seconds: {totals}", flush=True)


if __name__ == "__main__":
    main()
