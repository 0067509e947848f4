"""What a study of fine-tuning puts on its page: the parts, and what is read off them for pictures and words alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.report.series import Series, layers_of, mean, split_blocks
from stratoscope.results.comparison import Comparison
from stratoscope.results.study import Study

BIASED, DEBIASED = MEASURES = ("ckasim", "ckasim-debiased")
"""The measures a study shows, side by side."""


class Panel(NamedTuple):
    """One block of the figure: layers of a model by layers of the same or another one."""

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


def panels(parts: Study, matrix: Matrix) -> list[Panel]:
    """ORIG-ORIG, FT-ORIG (rows FT), FT-FT, FT[1]-FT[2] (phang2021 Fig. 1), FT-OTHER (rows FT, phang2021 Fig. 7; not
    square where depths differ), then the control with itself."""
    base, first = parts.base, parts.tuned[0]
    found = [
        Panel("ORIG–ORIG", matrix.between(base, base)),
        Panel("FT–ORIG", matrix.between(first, base)),
        Panel("FT–FT", matrix.between(first, first)),
    ]
    if len(parts.tuned) > 1:
        found.append(Panel("FT[1]–FT[2]", matrix.between(first, parts.tuned[1])))
    found += [Panel(f"FT–{role}", matrix.between(first, name)) for role, name in other_roles(parts).items()]
    if parts.control is not None:
        found.append(Panel("RANDOM–RANDOM", matrix.between(parts.control, parts.control)))
    return found


def other_roles(parts: Study) -> dict[str, str]:
    """Models of the study that are not made from its base, by what titles call them: OTHER, or OTHER[1], OTHER[2]."""
    if len(parts.across) == 1:
        return {"OTHER": parts.across[0]}
    return {f"OTHER[{k}]": name for k, name in enumerate(parts.across, start=1)}


class Quarters(NamedTuple):
    """Mean similarities of two models' halves, without layer 0 and the middle block of an odd number."""

    early: float
    """Of the lower halves."""
    late: float
    """Of the upper halves."""
    crossed: float
    """Of one model's lower half with the other's upper half, both ways."""


def quarters(matrix: Matrix, one: str, two: str) -> Quarters | None:
    """How alike two models of any depth are, half by half; None where a half has no value."""
    block = matrix.between(one, two).values
    (low, high), (left, right) = (split_blocks(layers_of(matrix, name)) for name in (one, two))
    crossed = np.concatenate([block[np.ix_(low, right)].ravel(), block[np.ix_(high, left)].ravel()])
    found = [mean(part) for part in (block[np.ix_(low, left)], block[np.ix_(high, right)], crossed)]
    known = [value for value in found if value is not None]
    return Quarters(*known) if len(known) == len(found) else None


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


def largest_difference(parts: Study, comparison: Comparison) -> Difference | None:
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
