"""Series over layers, and facts about them: halves, where one drops, whether it rises with depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stratoscope.core.matrix import Matrix
from stratoscope.core.value import Values
from stratoscope.results.comparison import Comparison

T = TypeVar("T")

ALONE = " (own layers)"
"""Behind the name of a control, whose localization is over its own layers only."""


@dataclass(frozen=True)
class Series:
    """One value a layer; NaN where a layer has none."""

    layers: tuple[int, ...]
    """Layer numbers; not 0, 1, 2 ... where only some layers were compared."""
    values: Values
    low: Values | None = None
    high: Values | None = None

    @property
    def known(self) -> list[int]:
        """Positions that hold a value."""
        return [k for k, v in enumerate(self.values) if not np.isnan(v)]


class Halves(NamedTuple):
    """Means over the lower and the upper half of the blocks, without layer 0 and the middle block of an odd number."""

    low: float
    high: float
    lower: str
    """The layers of the lower half, as `1-6`."""
    upper: str


def in_order(found: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """What was found, in the order of the result's own models or measures: saving a result sorts its keys."""
    return {name: found[name] for name in names if found.get(name)}


def localization_series(comparison: Comparison) -> dict[str, Series]:
    """Localization scores of every model that has them."""
    return _by_model(comparison, "localization")


def alone_series(comparison: Comparison) -> dict[str, Series]:
    """Localization scores of the controls over their own layers: to compare in shape with the models', not in level."""
    return _by_model(comparison, "localization_alone")


def drift_series(matrix: Matrix, pair: Mapping[str, Any]) -> Series:
    """Similarity of equal layers of two models, with the interval where the matrix holds one."""
    block = matrix.between(pair["first"], pair["second"])
    low, high = (None if edge is None else np.diag(edge).copy() for edge in (block.low, block.high))
    return Series(layers_of(matrix, pair["first"]), _numbers(pair["same_layer"]), low, high)


def layers_of(matrix: Matrix, model: str) -> tuple[int, ...]:
    """Numbers of the model's layers that were compared."""
    return tuple(layer.index for layer in matrix.rows if layer.model == model)


def split_blocks(layers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Positions of the lower and of the upper half of the blocks (layer 0 is not one)."""
    blocks = [k for k, layer in enumerate(layers) if layer > 0]
    half = len(blocks) // 2
    return blocks[:half], blocks[len(blocks) - half :]


def mean(values: Values) -> float | None:
    """The mean of what is there, or None."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def halves(series: Series) -> Halves | None:
    """Lower and upper half of the blocks; None where one of them holds no value."""
    lower, upper = split_blocks(series.layers)
    low, high = mean(series.values[lower]), mean(series.values[upper])
    if low is None or high is None:
        return None
    return Halves(low, high, *(_span([series.layers[k] for k in half]) for half in (lower, upper)))


def drop_start(series: Series, drop: float) -> int | None:
    """Position from which every later layer stays more than `drop` below the best; None if the last one does not."""
    known = series.known
    low = series.values[known] < series.values[known].max() - drop
    if not low[-1]:
        return None
    return known[len(low) - int(low[::-1].argmin())]


def share_rising(values: Values) -> float:
    """Of all pairs of layers, the share in which the deeper one has the higher value."""
    known = values[~np.isnan(values)]
    shallow, deep = np.triu_indices(len(known), k=1)
    return float((known[deep] > known[shallow]).mean())


def _by_model(comparison: Comparison, finding: str) -> dict[str, Series]:
    found = in_order(comparison.findings.get(finding, {}), [m.name for m in comparison.models])
    return {name: Series(layers_of(comparison.matrices[0], name), _numbers(values)) for name, values in found.items()}


def _numbers(values: Sequence[float | None]) -> Values:
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def _span(layers: list[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
