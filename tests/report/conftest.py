from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from report_cases import build

from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.results.comparison import Comparison


@pytest.fixture
def comparison() -> Comparison:
    return build()


@pytest.fixture
def make_comparison() -> Callable[..., Comparison]:
    return build


@pytest.fixture
def some_layers() -> Comparison:
    """The same comparison had only layers 4, 8 and 12 of two models been asked for."""
    whole, kept = build(), (4, 8, 12)
    keep = [k for k, r in enumerate(whole["ckasim"].rows) if r.model != "mini" and r.index in kept]
    axis = tuple(whole["ckasim"].rows[k] for k in keep)

    def cut(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[np.ix_(keep, keep)]

    matrices = tuple(Matrix(m.measure, axis, axis, cut(m.values), cut(m.low), cut(m.high)) for m in whole.matrices)
    found = whole.findings
    return dataclasses.replace(
        whole,
        matrices=matrices,
        models=whole.models[:2],
        findings={
            "localization": {n: [found["localization"][n][k] for k in kept] for n in ("base", "tuned")},
            "drift": {
                m: [{**p, "same_layer": [p["same_layer"][k] for k in kept]} for p in pairs]
                for m, pairs in found["drift"].items()
            },
        },
    )


@pytest.fixture
def make_matrix() -> Callable[..., Matrix]:
    """A matrix from values and, for each axis, the depth of each model on it."""

    def make(
        values: Any, rows: Mapping[str, int], columns: Mapping[str, int] | None = None, measure: str = "ckasim"
    ) -> Matrix:
        def axis(depths: Mapping[str, int]) -> tuple[Layer, ...]:
            return tuple(Layer(name, k) for name, depth in depths.items() for k in range(depth))

        return Matrix(measure, axis(rows), axis(columns or rows), np.asarray(values, dtype=np.float64))

    return make


@pytest.fixture
def make_findings() -> Callable[..., Comparison]:
    """A comparison of models `a`, `b`, ... of equal depth that holds the findings given and matrices of ones."""

    def make(
        findings: Mapping[str, Any],
        *,
        models: Sequence[ModelInfo] | None = None,
        depth: int = 5,
        rows: int | None = 2000,
        measures: Sequence[str] = ("ckasim",),
        values: np.ndarray | None = None,
    ) -> Comparison:
        models = models or [ModelInfo(n, f"./{n}", "bert", depth, 64, f"sha256:{n}") for n in ("a", "b")]
        axis = tuple(Layer(m.name, k) for m in models for k in range(m.layers))
        ones = np.ones((len(axis), len(axis))) if values is None else values
        data = {"name": "made-up", "unit": "word"} | ({"rows": rows} if rows else {})
        return Comparison(tuple(Matrix(m, axis, axis, ones) for m in measures), tuple(models), data, findings)

    return make
