"""Numbers read off a matrix of scores: two-block structure, localization, drift, and neurons worth a look."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.matrix import Matrix
from stratoscope.core.value import Values
from stratoscope.measures.table import chance_level, parse
from stratoscope.results.comparison import Comparison

LEAST = 2
"""Layers a block must have: a single layer has no within-block similarity but its own, which is always 1."""


@dataclass(frozen=True)
class Split:
    """The best division of a model's layers into a lower and an upper block."""

    start: int
    """First layer of the upper block."""
    within: float
    """Mean similarity of two different layers of the same block."""
    between: float
    """Mean similarity of two layers of different blocks."""

    @property
    def contrast(self) -> float:
        """Within minus between: 0 for no structure, 1 for two perfect blocks."""
        return self.within - self.between


def best_split(matrix: Matrix) -> Split | None:
    """The split of one model's own matrix with the largest contrast (Phang et al. 2021, §3, made a number).

    The diagonal is left out, asymmetric scores are averaged over both directions, and absent layers do not count.
    Any smooth matrix has a best split: judge a contrast only beside that of the untuned model.
    """
    if matrix.rows != matrix.columns:
        raise ValueError("a split needs one model's layers on both axes")
    live = [k for k in range(len(matrix.rows)) if not np.isnan(matrix.values[k]).all()]
    if len(live) < 2 * LEAST:
        return None
    values = matrix.values[np.ix_(live, live)]
    values = (values + values.T) / 2
    above = np.triu(np.ones_like(values, dtype=bool), 1)
    splits = []
    for size in range(LEAST, len(live) - LEAST + 1):
        lower = np.arange(len(live)) < size
        same = lower[:, None] == lower
        within, between = values[above & same], values[above & ~same]
        splits.append(Split(matrix.rows[live[size]].index, float(within.mean()), float(between.mean())))
    return max(splits, key=lambda s: s.contrast)


def localization(
    comparison: Comparison, *, standardise: bool = False, among: Collection[str] | None = None
) -> dict[str, list[float | None]]:
    """Mean neuronsim minus mean svsim of each layer with all other layers of all models (Wu et al. 2020, §5.1).

    High where single neurons, rather than whole layers, have counterparts elsewhere. `standardise` z-scores both
    series over all layers first, as the code of the published figure does. Only models `among` these count as others
    and have a score: all but controls, unless said otherwise.
    """
    among = _trained(comparison) if among is None else among
    single, whole = _localizing(comparison, among)
    if standardise:
        single, whole = (_standard(s) for s in (single, whole))
    score = single - whole
    rows = comparison["neuronsim"].rows
    return {
        model: [_plain(score[k]) for k, layer in enumerate(rows) if layer.model == model]
        for model in comparison["neuronsim"].models
        if model in among
    }


def localization_chance(comparison: Comparison, *, standardise: bool = False) -> float:
    """How far two layers' localization may differ by chance alone: what svsim gives unrelated layers of full rank.

    A layer's share of it depends on how many components hold 99 % of its variance, so layers differ in it.
    """
    level = chance_level(parse("svsim").measure, *_size(comparison))
    if not standardise:
        return level
    spread = float(np.nanstd(_localizing(comparison, _trained(comparison))[1]))
    return level / spread if spread > 0 else level


def _localizing(comparison: Comparison, among: Collection[str]) -> tuple[Values, Values]:
    """Mean neuronsim and mean svsim of each layer with the other layers; NaN for layers of models not among these."""
    for needed in ("neuronsim", "svsim"):
        if needed not in comparison:
            raise StratoscopeError(f"localization needs neuronsim and svsim; '{needed}' is not in this result")
    aside = np.array([layer.model not in among for layer in comparison["neuronsim"].rows])
    single, whole = (comparison[m].values.copy() for m in ("neuronsim", "svsim"))
    for values in (single, whole):
        values[aside], values[:, aside] = np.nan, np.nan
    return _mean_with_others(single), _mean_with_others(whole)


