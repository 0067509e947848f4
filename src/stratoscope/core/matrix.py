"""Scores of pairs of layers under one measure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING

import pandas as pd

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.value import Interval, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Layer:
    """One layer of one model; layer 0 is the output of the embeddings, layer k that of block k."""

    model: str
    index: int

    def __str__(self) -> str:
        return f"{self.model}:{self.index}"


@dataclass(frozen=True)
class Matrix:
    """Scores of one measure: `values[i, j]` compares layer `rows[i]` (first argument) with layer `columns[j]`."""

    measure: str
    """Public name of the measure, with `@fraction` when only the best fraction was averaged."""
    rows: tuple[Layer, ...]
    columns: tuple[Layer, ...]
    values: Values
    """NaN marks a value that does not exist: one of the layers is constant on these rows."""
    low: Values | None = None
    """Lower end of the interval, where one was asked for and can be given."""
    high: Values | None = None
    """Upper end of the interval."""
    interval: Interval | None = None
    """Level and method of the interval."""
    replicates: Values | None = field(default=None, repr=False, metadata={"stored": "arrays"})
    """(resamples, rows, columns): the scores on every resample; all matrices of one method share their resamples."""

    def __post_init__(self) -> None:
        shape = (len(self.rows), len(self.columns))
        for name in ("values", "low", "high"):
            got = getattr(self, name)
            if got is not None and got.shape != shape:
                raise ValueError(f"{name} of {self.measure}: expected shape {shape} from the axes, got {got.shape}")
        if self.replicates is not None and self.replicates.shape[1:] != shape:
            raise ValueError(f"replicates of {self.measure}: expected {shape}, got {self.replicates.shape[1:]}")

    def __repr__(self) -> str:
        rows, columns = (dict.fromkeys(layer.model for layer in axis) for axis in (self.rows, self.columns))
        models = ", ".join(rows) + ("" if rows == columns else f" against {', '.join(columns)}")
        return f"Matrix({self.measure}, {len(self.rows)}×{len(self.columns)} layers of {models})"

    @property
    def models(self) -> tuple[str, ...]:
        """Models on the rows, in order."""
        return tuple(dict.fromkeys(layer.model for layer in self.rows))

    def between(self, first: str, second: str) -> Matrix:
        """The block whose rows are the first model's layers and whose columns are the second's."""
        i = self._positions(self.rows, first)
        j = self._positions(self.columns, second)
        cells = {name: getattr(self, name) for name in ("values", "low", "high", "replicates")}
        return replace(
            self,
            rows=tuple(self.rows[k] for k in i),
            columns=tuple(self.columns[k] for k in j),
            **{name: whole[..., i, :][..., j] for name, whole in cells.items() if whole is not None},
        )

    def at(self, row: tuple[str, int], column: tuple[str, int]) -> float:
        """One score, by (model, layer) of the row and of the column."""
        return float(self.values[self.position(*row), self._position(self.columns, column)])

    def position(self, model: str, layer: int) -> int:
        """Row of a model's layer."""
        return self._position(self.rows, (model, layer))

    def to_frame(self) -> pd.DataFrame:
        """The values with `model:layer` labels on both axes."""
        return pd.DataFrame(self.values, index=[str(r) for r in self.rows], columns=[str(c) for c in self.columns])

    def plot(self) -> Figure:
        """Draw the matrix as a heatmap, layer 0 at the lower left."""
        draw: Figure = import_module("stratoscope.report.draw").heatmap(self)
        return draw

    @staticmethod
    def _positions(axis: tuple[Layer, ...], model: str) -> list[int]:
        positions = [k for k, layer in enumerate(axis) if layer.model == model]
        if not positions:
            raise unknown_name("model", model, dict.fromkeys(layer.model for layer in axis))
        return positions

    @classmethod
    def _position(cls, axis: tuple[Layer, ...], wanted: tuple[str, int]) -> int:
        positions = cls._positions(axis, wanted[0])
        have = [axis[k].index for k in positions]
        if wanted[1] in have:
            return positions[have.index(wanted[1])]
        gapless = have == list(range(have[0], have[-1] + 1))
        shown = f"{have[0]}-{have[-1]}" if gapless else ", ".join(map(str, have))
        raise StratoscopeError(f"{wanted[0]} has no layer {wanted[1]} here; its layers are {shown} (0 = embeddings)")
