"""Sums over sentences for all pairs of heads, from which every attention measure follows; they add up over shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from stratoscope.measures.attention.mixtures import mixture_sums
from stratoscope.measures.attention.rows import Doubles, HeadRows
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
DOUBLES = 2_000_000
"""Weights taken to float64 at once, about: of a long sentence some rows after the other."""
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
            name: np.zeros((heads, heads), order="F")
            for name in PAIRS
            if name in self.wanted  # as BLAS gives them
        }
        made |= {TOTAL: np.zeros(heads), SKIPPED: np.zeros(heads)}
        made[COUNTS] = np.array([len(rows.words), len(rows.lengths), rows.lengths.sum()], dtype=np.float64)
        if self.wanted & {DISTANCE, RELATIVE, SCATTER, CORRELATION}:
            for sentence in rows.sentences():
                product = np.zeros((heads, heads), order="F")
                for part in sentence.chunks(DOUBLES // heads):
                    values = part.values.astype(np.float64)  # nearly equal heads cancel: float32 would leave 1e-3
                    if self.wanted & {DISTANCE, RELATIVE, SCATTER}:
                        product += upper_gram(torch.from_numpy(values))
                        made[TOTAL] += values.sum(axis=1)
                    if CORRELATION in self.wanted:
                        _add_correlations_(made, values, part, CONSTANT * self.eps)
                _add_products_(made, product, len(sentence.lengths))
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


def _add_products_(made: Mapping[str, Doubles], product: Doubles, words: int) -> None:
    """One sentence's ‖A - B‖_F from products: ‖A‖² + ‖B‖² - 2⟨A, B⟩; those are the scatter as well."""
    own = product.diagonal().copy()
    if SCATTER in made:
        made[SCATTER][...] += product
    if DISTANCE in made or RELATIVE in made:
        product *= -2
        product += own
        product += own[:, None]
        distance = np.sqrt(np.maximum(product, 0, out=product), out=product)
        if DISTANCE in made:
            made[DISTANCE][...] += distance
        if RELATIVE in made:
            distance /= (2 * words) ** 0.5
            made[RELATIVE][...] += distance


def _add_correlations_(made: Mapping[str, Doubles], values: Doubles, sentence: HeadRows, constant: float) -> None:
    """Some rows' Σ of Pearson's r: rows about their mean in units of their norm, then products.

    A row that does not vary has no correlation and is skipped, as one of a single target is.
    """
    lengths = sentence.lengths
    starts = np.cumsum(lengths) - lengths
    mean = np.add.reduceat(values, starts, axis=1) / lengths
    centred = (values - np.repeat(mean, lengths, axis=1)).astype(np.float32)  # rounded once the mean is gone
    squares = np.add.reduceat(np.square(centred), starts, axis=1)
    varies = squares > np.square(constant) / lengths  # weights of size 1 / length
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, squares, 1)), 0).astype(np.float32)
    centred *= np.repeat(scale, lengths, axis=1)
    unit = torch.from_numpy(centred)
    for start in range(0, unit.shape[1], PLACES):
        made[CORRELATION][...] += upper_gram(unit[:, start : start + PLACES])
    if varies.all():
        made[CORRELATED][...] += len(lengths)
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
