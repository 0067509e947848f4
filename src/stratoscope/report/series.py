"""Facts about a series over layers: halves, where it drops, whether it rises with depth, its intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stratoscope.core.result import Layer, Matrix, Values

T = TypeVar("T")


class Halves(NamedTuple):
    """Means over the lower and the upper half of the blocks, without layer 0 and the middle block of an odd depth."""

    low: float
    high: float
    lower: str
    """The layers of the lower half, as `1-6`."""
    upper: str


def in_order(found: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """What was found, in the order of the result's own models or measures: saving a result sorts its keys."""
    return {name: found[name] for name in names if found.get(name)}


def numbers(series: Sequence[float | None]) -> Values:
    """A series from JSON, with NaN for a layer that has no value."""
    return np.array([np.nan if v is None else v for v in series], dtype=np.float64)


def mean(values: Values) -> float | None:
    """The mean of what is there, or None."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def halves(series: Values) -> Halves | None:
    """Lower and upper half of the blocks compared; None where one of them holds no value."""
    top = len(series) - 1
    half = top // 2
    low, high = mean(series[1 : half + 1]), mean(series[top - half + 1 :])
    if low is None or high is None:
        return None
    return Halves(low, high, _span(1, half), _span(top - half + 1, top))


def drop_start(series: Values, drop: float) -> int | None:
    """The first layer from which every later one stays more than `drop` below the best; None if the last does not."""
    known = np.flatnonzero(~np.isnan(series))
    low = series[known] < series[known].max() - drop
    if not low[-1]:
        return None
    return int(known[len(low) - int(low[::-1].argmin())])


def share_rising(series: Values) -> float:
    """Of all pairs of layers, the share in which the deeper one has the higher value."""
    known = series[~np.isnan(series)]
    shallow, deep = np.triu_indices(len(known), k=1)
    return float((known[deep] > known[shallow]).mean())


def same_layer_interval(matrix: Matrix, pair: Mapping[str, Any]) -> tuple[Values, Values] | None:
    """Ends of the interval at (first, k) × (second, k) for every layer k, where the matrix holds them."""
    if matrix.low is None or matrix.high is None:
        return None
    rows = {layer: i for i, layer in enumerate(matrix.rows)}
    columns = {layer: j for j, layer in enumerate(matrix.columns)}
    ks = range(len(pair["same_layer"]))
    i, j = [rows[Layer(pair["first"], k)] for k in ks], [columns[Layer(pair["second"], k)] for k in ks]
    return matrix.low[i, j], matrix.high[i, j]


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
