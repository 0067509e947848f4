"""Sums over rows for pairs of layers: the cross-products every linear measure reduces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stratoscope.statistics.layer import LayerBasis
from stratoscope.statistics.rows import LayerRows

Pairing = tuple[int, int]


@dataclass
class CrossMoments:
    """Mean products of the coordinates of pairs of layers; `a + b` merges shards made with the same bases."""

    pairs: tuple[Pairing, ...]
    count: int = 0
    products: dict[Pairing, Tensor] = field(default_factory=dict)
    """Sum over rows of the outer product of the two layers' coordinates, float64."""

    def update(
        self,
        rows: Mapping[int, Tensor],
        bases: Mapping[int, LayerBasis],
        heads: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Add one chunk of each layer's coordinates, `padded` or as they are; their `heads` if these are finer."""
        places = {k: bases[k].head for k in heads or ()}
        widest = max(w.shape[1] for w in rows.values())
        space = next(iter(rows.values())).new_empty(widest * widest)  # one product's, used again: new pages are slow
        for i, j in self.pairs:
            shape = rows[i].shape[1], rows[j].shape[1]
            product = torch.mm(rows[i].T, rows[j], out=space[: shape[0] * shape[1]].view(shape))
            product = product[: bases[i].rank, : bases[j].rank]
            if (i, j) in self.products:
                self.products[i, j] += product
            else:
                self.products[i, j] = product.to(torch.float64, copy=True)
            if heads:
                head = places[i][:, None], places[j]
                self.products[i, j][head] += heads[i].T @ heads[j] - product[head].double()
        self.count += len(next(iter(rows.values())))

    def __add__(self, other: CrossMoments) -> CrossMoments:
        if self.pairs != other.pairs:
            raise ValueError(f"expected moments of the same pairs of layers, got {self.pairs} and {other.pairs}")
        return CrossMoments(
            self.pairs,
            self.count + other.count,
            {p: self.products[p] + other.products[p] for p in self.pairs},
        )


def cross_moments(
    coordinates: LayerRows,
    bases: Mapping[int, LayerBasis],
    pairs: tuple[Pairing, ...],
    heads: LayerRows | None = None,
) -> CrossMoments:
    """Stream the coordinates of the layers in `pairs` once and add up their products, in float64 those of `heads`."""
    moments = CrossMoments(pairs)
    layers = sorted({k for pair in pairs for k in pair})
    for k in range(len(coordinates.sizes) if pairs else 0):
        fine = None if heads is None else {layer: heads.chunk(layer, k) for layer in layers}
        moments.update({layer: coordinates.chunk(layer, k) for layer in layers}, bases, fine)
    return moments


def norm_products(squared: LayerRows) -> Tensor:
    """Sum over rows of ‖x - mean‖² ‖y - mean‖² for all layers x and y, from the squared norms of their rows."""
    total = torch.zeros(squared.layers, squared.layers, dtype=torch.float64)
    for k in range(len(squared.sizes)):
        s = torch.stack([squared.chunk(layer, k) for layer in range(squared.layers)])
        total += s @ s.T
    return total
