"""Maps between the layers of models: how well each fits, layer by layer and pair by pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from stratoscope.core.curve import Curve
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Array, Value, Values
from stratoscope.results.result import Result

SHUFFLED, IDENTITY = "shuffled", "identity"
"""Ridge fitted to pairs in disorder, the floor; and rows taken as they are, where both layers have one width."""


@dataclass(frozen=True)
class Fit:
    """Scores of one map on rows it was not fitted on."""

    method: str
    mse: Value
    """‖g(x) - y‖² per row and feature."""
    error: Value
    """Relative error ‖g(X) - Y‖² / ‖Y - mean‖²: 0 is perfect, 1 no better than the mean."""
    r2: Value
    """1 - relative error."""
    inversion: float
    """‖g⁻¹(g(X)) - X‖ / ‖X - mean‖; NaN where there is no inverse."""
    replicates: Values | None = field(default=None, repr=False, metadata={"stored": "arrays"})
    """(resamples,): the relative error on every resample of the rows, the same for all fits of a result."""


@dataclass(frozen=True)
class LayerFit:
    """A map from one layer to another."""

    x: Layer
    y: Layer
    group: str
    """`models` for the models given, `before` for those before fine-tuning, `ceiling` from other seeds of the last."""
    fit: Fit


@dataclass(frozen=True)
class Alignment(Result):
    """Maps between the same layers of pairs of models, and between all layers by ridge."""

    KIND = "alignment"

    models: tuple[ModelInfo, ...]
    data: Mapping[str, Any]
    """Name, unit, rows fitted on and judged on."""
    fits: tuple[LayerFit, ...]
    matrices: tuple[Matrix, ...] = ()
    """Relative error of ridge from every layer (rows) to every layer (columns): of the first pair, and of one model."""
    norms: tuple[Curve, ...] = ()
    """Nuclear norm of each layer over the largest of its model, rows about their mean (Ren et al. 2023, B.2)."""
    map_record: Mapping[str, Any] = field(default_factory=dict)
    map_tensors: Mapping[str, Array] = field(default_factory=dict, repr=False, metadata={"stored": "arrays"})
    """The map itself, where one layer of two models was asked for."""

    @property
    def map(self) -> Any:
        """The map of the method asked for last, where one layer of two models was asked for."""
        if not self.map_record:
            raise StratoscopeError("a map is kept where one layer of two models is asked for; give layer=K")
        import torch

        tensors = {k: torch.from_numpy(v.copy()) for k, v in self.map_tensors.items()}
        return import_module("stratoscope.aligners.maps").Map.of(self.map_record, tensors)

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method, in order."""
        return tuple(dict.fromkeys(f.fit.method for f in self.fits))

    def of(self, method: str, group: str = "models", layer: int | None = None) -> Iterator[LayerFit]:
        """The fits of a method, over pairs of models."""
        for f in self.fits:
            if (f.fit.method, f.group) == (method, group) and layer in (None, f.x.index):
                yield f

    @property
    def judged(self) -> str:
        """The method that claims are judged by: the network where there is one better than the mean, else ridge.

        The published schedule leaves networks far from any map: how well layers align is not theirs to tell.
        """
        errors = {m: [f.fit.error.value for f in self.of(m) if f.fit.error.known] for m in ("inn", "ridge")}
        return next((m for m, some in errors.items() if some and sum(some) < len(some)), self.methods[0])

    def layers(self, group: str = "models") -> tuple[int, ...]:
        """Layers that have fits."""
        return tuple(sorted({f.x.index for f in self.fits if f.group == group}))


@dataclass(frozen=True)
class Injected:
    """The task metric when a head reads something in place of its own model's state."""

    name: str
    """A method, a baseline, or one of the two models as they are."""
    value: Value
    replicates: Values = field(repr=False, metadata={"stored": "arrays"})
    """(resamples,): on every resample of the examples."""
    baseline: bool = False


@dataclass(frozen=True)
class Injection(Result):
    """The last state of one model, mapped, read by the head of another."""

    KIND = "injection"

    models: tuple[ModelInfo, ...]
    task: Mapping[str, Any]
    own: tuple[Injected, ...]
    """Both models with their own heads."""
    injected: tuple[Injected, ...]
    fits: tuple[Fit, ...]

    def __getitem__(self, name: str) -> Value:
        for one in (*self.own, *self.injected):
            if one.name == name:
                return one.value
        raise KeyError(name)


@dataclass(frozen=True)
class Recovered:
    """Scores of one method for one known bijection."""

    features: int
    train: int
    """Rows fitted on."""
    truth: int
    """Seed of the bijection."""
    fit: Fit


@dataclass(frozen=True)
class Recovery(Result):
    """How closely every method recovers a random invertible network (Ren et al. 2023, Table 3)."""

    KIND = "recovery"

    data: Mapping[str, Any]
    recovered: tuple[Recovered, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of rows fitted on."""
        return tuple(sorted({r.train for r in self.recovered}))

    def of(self, method: str, features: int, train: int | None = None) -> list[Fit]:
        """The fits of a method at one width, over truths; by default with the most rows."""
        key = method, features, train or self.sizes[-1]
        return [r.fit for r in self.recovered if (r.fit.method, r.features, r.train) == key]
