"""Kernel CKA with an RBF kernel, and minibatch CKA: sums over pairs of rows, all layers side by side.

A layer's kernel tile is made once and serves every pair of layers: the tiles of all layers are one tall matrix whose
Gram matrix holds every pair's inner product.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from stratoscope.measures.measure import ORTHOGONAL, Item, Measure, RowWork, Sums
from stratoscope.statistics.rows import LayerRows, count, gather

FRACTION = 0.5
"""Bandwidth of the RBF kernel as a fraction of the median distance (Kornblith et al. 2019, §5)."""
MEDIAN_ROWS = 2048
"""The median distance is taken over at most so many rows, drawn with the seed."""
BLOCK = 256
"""Rows of a kernel tile held at once for all layers."""
BATCH = 256
"""Rows of a minibatch (Nguyen et al. 2021)."""
SPAN = 2048
"""Minibatches are drawn from so many neighbouring rows, so that few chunks are read for each."""


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """‖xᵢ - yⱼ‖² from one matrix product; rows must be near the origin, or the difference cancels."""
    return torch.addmm(x.square().sum(1)[:, None] + y.square().sum(1), x, y.T, alpha=-2).clamp_min_(0)


def _rbf_plan(rows: LayerRows, seed: int) -> list[Item]:
    """Pairs of chunks of the upper triangle, with each layer's shift-free bandwidth."""
    n = count(rows)
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(n, generator=generator)[:MEDIAN_ROWS].sort().values if n > MEDIAN_ROWS else None
    doubled = []
    for layer in range(rows.layers):
        x = gather(rows, layer, some).double()
        x -= x.mean(0)
        median = _median(_squared_distances(x, x))
        # Where most rows repeat, the median distance is rounding and there is no bandwidth: the layer scores 0.
        rounding = 64 * torch.finfo(torch.float64).eps * float(x.square().sum(1).max())
        doubled.append(2 * FRACTION**2 * median if median > rounding else 0.0)
    k = len(rows.sizes)
    return [{"a": a, "b": b, "doubled": doubled} for a in range(k) for b in range(a, k)]


def _median(values: Tensor) -> float:
    """Median as numpy defines it: the mean of the two middle values of an even number."""
    flat = values.flatten()
    low = flat.kthvalue((flat.numel() + 1) // 2).values
    high = flat.kthvalue(flat.numel() // 2 + 1).values
    return float(low + high) / 2


def _rbf_work(rows: LayerRows, item: Item) -> Sums:
    """Sums for one pair of chunks: inner products of all layers' kernels, and each kernel's row sums."""
    a, b, doubled = item["a"], item["b"], item["doubled"]
    sizes, n = rows.sizes, count(rows)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    layers = rows.layers
    inner = torch.zeros(layers, layers, dtype=torch.float64)
    sums = torch.zeros(layers, n, dtype=torch.float64)
    live = [k for k in range(layers) if doubled[k] > 0]
    shifts = [rows.chunk(k, 0).double().mean(0) for k in range(layers)]
    xs = {k: _shifted(rows.chunk(k, a), shifts[k]) for k in live}
    ys = xs if a == b else {k: _shifted(rows.chunk(k, b), shifts[k]) for k in live}
    for start in range(0, sizes[a], BLOCK):
        height = min(BLOCK, sizes[a] - start)
        tile = torch.zeros(layers, height, sizes[b], dtype=next(iter(xs.values())).dtype if xs else torch.float64)
        for k in live:
            d = _squared_distances(xs[k][start : start + height], ys[k])
            # HSIC does not see a constant added to a kernel; a kernel about 0 keeps its digits in float32 sums.
            torch.exp(d.div_(-doubled[k]), out=tile[k]).sub_(0.5)
        inner += _inner(tile) * (1 if a == b else 2)
        sums[:, starts[a] + start : starts[a] + start + height] += tile.sum(2, dtype=torch.float64)
        if a != b:
            sums[:, starts[b] : starts[b] + sizes[b]] += tile.sum(1, dtype=torch.float64)
    return {"inner": inner, "sums": sums}


def _shifted(chunk: Tensor, shift: Tensor) -> Tensor:
    return (chunk.double() - shift).to(chunk.dtype)


def _inner(tile: Tensor) -> Tensor:
    """Inner products of all layers' tiles, rows of the tile apart so that float32 sums stay short."""
    by_row = tile.transpose(0, 1)  # (rows, layers, columns)
    return torch.bmm(by_row, by_row.transpose(1, 2)).sum(0, dtype=torch.float64)


def _rbf_finish(sums: Sums) -> Tensor:
    """Biased HSIC of centred kernels, tr KHLH, normalised (Gretton et al. 2005; Kornblith et al. 2019, eq. 3)."""
    inner, row = sums["inner"], sums["sums"]
    n = row.shape[1]
    total = row.sum(1)
    return _normalise(inner - 2 / n * row @ row.T + torch.outer(total, total) / n**2)


def _batch_plan(rows: LayerRows, seed: int) -> list[Item]:
    """Spans of rows of nearly equal length, whatever the chunks: no minibatch is ever a handful of rows."""
    n = count(rows)
    bounds = [n * k // -(-n // SPAN) for k in range(-(-n // SPAN) + 1)]
    return [{"start": start, "stop": stop, "seed": seed} for start, stop in pairwise(bounds)]


def _batch_work(rows: LayerRows, item: Item) -> Sums:
    """Unbiased HSIC of every pair of layers summed over the minibatches of one span (Nguyen et al. 2021, eq. 3)."""
    # One permutation of all rows: batches of neighbouring rows would miss what varies along an ordered corpus.
    shuffled = torch.randperm(count(rows), generator=torch.Generator().manual_seed(item["seed"]))
    span = shuffled[item["start"] : item["stop"]]
    batches = torch.arange(len(span)).tensor_split(-(-len(span) // BATCH))
    layers = [gather(rows, k, span).double() for k in range(rows.layers)]
    hsic = torch.zeros(rows.layers, rows.layers, dtype=torch.float64)
    for batch in batches:
        kernels = torch.stack([_without_diagonal(x[batch] - x[batch].mean(0)) for x in layers])
        b = len(batch)
        inner = _inner(kernels)
        row = kernels.sum(2)
        total = row.sum(1)
        hsic += (inner + torch.outer(total, total) / ((b - 1) * (b - 2)) - 2 / (b - 2) * row @ row.T) / (b * (b - 3))
    return {"hsic": hsic}


def _without_diagonal(x: Tensor) -> Tensor:
    k = x @ x.T
    return k.fill_diagonal_(0)


def _normalise(hsic: Tensor) -> Tensor:
    own = hsic.diagonal().clamp_min(0).sqrt()
    scale = torch.outer(own, own)
    return torch.where(scale > 0, hsic / scale, 0.0)


CKASIM_RBF = Measure(
    name="ckasim-rbf",
    summary="CKA with an RBF kernel, bandwidth half the median distance",
    reference="Kornblith et al. 2019, §5",
    symmetric=True,
    bounds=(0, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    rows=RowWork(_rbf_plan, _rbf_work, _rbf_finish),
    inflates=True,
    quadratic=True,
)

CKASIM_MINIBATCH = Measure(
    name="ckasim-minibatch",
    summary="linear CKA from unbiased HSIC averaged over minibatches of 256 rows",
    reference="Nguyen et al. 2021, eq. 3",
    symmetric=True,
    bounds=(-1, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    rows=RowWork(_batch_plan, _batch_work, lambda sums: _normalise(sums["hsic"])),
)
