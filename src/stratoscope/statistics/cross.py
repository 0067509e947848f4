"""Products of pairs of layers, over rows: what every linear measure reduces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stratoscope.statistics.layer import LayerBasis
from stratoscope.statistics.rows import LayerRows, count

Pairing = tuple[int, int]


def cross_products(
    coordinates: LayerRows,
    bases: Mapping[int, LayerBasis],
    pairs: Sequence[Pairing],
    heads: LayerRows | None = None,
) -> dict[Pairing, Tensor]:
    """Mean over rows of the outer product of two layers' coordinates, float64, for each of the pairs.

    Coordinates, `padded` or as they are, are streamed once; their `heads` replace what of them is coarser.
    """
    products: dict[Pairing, Tensor] = {}
    layers = sorted({k for pair in pairs for k in pair})
    for k in range(len(coordinates.sizes) if pairs else 0):
        rows = {layer: coordinates.chunk(layer, k) for layer in layers}
        fine = {} if heads is None else {layer: heads.chunk(layer, k) for layer in layers}
        widest = max(w.shape[1] for w in rows.values())
        space = next(iter(rows.values())).new_empty(widest * widest)  # one product's, used again: new pages are slow
        for i, j in pairs:
            shape = rows[i].shape[1], rows[j].shape[1]
            product = torch.mm(rows[i].T, rows[j], out=space[: shape[0] * shape[1]].view(shape))
            product = product[: bases[i].rank, : bases[j].rank]
            if (i, j) in products:
                products[i, j] += product
            else:
                products[i, j] = product.to(torch.float64, copy=True)
            if fine:
                head = bases[i].head[:, None], bases[j].head
                products[i, j][head] += fine[i].T @ fine[j] - product[head].double()
    return {pair: product.div_(count(coordinates)) for pair, product in products.items()}


def norm_products(squared: LayerRows) -> Tensor:
    """Sum over rows of ‖x - mean‖² ‖y - mean‖² for all layers x and y, from the squared norms of their rows."""
    total = torch.zeros(squared.layers, squared.layers, dtype=torch.float64)
    for k in range(len(squared.sizes)):
        s = torch.stack([squared.chunk(layer, k) for layer in range(squared.layers)])
        total += s @ s.T
    return total
