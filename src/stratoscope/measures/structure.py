"""Numbers read off a matrix of scores: two-block structure, localization, drift, and neurons worth a look."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.matrix import Matrix
from stratoscope.core.value import Array, Values, spread
from stratoscope.measures.table import chance_level, parse
from stratoscope.results.comparison import Comparison

LOCALIZING = ("neuronsim", "svsim")
"""The localized and the distributed measure that localization is the difference of."""
FEWEST_IN_BLOCK = 2
"""Layers a block must have: a single layer has no within-block similarity but its own, which is always 1."""
UNCHANGED = 0.005
"""Drift below this at every layer is called practically unchanged: half a unit of the second digit."""


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

    The diagonal is left out, asymmetric scores are averaged over both directions, and constant layers do not count.
    Any smooth matrix has a best split: judge a contrast only beside that of the untuned model.
    """
    splits = best_splits(replace(matrix, replicates=None))
    return None if splits is None else Split(*(of[0].item() for of in splits))


def best_splits(matrix: Matrix) -> tuple[Array, Values, Values] | None:
    """Fields of the `best_split` of the estimate and of each resample's own, (1 + resamples,) each; None if too few."""
    if matrix.rows != matrix.columns:
        raise ValueError("a split needs one model's layers on both axes")
    live = [k for k in range(len(matrix.rows)) if not np.isnan(matrix.values[k]).all()]
    n = len(live)
    if n < 2 * FEWEST_IN_BLOCK:
        return None
    values = stacked(matrix.values, matrix.replicates)[:, live][:, :, live]
    lower, upper = np.triu_indices(n, 1)
    pairs = np.ascontiguousarray((values + np.swapaxes(values, -1, -2))[:, lower, upper] / 2)
    sizes = range(FEWEST_IN_BLOCK, n - FEWEST_IN_BLOCK + 1)
    same = [(lower < size) == (upper < size) for size in sizes]
    within = np.stack([pairs.compress(s, axis=1).mean(axis=-1) for s in same], axis=-1)
    between = np.stack([pairs.compress(~s, axis=1).mean(axis=-1) for s in same], axis=-1)
    best = (within - between).argmax(axis=-1)
    each = np.arange(len(values))
    starts = np.array([matrix.rows[k].index for k in live])[best + FEWEST_IN_BLOCK]
    return starts, within[each, best], between[each, best]


def stacked(values: Values, replicates: Values | None) -> Values:
    """The estimate, then each resample, along the first axis."""
    return values[None] if replicates is None else np.concatenate([values[None], replicates])


def drift(matrix: Matrix, first: str, second: str) -> Curve | None:
    """1 − similarity of equal layers of two models, first to second; None where their layers are not the same."""
    layers, same = (tuple(layer.index for layer in matrix.rows if layer.model == m) for m in (first, second))
    if layers != same:
        return None
    block = matrix.between(first, second)
    replicates = None if block.replicates is None else 1 - np.diagonal(block.replicates, axis1=1, axis2=2)
    low, high = (None if edge is None else 1 - np.diagonal(edge) for edge in (block.high, block.low))
    return Curve("drift", layers, 1 - np.diagonal(block.values), low, high, block.interval, replicates)


def localization(
    comparison: Comparison, *, standardise: bool = False, among: Collection[str] | None = None
) -> dict[str, list[float | None]]:
    """Mean neuronsim minus mean svsim of each layer with all other layers of all models (Wu et al. 2020, §5.1).

    High where single neurons, rather than whole layers, have counterparts elsewhere. `standardise` z-scores both
    series over all layers first, as the code of the published figure does. Only models `among` these count as others
    and have a score: all but controls, unless said otherwise.
    """
    curves = localization_curves(comparison, standardise=standardise, among=among)
    return {model: [_plain(v) for v in curve.values] for model, curve in curves.items()}


def localization_curves(
    comparison: Comparison, *, standardise: bool = False, among: Collection[str] | None = None
) -> dict[str, Curve]:
    """The scores of `localization` as curves, with intervals where both measures were scored on the same resamples."""
    among = _trained(comparison) if among is None else among
    for needed in LOCALIZING:
        if needed not in comparison:
            raise StratoscopeError(f"localization needs neuronsim and svsim; '{needed}' is not in this result")
    single, whole = (comparison[m] for m in LOCALIZING)
    localized, distributed = (_mean_with_others(m, among) for m in (single, whole))
    paired = single.interval == whole.interval and len(localized) == len(distributed) > 1
    interval = single.interval if paired else None
    if interval is None:
        localized, distributed = localized[:1], distributed[:1]
    if standardise:
        localized, distributed = _standard(localized), _standard(distributed)
    difference = localized - distributed

    def curve(model: str) -> Curve:
        k = [i for i, layer in enumerate(single.rows) if layer.model == model]
        layers, values, replicates = tuple(single.rows[i].index for i in k), difference[0, k], difference[1:, k]
        if interval is None:
            return Curve("localization", layers, values)
        return Curve("localization", layers, values, *spread(values, replicates, interval), interval, replicates)

    return {model: curve(model) for model in single.models if model in among}


