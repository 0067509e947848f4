"""Σ over sentences of ‖A - B‖_F for all pairs of heads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from stratoscope.measures.attention.kernels import in_threads, kernel
from stratoscope.measures.attention.rows import DOUBLES, Doubles, Floats, HeadRows, Ints
from stratoscope.statistics.products import upper_gram

TILE = 4
"""Heads that the compiled loop takes at once, as many as `compiled.TILE`, which only numba can import."""


def distance_sums(
    rows: HeadRows, weights: Doubles, *, compiled: bool | None = None, threads: int | None = None
) -> Doubles:
    """(kinds, heads, heads), upper triangle: Σ over sentences of weight · ‖A - B‖_F; weights are (kinds, sentences).

    `compiled` asks for numba's kernel or for numpy; by default the kernel, where numba is installed.
    """
    edges = rows.edges
    fill = kernel("distance_rows_", compiled)
    if fill is None:
        return _by_products(rows.values, edges, weights)
    heads = len(rows.values)
    values = np.pad(rows.values, ((0, -heads % TILE), (0, 0))) if heads % TILE else np.ascontiguousarray(rows.values)
    out = np.zeros((len(weights), len(values), len(values)))
    in_threads(lambda first, step: fill(values, edges, weights, first, step, out), threads)
    return out[:, :heads, :heads]


def _by_products(values: Floats, edges: Ints, weights: Doubles) -> Doubles:
    """The same from ‖A‖² + ‖B‖² - 2⟨A, B⟩ in float64: nearly equal heads cancel, float32 would leave 1e-3."""
    out, size = np.zeros((len(weights), len(values), len(values))), max(1, DOUBLES // len(values))
    for k, (first, last) in enumerate(pairwise(edges)):
        square = np.zeros((len(values), len(values)), order="F")  # as BLAS gives it
        for start in range(first, last, size):
            part = values[:, start : min(last, start + size)]
            square += upper_gram(torch.from_numpy(part.astype(np.float64)))
        own = square.diagonal().copy()
        square *= -2
        square += own
        square += own[:, None]
        distance = np.sqrt(np.maximum(square, 0, out=square), out=square)
        out += weights[:, k, None, None] * distance
    return out
