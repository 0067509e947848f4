from __future__ import annotations

import numpy as np
import pytest

from stratoscope.report.series import (
    Series,
    drift_series,
    drop_start,
    halves,
    in_order,
    localization_series,
    mean,
    share_rising,
    split_blocks,
)


def series(*values, layers=None):
    numbers = np.array([np.nan if v is None else v for v in values], dtype=float)
    return Series(tuple(layers or range(len(values))), numbers)


def test_halves_leave_out_layer_zero_and_an_odd_middle():
    assert halves(series(9, 1, 1, 3, 3)) == (1.0, 3.0, "1-2", "3-4")
    assert halves(series(9, 1, 7, 3)) == (1.0, 3.0, "1", "3")
    assert halves(series(9, 1)) is None
    assert halves(series(9, None, 2)) is None


def test_halves_know_which_layers_were_compared():
    assert halves(series(1, 1, 3, 3, layers=(2, 5, 8, 11))) == (1.0, 3.0, "2-5", "8-11")
    assert split_blocks((0, 4, 8, 12)) == ([1], [3])


def test_halves_and_means_skip_missing_layers():
    assert halves(series(None, None, 1, 2, 4))[:2] == (1.0, 3.0)
    assert mean(np.array([np.nan])) is None


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ([1.0, 0.99, 0.98, 0.9, 0.5], 3),
        ([1.0, 0.5, 0.99, 0.9, 0.5], 3),
        ([0.5, 0.6, 0.7, 0.99, 1.0], None),
        ([1.0, 0.97, 0.96, 0.97, 0.98], None),
        ([None, 1.0, None, 0.5, 0.4], 3),
        ([1.0, 0.2, 0.2, 0.2, 0.2], 1),
    ],
)
def test_the_drop_starts_where_no_later_layer_comes_back(values, start):
    assert drop_start(series(*values), 0.05) == start


def test_share_rising_counts_pairs_of_layers():
    assert share_rising(np.array([1.0, 2, 3])) == 1.0
    assert share_rising(np.array([3.0, 2, 1])) == 0.0
    assert share_rising(np.array([1.0, 3, 2])) == pytest.approx(2 / 3)
    assert share_rising(np.array([1.0, 1, 1])) == 0.0
    assert share_rising(np.array([np.nan, 1.0, 2.0])) == 1.0


def test_drift_has_the_interval_of_first_against_second(comparison):
    matrix = comparison["neuronsim"]
    got = drift_series(matrix, comparison.findings["drift"]["neuronsim"][0])
    there = matrix.between("base", "tuned")
    np.testing.assert_array_equal(got.values, np.diag(there.values))
    np.testing.assert_array_equal(got.low, np.diag(there.low))
    np.testing.assert_array_equal(got.high, np.diag(there.high))
    assert drift_series(comparison["svsim"], comparison.findings["drift"]["svsim"][0]).low is None


def test_findings_follow_the_order_of_the_result_and_skip_what_is_empty(comparison):
    assert in_order({"a": 1, "z": 2, "m": 0}, ["z", "m", "a", "q"]) == {"z": 2, "a": 1}
    assert list(in_order({"a": 1, "z": 2}, ["z", "a"])) == ["z", "a"]
    assert list(localization_series(comparison)) == ["base", "tuned", "mini"]