def localization_chance(comparison: Comparison, *, standardise: bool = False) -> float:
    """How far two layers' localization may differ by chance alone: what svsim gives unrelated layers of full rank.

    A layer's share of it depends on how many components hold 99 % of its variance, so layers differ in it.
    """
    level = chance_level(parse("svsim").measure, comparison.data["rows"], max(m.width for m in comparison.models))
    if not standardise:
        return level
    deviation = float(np.nanstd(_mean_with_others(comparison["svsim"], _trained(comparison))[0]))
    return level / deviation if deviation > 0 else level


def findings(comparison: Comparison, *, standardise: bool = False) -> dict[str, Any]:
    """Everything derived from the matrices that a reader of the result wants, as plain data.

    - `blocks`: by measure and model, the best split: `start`, `within`, `between`, `contrast`;
    - `drift`: by measure, for the first model and each other with the same layers: `first`, `second`, `layers`, `drift`
      (1 − similarity of equal layers; None where one is constant), `low`, `high` (None without intervals), and
      `unchanged`, whether the drift is below `UNCHANGED` at every layer;
    - `localization`: by model, controls left out; `localization_alone`: of each control over its own layers;
      `localization_standardised`: whether both were z-scored; `localization_chance`: how far chance alone takes it.
    """
    blocks: dict[str, Any] = {}
    drifts: dict[str, Any] = {}
    for name, matrix in comparison.items():
        splits = {m: best_split(matrix.between(m, m)) for m in matrix.models}
        blocks[name] = {m: asdict(s) | {"contrast": s.contrast} for m, s in splits.items() if s}
        first, *others = matrix.models
        curves = {second: drift(matrix, first, second) for second in others}
        drifts[name] = [_plain_drift(first, second, c) for second, c in curves.items() if c is not None]
    structure: dict[str, Any] = {"blocks": blocks, "drift": {k: v for k, v in drifts.items() if v}}
    if set(LOCALIZING) <= set(comparison):
        structure["localization"] = localization(comparison, standardise=standardise)
        structure["localization_standardised"] = standardise
        controls = [m.name for m in comparison.models if m.is_control]
        alone = [localization(comparison, standardise=standardise, among=[name]) for name in controls]
        if alone:
            structure["localization_alone"] = {name: scores for each in alone for name, scores in each.items()}
        if isinstance(comparison.data.get("rows"), int):
            structure["localization_chance"] = localization_chance(comparison, standardise=standardise)
    return structure


def unchanged(curve: Curve) -> bool:
    """Whether a drift is so small at every layer that the models are practically the same there."""
    known = curve.values[curve.known]
    return bool(known.size and np.abs(known).max() < UNCHANGED)


def _plain_drift(first: str, second: str, curve: Curve) -> dict[str, Any]:
    columns = {"drift": curve.values, "low": curve.low, "high": curve.high}
    return {
        "first": first,
        "second": second,
        "layers": list(curve.layers),
        **{name: None if v is None else [_plain(x) for x in v] for name, v in columns.items()},
        "unchanged": unchanged(curve),
    }


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
    candidates = [k for k, other in enumerate(matrix.columns) if k != row and other.model in among]
    others = [k for k in candidates if not np.isnan(matrix.values[row, k])]
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


def _mean_with_others(matrix: Matrix, among: Collection[str]) -> Values:
    """(1 + resamples, layers): mean score of each layer with the other layers, itself the first argument.

    NaN for a constant layer and for those of models that are not among these, which do not count as others either.
    """
    values = stacked(matrix.values, matrix.replicates)
    counts = np.array([layer.model in among for layer in matrix.rows])
    others = ~np.eye(len(counts), dtype=bool) & np.outer(counts, counts) & ~np.isnan(values)
    number = others.sum(-1)
    return np.where(number > 0, np.where(others, values, 0).sum(-1) / np.maximum(number, 1), np.nan)


def _standard(series: Values) -> Values:
    deviation = np.nanstd(series, axis=-1, keepdims=True)
    centred: Values = series - np.nanmean(series, axis=-1, keepdims=True)
    return centred / np.where(deviation > 0, deviation, 1)


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
