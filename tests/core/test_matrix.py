"""Scores of pairs of layers, by name of the model and number of the layer."""

from __future__ import annotations

import numpy as np
import pytest

from results.result_cases import AXES, BASE, RESAMPLES, SQUARE, TUNED, square
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.value import Interval


def test_between_has_the_first_model_on_the_rows() -> None:
    block = square(intervals=True).between("base", "tuned")
    assert (block.rows, block.columns) == (BASE, TUNED)
    np.testing.assert_array_equal(block.values, SQUARE[:3, 3:])
    assert block.low is not None
    assert block.high is not None
    np.testing.assert_array_equal(block.low, SQUARE[:3, 3:] - 0.1)
    np.testing.assert_array_equal(block.high, SQUARE[:3, 3:] + 0.2)
    assert block.replicates is not None
    np.testing.assert_array_equal(block.replicates, RESAMPLES[:, :3, 3:])
    assert block.interval == Interval(0.95, "bootstrap", 40)
    np.testing.assert_array_equal(square().between("tuned", "base").values, SQUARE[3:, :3])


def test_one_score_by_row_then_column() -> None:
    assert square().at(("base", 1), ("tuned", 0)) == SQUARE[1, 3]
    assert square().at(("tuned", 0), ("base", 1)) == SQUARE[3, 1]
    assert square().position("tuned", 1) == 4


def test_layers_keep_their_numbers_when_some_were_left_out() -> None:
    axis = (Layer("m", 2), Layer("m", 5))
    matrix = Matrix("cca", axis, axis, np.array([[1.0, 0.2], [0.3, 1.0]]))
    assert matrix.at(("m", 2), ("m", 5)) == 0.2
    with pytest.raises(StratoscopeError, match=r"no layer 3.*2, 5"):
        matrix.at(("m", 3), ("m", 5))


def test_the_frame_is_labelled_on_both_axes() -> None:
    frame = square().between("base", "tuned").to_frame()
    assert list(frame.index) == ["base:0", "base:1", "base:2"]
    assert list(frame.columns) == ["tuned:0", "tuned:1"]
    assert frame.loc["base:2", "tuned:0"] == SQUARE[2, 3]


def test_models_come_in_the_order_of_the_rows() -> None:
    assert square().models == ("base", "tuned")
    assert square().between("tuned", "base").models == ("tuned",)


def test_an_unknown_model_or_layer_is_named() -> None:
    with pytest.raises(StratoscopeError, match=r"'bas'.*'base'.*base, tuned"):
        square().between("bas", "tuned")
    with pytest.raises(StratoscopeError, match="model 'x'"):
        square().at(("base", 0), ("x", 0))
    with pytest.raises(StratoscopeError, match=r"tuned has no layer 7.*0-1"):
        square().position("tuned", 7)


@pytest.mark.parametrize("field", ["values", "low", "high"])
def test_values_must_fit_the_axes(field: str) -> None:
    arrays = {"values": SQUARE, "low": SQUARE, "high": SQUARE, field: SQUARE[:4]}
    with pytest.raises(ValueError, match=rf"{field} of cca: expected shape \(5, 5\) from the axes, got \(4, 5\)"):
        Matrix("cca", AXES, AXES, **arrays)


def test_resamples_must_fit_the_axes() -> None:
    with pytest.raises(ValueError, match="replicates of cca"):
        Matrix("cca", AXES, AXES, SQUARE, replicates=RESAMPLES[:, :4])


def test_a_matrix_is_shown_in_one_short_line() -> None:
    assert repr(square()) == "Matrix(linreg, 5×5 layers of base, tuned)"
    assert repr(square().between("base", "tuned")) == "Matrix(linreg, 3×2 layers of base against tuned)"
