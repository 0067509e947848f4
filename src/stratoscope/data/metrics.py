"""Metrics: how well predictions agree with labels, with intervals over the examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stratoscope.core.errors import StratoscopeError, unknown_name

Floats = npt.NDArray[np.float64]
Judge = Callable[[Floats, Floats], float]
"""From predictions (n,) and labels (n,), class indices or targets, to one number; higher is better."""

REPLICATES = 1000


@dataclass(frozen=True)
class Metric:
    """The mean of one or two judgements of the same predictions, as GLUE averages them."""

    name: str
    summary: str
    parts: tuple[tuple[str, Judge], ...]
    bounds: tuple[float, float]
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
    Metric("accuracy", "share of examples whose highest score is the right one", (("accuracy", _accuracy),), (0, 1)),
    Metric("matthews", "Matthews correlation of predicted and true classes", (("matthews", _matthews),), (-1, 1)),
    Metric(
        "f1",
        "mean of accuracy and F1 of class 1, as GLUE averages them for MRPC and QQP",
        (("accuracy", _accuracy), ("f1", _f1)),
        (0, 1),
        classes=2,
    ),
    Metric(
        "correlation",
        "mean of Pearson and Spearman correlation with the targets, as GLUE averages them for STS-B",
        (("pearson", _pearson), ("spearman", _spearman)),
        (-1, 1),
        regression=True,
    ),
)
"""Every metric; a task names one."""


def metric_named(name: str) -> Metric:
    """The row of `METRICS` with this name."""
    for metric in METRICS:
        if metric.name == name:
            return metric
    raise unknown_name("metric", name, (m.name for m in METRICS))


def interval(
    metric: Metric,
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the metric over the examples.

    A metric at its bound on every example has a width of zero: the bootstrap cannot see errors it never drew.
    """
    predictions, truth = metric._decide(scores, labels)
    return percentiles(
        lambda rows: metric._judge(predictions[rows], truth[rows]), len(truth), seed, replicates=replicates, level=level
    )


def difference_interval(
    metric: Metric,
    scores_a: npt.ArrayLike,
    scores_b: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of metric(a) − metric(b), both judged on the same resampled examples."""
    (a, truth), (b, _) = metric._decide(scores_a, labels), metric._decide(scores_b, labels)
    return percentiles(
        lambda rows: metric._judge(a[rows], truth[rows]) - metric._judge(b[rows], truth[rows]),
        len(truth),
        seed,
        replicates=replicates,
        level=level,
    )


def percentiles(
    statistic: Callable[[npt.NDArray[np.int64]], float], n: int, seed: int, *, replicates: int, level: float
) -> tuple[float, float]:
    if replicates < 20 or not 0 < level < 1:
        raise StratoscopeError(
            f"interval: expected at least 20 replicates and a level between 0 and 1, got {replicates} and {level:g}; "
            f"{REPLICATES} and 0.95 are the defaults"
        )
    rng = np.random.default_rng(seed)
    drawn: Sequence[float] = [statistic(rng.integers(n, size=n)) for _ in range(replicates)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
