"""Every measure on every awkward pair of layers, against the definitions, in both directions."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest

from measures.layer_cases import CASES, Layers
from measures.reference import REFERENCES, truncated
from stratoscope.measures import score
from stratoscope.measures.similarity import similarity
from stratoscope.measures.table import MEASURES, known_names

REPEATING = {
    "fewer rows than neurons",
    "rows between the widths",
    "as many rows as neurons",
    "float32, fewer rows",
}
"""Both layers fill the space of the rows: correlations of 1 repeat, so their vectors and the weights are arbitrary."""


@cache
def layers(case: str) -> Layers:
    return CASES[case]()


def defined(measure: str, case: str) -> bool:
    """Whether the definition gives one number that the measure must hit."""
    if measure == "pwsim":
        return case not in REPEATING
    if measure == "rsa":
        return case != "one neuron"  # rows of one number have no Pearson correlation
    return measure != "ckasim-minibatch" or len(layers(case).x) <= 256  # beyond, minibatches estimate: test_kernel.py


def ours(x: np.ndarray, y: np.ndarray, measure: str) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows, constant neurons: tested elsewhere
        return similarity(x, y, measure)


def test_every_measure_has_a_reference() -> None:
    assert set(REFERENCES) == set(known_names())


@pytest.mark.parametrize(("measure", "case"), [(m, c) for m in REFERENCES for c in CASES if defined(m, c)])
def test_agrees_with_the_definition(measure: str, case: str) -> None:
    c = layers(case)
    x, y = c.x.astype(np.float64), c.y.astype(np.float64)
    reference = REFERENCES[measure]
    assert ours(c.x, c.y, measure) == pytest.approx(reference(x, y, c.rank_x, c.rank_y), abs=1e-6)
    assert ours(c.y, c.x, measure) == pytest.approx(reference(y, x, c.rank_y, c.rank_x), abs=1e-6)


SINGLE = ["float32", "LayerNorm in float32", "constant columns", "outlier dimensions"]
SINGLE += ["condition 290", "condition 1e3", "condition 1e5 along neurons", "condition 2e6"]


@pytest.mark.parametrize("case", SINGLE)
@pytest.mark.parametrize("measure", [m.name for m in MEASURES if m.compare])
def test_agrees_in_single_precision(measure: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinates in float32, as large comparisons have them; small ones are float64 throughout."""
    monkeypatch.setattr(score, "PRECISE", 0)
    assert layers(case).x.dtype == np.float32
    test_agrees_with_the_definition(measure, case)


@pytest.mark.parametrize("case", sorted(REPEATING))
def test_pwsim_where_correlations_repeat(case: str) -> None:
    """What is defined whatever the vectors: a weighted mean of these correlations, hence between them."""
    c = layers(case)
    x, y = c.x.astype(np.float64), c.y.astype(np.float64)
    _, rho, _ = truncated(x, y, c.rank_x, c.rank_y)
    assert (rho > 1 - 1e-6).sum() > 1, "this case was meant to repeat correlations"
    assert rho.min() - 1e-6 <= ours(c.x, c.y, "pwsim") <= 1
    assert ours(c.x, c.y, "pwsim") == pytest.approx(REFERENCES["pwsim"](x, y, c.rank_x, c.rank_y), abs=2e-2)


@pytest.mark.parametrize("case", ["float32", "constant columns", "outlier dimensions", "condition 2e6"])
@pytest.mark.parametrize("measure", [m for m in REFERENCES if m != "mixedsim-heldout"])
def test_a_layer_is_wholly_similar_to_itself(measure: str, case: str) -> None:
    x = layers(case).x
    varying = (x != x[0]).any(0).mean() if measure in ("neuronsim", "mixedsim") else 1
    assert ours(x, x.copy(), measure) == pytest.approx(varying, abs=1e-6)


def test_outlier_dimensions_are_really_in_the_case() -> None:
    x = layers("outlier dimensions").x
    assert x.dtype == np.float32
    assert (np.abs(x.mean(0)) / x.std(0)).max() > 2900
