"""A number with its interval, and how an interval is made from resamples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Values = npt.NDArray[np.float64]

BOOTSTRAP, BIASED, JACKKNIFE, PERCENTILES = METHODS = ("bootstrap", "bootstrap and bias", "jackknife", "percentiles")
"""Estimate ± t · deviation over resamples; · their distance from the estimate; · deviation over groups left out in
turn; or quantiles over resamples."""


@dataclass(frozen=True)
class Interval:
    """What the intervals of a result are: of the score at this sample size, had other sentences been drawn."""

    level: float
    """Share of such intervals that should hold the true value."""
    method: str
    """One of `METHODS`."""
    groups: int = 0
    """Sentences (bootstrap) or groups of sentences (jackknife) behind the resamples; 0 for percentiles."""
    of: str = "sentence"
    """What the groups are called."""


@dataclass(frozen=True)
class Value:
    """A number with its interval; NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return not math.isnan(self.value)

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    def __format__(self, spec: str) -> str:
        spec = spec or ".3f"
        number = format(self.value, spec)
        return f"{number} [{format(self.low, spec)}, {format(self.high, spec)}]" if self.has_interval else number

    def __str__(self) -> str:
        return format(self, ".3f")


MISSING = Value(math.nan)


def spread(
    estimate: Values,
    replicates: Values,
    interval: Interval,
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[Values, Values]:
    """Ends of the interval of `estimate` (any shape) from its `replicates` (first axis), within `bounds`.

    - bootstrap: estimate ± t · deviation · sqrt(g / (g - 1)) over g sentences: a resample's spread is about the
      sample's own mean; t is Student's with as many replicates, at most g, less one;
    - bootstrap and bias: the same with the root mean square distance from the estimate, deviation² + bias², for an
      estimate after a choice, which jumps: its resamples need not lie about it (Efron & Tibshirani 1993, ch. 10);
    - jackknife: estimate ± t · sqrt((g-1)/g Σ (θₖ - mean)²) over g groups left out in turn (Efron & Stein 1981);
    - percentiles: quantiles of the replicates (Efron 1979).
    """
    if interval.method == PERCENTILES:
        edges = [(1 - interval.level) / 2, (1 + interval.level) / 2]
        low, high = np.quantile(replicates, edges, axis=0)
        return np.asarray(low), np.asarray(high)
    g = interval.groups
    if interval.method in (BOOTSTRAP, BIASED):
        bias = replicates.mean(axis=0) - estimate if interval.method == BIASED else 0.0
        error = np.hypot(replicates.std(axis=0, ddof=1) * math.sqrt(g / (g - 1)), bias)
    else:
        k = len(replicates)
        error = np.sqrt((k - 1) / k * np.square(replicates - replicates.mean(axis=0)).sum(axis=0))
    half = student(interval.level, min(len(replicates), g)) * error
    return np.clip(estimate - half, *bounds), np.clip(estimate + half, *bounds)


def student(level: float, number: int) -> float:
    """Half-width of an interval in standard errors: Student's t of so many replicates."""
    from scipy.special import stdtrit

    return float(stdtrit(number - 1, (1 + level) / 2))


def ratio_of_sums(sums: Values, counts: Values, *, level: float) -> Value:
    """Sum of `sums` over sum of `counts`, with its interval over the groups that they are given by, such as texts.

    R = Σs / Σc, error² = n/(n−1) Σ(s − R c)² / (Σc)², times Student's t of n groups (Cochran 1977, eq. 6.13).
    """
    n, total = len(sums), counts.sum()
    ratio = float(sums.sum() / total)
    if n < 2 or not math.isfinite(ratio):
        return Value(ratio)
    half = student(level, n) * math.sqrt(n / (n - 1) * np.square(sums - ratio * counts).sum()) / total
    return Value(ratio, ratio - half, ratio + half)
