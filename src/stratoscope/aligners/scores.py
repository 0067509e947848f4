"""How well a map fits rows it has not seen, with intervals over the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratoscope.aligners.maps import Map
from stratoscope.core.value import PERCENTILES, Interval, Value, Values, spread

RESAMPLES = 1000
INTERVAL = Interval(0.95, PERCENTILES)


@dataclass(frozen=True)
class Fit:
    """Scores of one map on test rows."""

    method: str
    mse: Value
    """‖g(x) - y‖² per row and feature."""
    error: Value
    """Relative error ‖g(X) - Y‖² / ‖Y - mean‖²: 0 is perfect, 1 no better than the mean."""
    r2: Value
    """1 - relative error."""
    inversion: float
    """‖g⁻¹(g(X)) - X‖ / ‖X - mean‖; NaN where there is no inverse."""


def score_map(g: Map, x: Tensor, y: Tensor, *, seed: int = 0) -> Fit:
    """Judge a map on test rows."""
    found = g(x)
    squares = (found.double() - y.double()).square().sum(1).numpy()
    inversion = float("nan")
    if g.invertible:
        centred = (x.double() - x.double().mean(0)).norm()
        inversion = float((g.inverse(found).double() - x.double()).norm() / centred)
    return scores(g.method, squares, y, inversion=inversion, seed=seed)


def scores(method: str, squares: Values, y: Tensor, *, inversion: float = float("nan"), seed: int = 0) -> Fit:
    """Scores from each row's squared error."""
    around = (y.double() - y.double().mean(0)).square().sum(1).numpy()
    weights = resamples(len(squares), seed=seed)
    mse = _value(squares.mean() / y.shape[1], weights @ squares / len(squares) / y.shape[1])
    drawn = relative(weights @ squares, weights @ around)
    error = _value(float(relative(squares.sum(), around.sum())), drawn)
    return Fit(method, mse, error, Value(1 - error.value, 1 - error.high, 1 - error.low), inversion)


def relative(error: Values, around: Values) -> Values:
    """Relative error; NaN where the second space does not vary."""
    found: Values = np.divide(error, around, out=np.full(np.shape(error), np.nan), where=np.asarray(around) > 0)
    return found


def resamples(n: int, *, seed: int = 0, number: int = RESAMPLES) -> Values:
    """(number, n): how often each row is in each resample; the same for all maps of as many rows."""
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=number)
    return drawn.astype(np.float64)


def _value(estimate: float, drawn: Values) -> Value:
    low, high = spread(np.array(estimate), drawn, INTERVAL)
    return Value(float(estimate), float(low), float(high))


def row_errors(found: Tensor, y: Tensor) -> Values:
    """Squared error of every row."""
    errors: Values = (found.double() - y.double()).square().sum(1).numpy()
    return errors


def shuffled(y: Tensor, *, seed: int = 0) -> Tensor:
    """The same rows in another order: a map fitted to them is the floor."""
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
