"""What every picture of a matrix needs to know: model blocks on an axis, the colour range, missing layers, labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import numpy as np

from stratoscope.core.matrix import Layer, Matrix

ROUNDING = 1e-6
"""A similarity of 1 may be computed as 1 + 1e-9; that does not stretch the colour scale."""


class Block(NamedTuple):
    """Consecutive positions on an axis that belong to one model."""

    model: str
    start: int
    stop: int
    """One past the last position."""


def blocks(axis: Iterable[Layer]) -> list[Block]:
    """The models on an axis, in order, with the positions each covers."""
    found, start = [], 0
    for model, layers in groupby(axis, key=lambda layer: layer.model):
        stop = start + sum(1 for _ in layers)
        found.append(Block(model, start, stop))
        start = stop
    return found


def color_range(matrices: Iterable[Matrix]) -> tuple[float, float]:
    """The one scale of a figure: [0, 1], widened outwards to a multiple of 0.05 only where a value exceeds it."""
    values = np.concatenate([m.values.ravel() for m in matrices])
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (
        math.floor(low * 20) / 20 if low < -ROUNDING else 0.0,
        math.ceil(high * 20) / 20 if high > 1 + ROUNDING else 1.0,
    )


def constant_layers(matrix: Matrix) -> list[Layer]:
    """Layers without a single value, in axis order: constant on these rows, so that no similarity exists."""
    missing = np.isnan(matrix.values)
    gone = [r for r, row in zip(matrix.rows, missing, strict=True) if row.all()]
    gone += [c for c, column in zip(matrix.columns, missing.T, strict=True) if column.all()]
    return list(dict.fromkeys(gone))


def printable(name: str) -> str:
    """A label that can be drawn and written anywhere: no control characters, no broken Unicode, no line breaks."""
    whole = " ".join(name.encode("utf-8", "replace").decode("utf-8").split())
    return "".join(c if c.isprintable() else "\ufffd" for c in whole)


def shorten(name: str, width: int) -> str:
    """A label of at most `width` characters; a long one keeps its beginning and, twice as long, its end."""
    name = printable(name)
    width = max(width, 4)
    if len(name) <= width:
        return name
    head = (width - 1) // 3
    return name[:head] + "…" + name[len(name) - (width - 1 - head) :]
