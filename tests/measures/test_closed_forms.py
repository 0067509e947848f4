"""Numbers known without any computation of ours: published ones, exact maps, noise, and matrices done by hand."""

from __future__ import annotations

import doctest
import math
import warnings

import numpy as np
import pytest

import stratoscope
from measures.layer_cases import related, rotation
from stratoscope.measures import similarity as similarity_module
from stratoscope.measures.table import MEASURES, known_names


@pytest.fixture(autouse=True)
def _quiet() -> None:
    warnings.simplefilter("ignore")


@pytest.mark.parametrize(
    ("measure", "value"), [("ckasim", 0.55761), ("ckasim-rbf", 0.65483), ("ckasim-debiased", 0.51346)]
)
def test_seed_1337(measure: str, value: float) -> None:
    random = np.random.RandomState(1337)
    x = random.randn(100, 10)
    y = random.randn(100, 10) + x
    assert stratoscope.similarity(x, y, measure) == pytest.approx(value, abs=5e-6)
    assert stratoscope.similarity(x + 17, 3 * y, measure) == pytest.approx(value, abs=5e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("measure", [m.name for m in MEASURES if "orthogonal" in m.invariant_x & m.invariant_y])
def test_a_rotated_and_scaled_layer_is_the_same_layer(measure: str, dtype: type) -> None:
    x, _ = related(150, 12, 12)
    y = 3 * x @ rotation(12, 1) + 5
    assert stratoscope.similarity(x.astype(dtype), y.astype(dtype), measure) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("measure", ["cca", "mixedsim", "linreg", "mixedsim-heldout"])
def test_an_invertible_map_of_a_layer_is_the_same_layer(measure: str, dtype: type) -> None:
    x, _ = related(150, 12, 12)
    y = x @ np.random.default_rng(2).standard_normal((12, 12)) - 4
    for a, b in ((x, y), (y, x)):
        assert stratoscope.similarity(a.astype(dtype), b.astype(dtype), measure) == pytest.approx(1, abs=1e-6)


def test_permuted_negated_neurons_are_the_same_neurons() -> None:
    x, _ = related(150, 12, 12)
    order = np.random.default_rng(3).permutation(12)
    assert stratoscope.similarity(x, -2 * x[:, order] + 1, "neuronsim") == pytest.approx(1, abs=1e-12)


NOISE = {
    "svsim": 0.91,
    "ckasim": 0.61,
    "mixedsim": 1.0,
    "cca": 1.0,
    "linreg": 1.0,
    "ckasim-rbf": 0.94,
    "ckasim-debiased": 0.0,
    "ckasim-minibatch": 0.0,
    "rsa": 0.0,
    "mixedsim-heldout": 0.025,
}
"""What few rows of independent noise score; the first three are the published trap, held-out is mean(max(0, r))."""


@pytest.fixture(scope="module")
def noise() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((500, 768)).astype(np.float32), rng.standard_normal((500, 768)).astype(np.float32)


@pytest.mark.parametrize(("measure", "value"), NOISE.items())
def test_independent_noise_with_few_rows(measure: str, value: float, noise: tuple[np.ndarray, np.ndarray]) -> None:
    assert stratoscope.similarity(*noise, measure) == pytest.approx(value, abs=0.006)


NEIGHBOURS = ("knn", "knn-jaccard")


def test_neighbours_of_noise_are_shared_by_chance(noise: tuple[np.ndarray, np.ndarray]) -> None:
    """k / (n - 1) of them, and s / (2k - s) of the union where s of k are shared; here only the first is above 0.1."""
    x, y = noise[0][:60, :40], noise[1][:60, :40]
    with pytest.warns(UserWarning, match=r"score up to 0\.17 \(knn\)"):
        assert stratoscope.similarity(x, y, "knn") == pytest.approx(10 / 59, abs=0.06)
    assert stratoscope.similarity(x, y, "knn-jaccard") == pytest.approx(1 / 11, abs=0.04)
    assert stratoscope.similarity(*noise, "knn") == pytest.approx(10 / 499, abs=0.006)


@pytest.mark.parametrize("measure", NEIGHBOURS)
def test_neighbours_that_tie_come_in_the_order_of_the_rows(measure: str) -> None:
    """Of A and B, rows 0-39 have the same first ten neighbours, all others have ten of another group each."""
    rows = np.repeat(np.arange(4), 40)
    assert stratoscope.similarity(A[rows][:, None], B[rows][:, None], measure) == 0.25


LOW = ("ckasim-debiased", "ckasim-minibatch", "rsa", "mixedsim-heldout")


@pytest.mark.parametrize("measure", [m for m in known_names() if m not in (*LOW, *NEIGHBOURS)])
def test_measures_that_inflate_draw_a_warning_on_noise(measure: str, noise: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = noise[0][:60, :40], noise[1][:60, :40]
    words = rf"60 rows and 40 neurons, unrelated layers already score up to 0\.\d\d \({measure}\)"
    with pytest.warns(UserWarning, match=words):
        assert stratoscope.similarity(x, y, measure) > 0.25


@pytest.mark.parametrize("measure", LOW)
def test_measures_that_do_not_inflate_stay_low_on_noise(
    measure: str, noise: tuple[np.ndarray, np.ndarray], recwarn: pytest.WarningsRecorder
) -> None:
    x, y = noise[0][:60, :40], noise[1][:60, :40]
    assert stratoscope.similarity(x, y, measure) < 0.1
    assert not recwarn.list


# Two orthogonal contrasts over four rows, all centred and of norm 2.
A, B, C = np.array([[1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]], dtype=float)


@pytest.mark.parametrize(
    ("x", "y", "measure", "value"),
    [
        # x = (a, b); y = a + b: correlation 1/√2 with each neuron of x.
        ([A, B], [A + B], "neuronsim", math.sqrt(1 / 2)),
        ([A + B], [A, B], "neuronsim", math.sqrt(1 / 2)),
        ([A, C], [A, B], "neuronsim", 1 / 2),
        ([A, B], [A + B], "mixedsim", math.sqrt(1 / 2)),
        ([A + B], [A, B], "mixedsim", 1),
        ([A, C], [A, B], "mixedsim", 1 / 2),
        ([A, B], [A + B], "linreg", 1),
        ([A + B], [A, 2 * B], "linreg", 1 / 2),
        ([A, C], [A, 2 * B], "linreg", 1 / 5),
        ([A, C], [A, B], "cca", 1 / 2),
        ([A + 2 * C], [A, B], "cca", math.sqrt(1 / 5)),
        ([A, C], [A, B], "svsim", 1 / 2),
        ([A, C / 100], [A, B], "svsim", 1),  # c holds 0.01 % of the variance
        ([A, 3 * C], [A, B], "pwsim", 1 / 4),  # weights 1 and 3, correlations 1 and 0
        ([A, B], [A, 3 * C], "pwsim", 1 / 2),
        ([A, C], [A, B], "ckasim", 1 / 2),
        ([A, 2 * C], [A, B], "ckasim", 1 / math.sqrt(17 * 2)),
        ([A, C], [A, B], "procrustes", 1 / 2),
        ([A, 2 * C], [A, B], "procrustes", 1 / math.sqrt(5 * 2)),
    ],
)
def test_done_by_hand(x: list[np.ndarray], y: list[np.ndarray], measure: str, value: float) -> None:
    assert stratoscope.similarity(np.array(x).T, np.array(y).T, measure) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("measure", [m for m in known_names() if m not in NEIGHBOURS])
def test_unrelated_single_contrasts_score_nothing(measure: str) -> None:
    rows = np.repeat(np.arange(4), 40)  # noise cannot fit 160 rows
    score = stratoscope.similarity(A[rows][:, None], B[rows][:, None], measure)
    assert score == pytest.approx(0, abs=0.03)


def test_the_docstrings_example() -> None:
    assert doctest.testmod(similarity_module, optionflags=doctest.ELLIPSIS).failed == 0
