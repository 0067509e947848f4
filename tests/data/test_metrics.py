"""Metrics against scikit-learn and scipy, by hand, at their edges; intervals that are seeded and cover the truth."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import spread
from stratoscope.data.metrics import (
    INTERVAL,
    METRICS,
    Metric,
    difference_interval,
    interval,
    metric_named,
    percentiles,
    replicates,
)

ACCURACY, MATTHEWS, F1, CORRELATION = METRICS


def one_hot(predictions: Any, k: int = 2) -> np.ndarray:
    return np.eye(k)[np.asarray(predictions)]


def judged(metric: Metric, seed: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random scores that know a little of the labels, the labels, and the predictions they make."""
    rng = np.random.default_rng(seed)
    if metric.regression:
        labels = np.round(rng.uniform(0, 5, n), 1)  # with ties
        scores = np.round(labels + rng.normal(0, 2, n), 1)[:, None]
        return scores, labels, scores[:, 0]
    labels = rng.integers(k, size=n)
    scores = rng.normal(size=(n, k)) + one_hot(labels, k)
    return scores, labels, scores.argmax(1)


def expected(metric: Metric, predictions: np.ndarray, labels: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accuracy = reference.accuracy_score(labels, predictions) if not metric.regression else 0.0
        if metric is ACCURACY:
            return float(accuracy)
        if metric is MATTHEWS:
            return float(reference.matthews_corrcoef(labels, predictions))
        if metric is F1:
            return float(accuracy + reference.f1_score(labels, predictions)) / 2
    return float(stats.pearsonr(predictions, labels)[0] + stats.spearmanr(predictions, labels)[0]) / 2


LEAST = {"accuracy": 0, "matthews": -1, "f1": 0, "correlation": -1}
CASES = [(m, k) for m in METRICS for k in ((1,) if m.regression else (2,) if m.classes else (2, 3, 7))]


@pytest.mark.parametrize(("metric", "k"), CASES, ids=lambda v: v.name if isinstance(v, Metric) else str(v))
@pytest.mark.parametrize("n", [5, 200, 3001])
def test_agrees_with_the_reference(metric: Metric, k: int, n: int) -> None:
    for seed in range(5):
        scores, labels, predictions = judged(metric, seed, n, k)
        got = metric.score(scores, labels)
        assert got == pytest.approx(expected(metric, predictions, labels), abs=1e-12)
        assert LEAST[metric.name] <= got <= 1


def test_by_hand() -> None:
    labels = [1, 1, 1, 0]
    scores = one_hot([1, 1, 0, 1])  # 2 hits, 1 miss, 1 false alarm
    assert ACCURACY.score(scores, labels) == 0.5
    assert F1.detail(scores, labels) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3, abs=1e-15)}
    assert F1.score(scores, labels) == pytest.approx((0.5 + 2 / 3) / 2, abs=1e-15)
    assert MATTHEWS.score(scores, labels) == pytest.approx(-1 / 3, abs=1e-15)  # (2·0 − 1·1) / √(3·3·1·1)
    targets = [0.0, 1.0, 2.0]
    detail = CORRELATION.detail([[0.0], [1.0], [8.0]], targets)
    assert detail["spearman"] == pytest.approx(1, abs=1e-15)
    assert detail["pearson"] == pytest.approx(8 / np.sqrt(2 * 38), abs=1e-15)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_the_right_answer_is_the_upper_bound_and_a_constant_one_is_defined(metric: Metric) -> None:
    labels = np.array([0, 1, 1, 0, 1])
    scores = labels[:, None] * 0.1 if metric.regression else one_hot(labels)
    assert metric.score(scores, labels) == pytest.approx(1, abs=1e-15)
    constant = np.full((5, 1), 0.1) if metric.regression else one_hot([0] * 5)
    floor = {"accuracy": 0.4, "matthews": 0.0, "f1": 0.2, "correlation": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metric.score(constant, labels) == pytest.approx(floor[metric.name], abs=1e-15)


def test_f1_without_any_positive_is_zero() -> None:
    assert F1.detail(one_hot([0, 0]), [0, 0]) == {"accuracy": 1.0, "f1": 0.0}


def test_ties_go_to_the_first_class() -> None:
    assert ACCURACY.score([[0.5, 0.5], [0.1, 0.1]], [0, 1]) == 0.5


def test_correlation_of_tiny_and_huge_values() -> None:
    targets = np.arange(5.0)
    for scale in (1e-200, 1e200):
        assert CORRELATION.score(targets[:, None] * scale, targets) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "scores", "labels", "words"),
    [
        (ACCURACY, [[1.0, 2.0]], [0, 1], r"accuracy: expected scores \(n, k\) and labels \(n,\).*\(1, 2\) and \(2,\)"),
        (ACCURACY, [1.0, 2.0], [0, 1], r"got shapes \(2,\) and \(2,\); score every example once"),
        (ACCURACY, np.zeros((0, 2)), [], r"of the same n > 0 examples, got shapes \(0, 2\) and \(0,\)"),
        (ACCURACY, [[1, 2], [np.nan, 1]], [0, 1], "got NaN or infinity in 1 of 2 examples .the first is example 2.; "),
        (CORRELATION, [[1], [2]], [0, np.inf], "correlation: expected finite scores and labels, got NaN or infinity"),
        (CORRELATION, [[1, 2]], [0], "correlation: expected one score an example, got 2; the head and the metric"),
        (MATTHEWS, [[1]], [0], "matthews: expected a score for each of two or more classes, got 1; "),
        (F1, [[1, 2, 3]], [0], "f1: expected scores of 2 classes, got 3; "),
        (ACCURACY, [[1, 2]], [2], "accuracy: expected labels from 0 to 1, got 2; "),
        (ACCURACY, [[1, 2]], [0.5], "accuracy: expected labels from 0 to 1, got 0.5; "),
        (ACCURACY, [[1, 2]], [-1], "accuracy: expected labels from 0 to 1, got -1; "),
    ],
)
def test_what_does_not_fit_is_refused(metric: Metric, scores: Any, labels: Any, words: str) -> None:
    with pytest.raises(StratoscopeError, match=words):
        metric.score(scores, labels)


