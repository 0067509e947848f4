"""What depth buys: a task's metric with the model cut at every layer and with every span of blocks skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratoscope.core.curve import Curve
from stratoscope.core.errors import unknown_name
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Value, Values
from stratoscope.results.result import Result

UNTUNED, TUNED, TUNEDORIG = CURVES = ("untuned", "tuned", "tunedorig")
"""The tuned head on each layer as it is; tuned further on each layer; the same on the layers of the base model."""


@dataclass(frozen=True)
class Depth(Result):
    """How a tuned model does its task at every depth."""

    KIND = "depth"

    model: ModelInfo
    base: ModelInfo | None
    """The model the tuned one was made from, when it was given."""
    task: Mapping[str, Any]
    """Name, metric, labels, format, fingerprint, n_train and n_validation."""
    full: Value
    """The whole model."""
    majority: float
    bag_of_words: float
    curves: tuple[Curve, ...]
    """Named as in `CURVES`: the metric when the head reads each layer in turn."""
    skip: Values | None = None
    """(L, L): the metric with blocks first..last skipped, at [first - 1, last - 1]; NaN below the diagonal."""
    skip_agreement: Values | None = None
    """(L, L): share of rows predicted as by the whole model; NaN below the diagonal and for a regression."""
    predicted: Values | None = field(default=None, metadata={"stored": "arrays"})
    """(L+2, rows): index of the label that the head tuned on layer 0, ..., L gives to every validation row, and at last
    that of the whole model; None for a regression."""
    full_replicates: Values | None = field(default=None, metadata={"stored": "arrays"})
    """(resamples,): the whole model on every resample of the validation rows, those of the curves and of the spans."""
    skip_replicates: Values | None = field(default=None, metadata={"stored": "arrays"})
    """(resamples, L, L): the skip matrix on the same resamples, as many of them as were taken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.model.layers
        for curve in self.curves:
            if len(curve.layers) != layers:
                raise ValueError(f"curve {curve.name}: expected {layers} points, got {len(curve.layers)}")
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
