"""How fast all penalties of a probe are trained: side by side against one at a time, and the solver against both.

CPU time of one thread, the ways in turn. Give a folder with `rows.safetensors`: rows `train` and `dev` (n, d) of one
layer, tags `train.upos`, `dev.upos`, `train.xpos`, `dev.xpos` (n,).
`python bench/probes.py FOLDER [pairs measured one at a time]`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from stratoscope.probes.features import Features
from stratoscope.probes.objective import Penalties, accuracy, slope
from stratoscope.probes.published import PUBLISHED, shuffled, train
from stratoscope.probes.solve import solve
from stratoscope.statistics.rows import MemoryRows


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


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


def main(folder: Path, few: int) -> None:
    torch.set_num_threads(1)
    held = load_file(folder / "rows.safetensors")
    for name in ("upos", "xpos"):
        classes = int(held[f"train.{name}"].max()) + 1
        fit, dev = (Features(MemoryRows([held[s]]), (0,), held[f"{s}.{name}"], classes) for s in ("train", "dev"))
        report(name, fit, dev, few)


def report(name: str, fit: Features, dev: Features, few: int) -> None:
    grid = Penalties.grid()
    pairs = [round(k * 63 / max(1, few - 1)) for k in range(few)]
    single = [timed(partial(one_at_a_time, fit, float(grid.l1[k]), float(grid.l2[k]), 0))[1] for k in pairs]
    alone = sum(single) / few * 64
    batched, together = timed(lambda: train(fit, grid, seed=0))
    start, begun = timed(lambda: solve(fit, grid, passes=0))
    solved, whole = timed(lambda: solve(fit, grid))
    of_adam, of_start = (objective(fit, p.weight, p.bias, grid) for p in (batched, start))
    print(f"{name}: {len(fit)} words x {fit.width} x {fit.classes} tags, 64 penalties, CPU seconds")
    print(f"  one at a time {alone:.1f} ({few} of 64 timed) | side by side {together:.1f} ({alone / together:.1f}x)")
    better = int((of_start <= of_adam + 1e-9).sum())
    print(f"  two steps {begun:.2f} ({alone / begun:.1f}x), objective as good as the schedule's for {better} of 64")
    gap, sure = float(solved.gap.max()), int(solved.certified.sum())
    print(f"  solved {whole:.1f}: gap <= {gap:.4f} ({sure} certified), {solved.passes} passes")
    best = [float(accuracy(dev, p.weight, p.bias).max()) for p in (batched, start, solved)]
    print(f"  best dev accuracy: schedule {best[0]:.4f}, two steps {best[1]:.4f}, solved {best[2]:.4f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8)
