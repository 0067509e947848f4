"""Σ (a + b) log(a + b) for all pairs of heads: all the logarithms that Jensen-Shannon divergences need."""

from __future__ import annotations

import math

import numpy as np

from stratoscope.measures.attention.kernels import in_threads, kernel
from stratoscope.measures.attention.rows import Doubles, Floats

PLACES, TOGETHER = 1024, 32
"""Values of a head, and heads, that numpy takes at once: both blocks stay in the cache."""
TINY = 1e-300
"""Stands for 0, whose logarithm numpy would warn of; x log x is 1e-297 there."""


def mixture_sums(values: Floats, *, compiled: bool | None = None, threads: int | None = None) -> Doubles:
    """(heads, heads), upper triangle: S_ij = Σ (a + b) ln(a + b) over all values a of head i and b of head j.

    `compiled` asks for numba's kernel or for numpy; by default the kernel, where numba is installed.
    """
    fill, out = kernel("mixture_rows_", compiled), np.zeros((len(values), len(values)))
    if fill is None:
        in_threads(lambda first, step: _rows_(values, first, step, out), threads)
        return out
    in_threads(lambda first, step: fill(values, first, step, out), threads)
    return out * math.log(2)


def _rows_(values: Floats, first: int, step: int, out: Doubles) -> None:
    """The same sums in numpy, in float64 and with natural logarithms."""
    space = np.empty((2, TOGETHER, PLACES))
    for start in range(0, values.shape[1], PLACES):
        block = np.maximum(values[:, start : start + PLACES].astype(np.float64), TINY)
        for i in range(first, len(block), step):
            for j in range(i, len(block), TOGETHER):
                other = block[j : j + TOGETHER]
                x, log = space[:, : len(other), : other.shape[1]]
                np.log(np.add(block[i], other, out=x), out=log)
                out[i, j : j + TOGETHER] += np.multiply(x, log, out=log).sum(axis=1)
