"""What depth buys: curves by name, shapes that fit the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from results.result_cases import DEPTH
from stratoscope.core.curve import Curve
from stratoscope.core.errors import StratoscopeError


def test_a_curve_is_found_by_name() -> None:
    assert DEPTH.curve("tunedorig") is DEPTH.curves[1]
    with pytest.raises(StratoscopeError, match=r"curve.*'tuned'.*'untuned'|'tunedorig'"):
        DEPTH.curve("tuned")


def test_shapes_must_fit_the_model() -> None:
    with pytest.raises(ValueError, match=r"curve tuned.*3.*1"):
        replace(DEPTH, curves=(Curve("tuned", (0,), np.array([0.5])),))
    for name in ("skip", "skip_agreement"):
        with pytest.raises(ValueError, match=rf"{name}: .*\(2, 2\).*\(3, 3\)"):
            replace(DEPTH, **{name: np.zeros((3, 3))})
