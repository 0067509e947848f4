"""Metrics: how well predictions agree with labels, with intervals over the examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.value import PERCENTILES, Interval

Floats = npt.NDArray[np.float64]
Judge = Callable[[Floats, Floats], float]
"""From predictions (n,) and labels (n,), class indices or targets, to one number; higher is better."""

Rows = npt.NDArray[np.int64]

REPLICATES = 1000
"""Resamples behind the interval of a metric."""
FEWEST_REPLICATES = 20
LEVEL = 0.95
INTERVAL = Interval(LEVEL, PERCENTILES)
"""What the intervals of a metric are unless said otherwise; `core.value.spread` makes them from `replicates`."""
RESAMPLES_AT_ONCE = 50
"""Resamples whose counts are held together where a metric is a mean over examples."""


@dataclass(frozen=True)
class Metric:
    """The mean of one or two judgements of the same predictions, as GLUE averages them."""

    name: str
    parts: tuple[tuple[str, Judge], ...]
    regression: bool = False
    """Predictions are the one column of the scores, else the column with the highest score."""
    classes: int | None = None
    """Number of classes the metric is defined for; None = any."""

    def score(self, scores: npt.ArrayLike, labels: npt.ArrayLike) -> float:
        """Judge scores (n, k) against labels (n,): class indices, or targets of a regression (k = 1)."""
        return self._judge(*self._decide(scores, labels))

    def detail(self, scores: npt.ArrayLike, labels: npt.ArrayLike) -> Mapping[str, float]:
        """Each part by its own name, such as accuracy and F1 apart."""
        predictions, truth = self._decide(scores, labels)
        return {name: part(predictions, truth) for name, part in self.parts}

    def _judge(self, predictions: Floats, labels: Floats) -> float:
        return sum(part(predictions, labels) for _, part in self.parts) / len(self.parts)

    def _decide(self, scores: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Predictions and labels, (n,) each; ties go to the first class."""
        s, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
        if y.ndim != 1 or s.ndim != 2 or len(s) != len(y) or not len(y):
            raise StratoscopeError(
                f"{self.name}: expected scores (n, k) and labels (n,) of the same n > 0 examples, "
                f"got shapes {s.shape} and {y.shape}; score every example once"
            )
        bad = np.flatnonzero(~np.isfinite(s).all(axis=1) | ~np.isfinite(y))
        if len(bad):
            raise StratoscopeError(
                f"{self.name}: expected finite scores and labels, got NaN or infinity in {len(bad)} of {len(y)} "
                f"examples (the first is example {bad[0] + 1}); the model diverged, lower its learning rate"
            )
        if self.regression:
            self._expect(s.shape[1] == 1, "one score an example", f"{s.shape[1]}")
            return s[:, 0], y
        k = s.shape[1]
        self._expect(k > 1, "a score for each of two or more classes", "1")
        self._expect(self.classes in (None, k), f"scores of {self.classes} classes", f"{k}")
        outside = y[(y != np.floor(y)) | (y < 0) | (y >= k)]
        self._expect(not len(outside), f"labels from 0 to {k - 1}", f"{outside[0]:g}" if len(outside) else "")
        return s.argmax(axis=1).astype(np.float64), y

    def _expect(self, holds: bool, expected: str, got: str) -> None:
        if not holds:
            raise StratoscopeError(
                f"{self.name}: expected {expected}, got {got}; the head and the metric must fit one task"
            )


def _accuracy(predictions: Floats, labels: Floats) -> float:
    return float((predictions == labels).mean())


def _f1(predictions: Floats, labels: Floats) -> float:
    """2 tp / (2 tp + fp + fn) of class 1; 0 when that class is neither present nor predicted."""
    hits = float((predictions * labels).sum())
    both = float(predictions.sum() + labels.sum())
    return 2 * hits / both if both else 0.0


def _matthews(predictions: Floats, labels: Floats) -> float:
    """Pearson correlation of the one-hot predictions and labels (Gorodkin 2004, eq. 8); 0 when either is constant."""
    k = int(max(predictions.max(), labels.max())) + 1
    table = np.bincount((labels * k + predictions).astype(np.int64), minlength=k * k).reshape(k, k).astype(np.float64)
    n, true, predicted = table.sum(), table.sum(axis=1), table.sum(axis=0)
    spread = (n * n - true @ true) * (n * n - predicted @ predicted)
    return float((n * np.trace(table) - true @ predicted) / np.sqrt(spread)) if spread else 0.0


def _pearson(predictions: Floats, labels: Floats) -> float:
    """Pearson correlation; 0 when either side is constant, clamped against rounding."""
    if not np.ptp(predictions) or not np.ptp(labels):
        return 0.0
    x, y = predictions - predictions.mean(), labels - labels.mean()
    # Scaled first, so that neither tiny nor huge values leave the range of floats when squared.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def _spearman(predictions: Floats, labels: Floats) -> float:
    """Pearson correlation of the ranks; ties share their mean rank."""
    from scipy.stats import rankdata

    return _pearson(rankdata(predictions), rankdata(labels))


