"""Rows of attention about their mean in units of their norm: products of two are Pearson's r."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stratoscope.measures.attention.kernels import in_threads, kernel
from stratoscope.measures.attention.rows import Floats, HeadRows

Flags = npt.NDArray[np.bool_]


def unit_rows(
    rows: HeadRows, spread: float, *, compiled: bool | None = None, threads: int | None = None
) -> tuple[Floats, Flags]:
    """Values of every row less their mean, over their norm, and (heads, rows) whether a row varies; 0 where not.

    A row varies if the norm of its centred values is above `spread` / √targets, as weights are of size 1 / targets.
    `compiled` asks for numba's kernel or for numpy; by default the kernel, where numba is installed.
    """
    fill = kernel("unit_rows_", compiled)
    if fill is None:
        return _unit_rows(rows, spread)
    values, out = np.ascontiguousarray(rows.values), np.empty(rows.values.shape, np.float32)
    varies = np.empty((len(values), len(rows.lengths)), np.bool_)
    in_threads(lambda first, step: fill(values, rows.lengths, spread, first, step, out, varies), threads)
    return out, varies


def _unit_rows(rows: HeadRows, spread: float) -> tuple[Floats, Flags]:
    lengths = rows.lengths
    starts, values = np.cumsum(lengths) - lengths, rows.values.astype(np.float64)
    mean = np.add.reduceat(values, starts, axis=1) / lengths
    centred = (values - np.repeat(mean, lengths, axis=1)).astype(np.float32)  # rounded once the mean is gone
    squares = np.add.reduceat(np.square(centred), starts, axis=1)
    varies = squares > np.square(spread) / lengths
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, squares, 1)), 0).astype(np.float32)
    centred *= np.repeat(scale, lengths, axis=1)
    return centred, varies
