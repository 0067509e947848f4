"""Sums over sentences for all pairs of heads, from which every attention measure follows; they add up over shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from stratoscope.measures.attention.distances import distance_sums
from stratoscope.measures.attention.mixtures import mixture_sums
from stratoscope.measures.attention.rows import DOUBLES, Doubles, HeadRows
from stratoscope.measures.attention.standardise import unit_rows
from stratoscope.statistics.products import upper_gram

DISTANCE, RELATIVE, CORRELATION, CORRELATED, DIVERGENCE, SCATTER = PAIRS = (
    "distance",
    "relative",
    "correlation",
    "correlated",
    "divergence",
    "scatter",
)
"""Of each pair of heads: Σ ‖A - B‖, the same over √(2 · words), Σ of the rows' correlations and how many there are,
Σ of the rows' Jensen-Shannon divergences, Σ of products of weights."""
TOTAL, SKIPPED, COUNTS = "total", "skipped", "counts"
"""Of each head: Σ of weights, and rows without a correlation; of all: sentences, rows and word pairs."""
PLACES = 256
"""Products of unit rows added up in float32 before the sum goes on in float64: over 2,048 one-hot rows lose 1e-6."""
CONSTANT = 8.0
"""Units of rounding that a row's weights must spread over to have a correlation: softmax and sub-words leave a few."""


@dataclass
class HeadSums:
    """An accumulator: `update` with sentences, `+` with another, `sums` when done."""

    wanted: frozenset[str]
    """Which of `PAIRS`."""
    eps: float = float(np.finfo(np.float32).eps)
    """Relative rounding of the arithmetic that made the weights."""
    sums: dict[str, Doubles] = field(default_factory=dict)
    """Of pairs the upper triangle; empty before the first update."""

    def update(self, rows: HeadRows) -> None:
        """Add sentences, any number at once."""
        heads = len(rows.values)
        made: dict[str, Doubles] = {
            name: np.zeros((heads, heads), order="F")  # as BLAS gives them
            for name in (CORRELATION, CORRELATED, SCATTER)
            if name in self.wanted
        }
        made |= {TOTAL: np.zeros(heads), SKIPPED: np.zeros(heads)}
        made[COUNTS] = np.array([len(rows.words), len(rows.lengths), rows.lengths.sum()], dtype=np.float64)
        by_sentence = rows.sentences() if self.wanted & {SCATTER, CORRELATION} else ()
        for part in (part for one in by_sentence for part in one.chunks(DOUBLES // heads)):
            if SCATTER in self.wanted:
                values = part.values.astype(np.float64)
                made[SCATTER] += upper_gram(torch.from_numpy(values))
                made[TOTAL] += values.sum(axis=1)
            if CORRELATION in self.wanted:
                _add_correlations_(made, part, CONSTANT * self.eps)
        weights = {DISTANCE: np.ones(len(rows.words)), RELATIVE: (2.0 * rows.words) ** -0.5}
        if kinds := [name for name in weights if name in self.wanted]:
            made |= dict(zip(kinds, distance_sums(rows, np.stack([weights[k] for k in kinds])), strict=True))
        if DIVERGENCE in self.wanted:
            made[DIVERGENCE] = _divergences(rows)
        for name, value in made.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def __add__(self, other: HeadSums) -> HeadSums:
        if self.wanted != other.wanted:
            raise ValueError(f"expected the same sums, got {sorted(self.wanted)} and {sorted(other.wanted)}")
        both = {**self.sums, **other.sums}
        added = {k: self.sums[k] + other.sums[k] if k in self.sums and k in other.sums else both[k] for k in both}
        return HeadSums(self.wanted, self.eps, added)


def _add_correlations_(made: Mapping[str, Doubles], rows: HeadRows, spread: float) -> None:
    """Some rows' Σ of Pearson's r; a row that does not vary has none and is skipped, as one of a single target is."""
    centred, varies = unit_rows(rows, spread, threads=1)  # one sentence: sooner done than shared out
    for start in range(0, centred.shape[1], PLACES):
        part = np.ascontiguousarray(centred[:, start : start + PLACES])  # torch would share so small a copy in threads
        made[CORRELATION][...] += upper_gram(torch.from_numpy(part))
    if varies.all():
        made[CORRELATED][...] += len(rows.lengths)
    else:
        made[CORRELATED][...] += upper_gram(torch.from_numpy(varies.astype(np.float64)))
        made[SKIPPED][...] += (~varies).sum(axis=1)


def _divergences(rows: HeadRows) -> Doubles:
    """Σ over rows of JS(a, b) = H(m) - ½H(a) - ½H(b), m = (a + b) / 2.

    With S_ij = Σ (a + b) ln(a + b) that is ¼S_ii + ¼S_jj - ½S_ij: a head and itself diverge by exactly 0, whatever
    approximates the logarithm.
    """
    mixed = mixture_sums(np.ascontiguousarray(rows.values))
    own = mixed.diagonal() / 4
    return np.triu(own + own[:, None] - mixed / 2)


def full(upper: Doubles) -> Doubles:
    """The symmetric matrix with this upper triangle."""
    upper = np.triu(upper)
    return upper + np.triu(upper, 1).T
