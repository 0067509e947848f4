"""Figures of the aligners: recovery (Table 3 of Ren et al. 2023), seconds of a fit, and what all pairs of layers cost.

    python bench/alignment.py MODEL TEXTS.jsonl [--dims 8,32,128,768]

CPU seconds of this process are reported: the wall clock of a shared machine says little.
"""

from __future__ import annotations

import argparse
import time

import torch

from stratoscope.aligners.fit import fit_spaces, spaces
from stratoscope.aligners.linear import Space, products, ridge
from stratoscope.aligners.recovery import principal_components, random_bijection
from stratoscope.aligners.scores import score_map
from stratoscope.core.progress import Silent
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run
from stratoscope.statistics.rows import gather
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


def all_pairs(every: list[torch.Tensor]) -> None:
    """Ridge between all layers against the joint Gram matrix of all layers, the same float32 rows."""
    train, test = ([v[part].float() for v in every] for part in (slice(ROWS), slice(ROWS, None)))
    start = time.process_time()
    joint = torch.cat([v.float() for v in every], dim=1)
    _ = joint.T @ joint
    gram = time.process_time() - start
    start = time.process_time()
    for x, tx in zip(train, test, strict=True):
        space = Space.of(x)
        w = space.basis.transform(tx)
        for y, ty in zip(train, test, strict=True):
            mean = y.mean(0)
            m, _ = ridge(space, products(space, y - mean))
            _ = (w @ m.float() - (ty - mean)).square().sum(1)
    took = time.process_time() - start
    size = f"{len(every)}x{len(every)} layers of width {every[0].shape[1]}"
    print(f"{size}: joint Gram {gram:.1f}, ridge {took:.1f} CPU s ({took / gram:.1f}x)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--dims", default="8,32,128,768")
    parser.add_argument("--methods", default="linreg,ridge,cca,svcca,pwcca,procrustes,inn,mlp")
    parser.add_argument("--folder", default="/tmp/bench-alignment")
    args = parser.parse_args()
    every = layers(args.model, args.data, args.folder)
    all_pairs(every)
    for d in map(int, args.dims.split(",")):
        recovery(every[-1], d, args.methods.split(","))
