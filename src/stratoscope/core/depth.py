"""What depth buys: a task's metric with the model cut at every layer and with every span of blocks skipped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratoscope.core import kinds
from stratoscope.core.errors import ForeignResultError, StratoscopeError, unknown_name
from stratoscope.core.result import ModelInfo, Values, from_lists, to_lists
from stratoscope.core.runfolder import canonical_json, digest, write_text

DEPTH = kinds.DEPTH.file
KIND = "depth"
FORMAT = 1

UNTUNED, TUNED, TUNEDORIG = CURVES = ("untuned", "tuned", "tunedorig")
"""The tuned head on each layer as it is; tuned further on each layer; the same on the layers of the base model."""


@dataclass(frozen=True)
class Point:
    """A metric on the validation rows with its 95 % interval over the examples; NaN where there is none."""

    value: float
    low: float
    high: float


ABSENT = Point(math.nan, math.nan, math.nan)
"""The vector the head reads is the same for every row at this layer."""


@dataclass(frozen=True)
class Curve:
    """The metric when the head reads each layer in turn."""

    name: str
    """One of `CURVES`."""
    points: tuple[Point, ...]
    """One per layer, 0 (embeddings) to L."""


@dataclass(frozen=True)
class Depth:
    """How a tuned model does its task at every depth."""

    model: ModelInfo
    base: ModelInfo | None
    """The model the tuned one was made from, when it was given."""
    task: Mapping[str, Any]
    """Name, metric, labels, format, fingerprint, n_train and n_validation."""
    full: Point
    """The whole model."""
    majority: float
    bag_of_words: float
    curves: tuple[Curve, ...]
    skip: Values | None = None
    """(L, L): the metric with blocks first..last skipped, at [first - 1, last - 1]; NaN below the diagonal."""
    skip_agreement: Values | None = None
    """(L, L): share of rows predicted as by the whole model; NaN below the diagonal and for a regression."""
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, seeds and options."""

    def __post_init__(self) -> None:
        layers = self.model.layers
        for curve in self.curves:
            if len(curve.points) != layers:
                raise ValueError(f"curve {curve.name}: expected {layers} points, got {len(curve.points)}")
        for name in ("skip", "skip_agreement"):
            got = getattr(self, name)
            if got is not None and got.shape != (layers - 1, layers - 1):
                raise ValueError(f"{name}: expected shape {(layers - 1, layers - 1)}, got {got.shape}")

    def curve(self, name: str) -> Curve:
        """The curve of this name."""
        for curve in self.curves:
            if curve.name == name:
                return curve
        raise unknown_name("curve in this result", name, (c.name for c in self.curves))

    def save(self, folder: str | Path) -> None:
        """Write `depth.json`, whole or not at all, with its own checksum."""
        plain = {
            "kind": KIND,
            "format": FORMAT,
            "model": vars(self.model),
            "base": None if self.base is None else vars(self.base),
            "task": dict(self.task),
            "full": _plain(self.full),
            "majority": _number(self.majority),
            "bag_of_words": _number(self.bag_of_words),
            "curves": [{"name": c.name, "points": [_plain(p) for p in c.points]} for c in self.curves],
            "skip": to_lists(self.skip),
            "skip_agreement": to_lists(self.skip_agreement),
            "warnings": list(self.warnings),
            "provenance": dict(self.provenance),
        }
        plain["sha256"] = digest(plain, length=64)
        write_text(Path(folder) / DEPTH, canonical_json(plain) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Depth:
        """Read a saved result; a missing, foreign or damaged one is an error that says which."""
        path = Path(folder) / DEPTH
        if not path.is_file():
            raise kinds.DEPTH.missing(folder)
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if (plain["kind"], plain["format"]) != (KIND, FORMAT):
                raise ForeignResultError(
                    f"{path} is a '{plain['kind']}' of format {plain['format']}, this version reads '{KIND}' of format"
                    f" {FORMAT}; run it again"
                )
            if plain.pop("sha256") != digest(plain, length=64):
                raise ValueError("its checksum does not match")
            return cls(
                ModelInfo(**plain["model"]),
                None if plain["base"] is None else ModelInfo(**plain["base"]),
                plain["task"],
                _point(plain["full"]),
                _float(plain["majority"]),
                _float(plain["bag_of_words"]),
                tuple(Curve(c["name"], tuple(_point(p) for p in c["points"])) for c in plain["curves"]),
                None if plain["skip"] is None else from_lists(plain["skip"]),
                None if plain["skip_agreement"] is None else from_lists(plain["skip_agreement"]),
                tuple(plain["warnings"]),
                plain["provenance"],
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
            raise StratoscopeError(f"{path} is damaged ({e}); run the same command again to mend it") from e


def _plain(point: Point) -> list[float | None]:
    return [_number(point.value), _number(point.low), _number(point.high)]


def _point(values: list[float | None]) -> Point:
    value, low, high = map(_float, values)
    return Point(value, low, high)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _float(value: float | None) -> float:
    return math.nan if value is None else float(value)
