"""Intervals over sentences: the same resamples for every probe of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.value import PERCENTILES, Interval, Value, Values, spread

REPLICATES = 1000
TOGETHER = 50
"""Resamples drawn at once."""
INTERVAL = Interval(0.95, PERCENTILES)


class Resamples:
    """The same resamples of the test sentences for every probe; only counts per sentence are kept."""

    def __init__(self, sentence: Any, seed: int) -> None:
        self.first = np.flatnonzero(np.r_[True, np.diff(sentence) != 0])
        self.words = np.diff(np.r_[self.first, len(sentence)]).astype(np.float64)
        self.seed = seed

    def shares(self, right: Any) -> tuple[Values, Values]:
        """(series,) share of right words, and (resamples, series) on every resample, of (series, words)."""
        counts = np.add.reduceat(np.asarray(right, dtype=np.float64), self.first, axis=1).T
        generator, drawn = np.random.default_rng(self.seed), []
        n = len(self.words)
        for start in range(0, REPLICATES, TOGETHER):
            weights = generator.multinomial(n, np.full(n, 1 / n), size=min(TOGETHER, REPLICATES - start)).astype(
                np.float64
            )
            drawn.append(weights @ counts / (weights @ self.words)[:, None])
        return counts.sum(0) / self.words.sum(), np.concatenate(drawn)

    def value(self, right: Any) -> Value:
        """The share of right words with its interval."""
        values, drawn = self.shares(np.asarray(right)[None])
        return value_of(values[0], drawn[:, 0])


def value_of(value: float, drawn: Values) -> Value:
    low, high = spread(np.asarray(value), drawn, INTERVAL)
    return Value(float(value), float(low), float(high))


def curve_of(name: str, layers: tuple[int, ...], values: Values, drawn: Values) -> Curve:
    low, high = spread(values, drawn, INTERVAL)
    return Curve(name, layers, values, low, high, INTERVAL, drawn)
