"""mixedsim-heldout: mixedsim scored on rows the regression has not seen, so that few rows do not look like a fit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stratoscope.measures.measure import NEURONS, Item, Measure, RowWork, Sums
from stratoscope.statistics.layer import LayerBasis, deviations, fit_basis, layer_moments
from stratoscope.statistics.rows import LayerRows, Subset, count

BLOCK = 64
"""Rows that stay together, so that most sentences are on one side."""


def halves(rows: LayerRows) -> tuple[Subset, Subset]:
    """Every other block of rows, from the first block and from the second, however the rows are cut into chunks.

    Rows of a subset stay on the side they have in the whole: those left out do not move the others, and those that
    repeat are never on both sides.
    """
    whole, place = (rows.rows, rows.index) if isinstance(rows, Subset) else (rows, torch.arange(count(rows)))
    block = max(1, min(BLOCK, count(whole) // 2))
    second = (place // block % 2).bool()
    return Subset(whole, place[~second]), Subset(whole, place[second])


def _plan(rows: LayerRows, seed: int) -> list[Item]:
    return [{"layer": k} for k in range(rows.layers)]


def _work(rows: LayerRows, item: Item) -> Sums:
    """Scores of every layer's neurons regressed on one layer: fitted on one half of the rows, scored on the other.

    Neurons are standardised first. Of the many exact fits to fewer rows than neurons, that of least norm is taken,
    which depends on the axes: linear maps of y leave the score as it is only while half of the rows outnumber its
    neurons, so only changes of single neurons are declared.
    """
    train, test = halves(rows)
    y = item["layer"]
    basis = fit_basis(train, y, whiten=True)
    scores = [_correlation(basis, y, x, train, test) for x in range(rows.layers)]
    return {f"on.{y:05d}": torch.tensor(scores, dtype=torch.float64)}


def _correlation(basis: LayerBasis, y: int, x: int, train: LayerRows, test: LayerRows) -> float:
    """Mean over neurons of x of Pearson(predicted, true) on the test rows, at least 0; constant neurons score 0."""
    centre = layer_moments(train, x, full=False).mean
    fit = torch.zeros(basis.rank, len(centre), dtype=torch.float64)
    for k in range(len(train.sizes)):
        fit += basis.transform(train.chunk(y, k), torch.float64).T @ (train.chunk(x, k).double() - centre) / basis.n
    sums = torch.zeros(5, len(centre), dtype=torch.float64)
    for k in range(len(test.sizes)):
        p = basis.transform(test.chunk(y, k), torch.float64) @ fit
        t = test.chunk(x, k).double() - centre
        sums += torch.stack([p.sum(0), t.sum(0), p.square().sum(0), t.square().sum(0), (p * t).sum(0)])
    p, t, pp, tt, pt = sums / sum(test.sizes)
    sd, _ = deviations(layer_moments(test, x, full=False), test.eps(x))
    scale = ((pp - p.square()).clamp_min(0) * (tt - t.square()).clamp_min(0)).sqrt()
    r = torch.where((sd > 0) & (scale > 0), (pt - p * t) / scale, 0.0)
    return float(r.clamp(0, 1).mean())


def _finish(sums: Sums) -> Tensor:
    return torch.stack([sums[name] for name in sorted(sums)], dim=1)


def _chance(n: int, width: int) -> float:
    """Mean of max(0, r) over the rows that judge, where r is noise of variance 1/rows."""
    block = max(1, min(BLOCK, n // 2))
    judging = n // (2 * block) * block + max(0, n % (2 * block) - block)
    return 1 / math.sqrt(2 * math.pi * judging)


MIXEDSIM_HELDOUT = Measure(
    name="mixedsim-heldout",
    summary="mixedsim fitted on half of the rows, neurons standardised, and scored on the rest: near 0 by chance",
    reference="Wu et al. 2020, A.2, held out; Bau et al. 2019",
    symmetric=False,
    invariant_x=NEURONS,
    invariant_y=NEURONS,
    rows=RowWork(_plan, _work, _finish),
    repeats=False,
    chance=_chance,
    for_few_rows=True,
)
