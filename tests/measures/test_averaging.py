"""Averages over the best fraction: neurons or correlations, never fewer than one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from measures.layer_cases import related
from measures.reference import pearson, r_values, truncated
from stratoscope.measures.measure import best, best_mean
from stratoscope.measures.score import score_layers
from stratoscope.measures.similarity import similarity
from stratoscope.measures.table import MEASURES, parse
from stratoscope.statistics.rows import MemoryRows

X, Y = related(200, 20, 14)
AVERAGING = [m.name for m in MEASURES if m.averages]


def test_the_specs_four_measures_average() -> None:
    assert AVERAGING == ["neuronsim", "mixedsim", "svsim", "pwsim"]


@pytest.mark.parametrize("measure", AVERAGING)
def test_the_whole_is_the_plain_measure_and_less_is_never_lower(measure: str) -> None:
    scores = [similarity(X, Y, f"{measure}@{fraction}") for fraction in (0.1, 0.2, 0.3, 0.5, 0.8, 1.0)]
    assert scores[-1] == similarity(X, Y, measure)
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1] + 0.05


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.1, 2), (0.15, 3), (0.3, 6), (0.31, 7), (1.0, 20)])
def test_against_the_sorted_list(fraction: float, count: int) -> None:
    for measure, each in (("neuronsim", pearson(X, Y).max(1)), ("mixedsim", r_values(X, Y))):
        want = np.sort(each)[::-1][:count].mean()
        assert similarity(X, Y, f"{measure}@{fraction}") == pytest.approx(want, abs=1e-9)


def test_canonical_measures_take_the_largest_correlations() -> None:
    h, rho, _ = truncated(X, Y)
    k = -(-len(rho) // 2)
    assert similarity(X, Y, "svsim@0.5") == pytest.approx(rho[:k].mean(), abs=1e-9)
    weight = np.abs(h.T @ (X - X.mean(0))).sum(1)
    assert similarity(X, Y, "pwsim@0.5") == pytest.approx((weight[:k] @ rho[:k]) / weight[:k].sum(), abs=1e-9)


def test_best_counts_without_being_fooled_by_rounding() -> None:
    values = torch.tensor([3.0, 9.0, 1.0, 7.0, 5.0, 0.0, 2.0, 4.0, 6.0, 8.0])
    assert best(values, 0.3).tolist() == [9, 8, 7]
    assert 0.07 * 100 > 7  # in floating point
    assert len(best(torch.arange(100.0), 0.07)) == 7
    assert best(values, 0.01).tolist() == [9]
    assert best(values, 1.0) is values
    assert best_mean(values, 0.2) == 8.5


@pytest.mark.parametrize("measure", AVERAGING)
def test_both_directions_take_their_fraction(measure: str) -> None:
    name = f"{measure}@0.3"
    values = score_layers(MemoryRows([torch.from_numpy(X), torch.from_numpy(Y)]), [parse(name)]).scored[name].values
    assert float(values[0, 1]) == pytest.approx(similarity(X, Y, name), abs=1e-9)
    assert float(values[1, 0]) == pytest.approx(similarity(Y, X, name), abs=1e-9)
