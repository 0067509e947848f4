"""Comparisons and depth results whose scores, resamples and rows are made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import Statement
from stratoscope.core.value import Interval, Value
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.depth import Depth

Score = Callable[[str, float, str, float], float]
"""From two layers, each by its model and its depth between 0 and 1, to their similarity."""

RESAMPLES = 80
BOOTSTRAP = Interval(0.95, "bootstrap", 500)
MANY_ROWS = 1_000_000
WIDTH = 16


def model(
    name: str, blocks: int = 8, *, role: str = "model", base: str | None = None, family: str = "bert"
) -> ModelInfo:
    return ModelInfo(name, name, family, blocks + 1, WIDTH, "x", role, base)


def scored(
    score: Score,
    models: Sequence[ModelInfo],
    *,
    measure: str = "ckasim",
    layers: Sequence[int] | None = None,
    noise: float = 0.002,
    shared: float = 0.0,
    constant: Sequence[tuple[str, int]] = (),
    bootstrap: bool = True,
) -> Matrix:
    """A matrix whose resamples differ by noise of each cell, and by what all cells of a resample have in common."""
    axis = [Layer(m.name, k) for m in models for k in (range(m.layers) if layers is None else layers)]
    depth = {m.name: m.depth for m in models}
    at = [(layer.model, depth[layer.model](layer.index)) for layer in axis]
    values = np.array([[1.0 if a == b else score(*a, *b) for b in at] for a in at])
    for k, layer in enumerate(axis):
        if (layer.model, layer.index) in constant:
            values[k], values[:, k] = np.nan, np.nan
    rng = np.random.default_rng(crc32(measure.encode()))
    n = len(axis)
    own = rng.normal(0, noise, (RESAMPLES, n, n))
    replicates = values + (own + own.transpose(0, 2, 1)) / 2 + rng.normal(0, 1, (RESAMPLES, 1, 1)) * shared
    if not bootstrap:
        return Matrix(measure, tuple(axis), tuple(axis), values)
    return Matrix(measure, tuple(axis), tuple(axis), values, None, None, BOOTSTRAP, replicates)


def comparison(
    matrices: Matrix | Sequence[Matrix], models: Sequence[ModelInfo], *, rows: int = MANY_ROWS, **data: Any
) -> Comparison:
    matrices = (matrices,) if isinstance(matrices, Matrix) else tuple(matrices)
    return Comparison(matrices, tuple(models), {"rows": rows, **data})


def near(a: float, b: float) -> float:
    """A smooth matrix: layers are the more alike the nearer they are."""
    return 1 - 0.3 * abs(a - b)


def two_blocks(a: float, b: float, sharpness: float) -> float:
    return 0.95 if (a > 0.5) == (b > 0.5) else 0.95 - sharpness


def named(statements: Sequence[Statement], claim: str) -> Statement:
    """The one statement of a claim."""
    (found,) = [s for s in statements if s.id.partition(":")[0] == claim]
    return found


def kind(statement: Statement) -> str:
    return statement.reason.partition(":")[0]


def depth_result(
    curves: Mapping[str, Sequence[float]] | None = None,
    *,
    skip: np.ndarray | None = None,
    full: float = 0.9,
    majority: float = 0.5,
    noise: float = 0.001,
    shared: float = 0.02,
    resamples: bool = True,
) -> Depth:
    """A depth result whose resamples move the full model, its curves and its spans together."""
    curves = curves or {}
    blocks = len(skip) if skip is not None else len(next(iter(curves.values()))) - 1
    rng = np.random.default_rng(1)
    common = rng.normal(0, shared, RESAMPLES)

    def drawn(values: np.ndarray) -> np.ndarray | None:
        lead = common.reshape(-1, *[1] * values.ndim)
        return values + lead + rng.normal(0, noise, (RESAMPLES, *values.shape)) if resamples else None

    made = []
    for name, values in curves.items():
        points = np.asarray(values, dtype=float)
        made.append(Curve(name, tuple(range(blocks + 1)), points, replicates=drawn(points)))
    return Depth(
        model("tuned", blocks),
        model("base", blocks),
        {"name": "sst2", "metric": "accuracy"},
        Value(full, full - 0.03, full + 0.03),
        majority,
        0.6,
        tuple(made),
        skip,
        full_replicates=None if not resamples else full + common,
        skip_replicates=None if skip is None or not resamples else drawn(skip),
    )