METRICS: tuple[Metric, ...] = (
    Metric("accuracy", (("accuracy", _accuracy),)),
    Metric("matthews", (("matthews", _matthews),)),
    Metric("f1", (("accuracy", _accuracy), ("f1", _f1)), classes=2),  # as GLUE averages them for MRPC and QQP
    Metric("correlation", (("pearson", _pearson), ("spearman", _spearman)), regression=True),  # for STS-B
)
"""Every metric; a task names one."""


def metric_named(name: str) -> Metric:
    """The row of `METRICS` with this name."""
    for metric in METRICS:
        if metric.name == name:
            return metric
    raise unknown_name("metric", name, (m.name for m in METRICS))


def replicates(
    metric: Metric, scores: npt.ArrayLike, labels: npt.ArrayLike, *, seed: int = 0, number: int = REPLICATES
) -> Floats:
    """The metric on `number` resamples of the examples: (number,) for scores (n, k), (number, ...) for (..., n, k).

    Calls with equally many examples and the same seed resample the same examples, the first `number` of one sequence,
    so that the difference of two results is paired.
    """
    _check_resampling(number, LEVEL)
    return _on_resamples(metric, scores, labels, seed, number)


def _on_resamples(metric: Metric, scores: npt.ArrayLike, labels: npt.ArrayLike, seed: int, number: int) -> Floats:
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    lead = s.shape[:-2]
    decided = [metric._decide(each, y) for each in s.reshape(-1, *s.shape[-2:])] if s.ndim > 1 else []
    if not decided:
        decided, lead = [metric._decide(s, y)], ()  # says what is wrong with the scores
    truth = decided[0][1]
    if all(part is _accuracy for _, part in metric.parts):
        right = np.stack([predictions == truth for predictions, _ in decided])
        return _resampled_means(right, seed, number).reshape(number, *lead)
    judged = [[metric._judge(p[rows], truth[rows]) for p, _ in decided] for rows in resamples(len(truth), seed, number)]
    return np.array(judged).reshape(number, *lead)


def resamples(n: int, seed: int, number: int) -> Iterator[Rows]:
    """`number` draws of n examples with repeats; fewer draws are the first of more."""
    rng = np.random.default_rng(seed)
    return (rng.integers(n, size=n) for _ in range(number))


def _resampled_means(right: npt.NDArray[np.bool_], seed: int, number: int) -> Floats:
    """(number, m): the share of true values in each of m rows on every resample; counts are exact in float64."""
    n = right.shape[1]
    as_numbers, drawn = right.astype(np.float64), resamples(n, seed, number)
    shares = np.empty((number, len(right)))
    for first in range(0, number, RESAMPLES_AT_ONCE):
        size = min(RESAMPLES_AT_ONCE, number - first)
        counts = np.stack([np.bincount(next(drawn), minlength=n) for _ in range(size)]).astype(np.float64)
        shares[first : first + size] = counts @ as_numbers.T / n
    return shares


def interval(
    metric: Metric,
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the metric over the examples, at this number of examples.

    A metric at its bound on every example has a width of zero: the bootstrap cannot see errors it never drew.
    """
    _check_resampling(replicates, level)
    return _quantiles(_on_resamples(metric, scores, labels, seed, replicates), level)


def difference_interval(
    metric: Metric,
    scores_a: npt.ArrayLike,
    scores_b: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Percentile bootstrap interval of metric(a) − metric(b), both judged on the same resampled examples."""
    _check_resampling(replicates, level)
    a, b = (_on_resamples(metric, s, labels, seed, replicates) for s in (scores_a, scores_b))
    return _quantiles(a - b, level)


def rows_for(budget: float, confidence: float) -> int:
    """Rows without a single loss that confirm an accuracy within `budget`: (1 - budget)^n <= 1 - confidence."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-budget))


def percentiles(
    statistic: Callable[[Rows], float], n: int, seed: int, *, replicates: int, level: float
) -> tuple[float, float]:
    """Percentile bootstrap interval of any statistic of the drawn examples."""
    _check_resampling(replicates, level)
    return _quantiles(np.array([statistic(rows) for rows in resamples(n, seed, replicates)]), level)


def _quantiles(drawn: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _check_resampling(number: int, level: float) -> None:
    if number < FEWEST_REPLICATES or not 0 < level < 1:
        raise StratoscopeError(
            f"interval: expected at least {FEWEST_REPLICATES} replicates and a level between 0 and 1, got {number} and"
            f" {level:g}; {REPLICATES} and {LEVEL:g} are the defaults"
        )
