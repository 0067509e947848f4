"""Similarity of two arrays: what it takes, what it says, what it refuses."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from measures.layer_cases import normed, related
from measures.reference import REFERENCES
from stratoscope.core.errors import StratoscopeError
from stratoscope.measures.similarity import similarity
from stratoscope.measures.table import known_names

X, Y = related(50, 6, 5)


@pytest.mark.parametrize(
    "x", [X.tolist(), torch.from_numpy(X), torch.from_numpy(X).requires_grad_(), np.asfortranarray(X)]
)
def test_arrays_tensors_and_lists_are_alike(x: Any) -> None:
    assert similarity(x, Y) == pytest.approx(similarity(X, Y), abs=1e-12)


def test_integers_and_booleans_are_numbers() -> None:
    whole = np.random.default_rng(0).integers(0, 2, (30, 3))
    want = similarity(whole.astype(float), whole[:, ::-1].astype(float), "neuronsim")
    assert similarity(whole.astype(bool), whole[:, ::-1], "neuronsim") == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_told_from_noise_by_its_own_rounding(dtype: torch.dtype) -> None:
    """A LayerNorm layer in half precision has one direction of rounding; counted as signal it lowers cca."""
    x = torch.from_numpy(normed()[0]).to(dtype)
    real = torch.linalg.svd(x.double() - x.double().mean(0), full_matrices=False)[0][:, :23]
    generator = torch.Generator().manual_seed(0)
    y = torch.cat([real, torch.randn(300, 1, generator=generator, dtype=torch.float64)], 1)
    assert similarity(x, y @ torch.randn(24, 24, generator=generator).double(), "cca") == pytest.approx(1, abs=1e-5)
    assert similarity(x.double(), y, "cca") < 0.99


@pytest.mark.parametrize("measure", known_names())
def test_inputs_are_not_changed(measure: str) -> None:
    x, y = X.copy(), Y.copy()
    similarity(x, y, measure)
    assert (x == X).all()
    assert (y == Y).all()


@pytest.mark.parametrize("measure", known_names())
@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_a_constant_layer_scores_0_and_is_told(measure: str, value: float) -> None:
    flat = np.full((50, 4), value, dtype=np.float32)
    with pytest.warns(UserWarning, match="4 of 4 neurons of y do not vary and score 0"):
        assert similarity(X, flat, measure) == 0
    with pytest.warns(UserWarning, match="4 of 4 neurons of x do not vary and score 0"):
        assert similarity(flat, X, measure) == 0


def test_constant_neurons_are_counted() -> None:
    x = X.astype(np.float32)
    x[:, [1, 4]] = 0.3
    with pytest.warns(UserWarning, match="^2 of 6 neurons of x do not vary and score 0$"):
        score = similarity(x, Y, "neuronsim")
    assert score == pytest.approx(similarity(x[:, [0, 2, 3, 5]], Y, "neuronsim") * 4 / 6, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("measure", ["ckasim", "neuronsim", "mixedsim", "cca"])
def test_half_precision_loses_no_neuron_that_varies(measure: str, dtype: torch.dtype) -> None:
    """Mean 40 times the spread: a few units of bfloat16, in which the neuron has dozens of values."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=g) * 0.25
    y = torch.randn(400, 5, generator=g) * 0.05
    x[:, 0] += 10
    y[:, 0] = x[:, 0]
    x, y = x.to(dtype), y.to(dtype)
    assert len(x[:, 0].unique()) > 20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = REFERENCES[measure](x.double().numpy(), y.double().numpy())
        assert similarity(x, y, measure) == pytest.approx(want, abs=1e-6)


def test_directions_left_out_as_rounding_are_told() -> None:
    twice = np.hstack([X, X[:, :3]])
    with pytest.warns(UserWarning, match="^3 of 9 directions of y are rounding and left out$"):
        similarity(Y, twice, "cca")


def test_few_rows_draw_a_warning() -> None:
    with pytest.warns(UserWarning, match="mixedsim is 1 for any two layers while rows"):
        assert similarity(X[:5], Y[:5], "mixedsim") == pytest.approx(1)


def test_enough_rows_draw_none() -> None:
    """As many as make unrelated layers score less than 0.1: 100 for each neuron under mixedsim."""
    x, y = related(620, 6, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        similarity(x, y, "mixedsim")
    with pytest.warns(
        UserWarning, match=r"310 rows and 6 neurons, unrelated layers already score up to 0\.14 \(mixedsim\)"
    ):
        similarity(x[:310], y[:310], "mixedsim")


def test_the_seed_reaches_the_measure() -> None:
    x, y = related(600, 5, 5)
    scores = [similarity(x, y, "ckasim-minibatch", seed=k) for k in (0, 0, 1)]
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.parametrize(
    ("x", "y", "measure", "words"),
    [
        (X, Y[:-1], "ckasim", "x and y must have the same rows in the same order; got 50 and 49 rows"),
        (X[:2], Y[:2], "ckasim", "expected at least 3 rows, got 2"),
        (X[:3], Y[:3], "ckasim-debiased", "expected at least 4 rows, got 3"),
        (X[:, 0], Y, "ckasim", r"x: expected rows × features, got shape \(50,\)"),
        (X, np.zeros((50, 0)), "ckasim", r"y: expected rows × features, got shape \(50, 0\)"),
        (X + 1j, Y, "ckasim", "x: expected real numbers, got torch.complex128"),
        ([["a", "b"]], Y, "ckasim", "x: expected a matrix of numbers, got list"),
        ([[1.0], [1.0, 2.0]], Y, "ckasim", "x: expected a matrix of numbers, got list"),
        (X, Y, "ckas", "unknown measure 'ckas'; did you mean"),
    ],
)
def test_refusals(x: Any, y: Any, measure: str, words: str) -> None:
    with pytest.raises(StratoscopeError, match=words):
        similarity(x, y, measure)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named_by_row(bad: float) -> None:
    y = Y.copy()
    y[17, 3] = bad
    with pytest.raises(StratoscopeError, match="y: row 17 holds a value that is not finite"):
        similarity(X, y)
