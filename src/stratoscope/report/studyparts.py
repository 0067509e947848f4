"""What a study of fine-tuning puts on its page: the parts, and what is read off them for pictures and words alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stratoscope.core.depth import Depth
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.result import Comparison, Layer, Matrix, ModelInfo
from stratoscope.report.series import Series, layers_of

BIASED, DEBIASED = MEASURES = ("ckasim", "ckasim-debiased")
"""The measures a study shows, side by side."""


@dataclass(frozen=True)
class StudyParts:
    """A base model, what was tuned from it, and everything that was measured."""

    comparisons: Mapping[str, Comparison]
    """By unit: the base, the tuned models and the control under `MEASURES`."""
    base: str
    tuned: tuple[str, ...]
    """At least one; the first is FT, and with the second FT[1] and FT[2]."""
    control: str | None = None
    """The base's architecture with fresh weights."""
    depth: Depth | None = None
    cut: Mapping[str, Any] | None = None
    """Blocks kept and in all, metric and parameters before and after, latency ratio, or why nothing was cut."""

    def __post_init__(self) -> None:
        if not self.tuned:
            raise StratoscopeError("expected at least one fine-tuned model, got none; name it after the base model")

    @property
    def models(self) -> list[ModelInfo]:
        """Every model of the comparisons, once."""
        return list(dict.fromkeys(m for c in self.comparisons.values() for m in c.models))


class Panel(NamedTuple):
    """One square of the figure."""

    title: str
    matrix: Matrix
    """Rows are the first model of the title."""


def matrices(comparison: Comparison) -> list[Matrix]:
    """The matrices a study shows, biased first."""
    found = [comparison[m] for m in MEASURES if m in comparison]
    if not found:
        raise StratoscopeError(
            f"expected {' or '.join(MEASURES)}, got {', '.join(comparison)}; compare again with them"
        )
    return found


def panels(parts: StudyParts, matrix: Matrix) -> list[Panel]:
    """ORIG-ORIG, FT-ORIG (rows FT), FT-FT, FT[1]-FT[2] (phang2021 Fig. 1), then the control with itself."""
    base, first = parts.base, parts.tuned[0]
    found = [
        Panel("ORIG–ORIG", matrix.between(base, base)),
        Panel("FT–ORIG", matrix.between(first, base)),
        Panel("FT–FT", matrix.between(first, first)),
    ]
    if len(parts.tuned) > 1:
        found.append(Panel("FT[1]–FT[2]", matrix.between(first, parts.tuned[1])))
    if parts.control is not None:
        found.append(Panel("RANDOM–RANDOM", matrix.between(parts.control, parts.control)))
    return found


def drift(matrix: Matrix, base: str, tuned: str) -> Series | None:
    """1 - similarity of each layer with the same layer of the base, or None where their layers are not the same."""
    layers = layers_of(matrix, base)
    if layers_of(matrix, tuned) != layers:
        return None
    block = matrix.between(tuned, base)
    low, high = (None if edge is None else 1 - np.diag(edge) for edge in (block.high, block.low))
    return Series(layers, 1 - np.diag(block.values), low, high)


class Difference(NamedTuple):
    """Where the biased and the debiased score are furthest apart."""

    size: float
    row: Layer
    column: Layer
    biased: float
    debiased: float


def largest_difference(parts: StudyParts, comparison: Comparison) -> Difference | None:
    """Over all cells that are shown; None unless both measures were computed."""
    if not set(MEASURES) <= set(comparison):
        return None
    found = []
    for (_, one), (_, two) in zip(*(panels(parts, comparison[m]) for m in MEASURES), strict=True):
        gap = np.abs(one.values - two.values)
        if not np.isnan(gap).all():
            i, j = np.unravel_index(int(np.nanargmax(gap)), gap.shape)
            cell = float(gap[i, j]), one.rows[i], one.columns[j], float(one.values[i, j]), float(two.values[i, j])
            found.append(Difference(*cell))
    return max(found, key=lambda d: d.size, default=None)
