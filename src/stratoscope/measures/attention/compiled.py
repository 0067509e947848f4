"""The sums behind Jensen-Shannon divergences and Frobenius norms, compiled by numba; importing this needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

DEGREE = 8
"""Of the polynomial in log2(1 + r) ≈ r · p(r), |error| ≤ 1.4e-8 for 1 + r from √½ to √2."""
BLOCK = 512
"""Values added up in float32 before the sum goes on in float64."""
TILE = 4
"""Heads on each side of a tile: its 16 sums and 8 values fit into the 32 registers of AVX-512."""
ROOT_HALF_BITS = np.int32(0x3F3504F3)
"""√½ as the bits of a float32."""


def _polynomial() -> list[np.float32]:
    """Coefficients of p, by interpolation at Chebyshev nodes."""
    low, high = 0.5**0.5 - 1, 2**0.5 - 1
    nodes = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    fit = np.polynomial.Chebyshev.fit(nodes, np.log2(1 + nodes) / nodes, DEGREE, domain=[low, high])
    return [np.float32(c) for c in fit.convert(kind=np.polynomial.Polynomial).coef]


C0, C1, C2, C3, C4, C5, C6, C7, C8 = _polynomial()


@njit(fastmath=True, nogil=True)
def _mixture(a: Any, b: Any) -> Any:
    """Σ x log2 x of x = a + b; a function of its own, which LLVM turns into wide vectors."""
    whole, rest = 0.0, np.float32(0)
    for k in range(a.shape[0]):
        x = a[k] + b[k]
        bits = np.float32(x).view(np.int32)
        exponent = np.int32(np.int32(bits - ROOT_HALF_BITS) >> 23)
        r = np.int32(bits - np.int32(exponent << 23)).view(np.float32) - np.float32(1)
        s = r * r
        upper = (C4 + r * C5) + s * ((C6 + r * C7) + s * C8)
        p = (C0 + r * C1) + s * ((C2 + r * C3) + s * upper)
        # The exponent's share is summed in float64: a uniform row repeats one rounding, which float32 shows as 3e-7.
        whole += np.float64(x) * np.float64(exponent)  # 0 gives 0: its exponent is finite
        rest += x * (r * p)
    return whole + rest


@njit(nogil=True)
def mixture_rows_(values: Any, first: int, step: int, out: Any) -> None:
    """Fill rows `first`, `first` + `step`, ... of the upper triangle: Σ (a + b) log2(a + b) of every pair of heads."""
    heads, places = values.shape
    for start in range(0, places, BLOCK):
        stop = min(places, start + BLOCK)
        for i in range(first, heads, step):
            for j in range(i, heads):
                out[i, j] += _mixture(values[i, start:stop], values[j, start:stop])


@njit(fastmath=True, nogil=True)
def _add_squares_(values: Any, i: int, j: int, start: int, stop: int, out: Any) -> None:
    """Σ (a - b)² of heads i ... i + 3 with heads j ... j + 3; written out, as only then the sums stay in registers."""
    a0, a1, a2, a3 = (
        values[i, start:stop],
        values[i + 1, start:stop],
        values[i + 2, start:stop],
        values[i + 3, start:stop],
    )
    b0, b1, b2, b3 = (
        values[j, start:stop],
        values[j + 1, start:stop],
        values[j + 2, start:stop],
        values[j + 3, start:stop],
    )
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = np.float32(0)
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = np.float32(0)
    for k in range(stop - start):
        w, x, y, z = b0[k], b1[k], b2[k], b3[k]
        a = a0[k]
        s00, s01, s02, s03 = s00 + (a - w) ** 2, s01 + (a - x) ** 2, s02 + (a - y) ** 2, s03 + (a - z) ** 2
        a = a1[k]
        s10, s11, s12, s13 = s10 + (a - w) ** 2, s11 + (a - x) ** 2, s12 + (a - y) ** 2, s13 + (a - z) ** 2
        a = a2[k]
        s20, s21, s22, s23 = s20 + (a - w) ** 2, s21 + (a - x) ** 2, s22 + (a - y) ** 2, s23 + (a - z) ** 2
        a = a3[k]
        s30, s31, s32, s33 = s30 + (a - w) ** 2, s31 + (a - x) ** 2, s32 + (a - y) ** 2, s33 + (a - z) ** 2
    for row, sums in enumerate(
        ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))
    ):
        out[i + row, j] += sums[0]
        out[i + row, j + 1] += sums[1]
        out[i + row, j + 2] += sums[2]
        out[i + row, j + 3] += sums[3]


@njit(nogil=True)
def distance_rows_(values: Any, edges: Any, weights: Any, first: int, step: int, out: Any) -> None:
    """Fill rows of tiles `first`, `first` + `step`, ...: by row of weights, Σ over sentences of weight · ‖A - B‖.

    Heads are a multiple of `TILE`. Differences are taken value by value: of heads that are nearly equal float32 loses
    nothing.
    """
    heads = len(values)
    squares = np.zeros((heads, heads))
    for k in range(len(edges) - 1):
        for start in range(edges[k], edges[k + 1], BLOCK):
            stop = min(edges[k + 1], start + BLOCK)
            for i in range(first * TILE, heads, step * TILE):
                for j in range(i, heads, TILE):
                    _add_squares_(values, i, j, start, stop, squares)
        for tile in range(first * TILE, heads, step * TILE):
            for i in range(tile, tile + TILE):
                for j in range(i, heads):
                    distance = np.sqrt(squares[i, j])
                    for kind in range(len(weights)):
                        out[kind, i, j] += weights[kind, k] * distance
                squares[i] = 0


@njit(fastmath=True, nogil=True)
def unit_rows_(values: Any, lengths: Any, spread: float, first: int, step: int, out: Any, varies: Any) -> None:
    """Fill heads `first`, `first` + `step`, ...: each row less its mean, over its norm; 0 where it does not vary."""
    for head in range(first, values.shape[0], step):
        start = 0
        for k in range(len(lengths)):
            stop = start + lengths[k]
            row, unit = values[head, start:stop], out[head, start:stop]
            mean = 0.0
            for x in row:
                mean += x
            mean /= lengths[k]
            square = 0.0
            for i in range(lengths[k]):
                unit[i] = row[i] - mean
                square += np.float64(unit[i]) ** 2
            varies[head, k] = square > spread * spread / lengths[k]
            unit *= np.float32(1 / np.sqrt(square)) if varies[head, k] else np.float32(0)
            start = stop