def test_names_are_unique_and_an_unknown_one_gets_the_nearest() -> None:
    assert len({m.name for m in METRICS}) == len(METRICS)
    assert metric_named("f1") is F1
    with pytest.raises(StratoscopeError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        metric_named("acuracy")


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_intervals_are_seeded_and_hold_the_score(metric: Metric) -> None:
    scores, labels, _ = judged(metric, 1, 300, 1 if metric.regression else 2)
    low, high = interval(metric, scores, labels, seed=3, replicates=200)
    assert (low, high) == interval(metric, scores, labels, seed=3, replicates=200)
    assert (low, high) != interval(metric, scores, labels, seed=4, replicates=200)
    assert low < metric.score(scores, labels) < high
    narrow = interval(metric, scores, labels, seed=3, replicates=200, level=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_an_interval_is_that_of_the_binomial() -> None:
    right = np.arange(1000) < 800
    low, high = interval(ACCURACY, one_hot(right.astype(int)), np.ones(1000), replicates=2000)
    half = 1.96 * np.sqrt(0.8 * 0.2 / 1000)
    assert (low, high) == (pytest.approx(0.8 - half, abs=3e-3), pytest.approx(0.8 + half, abs=3e-3))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Accuracy of a coin that is right four times in five: 80 % intervals of 300 draws, ± three standard errors."""
    rng = np.random.default_rng(0)
    held = 0
    for k in range(300):
        right = (rng.random(150) < 0.8).astype(int)
        low, high = interval(ACCURACY, one_hot(right), np.ones(150), seed=k, replicates=150, level=0.8)
        held += low <= 0.8 <= high
    assert 0.73 < held / 300 < 0.87


def test_a_difference_is_paired() -> None:
    """Two models that err on the same rows but five: pairing takes the shared errors out of the interval."""
    rng = np.random.default_rng(0)
    labels = np.ones(400)
    a = (rng.random(400) < 0.7).astype(int)
    b = a.copy()
    b[np.flatnonzero(a)[:5]] = 0
    low, high = difference_interval(ACCURACY, one_hot(a), one_hot(b), labels, seed=1, replicates=500)
    assert 0 < low < 5 / 400 < high < 0.03
    lone = interval(ACCURACY, one_hot(a), labels, seed=1, replicates=500)
    assert high - low < 0.4 * (lone[1] - lone[0])
    back = difference_interval(ACCURACY, one_hot(b), one_hot(a), labels, seed=1, replicates=500)
    assert back == (pytest.approx(-high, abs=1e-12), pytest.approx(-low, abs=1e-12))
    assert difference_interval(ACCURACY, one_hot(a), one_hot(a), labels, replicates=20) == (0, 0)


@pytest.mark.parametrize(("replicates", "level"), [(19, 0.95), (100, 1.0), (100, 0.0)])
def test_too_few_replicates_or_no_level(replicates: int, level: float) -> None:
    with pytest.raises(
        StratoscopeError, match=f"at least 20 replicates and a level .*, got {replicates} and {level:g}"
    ):
        interval(ACCURACY, one_hot([0, 1]), [0, 1], replicates=replicates, level=level)


def slow_replicates(metric: Metric, scores: np.ndarray, labels: np.ndarray, seed: int, number: int) -> list[float]:
    """The metric on each resample, one at a time."""
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(len(labels), size=len(labels)) for _ in range(number))
    return [metric.score(scores[rows], labels[rows]) for rows in drawn]


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
@pytest.mark.parametrize("n", [7, 150])
def test_replicates_are_the_metric_on_each_resample(metric: Metric, n: int) -> None:
    scores, labels, _ = judged(metric, 1, n, 1 if metric.regression else 2)
    got = replicates(metric, scores, labels, seed=3, number=120)
    assert got.tolist() == slow_replicates(metric, scores, labels, 3, 120), "to the last digit"


def test_replicates_of_many_classes() -> None:
    scores, labels, _ = judged(ACCURACY, 1, 90, 7)
    got = replicates(ACCURACY, scores, labels, seed=0, number=60)
    assert got.tolist() == slow_replicates(ACCURACY, scores, labels, 0, 60)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_replicates_of_a_stack_are_those_of_each_and_fewer_are_the_first(metric: Metric) -> None:
    cases = [judged(metric, k, 60, 1 if metric.regression else 2) for k in range(6)]
    labels = cases[0][1]
    stack = np.stack([scores for scores, *_ in cases]).reshape(2, 3, 60, -1)
    got = replicates(metric, stack, labels, seed=2, number=70)
    assert got.shape == (70, 2, 3)
    for i in range(2):
        for j in range(3):
            assert got[:, i, j].tolist() == replicates(metric, stack[i, j], labels, seed=2, number=70).tolist()
    fewer = replicates(metric, stack[1, 2], labels, seed=2, number=30)
    assert fewer.tolist() == got[:30, 1, 2].tolist(), (
        "so that few replicates of spans pair with many of the whole model"
    )


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_intervals_are_the_percentiles_of_the_replicates(metric: Metric) -> None:
    """As they always were: quantiles of the metric on each resample, one by one or for all layers of a curve."""
    (a, labels, _), (b, *_) = (judged(metric, k, 120, 1 if metric.regression else 2) for k in (1, 2))
    edges = np.quantile(slow_replicates(metric, a, labels, 5, 100), [(1 - 0.95) / 2, (1 + 0.95) / 2])
    assert interval(metric, a, labels, seed=5, replicates=100) == tuple(edges)
    both = replicates(metric, np.stack([a, b]), labels, seed=5, number=100)
    low, high = spread(both[0], both, INTERVAL)
    assert (low[0], high[0]) == tuple(edges)
    paired = np.quantile(both[:, 0] - both[:, 1], [(1 - 0.95) / 2, (1 + 0.95) / 2])
    assert difference_interval(metric, a, b, labels, seed=5, replicates=100) == tuple(paired)
    any_statistic = percentiles(lambda rows: metric.score(a[rows], labels[rows]), 120, 5, replicates=100, level=0.95)
    assert any_statistic == tuple(edges)


def test_replicates_of_every_span_of_a_deep_model_take_no_time() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=1000)
    scores = rng.normal(size=(465, 1000, 2))
    start = time.perf_counter()
    assert replicates(ACCURACY, scores, labels, number=200).shape == (200, 465)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("scores", [[1.0, 2.0], np.zeros((0, 3, 2)), np.full((2, 2, 2), np.nan), np.zeros((2, 3, 2))])
def test_replicates_refuse_what_the_metric_refuses(scores: Any) -> None:
    with pytest.raises(StratoscopeError, match="accuracy: expected"):
        replicates(ACCURACY, scores, [0, 1])


def test_too_few_resamples_are_refused() -> None:
    with pytest.raises(StratoscopeError, match="at least 20 replicates"):
        replicates(ACCURACY, one_hot([0, 1]), [0, 1], number=19)
