"""knn, knn-jaccard: do two layers give a row the same nearest neighbours? Neighbours are found once per layer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from stratoscope.measures.measure import ORTHOGONAL, Item, Measure, RowWork, Sums
from stratoscope.statistics.layer import layer_moments
from stratoscope.statistics.rows import LayerRows, count

NEIGHBOURS = 10
"""k, or all other rows where there are fewer."""
TIED = 1e-12
"""Cosines that round to the same multiple of this are a tie: rows that repeat differ by rounding only."""
ALIKE = 8.0
"""Units of rounding, relative to a row's own size, within which a row is the mean row and has no direction."""


def _plan(rows: LayerRows, seed: int) -> list[Item]:
    return [{"layer": k, "chunk": c} for k in range(rows.layers) for c in range(len(rows.sizes))]


def _work(rows: LayerRows, item: Item) -> Sums:
    """The k nearest neighbours (rows, k) of one chunk of rows, all others being met chunk by chunk.

    Cosine and index are one whole number, cosine / TIED · n - index, so that the largest are the nearest neighbours and
    those of a tie come in the order of the rows, whatever the chunks are.
    """
    layer, own = item["layer"], item["chunk"]
    n, mean, eps = count(rows), layer_moments(rows, layer, full=False).mean, rows.eps(layer)
    k, first = min(NEIGHBOURS, n - 1), 0
    queries = _directions(rows.chunk(layer, own), mean, eps)
    best = torch.empty(len(queries), 0, dtype=torch.int64)
    for other, size in enumerate(rows.sizes):
        cosines = queries @ _directions(rows.chunk(layer, other), mean, eps).T
        keys = cosines.div_(TIED).round_().long().mul_(n).sub_(torch.arange(first, first + size))
        if other == own:
            keys.fill_diagonal_(torch.iinfo(torch.int64).min)
        best = torch.cat([best, keys.topk(min(k, size), sorted=False).values], 1)
        best = best.topk(min(k, best.shape[1])).values
        first += size
    return {f"{layer:05d}.{own:05d}": (-best).remainder(n).int()}


def _directions(x: Tensor, mean: Tensor, eps: float) -> Tensor:
    """Rows about the mean row at unit length; a row that is the mean row is 0, as near to one row as to another."""
    size = x.double().square().sum(1).sqrt()
    x = x.double() - mean
    norm = x.square().sum(1).sqrt()
    return x.mul_(torch.where(norm > ALIKE * eps * size, 1 / norm, 0.0)[:, None])


def _finish(share: Callable[[Tensor, int], Tensor]) -> Callable[[Sums], Tensor]:
    """Scores of every pair of layers: the mean over rows of a share of the neighbours that both layers have."""

    def finish(sums: Sums) -> Tensor:
        layers: dict[str, list[Tensor]] = {}
        for name in sorted(sums):
            layers.setdefault(name.partition(".")[0], []).append(sums[name])
        neighbours = [torch.cat(chunks) for chunks in layers.values()]
        values = torch.eye(len(neighbours), dtype=torch.float64)
        for a, x in enumerate(neighbours):
            for b, y in enumerate(neighbours[:a]):
                both = (x[:, :, None] == y[:, None]).sum((1, 2)).double()
                values[a, b] = values[b, a] = share(both, x.shape[1]).mean()
        return values

    return finish


def chance_knn(n: int, width: int) -> float:
    """k / (n - 1), exact: to the other layer the neighbours of a row are any k of the n - 1 rows."""
    return min(1.0, NEIGHBOURS / (n - 1))


def chance_jaccard(n: int, width: int) -> float:
    """Mean of s / (2k - s), s the hypergeometric number of neighbours two draws of k of n - 1 rows share."""
    k = min(NEIGHBOURS, n - 1)
    ways = [math.comb(k, s) * math.comb(n - 1 - k, k - s) for s in range(k + 1)]
    return sum(w / sum(ways) * s / (2 * k - s) for s, w in enumerate(ways))


KNN = Measure(
    name="knn",
    summary="mutual nearest neighbours: share of the 10 nearest rows (cosine, neurons centred over rows first) that "
    "both layers have",
    reference="Huh et al. 2024, appendix A",
    symmetric=True,
    bounds=(0, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    rows=RowWork(_plan, _work, _finish(lambda both, k: both / k)),
    repeats=False,
    chance=chance_knn,
    quadratic=True,
)

KNN_JACCARD = Measure(
    name="knn-jaccard",
    summary="Jaccard similarity of the two sets of 10 nearest rows (as in knn): shared over all that either has",
    reference="Klabunde et al. 2025, §3.4",
    symmetric=True,
    bounds=(0, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    rows=RowWork(_plan, _work, _finish(lambda both, k: both / (2 * k - both))),
    repeats=False,
    chance=chance_jaccard,
    quadratic=True,
)
