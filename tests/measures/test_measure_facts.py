"""What every measure declares about itself holds, and what it does not declare does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from measures.layer_cases import related, rotation
from stratoscope.measures.measure import Invariance, Measure
from stratoscope.measures.similarity import similarity
from stratoscope.measures.table import MEASURES

D = 10
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "translation": lambda x: x + 3 * np.random.default_rng(1).standard_normal(D),
    "scaling": lambda x: 7.3 * x,
    "permutation": lambda x: x[:, np.random.default_rng(2).permutation(D)],
    "neuron-scaling": lambda x: x * np.geomspace(0.1, 10, D),
    "orthogonal": lambda x: x @ rotation(D, 3),
    "invertible": lambda x: x @ np.random.default_rng(4).standard_normal((D, D)),
}

each = pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.name)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    warnings.simplefilter("ignore")


@pytest.fixture(scope="module")
def pair() -> tuple[np.ndarray, np.ndarray]:
    return related(160, D, D)


FEW = related(14, D, D)
"""Rows of which no half outnumbers the neurons."""


def test_every_invariance_has_a_change() -> None:
    assert set(CHANGES) == set(get_args(Invariance))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("side", ["x", "y"])
@each
def test_declared_invariances_hold_and_others_do_not(
    measure: Measure, side: str, change: str, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    moved = []
    for x, y in (pair, FEW):
        before = similarity(x, y, measure.name)
        changed = CHANGES[change](x if side == "x" else y)
        after = similarity(changed, y, measure.name) if side == "x" else similarity(x, changed, measure.name)
        moved.append(abs(after - before))
    if measure.name == "pwsim":
        del moved[1]  # not unique where correlations repeat, as they do in few rows; its caution says so
    if change in (measure.invariant_x if side == "x" else measure.invariant_y):
        assert max(moved) < 1e-8
    else:
        assert max(moved) > 1e-4


@each
def test_symmetry_is_as_declared(measure: Measure, pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair[0], pair[1][:, :4]
    forward, backward = similarity(x, y, measure.name), similarity(y, x, measure.name)
    if measure.symmetric:
        assert measure.invariant_x == measure.invariant_y
        assert forward == pytest.approx(backward, abs=1e-12)
    else:
        assert abs(forward - backward) > 1e-2


@pytest.mark.parametrize("shape", [(5, 3), (6, 30), (40, 8), (8, 8)])
@each
def test_scores_keep_to_their_bounds(measure: Measure, shape: tuple[int, int]) -> None:
    low, high = measure.bounds
    rng = np.random.default_rng(shape)
    for dtype in (np.float32, np.float64):
        x = rng.standard_normal(shape).astype(dtype)
        for y in (rng.standard_normal(shape).astype(dtype), x, -x, 1 / x, x**3):
            assert low <= similarity(x, y, measure.name) <= high


@pytest.mark.parametrize("name", ["ckasim-debiased", "ckasim-minibatch", "rsa"])
def test_bounds_below_zero_are_needed(name: str) -> None:
    scores = [similarity(*np.random.default_rng(k).standard_normal((2, 8, 6)), name) for k in range(20)]
    assert min(scores) < -0.05


@each
def test_a_layer_with_itself_scores_1(measure: Measure, pair: tuple[np.ndarray, np.ndarray]) -> None:
    for dtype in (np.float32, np.float64):
        x = pair[0].astype(dtype)
        assert similarity(x, x, measure.name) == pytest.approx(1, abs=1e-6)


@each
def test_names_and_words_are_there(measure: Measure) -> None:
    assert measure.summary
    assert measure.reference
    assert (measure.compare is None) != (measure.rows is None), "a measure reads covariances or rows, one of them"
    assert not (measure.averages and measure.rows), "@fraction is not passed to measures of rows"
