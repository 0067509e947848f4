"""Results: labelled matrices with intervals and provenance, saved and loaded without any model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stratoscope.core.errors import ForeignResultError, StratoscopeError, unknown_name
from stratoscope.core.kinds import COMPARISON
from stratoscope.core.runfolder import atomic, canonical_json, digest, file_sha256, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
Values = npt.NDArray[np.float64]

RESULT = COMPARISON.file
ARRAYS = "arrays.safetensors"
KIND = "comparison"
FORMAT = 2
"""Raised when an older reader would misunderstand; keys that are only added are ignored by readers that lack them."""


@dataclass(frozen=True)
class Layer:
    """One layer of one model; layer 0 is the output of the embeddings, layer k that of block k."""

    model: str
    index: int

    def __str__(self) -> str:
        return f"{self.model}:{self.index}"


@dataclass(frozen=True)
class Interval:
    """What the intervals of a matrix are."""

    level: float
    """Share of such intervals that should hold the true value."""
    method: str
    """How they were made, such as `bootstrap`."""


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

    def __post_init__(self) -> None:
        shape = (len(self.rows), len(self.columns))
        for name in ("values", "low", "high"):
            got = getattr(self, name)
            if got is not None and got.shape != shape:
                raise ValueError(f"{name} of {self.measure}: expected shape {shape} from the axes, got {got.shape}")

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
        block = np.ix_(i, j)
        return Matrix(
            self.measure,
            tuple(self.rows[k] for k in i),
            tuple(self.columns[k] for k in j),
            self.values[block],
            None if self.low is None else self.low[block],
            None if self.high is None else self.high[block],
            self.interval,
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
        from stratoscope.report.heatmap import heatmap

        return heatmap(self)

    @staticmethod
    def _positions(axis: tuple[Layer, ...], model: str) -> list[int]:
        found = [k for k, layer in enumerate(axis) if layer.model == model]
        if not found:
            raise unknown_name("model", model, dict.fromkeys(layer.model for layer in axis))
        return found

    @classmethod
    def _position(cls, axis: tuple[Layer, ...], wanted: tuple[str, int]) -> int:
        positions = cls._positions(axis, wanted[0])
        for k in positions:
            if axis[k].index == wanted[1]:
                return k
        have = [axis[k].index for k in positions]
        gapless = have == list(range(have[0], have[-1] + 1))
        shown = f"{have[0]}-{have[-1]}" if gapless else ", ".join(map(str, have))
        raise StratoscopeError(f"{wanted[0]} has no layer {wanted[1]} here; its layers are {shown} (0 = embeddings)")


@dataclass(frozen=True)
class ModelInfo:
    """What a reader of the result needs to know of a model to run it again."""

    name: str
    """Label on the axes, unique in the result."""
    source: str
    """Path or hub id as the user gave it."""
    family: str
    layers: int
    """Number of layers the model has, embeddings included."""
    width: int
    fingerprint: str
    """Hub revision, or sha256 of the local weights, or the seed of a random initialisation."""
    role: str = "model"
    """`model`, or `control` for one that nothing was learnt by."""
    base: str | None = None
    """Label of the model this one was made from, where the run knows it."""

    @property
    def is_control(self) -> bool:
        """Whether it is there for comparison only."""
        return self.role == "control"


@dataclass(frozen=True)
class Comparison(Mapping[str, Matrix]):
    """Every layer of every model under every measure asked for; behaves as a mapping from measure name to matrix."""

    matrices: tuple[Matrix, ...]
    models: tuple[ModelInfo, ...]
    data: Mapping[str, Any]
    """Name, fingerprint, columns and split asked for, unit, numbers of sentences and rows, and what was dropped."""
    findings: Mapping[str, Any] = field(default_factory=dict)
    """Numbers derived from the matrices: block structure and localization scores."""
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Request, code, versions, devices, seeds and options."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """Large companions, such as the matched neuron of every neuron."""

    def __getitem__(self, measure: str) -> Matrix:
        for m in self.matrices:
            if m.measure == measure:
                return m
        raise unknown_name("measure in this result", measure, self)

    def __iter__(self) -> Iterator[str]:
        return (m.measure for m in self.matrices)

    def __len__(self) -> int:
        return len(self.matrices)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self)} of {', '.join(m.name for m in self.models)})"

    def save(self, folder: str | Path) -> None:
        """Write arrays, then `result.json` that holds their checksum: the result exists only when whole."""
        from safetensors.numpy import save as to_bytes

        folder = Path(folder)
        with atomic(folder / ARRAYS) as f:
            f.write(to_bytes({k: np.ascontiguousarray(v) for k, v in sorted(self.arrays.items())}))
        axes = list({layer: None for m in self.matrices for layer in (*m.rows, *m.columns)})
        position = {layer: k for k, layer in enumerate(axes)}
        plain = {
            "kind": KIND,
            "format": FORMAT,
            "axes": [[layer.model, layer.index] for layer in axes],
            "matrices": [
                {
                    "measure": m.measure,
                    "rows": [position[r] for r in m.rows],
                    "columns": [position[c] for c in m.columns],
                    **{k: to_lists(getattr(m, k)) for k in ("values", "low", "high")},
                    "interval": None if m.interval is None else vars(m.interval),
                }
                for m in self.matrices
            ],
            "models": [vars(m) for m in self.models],
            "data": dict(self.data),
            "findings": dict(self.findings),
            "warnings": list(self.warnings),
            "provenance": dict(self.provenance),
            "arrays_sha256": file_sha256(folder / ARRAYS),
        }
        plain["sha256"] = digest(plain, length=64)
        write_text(folder / RESULT, canonical_json(plain) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Comparison:
        """Read a saved result; a missing, foreign or damaged one is an error that says which."""
        from safetensors.numpy import load_file

        folder = Path(folder)
        path = folder / RESULT
        if not path.is_file():
            raise COMPARISON.missing(folder)
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain["format"] != FORMAT:
                raise ForeignResultError(
                    f"{path} has format {plain['format']}, this version reads {FORMAT}; run it again"
                )
            if plain["kind"] != KIND:
                raise ForeignResultError(f"{path} holds a {plain['kind']}, expected a {KIND}; run it again")
            if plain.pop("sha256") != digest(plain, length=64):
                raise ValueError("its checksum does not match")
            axes = [Layer(*layer) for layer in plain["axes"]]
            matrices = tuple(
                Matrix(
                    m["measure"],
                    tuple(axes[k] for k in m["rows"]),
                    tuple(axes[k] for k in m["columns"]),
                    from_lists(m["values"]),
                    None if m["low"] is None else from_lists(m["low"]),
                    None if m["high"] is None else from_lists(m["high"]),
                    None if m["interval"] is None else Interval(**_known(Interval, m["interval"])),
                )
                for m in plain["matrices"]
            )
            arrays_sha = plain["arrays_sha256"]
            if not (folder / ARRAYS).is_file() or file_sha256(folder / ARRAYS) != arrays_sha:
                raise StratoscopeError(
                    f"{folder / ARRAYS} is missing or damaged; run the same command again to mend it"
                )
            return cls(
                matrices,
                tuple(ModelInfo(**_known(ModelInfo, m)) for m in plain["models"]),
                plain["data"],
                plain["findings"],
                tuple(plain["warnings"]),
                plain["provenance"],
                load_file(folder / ARRAYS),
            )
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise StratoscopeError(f"{path} is damaged ({e}); run the same command again to mend it") from e


def _known(kind: type[Interval] | type[ModelInfo], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The keys this version knows; a later one may have written more."""
    return {f.name: plain[f.name] for f in fields(kind) if f.name in plain}


def to_lists(values: Values | None) -> list[list[float | None]] | None:
    if values is None:
        return None
    return [[None if math.isnan(v) else float(v) for v in row] for row in values]


def from_lists(rows: list[list[float | None]]) -> Values:
    return np.array([[math.nan if v is None else v for v in row] for row in rows], dtype=np.float64)
