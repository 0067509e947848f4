"""How far single rows move between two layers."""

from __future__ import annotations

import torch
from torch import Tensor

from stratoscope.statistics.rows import LayerRows, chunks


def row_moves(rows: LayerRows, first: int, second: int) -> Tensor:
    """(n,) 1 − cosine between each row of the Gram matrices K = XXᵀ and L = YYᵀ of two centred layers.

    1 − xᵢᵀ(XᵀY)yᵢ / √(xᵢᵀ(XᵀX)xᵢ · yᵢᵀ(YᵀY)yᵢ): how differently a row relates to all others. Linear CKA (Kornblith et
    al. 2019, eq. 3) is the same cosine over all rows at once, so no rotation moves a row. No n × n matrix is made.
    """
    means = [sum(c.double().sum(0) for c in chunks(rows, k)) / sum(rows.sizes) for k in (first, second)]

    def pairs() -> list[tuple[Tensor, Tensor]]:
        both = zip(chunks(rows, first), chunks(rows, second), strict=True)
        return [(x.double() - means[0], y.double() - means[1]) for x, y in both]

    xx, yy, xy = (sum((a.T @ b for a, b in sides), torch.zeros(())) for sides in _products(pairs()))
    made = []
    for x, y in pairs():
        size = ((x @ xx) * x).sum(1) * ((y @ yy) * y).sum(1)
        cosine = ((x @ xy) * y).sum(1) / size.clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        made.append(torch.where(size > 0, 1 - cosine, torch.nan))
    return torch.cat(made)


def _products(pairs: list[tuple[Tensor, Tensor]]) -> list[list[tuple[Tensor, Tensor]]]:
    """The factors of XᵀX, YᵀY and XᵀY, chunk by chunk."""
    return [[(x, x) for x, _ in pairs], [(y, y) for _, y in pairs], pairs]
