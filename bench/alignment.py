"""Figures of the aligners: recovery (Table 3 of Ren et al. 2023), seconds of a fit, and what all pairs of layers cost.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python bench/alignment.py MODEL TEXTS.jsonl [--dims 8,32,128,768] [--slow]

CPU seconds of this process are reported: the wall clock of a shared machine says little. One thread, as a worker of a
study has: threads that wait for each other count as busy (ridge: 6.6 Gram matrices, where one thread takes 2.3).
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
import torch

from stratoscope.aligners.fit import fit_spaces, spaces
from stratoscope.aligners.linear import Space, regression, rotation
from stratoscope.aligners.recovery import principal_components, random_bijection
from stratoscope.aligners.scores import row_errors, score_map
from stratoscope.core.progress import Silent
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run
from stratoscope.statistics.rows import MemoryRows, gather
from stratoscope.studies.align.work import cross_layer, split_rows
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.plan import make_plan
from stratoscope.studies.compare.study import read_plan

ROWS = 1600


def layers(model: str, data: str, folder: str) -> list[torch.Tensor]:
    """Mean-pooled rows of every layer."""
    plan = make_plan([model], data, CompareOptions(unit="mean", limit=2 * ROWS), Silent())
    with RunFolder.open(folder) as held:
        rows = read_plan(plan, Run(held))
        return [gather(rows, k) for k in range(rows.layers)]


def recovery(rows: torch.Tensor, d: int, methods: list[str]) -> None:
    x = principal_components(rows, d)
    y = random_bijection(d)(x)
    pair = spaces(x[:ROWS], y[:ROWS])
    for method in methods:
        start = time.process_time()
        try:
            g = fit_spaces(*pair, method)
        except Exception as e:
            print(f"d={d} {method}: {e}")
            continue
        fit = score_map(g, x[ROWS:], y[ROWS:])
        took = time.process_time() - start
        print(f"d={d} {method}: MSE {fit.mse:.3g} error {fit.error:.3g} inversion {fit.inversion:.1e} {took:.1f} CPU s")


def all_pairs(every: list[torch.Tensor], repeats: int, slow: bool) -> None:
    """Linear maps between all layers against the joint Gram matrix of the same float32 rows, in turn.

    Ridge is what a study fits between all layers (`cross_layer`); least squares and rotations are fitted as it would.
    """
    n, rows = len(every[0]), MemoryRows([v.float() for v in every])
    texts = np.arange(n)
    train, test = split_rows(texts, ROWS, n - ROWS, seed=0)
    shared = {"rows": rows, "train": train, "test": test, "texts": texts}

    def gram() -> None:
        joint = torch.cat(list(rows.matrices), dim=1)
        _ = joint.T @ joint

    def ridges() -> None:
        for x in range(rows.layers):
            cross_layer(shared, {"x": x, "ys": list(range(rows.layers)), "seed": 0})

    def others(method: str) -> None:
        spaces = [Space.of(v[train]) for v in rows.matrices]
        for x, v in zip(spaces, rows.matrices, strict=True):
            w = x.basis.transform(v[test]) if method == "linreg" else (v[test] - x.basis.mean).float()
            for y, u in zip(spaces, rows.matrices, strict=True):
                a = regression(x, y.centred) if method == "linreg" else rotation(x, y).float()
                row_errors(w @ a, u[test] - y.basis.mean.float())

    work = {"joint Gram": gram, "ridge": ridges, "linreg": partial(others, "linreg")}
    if slow:
        work["procrustes"] = partial(others, "procrustes")
    print(f"{rows.layers}x{rows.layers} layers of width {every[0].shape[1]}, {ROWS} + {n - ROWS} rows, CPU s")
    for _ in range(repeats):
        took = {}
        for name, run in work.items():
            start = time.process_time()
            run()
            took[name] = time.process_time() - start
        print(", ".join(f"{name} {s:.1f} ({s / took['joint Gram']:.2f}x)" for name, s in took.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--dims", default="8,32,128,768")
    parser.add_argument("--methods", default="linreg,ridge,cca,svcca,pwcca,procrustes,inn,mlp")
    parser.add_argument("--folder", default="/tmp/bench-alignment")
    parser.add_argument("--repeats", type=int, default=3, help="of all pairs of layers")
    parser.add_argument("--slow", action="store_true", help="rotations between all layers as well: minutes")
    args = parser.parse_args()
    every = layers(args.model, args.data, args.folder)
    all_pairs(every, args.repeats, args.slow)
    for d in map(int, filter(None, args.dims.split(","))):
        recovery(every[-1], d, args.methods.split(","))
