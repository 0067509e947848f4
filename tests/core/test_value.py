"""Numbers with intervals, and the ways to make one from resamples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import sem, t

from stratoscope.core.value import Interval, Value, ratio_of_sums, spread, student

RNG = np.random.default_rng(0)
DRAWN = RNG.normal(0.5, 0.1, (30, 2, 3))
ESTIMATE = DRAWN.mean(0)


def test_a_value_knows_what_it_has() -> None:
    assert Value(1.0).known
    assert not Value(math.nan).known
    assert not Value(1.0, 0.5).has_interval
    assert Value(1.0, 0.5, 1.5).has_interval


def test_a_value_shows_its_interval_with_the_same_digits() -> None:
    assert f"{Value(0.12345, 0.1, 0.2):.2f}" == "0.12 [0.10, 0.20]"
    assert str(Value(0.5)) == f"{Value(0.5)}" == "0.500"


def test_the_bootstraps_interval_by_hand() -> None:
    low, high = spread(ESTIMATE, DRAWN, Interval(0.9, "bootstrap", 12))
    half = t.ppf(0.95, 11) * DRAWN.std(0, ddof=1) * math.sqrt(12 / 11)  # fewer sentences than resamples
    np.testing.assert_allclose(low, ESTIMATE - half)
    np.testing.assert_allclose(high, ESTIMATE + half)
    low, _ = spread(ESTIMATE, DRAWN, Interval(0.9, "bootstrap", 1000))
    np.testing.assert_allclose(low, ESTIMATE - t.ppf(0.95, 29) * DRAWN.std(0, ddof=1) * math.sqrt(1000 / 999))


def test_a_bootstrap_away_from_its_estimate_is_wider_by_its_bias() -> None:
    away = ESTIMATE + 0.2
    low, high = spread(away, DRAWN, Interval(0.9, "bootstrap and bias", 10**9))
    error = np.sqrt(DRAWN.var(0, ddof=1) + 0.2**2)
    np.testing.assert_allclose(low, away - t.ppf(0.95, 29) * error)
    np.testing.assert_allclose(high, away + t.ppf(0.95, 29) * error)


def test_the_jackknife_of_a_mean_is_its_textbook_error() -> None:
    x = RNG.normal(size=20)
    left_out = np.array([np.delete(x, k).mean() for k in range(20)])
    low, high = spread(np.array(x.mean()), left_out, Interval(0.95, "jackknife", 20))
    half = t.ppf(0.975, 19) * x.std(ddof=1) / math.sqrt(20)
    assert float(low) == pytest.approx(x.mean() - half)
    assert float(high) == pytest.approx(x.mean() + half)


def test_percentiles_are_quantiles_of_the_resamples_whatever_the_estimate() -> None:
    low, high = spread(ESTIMATE + 100, DRAWN, Interval(0.8, "percentiles"))
    np.testing.assert_allclose(low, np.quantile(DRAWN, 0.1, axis=0))
    np.testing.assert_allclose(high, np.quantile(DRAWN, 0.9, axis=0))


def test_an_interval_stays_within_the_bounds_and_gaps_stay_gaps() -> None:
    drawn = DRAWN.copy()
    drawn[:, 0, 0] = math.nan
    low, high = spread(drawn.mean(0), drawn, Interval(0.95, "bootstrap", 5), bounds=(0.45, 0.55))
    assert math.isnan(low[0, 0])
    assert math.isnan(high[0, 0])
    assert np.nanmin(low) == 0.45
    assert np.nanmax(high) == 0.55


def test_a_higher_level_is_wider_and_few_resamples_are_wider_still() -> None:
    assert student(0.99, 30) > student(0.95, 30) > student(0.5, 30) > 0
    assert student(0.95, 5) > student(0.95, 1000) == pytest.approx(1.96, abs=0.01)


def test_a_ratio_of_sums_with_equal_counts_is_the_mean_with_students_interval() -> None:
    x = np.random.default_rng(0).normal(0.1, 0.05, size=12)
    found = ratio_of_sums(7 * x, np.full(12, 7.0), level=0.9)
    low, high = t.interval(0.9, 11, loc=x.mean(), scale=sem(x))
    assert (found.value, found.low, found.high) == pytest.approx((x.mean(), low, high))


def test_a_ratio_of_sums_weighs_groups_by_their_counts_and_varies_as_resamples_do() -> None:
    rng = np.random.default_rng(1)
    counts = rng.integers(5, 50, size=200).astype(float)
    sums = counts * rng.normal(0.1, 0.3, size=200)
    found = ratio_of_sums(sums, counts, level=0.95)
    assert found.value == pytest.approx(sums.sum() / counts.sum())
    drawn = [sums[k].sum() / counts[k].sum() for k in rng.integers(200, size=(4000, 200))]
    assert found.high - found.low == pytest.approx(np.quantile(drawn, 0.975) - np.quantile(drawn, 0.025), rel=0.08)
    assert not ratio_of_sums(sums[:1], counts[:1], level=0.95).has_interval
    assert ratio_of_sums(np.array([math.inf, 1.0]), np.ones(2), level=0.95).value == math.inf
