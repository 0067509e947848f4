"""rsa: do two layers find the same rows alike? Correlation of their matrices of dissimilarities between rows."""

from __future__ import annotations

import torch
from torch import Tensor

from stratoscope.measures.measure import SCALING, Item, Measure, RowWork, Sums
from stratoscope.statistics.layer import layer_moments
from stratoscope.statistics.rows import LayerRows, count, gather

ROWS = 2000
"""Dissimilarities are taken between at most so many rows, drawn with the seed: ranking them all costs n² log n."""


def _plan(rows: LayerRows, seed: int) -> list[Item]:
    n = count(rows)
    some = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:ROWS].sort().values
    return [{"layer": k, "rows": some.tolist()} for k in range(rows.layers)]


def _work(rows: LayerRows, item: Item) -> Sums:
    """Ranks of 1 - Pearson(row i, row j) for i < j (Kriegeskorte et al. 2008), as a unit vector about 0.

    Neurons are centred over all rows first, or the mean row would make all rows alike. Rows that repeat give equal
    similarities but for rounding: cut to 12 decimals they share a rank.
    """
    from scipy.stats import rankdata  # takes half a second, which every worker would pay

    layer = item["layer"]
    x = gather(rows, layer, torch.tensor(item["rows"])).double() - layer_moments(rows, layer, full=False).mean
    x = x - x.mean(1, keepdim=True)
    norm = x.square().sum(1).sqrt()
    x = torch.where(norm[:, None] > 0, x / norm[:, None], 0.0)
    similarity = x @ x.T
    i, j = torch.triu_indices(len(x), len(x), offset=1)
    ranks = torch.from_numpy(rankdata(-similarity[i, j].numpy().round(12)))
    ranks -= ranks.mean()
    norm = ranks.square().sum().sqrt()
    return {f"ranks.{layer:05d}": (ranks / norm if norm > 0 else ranks).float()}


def _finish(sums: Sums) -> Tensor:
    """Spearman correlation of every pair of layers."""
    names = sorted(sums)
    values = torch.eye(len(names), dtype=torch.float64)
    for a, x in enumerate(names):
        for b, y in enumerate(names[: a + 1]):
            values[a, b] = values[b, a] = (sums[x].double() * sums[y].double()).sum()
    return values


RSA = Measure(
    name="rsa",
    summary="representational similarity analysis: Spearman correlation of the rows' dissimilarities (1 - Pearson), "
    "neurons centred over rows first",
    reference="Kriegeskorte et al. 2008",
    symmetric=True,
    bounds=(-1, 1),
    invariant_x=SCALING,
    invariant_y=SCALING,
    rows=RowWork(_plan, _work, _finish),
)
