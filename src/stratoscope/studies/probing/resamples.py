"""Intervals over sentences: the same resamples for every probe of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.value import PERCENTILES, Interval, Value, Values, spread

REPLICATES = 1000
TOGETHER, MOST_WEIGHTS = 50, 200_000
"""Resamples drawn at once, and weights of sentences in them."""
INTERVAL = Interval(0.95, PERCENTILES)


class Resamples:
    """The same resamples of the test sentences for every probe, which is seen as counts per sentence only."""

    def __init__(self, sentence: Any, seed: int) -> None:
        self.first = np.flatnonzero(np.r_[True, np.diff(sentence) != 0])
        self.words = np.diff(np.r_[self.first, len(sentence)]).astype(np.float64)
        self.seed = seed

    def shares(self, right: Iterable[Any]) -> tuple[Values, Values]:
        """(series,) share of right words, and (resamples, series) on every resample, of (words,) of each series."""
        counts = np.stack([np.add.reduceat(np.asarray(r, dtype=np.float64), self.first) for r in right]).T
        generator, drawn = np.random.default_rng(self.seed), []
        n = len(self.words)
        together = min(TOGETHER, max(1, MOST_WEIGHTS // n))
        for start in range(0, REPLICATES, together):
            size = min(together, REPLICATES - start)
            weights = generator.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64)
            drawn.append(weights @ counts / (weights @ self.words)[:, None])
        return counts.sum(0) / self.words.sum(), np.concatenate(drawn)

    def value(self, right: Any) -> Value:
        """The share of right words with its interval."""
        values, drawn = self.shares([right])
        return value_of(values[0], drawn[:, 0])


def value_of(value: float, drawn: Values) -> Value:
    low, high = spread(np.asarray(value), drawn, INTERVAL)
    return Value(float(value), float(low), float(high))


def curve_of(name: str, layers: tuple[int, ...], values: Values, drawn: Values) -> Curve:
    low, high = spread(values, drawn, INTERVAL)
    return Curve(name, layers, values, low, high, INTERVAL, drawn)
