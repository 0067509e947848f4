"""The sum behind Jensen-Shannon divergences, compiled by numba; importing this module needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

DEGREE = 8
"""Of the polynomial in log2(1 + r) ≈ r · p(r), |error| ≤ 1.4e-8 for 1 + r from √½ to √2."""
BLOCK = 512
"""Values added up in float32 before the sum goes on in float64."""
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
