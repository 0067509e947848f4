"""Linear CKA of resampled rows from kernels made once: a row drawn three times is a row of weight three."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stratoscope.measures.kernels.kernel import normalise
from stratoscope.statistics.rows import LayerRows, gather

NAMES = ("ckasim", "ckasim-debiased")
"""The measures that need nothing but linear kernels."""
BYTES = 12.0
"""Memory a kernel's value takes: itself in float64, and the rows of it that a resample has (63 % of both sides)."""


def kernels(rows: LayerRows) -> Tensor:
    """Linear kernels (layers, n, n) of the rows about their mean."""
    stacked = []
    for layer in range(rows.layers):
        x = gather(rows, layer).double()
        x -= x.mean(0)
        stacked.append(x @ x.T)
    return torch.stack(stacked)


def weighted_cka(kernel: Tensor, weight: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Scores of all pairs of layers, with row i counted weight[i] times; the formulas are those of `alignment`."""
    drawn = weight.nonzero().flatten()
    k, w = kernel[:, drawn[:, None], drawn], weight[drawn].double()
    own = k.diagonal(dim1=1, dim2=2).clone()
    sums = k @ w
    k *= torch.outer(w, w).sqrt()
    flat = k.flatten(1)
    inner, n = flat @ flat.T, float(w.sum())
    scores = {}
    if "ckasim" in names:
        total = sums @ w
        hsic = inner - 2 / n * (sums * w) @ sums.T + torch.outer(total, total) / n**2
        scores["ckasim"] = normalise(hsic)
    if "ckasim-debiased" in names:  # without the diagonal, on which a row drawn twice meets only itself
        others = sums - own
        total = others @ w
        corner = torch.outer(total, total) / ((n - 1) * (n - 2))
        hsic = inner - (own * w) @ own.T + corner - 2 / (n - 2) * (others * w) @ others.T
        scores["ckasim-debiased"] = normalise(hsic)
    return scores
