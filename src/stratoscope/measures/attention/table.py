"""The table of attention measures: what each needs of the sums, and how a similarity of heads follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stratoscope.core.errors import unknown_name
from stratoscope.measures.attention.rows import Doubles
from stratoscope.measures.attention.sums import (
    CORRELATED,
    CORRELATION,
    COUNTS,
    DISTANCE,
    DIVERGENCE,
    RELATIVE,
    SCATTER,
)

ALL = "all"
Sums = Mapping[str, Doubles]
"""Of `HeadSums.sums`, with any axes before: pairs (..., heads, heads), counts (..., 3)."""


@dataclass(frozen=True)
class AttentionMeasure:
    """A row of the table."""

    name: str
    summary: str
    reference: str
    bounds: tuple[float, float]
    needs: tuple[str, ...]
    """Sums of pairs that it is made from."""
    of_heads: Callable[[Sums], Doubles] | None = None
    """Similarity of each pair of heads; None for a measure that compares all heads of two layers at once."""

    @property
    def symmetric(self) -> bool:
        """Whether a layer and another score the same either way: best partners, and pwsim's weights, do not."""
        return self.of_heads is None and self.name != "pwsim"


def _frobenius(s: Sums) -> Doubles:
    """1 - mean over sentences of ‖A - B‖_F (Wu et al. 2020, A.4)."""
    return 1 - s[DISTANCE] / _count(s, 0)


def _relative(s: Sums) -> Doubles:
    """1 - mean over sentences of ‖A - B‖_F / √(2 · words): two distributions are at most √2 apart."""
    return 1 - s[RELATIVE] / _count(s, 0)


def _pearson(s: Sums) -> Doubles:
    """Mean over rows of Pearson's r of the two distributions (Wu et al. 2020, A.4); NaN where no row has one."""
    n = s[CORRELATED]
    mean: Doubles = np.where(n > 0, s[CORRELATION] / np.maximum(n, 1), math.nan)
    return mean


def _js(s: Sums) -> Doubles:
    """1 - mean over rows of the Jensen-Shannon divergence, natural logarithms (Wu et al. 2020, A.4)."""
    return 1 - s[DIVERGENCE] / _count(s, 1)


def _count(s: Sums, which: int) -> Doubles:
    return s[COUNTS][..., which, None, None]


WU = "Wu et al. 2020, 3.4 and A.4"
DISTRIBUTED = "Wu et al. 2020, 3.5"
MEASURES: tuple[AttentionMeasure, ...] = (
    AttentionMeasure("frobenius", "best head by 1 - mean distance of attention matrices; may be below 0", WU,
                     (-math.inf, 1), (DISTANCE,), _frobenius),
    AttentionMeasure("frobenius-normalised", "best head by 1 - mean distance of matrices over √(2 · words)", WU,
                     (0, 1), (RELATIVE,), _relative),
    AttentionMeasure("pearson", "best head by the mean correlation of each word's attention", WU,
                     (-1, 1), (CORRELATION, CORRELATED), _pearson),
    AttentionMeasure("js", "best head by 1 - mean Jensen-Shannon divergence of each word's attention", WU,
                     (1 - math.log(2), 1), (DIVERGENCE,), _js),
    AttentionMeasure("svsim", "SVCCA of word pairs × heads", DISTRIBUTED, (0, 1), (SCATTER,)),
    AttentionMeasure("pwsim", "PWCCA of word pairs × heads", DISTRIBUTED, (0, 1), (SCATTER,)),
    AttentionMeasure("ckasim", "linear CKA of word pairs × heads", DISTRIBUTED, (0, 1), (SCATTER,)),
)  # fmt: skip


def attention_measure(name: str) -> AttentionMeasure:
    """The row with this name."""
    for measure in MEASURES:
        if measure.name == name:
            return measure
    raise unknown_name("attention measure", name, (*(m.name for m in MEASURES), ALL))


def attention_measures(names: Sequence[str]) -> tuple[AttentionMeasure, ...]:
    """The rows asked for, each once, in the order of the table; `all` is every one."""
    asked = {m.name for m in MEASURES} if ALL in names else {attention_measure(name).name for name in names}
    return tuple(m for m in MEASURES if m.name in asked)
