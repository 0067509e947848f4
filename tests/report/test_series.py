from __future__ import annotations

import numpy as np
import pytest

from stratoscope.report.series import drop_start, halves, mean, numbers, same_layer_interval, share_rising


def test_halves_leave_out_layer_zero_and_an_odd_middle():
    even = halves(np.array([9.0, 1, 1, 3, 3]))
    assert even == (1.0, 3.0, "1-2", "3-4")
    odd = halves(np.array([9.0, 1, 7, 3]))
    assert odd == (1.0, 3.0, "1", "3")
    assert halves(np.array([9.0, 1.0])) is None
    assert halves(np.array([9.0, np.nan, 2.0])) is None


def test_halves_and_means_skip_missing_layers():
    assert halves(numbers([None, None, 1.0, 2.0, 4.0]))[:2] == (1.0, 3.0)
    assert mean(np.array([np.nan])) is None


@pytest.mark.parametrize(
    ("series", "start"),
    [
        ([1.0, 0.99, 0.98, 0.9, 0.5], 3),
        ([1.0, 0.5, 0.99, 0.9, 0.5], 3),
        ([0.5, 0.6, 0.7, 0.99, 1.0], None),
        ([1.0, 0.97, 0.96, 0.97, 0.98], None),
        ([None, 1.0, None, 0.5, 0.4], 3),
        ([1.0, 0.2, 0.2, 0.2, 0.2], 1),
    ],
)
def test_the_drop_starts_where_no_later_layer_comes_back(series, start):
    assert drop_start(numbers(series), 0.05) == start


def test_share_rising_counts_pairs_of_layers():
    assert share_rising(np.array([1.0, 2, 3])) == 1.0
    assert share_rising(np.array([3.0, 2, 1])) == 0.0
    assert share_rising(np.array([1.0, 3, 2])) == pytest.approx(2 / 3)
    assert share_rising(np.array([1.0, 1, 1])) == 0.0
    assert share_rising(numbers([None, 1.0, 2.0])) == 1.0


def test_intervals_are_those_of_first_against_second(comparison):
    matrix = comparison["neuronsim"]
    low, high = same_layer_interval(matrix, comparison.findings["drift"]["neuronsim"][0])
    there = matrix.between("base", "tuned")
    np.testing.assert_array_equal(low, np.diag(there.low))
    np.testing.assert_array_equal(high, np.diag(there.high))
    assert same_layer_interval(comparison["svsim"], comparison.findings["drift"]["svsim"][0]) is None
