"""Scores of maps against plain numpy, and their intervals."""

import math

import numpy as np
import pytest
import torch

from stratoscope.aligners.fit import fit_map
from stratoscope.aligners.scores import inversion_error, resamples, score_map, scores, shuffled


def test_scores_are_those_of_plain_numpy() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5)), rng.normal(size=(200, 3))
    y[:, 0] += x[:, 0]
    g = fit_map(x[:100], y[:100], method="linreg")
    fit = score_map(g, torch.from_numpy(x[100:]), torch.from_numpy(y[100:]))
    error = np.square(g(x[100:]) - y[100:])
    assert fit.mse.value == pytest.approx(error.mean())
    assert fit.error.value == pytest.approx(error.sum() / np.square(y[100:] - y[100:].mean(0)).sum())
    assert fit.r2.value == pytest.approx(1 - fit.error.value)
    assert (fit.r2.low, fit.r2.high) == (1 - fit.error.high, 1 - fit.error.low)
    assert fit.error.low < fit.error.value < fit.error.high
    assert math.isnan(fit.inversion)
    square = fit_map(x[:100], x[:100] * 2, method="linreg")
    assert score_map(square, torch.from_numpy(x), torch.from_numpy(2 * x)).inversion < 1e-9


def test_the_inversion_error_is_relative_to_the_spread_of_x() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 10
    g = fit_map(x, 2 * x, method="linreg")
    off = x.mean(0) + 1.1 * (x - x.mean(0))  # what the inverse is asked for lies a tenth further out
    assert inversion_error(g, x, g(off)) == pytest.approx(0.1, rel=1e-6)


def test_the_interval_is_that_of_rows_drawn_again() -> None:
    rng = np.random.default_rng(1)
    squares, around = rng.exponential(size=400), rng.exponential(size=400)
    fit = scores("any", squares, around, 2)
    half = (fit.mse.high - fit.mse.low) / 2
    assert half == pytest.approx(1.96 * squares.std() / math.sqrt(400) / 2, rel=0.15)
    assert resamples(50).sum(1).tolist() == [50.0] * 500


def test_a_constant_target_has_no_relative_error() -> None:
    fit = scores("any", np.ones(30), np.zeros(30), 2)
    assert math.isnan(fit.error.value)
    assert fit.mse.value == 0.5


def test_shuffled_rows_are_the_same_rows() -> None:
    y = torch.arange(20.0)[:, None]
    assert sorted(shuffled(y).flatten().tolist()) == list(range(20))
    assert not torch.equal(shuffled(y), y)


def test_rows_of_one_text_are_resampled_together() -> None:
    """Ten copies of each row say no more than the row: the interval is that of the rows alone."""
    squares, around = (np.random.default_rng(k).gamma(2, size=40) for k in (0, 1))
    alone, texts = scores("any", squares, around, 2), np.repeat(np.arange(40), 10)
    copied = scores("any", np.repeat(squares, 10), np.repeat(around, 10), 2, texts=texts)
    for name in ("mse", "error", "r2"):
        for end in ("value", "low", "high"):
            assert getattr(getattr(copied, name), end) == pytest.approx(getattr(getattr(alone, name), end))
    naive = scores("any", np.repeat(squares, 10), np.repeat(around, 10), 2)
    assert naive.error.high - naive.error.low < 0.5 * (copied.error.high - copied.error.low)


def test_an_error_is_per_row_also_where_texts_are_of_unequal_length() -> None:
    """As many texts are drawn, but not as many rows: an error that all rows share has no spread."""
    fit = scores("any", np.ones(10), np.full(10, 4.0), 2, texts=np.array([0] * 7 + [1, 2, 3]))
    assert (fit.mse.low, fit.mse.value, fit.mse.high) == pytest.approx((0.5, 0.5, 0.5))
    assert (fit.error.low, fit.error.value, fit.error.high) == pytest.approx((0.25, 0.25, 0.25))
