"""Kernel CKA with an RBF kernel, and minibatch CKA: sums over pairs of rows, all layers side by side.

A layer's kernel tile is made once and serves every pair of layers: the tiles of all layers are one tall matrix whose
Gram matrix holds every pair's inner product.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from stratoscope.measures import chance
from stratoscope.measures.measure import ORTHOGONAL, Item, Measure, RowWork, Sums
from stratoscope.statistics.products import upper_gram
from stratoscope.statistics.rows import LayerRows, count, gather

FRACTION = 0.5
"""Bandwidth of the RBF kernel as a fraction of the median distance (Kornblith et al. 2019, §5)."""
MEDIAN_ROWS = 2048
"""The median distance is taken over at most so many rows, drawn with the seed."""
BLOCK = 256
"""Rows of a kernel tile held at once for all layers."""
LANES = 4
"""Products of so many kernels, or a multiple, take a quarter less time than those of one less."""
BATCH = 256
"""Rows of a minibatch (Nguyen et al. 2021)."""
FAR = 16.0
"""Half a row's squared distance from the shift, in units of the bandwidth, beyond which float32 exponents lose 1e-6.

Most layers stay below 2; the massive activations of some decoders are in the thousands, and take float64.
"""
ALIKE = 8.0
"""Units of rounding, relative to a row's own size, within which two rows are the same row."""
SPAN = 2048
"""Minibatches are drawn from so many neighbouring rows, so that few chunks are read for each."""


def _rbf_plan(rows: LayerRows, seed: int) -> list[Item]:
    """Pairs of chunks of the upper triangle, with each layer's shift-free bandwidth."""
    n = count(rows)
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(n, generator=generator)[:MEDIAN_ROWS].sort().values if n > MEDIAN_ROWS else None
    doubled = [
        2 * FRACTION**2 * _typical_distance(gather(rows, layer, some), rows.eps(layer)) for layer in range(rows.layers)
    ]
    k = len(rows.sizes)
    return [{"a": a, "b": b, "doubled": doubled} for a in range(k) for b in range(a, k)]


def _typical_distance(x: Tensor, eps: float) -> float:
    """Median of ‖xᵢ - xⱼ‖², or 0 where that is only rounding: most rows repeat."""
    exact = x.double()
    size = float(exact.square().sum(1).median())
    exact = exact - exact.mean(0)
    centred = exact.to(x.dtype)
    median = _median_distance(centred)
    if float(centred.square().sum(1).max()) > FAR * median:
        median = _median_distance(exact)
    return median if median > (ALIKE * eps) ** 2 * size else 0.0


