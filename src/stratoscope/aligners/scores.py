"""How well a map fits rows it has not seen, with intervals over the rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stratoscope.aligners.maps import Map
from stratoscope.aligners.texts import IntArray, numbered
from stratoscope.core.value import PERCENTILES, Interval, Value, Values, spread
from stratoscope.results.alignment import Fit

RESAMPLES = 500
INTERVAL = Interval(0.95, PERCENTILES)


def score_map(g: Map, x: Tensor, y: Tensor, *, texts: IntArray | None = None, seed: int = 0) -> Fit:
    """Judge a map on test rows."""
    mapped = g(x)
    inversion = inversion_error(g, x, mapped)
    return scores(
        g.method, row_errors(mapped, y), around_mean(y), y.shape[1], inversion=inversion, texts=texts, seed=seed
    )


def inversion_error(g: Map, x: Tensor, found: Tensor) -> float:
    """‖g⁻¹(g(X)) - X‖ / ‖X - mean‖; NaN where there is no inverse."""
    if not g.invertible:
        return float("nan")
    return float((g.inverse(found).double() - x.double()).norm() / (x.double() - x.double().mean(0)).norm())


def scores(
    method: str,
    squares: Values,
    around: Values,
    width: int,
    *,
    inversion: float = float("nan"),
    texts: IntArray | None = None,
    seed: int = 0,
) -> Fit:
    """Scores from each row's squared error and its squared distance from the mean, with intervals over the texts."""
    weights, n = resamples(len(squares), texts=texts, seed=seed), len(squares) * width
    drawn = relative(weights @ squares, weights @ around)
    error = _value(float(relative(squares.sum(), around.sum())), drawn)
    r2 = Value(1 - error.value, 1 - error.high, 1 - error.low)
    return Fit(
        method, _value(squares.sum() / n, weights @ squares / (weights.sum(1) * width)), error, r2, inversion, drawn
    )


def relative(error: Values, around: Values) -> Values:
    """Relative error; NaN where the second space does not vary."""
    ratio: Values = np.divide(error, around, out=np.full(np.shape(error), np.nan), where=np.asarray(around) > 0)
    return ratio


def resamples(n: int, *, texts: IntArray | None = None, seed: int = 0, number: int = RESAMPLES) -> Values:
    """(number, n): how often each row is in each resample, the same for all maps of these rows.

    Whole texts are drawn.
    """
    of = numbered(n, texts)
    size = int(of.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=number)
    weights: Values = drawn.astype(np.float64)[:, of]
    return weights


def _value(estimate: float, drawn: Values) -> Value:
    low, high = spread(np.array(estimate), drawn, INTERVAL)
    return Value(float(estimate), float(low), float(high))


def row_errors(found: Tensor, y: Tensor) -> Values:
    """Squared error of every row."""
    errors: Values = (found.double() - y.double()).square().sum(1).numpy()
    return errors


def around_mean(y: Tensor) -> Values:
    """Squared distance of every row from the mean of all."""
    return row_errors(y.double().mean(0), y)


def shuffled(y: Tensor, *, seed: int = 0) -> Tensor:
    """The same rows in another order: a map fitted to them is the floor."""
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