def findings(comparison: Comparison, *, standardise: bool = False) -> dict[str, Any]:
    """Everything derived from the matrices that a reader of the result wants, as plain data."""
    blocks: dict[str, Any] = {}
    drift: dict[str, Any] = {}
    for name, matrix in comparison.items():
        splits = {m: best_split(matrix.between(m, m)) for m in matrix.models}
        blocks[name] = {m: asdict(s) | {"contrast": s.contrast} for m, s in splits.items() if s}
        first, *others = matrix.models
        drift[name] = [
            {"first": first, "second": second, "same_layer": _diagonal(matrix.between(first, second))}
            for second in others
            if _indices(matrix, first) == _indices(matrix, second)
        ]
    found: dict[str, Any] = {"blocks": blocks, "drift": {k: v for k, v in drift.items() if v}}
    if {"neuronsim", "svsim"} <= set(comparison):
        found["localization"] = localization(comparison, standardise=standardise)
        controls = [m.name for m in comparison.models if m.is_control]
        alone = [localization(comparison, standardise=standardise, among=[name]) for name in controls]
        if alone:
            found["localization_alone"] = {name: scores for each in alone for name, scores in each.items()}
        if isinstance(comparison.data.get("rows"), int):
            found["localization_chance"] = localization_chance(comparison, standardise=standardise)
    return found


@dataclass(frozen=True)
class Neuron:
    """A neuron of one layer, its strength over the other layers, and its closest counterpart."""

    neuron: int
    score: float
    layer: str
    """Layer of the counterpart that gave the score."""
    match: int


def rank_neurons(comparison: Comparison, model: str, layer: int, *, by: str = "max") -> list[Neuron]:
    """Neurons of a layer by their strongest (`max`) or weakest (`min`) best correlation over other layers.

    `max` finds neurons that some other layer has too, `min` those that every other layer has (Bau et al. 2019, §3.1).
    As for `localization`, a control's layers do not count as others; its own neurons are ranked over its own layers.
    """
    if by not in ("max", "min"):
        raise unknown_name("ranking", by, ("max", "min"))
    if "neuronsim.correlation" not in comparison.arrays:
        raise StratoscopeError("ranking neurons needs neuronsim; compare again with --measure neuronsim")
    matrix = comparison["neuronsim"]
    row = matrix.position(model, layer)
    width = next(m.width for m in comparison.models if m.name == model)
    trained = _trained(comparison)
    among = trained if model in trained else {model}
    others = [
        k
        for k, other in enumerate(matrix.columns)
        if k != row and other.model in among and not np.isnan(matrix.values[row, k])
    ]
    if not others:
        raise StratoscopeError(
            f"ranking neurons of {model}:{layer} needs another layer that varies; none is in this result"
        )
    strength = comparison.arrays["neuronsim.correlation"][row][others, :width]
    match = comparison.arrays["neuronsim.match"][row][others, :width]
    where = strength.argmax(0) if by == "max" else strength.argmin(0)
    score = strength[where, np.arange(width)]
    order = np.argsort(-score, kind="stable")
    return [
        Neuron(int(k), float(score[k]), str(matrix.columns[others[where[k]]]), int(match[where[k], k])) for k in order
    ]


def _trained(comparison: Comparison) -> set[str]:
    controls = {m.name for m in comparison.models if m.is_control}
    return {name for matrix in comparison.values() for name in matrix.models} - controls


def _size(comparison: Comparison) -> tuple[int, int]:
    """Number of rows, and width of the widest model."""
    return comparison.data["rows"], max(m.width for m in comparison.models)


def _mean_with_others(values: Values) -> Values:
    """Mean over the other layers, the layer itself as first argument; NaN for an absent layer."""
    others = ~np.eye(len(values), dtype=bool) & ~np.isnan(values)
    count = others.sum(1)
    return np.where(count > 0, np.where(others, values, 0).sum(1) / np.maximum(count, 1), np.nan)


def _standard(series: Values) -> Values:
    spread = np.nanstd(series)
    centred: Values = series - np.nanmean(series)
    return centred / spread if spread > 0 else centred


def _diagonal(matrix: Matrix) -> list[float | None]:
    return [_plain(v) for v in np.diagonal(matrix.values)]


def _indices(matrix: Matrix, model: str) -> list[int]:
    return [layer.index for layer in matrix.rows if layer.model == model]


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