def _median_distance(x: Tensor) -> float:
    """Median of ‖xᵢ - xⱼ‖² over all i, j as numpy defines it, i = j included; rows must be near the origin.

    The n zeros come first and every other value twice: one zero and half of the others are enough.
    """
    n, squares = len(x), x.square().sum(1).numpy()
    i, j = np.triu_indices(n, 1)
    others = np.maximum(squares[i] + squares[j] - 2 * upper_gram(x)[i, j], 0)
    ranks = [max(0, (k - n) // 2 + 1) for k in ((n * n - 1) // 2, n * n // 2)]
    return float(np.partition(np.append(others, squares.dtype.type(0)), ranks)[ranks].mean(dtype=np.float64))


def _rbf_work(rows: LayerRows, item: Item) -> Sums:
    """Sums for one pair of chunks: inner products of all layers' kernels, and their row sums chunk by chunk.

    Kernels are symmetric: of a chunk with itself only what is right of the diagonal is made, in steps of `BLOCK`.
    """
    a, b = item["a"], item["b"]
    height, width = rows.sizes[a], rows.sizes[b]
    one = rows.layers  # after the layers' kernels (zeros without a bandwidth) one of ones, which gives row sums
    lanes = one + LANES - one % LANES
    sides = {k: _sides(rows, k, item) for k in range(rows.layers) if item["doubled"][k] > 0}
    tile = torch.zeros(lanes, min(BLOCK, height), width, dtype=rows.chunk(0, a).dtype)
    tile[one] = 1
    inner = torch.zeros(lanes, lanes, dtype=torch.float64)
    sums = {k: torch.zeros(rows.layers, rows.sizes[k], dtype=torch.float64) for k in (a, b)}
    for start in range(0, height, BLOCK):
        stop = min(start + BLOCK, height)
        first, square = (start, stop - start) if a == b else (0, 0)  # columns on the diagonal count once, others twice
        part = tile[:, : stop - start, first:]
        for k, (x, y) in sides.items():
            if x.dtype == tile.dtype:
                torch.mm(x[start:stop], y[first:].T, out=part[k])
            else:
                part[k] = x[start:stop] @ y[first:].T
            # HSIC does not see a constant added to a kernel; a kernel about 0 keeps its digits in float32 sums.
            part[k].exp_().sub_(0.5)
        products = _products(part)
        inner += 2 * products.sum(0, dtype=torch.float64) - _products(part[:, :, :square]).sum(0, dtype=torch.float64)
        sums[a][:, start:stop] += products[:, :one, one].T
        sums[b][:, first + square :] += part[:one, :, square:].sum(1)
    return {"inner": inner[:one, :one], **{f"sums.{k:05d}": of for k, of in sums.items()}}


def _sides(rows: LayerRows, layer: int, item: Item) -> tuple[Tensor, Tensor]:
    """Two chunks of a layer, widened so that the product of two rows is their kernel's exponent, -‖x-y‖²/2σ²."""
    x, y = rows.chunk(layer, item["a"]), rows.chunk(layer, item["b"])
    shift, scale = x.mean(0), (2 / item["doubled"][layer]) ** 0.5  # any shift will do, so that squares stay small
    sides = _widened(x, shift, scale, own=-2), _widened(y, shift, scale, own=-1)
    if -min(float(sides[0][:, -2].min()), float(sides[1][:, -1].min())) <= FAR:
        return sides
    return _widened(x.double(), shift, scale, own=-2), _widened(y.double(), shift, scale, own=-1)


def _widened(c: Tensor, shift: Tensor, scale: float, *, own: int) -> Tensor:
    """Rows moved and scaled, with two columns more: half their squared norm, negated, as column `own`, and ones."""
    wide = c.new_ones(len(c), c.shape[1] + 2)
    z = torch.sub(c, shift, out=wide[:, :-2]).mul_(scale)
    wide[:, own] = z.square().sum(1).mul_(-0.5)
    return wide


def _products(tile: Tensor) -> Tensor:
    """Inner products of all layers' kernels for each row of a tile: sums over one row only stay exact in float32."""
    by_row = tile.transpose(0, 1)  # (rows, layers, columns)
    return torch.bmm(by_row, by_row.mT)


def _rbf_finish(sums: Sums) -> Tensor:
    """Centre the kernels, all layers at once: HSIC = <K, L> - 2/n Kᵀ1·L1 + ... (Kornblith et al. 2019, eq. 3)."""
    row = torch.cat([sums[name] for name in sorted(sums) if name.startswith("sums.")], 1)
    n = row.shape[1]
    total = row.sum(1)
    return normalise(sums["inner"] - 2 / n * row @ row.T + torch.outer(total, total) / n**2, absent=math.nan)


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
        centred = [x[batch] - x[batch].mean(0) for x in layers]
        kernels = torch.stack([(x @ x.T).fill_diagonal_(0) for x in centred])
        b = len(batch)
        inner = _products(kernels).sum(0)
        row = kernels.sum(2)
        total = row.sum(1)
        hsic += (inner + torch.outer(total, total) / ((b - 1) * (b - 2)) - 2 / (b - 2) * row @ row.T) / (b * (b - 3))
    return {"hsic": hsic}


def normalise(hsic: Tensor, *, absent: float = 0.0) -> Tensor:
    """CKA of all pairs of layers from their HSIC, `absent` where one has none with itself."""
    own = hsic.diagonal().clamp_min(0).sqrt()
    scale = torch.outer(own, own)
    return torch.where(scale > 0, hsic / scale, absent)


CKASIM_RBF = Measure(
    name="ckasim-rbf",
    summary="CKA with an RBF kernel, bandwidth half the median distance",
    reference="Kornblith et al. 2019, §5",
    symmetric=True,
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    rows=RowWork(_rbf_plan, _rbf_work, _rbf_finish),
    chance=chance.ckasim_rbf,
    quadratic=True,
    undefined="most pairs of rows are alike, and a median distance of 0 is no bandwidth",
)

CKASIM_MINIBATCH = Measure(
    name="ckasim-minibatch",
    summary="linear CKA from unbiased HSIC averaged over minibatches of 256 rows",
    reference="Nguyen et al. 2021, eq. 3; Song et al. 2012; Kornblith et al. 2019",
    symmetric=True,
    bounds=(-1, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    rows=RowWork(_batch_plan, _batch_work, lambda sums: normalise(sums["hsic"])),
)
