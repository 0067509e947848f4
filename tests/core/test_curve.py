"""A value for every layer, and a model's depths."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stratoscope.core.curve import Curve
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Value

CURVE = Curve("tuned", (0, 2, 5), np.array([math.nan, 0.5, 0.75]), np.array([math.nan, 0.25, 0.5]), np.ones(3))


def test_points_have_their_intervals() -> None:
    assert CURVE.points[1:] == (Value(0.5, 0.25, 1.0), Value(0.75, 0.5, 1.0))
    assert not CURVE.points[0].known
    assert CURVE.known == [1, 2]
    assert not any(p.has_interval for p in Curve("x", (0, 1), np.zeros(2)).points)


def test_a_frame_has_the_layers_numbers() -> None:
    frame = CURVE.to_frame()
    assert list(frame.index) == [0, 2, 5]
    assert frame.loc[5].to_dict() == {"value": 0.75, "low": 0.5, "high": 1.0}


@pytest.mark.parametrize("field", ["values", "low", "high"])
def test_values_must_fit_the_layers(field: str) -> None:
    arrays = {"values": np.zeros(2), "low": np.zeros(2), "high": np.zeros(2), field: np.zeros(3)}
    with pytest.raises(ValueError, match=f"{field} of curve x"):
        Curve("x", (0, 1), **arrays)


def test_depth_is_a_fraction_of_the_models_depth() -> None:
    model = ModelInfo("m", "m", "bert", 31, 8, "f")
    assert [model.depth(k) for k in (0, 6, 30)] == [0.0, 0.2, 1.0]
    assert not model.is_control
