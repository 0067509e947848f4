"""Numbers read off a matrix of scores: two-block structure, localization, drift, and neurons worth a look."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
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
    live = _layers_to_split(matrix)
    if live is None:
        return None
    position, within, between = sharpest_split(matrix.values[np.ix_(live, live)])
    return Split(matrix.rows[live[int(position)]].index, float(within), float(between))


def split_on_resamples(matrix: Matrix) -> tuple[Values, Values] | None:
    """Within and between (resamples,) of each resample's own best split; None where there is no split."""
    live = _layers_to_split(matrix)
    if live is None or matrix.replicates is None:
        return None
    _, within, between = sharpest_split(matrix.replicates[:, live][:, :, live])
    return within, between


def sharpest_split(values: Values) -> tuple[Array, Values, Values]:
    """Of matrices (..., n, n): first position of the upper block, mean within and mean between at the best split."""
    n = values.shape[-1]
    values = (values + np.swapaxes(values, -1, -2)) / 2
    above = np.triu(np.ones((n, n), dtype=bool), 1)
    within, between = [], []
    sizes = range(FEWEST_IN_BLOCK, n - FEWEST_IN_BLOCK + 1)
    for size in sizes:
        lower = np.arange(n) < size
        same = lower[:, None] == lower
        within.append(values[..., above & same].mean(axis=-1))
        between.append(values[..., above & ~same].mean(axis=-1))
    inside, across = np.stack(within, axis=-1), np.stack(between, axis=-1)
    best = (inside - across).argmax(axis=-1)[..., None]
    within_best, between_best = (np.take_along_axis(a, best, axis=-1)[..., 0] for a in (inside, across))
    return best[..., 0] + FEWEST_IN_BLOCK, within_best, between_best


def _layers_to_split(matrix: Matrix) -> list[int] | None:
    """Positions of the layers that vary; None where they are too few for two blocks."""
    if matrix.rows != matrix.columns:
        raise ValueError("a split needs one model's layers on both axes")
    live = [k for k in range(len(matrix.rows)) if not np.isnan(matrix.values[k]).all()]
    return live if len(live) >= 2 * FEWEST_IN_BLOCK else None


def drift(matrix: Matrix, first: str, second: str) -> Curve | None:
    """1 − similarity of equal layers of two models, first to second; None where their layers are not the same."""
    layers = tuple(_indices(matrix, first))
    if layers != tuple(_indices(matrix, second)):
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
    values = _localization(*_localizing(comparison, among), standardise=standardise)
    single, whole = (comparison[m] for m in LOCALIZING)
    replicates, low, high = None, values, values
    if single.interval is not None and _paired(single, whole):
        means = (_mean_with_others(_only(m.replicates, m, among)) for m in (single, whole) if m.replicates is not None)
        replicates = _localization(*means, standardise=standardise)
        low, high = spread(values, replicates, single.interval)

    def curve(model: str) -> Curve:
        k = [i for i, layer in enumerate(single.rows) if layer.model == model]
        layers = tuple(single.rows[i].index for i in k)
        if replicates is None:
            return Curve("localization", layers, values[k])
        return Curve("localization", layers, values[k], low[k], high[k], single.interval, replicates[:, k])

    return {model: curve(model) for model in single.models if model in among}


def localization_chance(comparison: Comparison, *, standardise: bool = False) -> float:
    """How far two layers' localization may differ by chance alone: what svsim gives unrelated layers of full rank.

    A layer's share of it depends on how many components hold 99 % of its variance, so layers differ in it.
    """
    level = chance_level(parse("svsim").measure, *_size(comparison))
    if not standardise:
        return level
    deviation = float(np.nanstd(_localizing(comparison, _trained(comparison))[1]))
    return level / deviation if deviation > 0 else level


def _localizing(comparison: Comparison, among: Collection[str]) -> tuple[Values, Values]:
    """Mean neuronsim and mean svsim of each layer with the other layers; NaN for layers of models not among these."""
    for needed in LOCALIZING:
        if needed not in comparison:
            raise StratoscopeError(f"localization needs neuronsim and svsim; '{needed}' is not in this result")
    single, whole = (_mean_with_others(_only(comparison[m].values, comparison[m], among)) for m in LOCALIZING)
    return single, whole


def _localization(single: Values, whole: Values, *, standardise: bool) -> Values:
    """(..., layers): the difference of the two series, z-scored first where that was asked for."""
    if standardise:
        single, whole = (_standard(s) for s in (single, whole))
    return single - whole


def _only(values: Values, matrix: Matrix, among: Collection[str]) -> Values:
    """A copy (..., rows, columns) without the scores of models that are not among these."""
    aside = np.array([layer.model not in among for layer in matrix.rows])
    values = values.copy()
    values[..., aside, :], values[..., aside] = np.nan, np.nan
    return values


def _paired(one: Matrix, two: Matrix) -> bool:
    """Whether two matrices were scored on the same resamples."""
    if one.replicates is None or two.replicates is None:
        return False
    return one.interval == two.interval and len(one.replicates) == len(two.replicates)


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
    found: dict[str, Any] = {"blocks": blocks, "drift": {k: v for k, v in drifts.items() if v}}
    if set(LOCALIZING) <= set(comparison):
        found["localization"] = localization(comparison, standardise=standardise)
        found["localization_standardised"] = standardise
        controls = [m.name for m in comparison.models if m.is_control]
        alone = [localization(comparison, standardise=standardise, among=[name]) for name in controls]
        if alone:
            found["localization_alone"] = {name: scores for each in alone for name, scores in each.items()}
        if isinstance(comparison.data.get("rows"), int):
            found["localization_chance"] = localization_chance(comparison, standardise=standardise)
    return found


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
    """(..., n, n) to (..., n): mean over the other layers, the layer itself first argument; NaN for a constant one."""
    others = ~np.eye(values.shape[-1], dtype=bool) & ~np.isnan(values)
    count = others.sum(-1)
    return np.where(count > 0, np.where(others, values, 0).sum(-1) / np.maximum(count, 1), np.nan)


def _standard(series: Values) -> Values:
    deviation = np.nanstd(series, axis=-1, keepdims=True)
    centred: Values = series - np.nanmean(series, axis=-1, keepdims=True)
    return centred / np.where(deviation > 0, deviation, 1)


def _indices(matrix: Matrix, model: str) -> list[int]:
    return [layer.index for layer in matrix.rows if layer.model == model]


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
