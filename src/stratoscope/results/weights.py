"""How the weights of two models differ, parameter by parameter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from stratoscope.core.curve import Curve
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Values
from stratoscope.results.result import Result

NORM = re.compile(r"norm|(^|[._])ln", re.IGNORECASE)
"""Modules that normalise, by their name."""


@dataclass(frozen=True)
class ParameterChange:
    """What became of one tensor."""

    name: str
    layer: int | None
    """0 of the embeddings, k of block k; None of what is outside, such as a pooler or the final norm."""
    module: str
    """Its module, inside the block where it has one."""
    shape: tuple[int, ...]
    norm: float
    """Frobenius norm in the base model."""
    change: float
    """Frobenius norm of the difference."""
    rank: float
    """Effective rank of the difference, exp of the entropy of its squared singular values; NaN of vectors."""

    @property
    def relative(self) -> float:
        """Change in units of the weights themselves."""
        return relative([self])

    @property
    def normalises(self) -> bool:
        return NORM.search(self.module) is not None


@dataclass(frozen=True)
class TokenChange:
    """What became of one row of the word embeddings."""

    id: int
    token: str
    relative: float
    """Length of the change in units of the row's own."""


@dataclass(frozen=True)
class Weights(Result):
    """How the weights of a model differ from those it was trained from; read off the checkpoints alone."""

    KIND = "weights"

    models: tuple[ModelInfo, ...]
    """The base and the tuned model."""
    parameters: tuple[ParameterChange, ...]
    """What both models have."""
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By label of a model, parameters that only it has, such as a new head."""
    adapter: Mapping[str, Any] = field(default_factory=dict)
    """Kind, rank and scale, where the tuned model is an adapter."""
    tokens: tuple[TokenChange, ...] = ()
    """The tokens whose embeddings changed most."""
    moved_tokens: int = 0
    """Tokens whose embedding changed at all."""
    all_tokens: int = 0

    @property
    def layers(self) -> Curve:
        """Relative change of all parameters of a layer: ‖ΔW‖/‖W‖ over its tensors taken together."""
        return self._curve("all parameters", lambda p: True)

    @property
    def norms(self) -> Curve:
        """The same for what normalises: scales and shifts of LayerNorm and the like."""
        return self._curve("norms", lambda p: p.normalises)

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of the blocks: attention, then the rest, then what normalises."""
        known = {p.module: p for p in self.parameters if p.layer}
        return tuple(sorted(known, key=lambda m: (known[m].normalises, "att" not in m.lower(), m)))

    def grid(self, value: Callable[[Sequence[ParameterChange]], float]) -> Values:
        """(blocks, modules): a value of the parameters of a module of a block; NaN where there are none."""
        groups: dict[tuple[int, str], list[ParameterChange]] = {}
        for p in self.parameters:
            if p.layer:
                groups.setdefault((p.layer, p.module), []).append(p)
        blocks = [k for k in self.layers.layers if k]
        return np.array([[value(groups.get((k, m), [])) for m in self.modules] for k in blocks])

    def to_frame(self) -> pd.DataFrame:
        """One row per parameter."""
        return pd.DataFrame([{**vars(p), "relative": p.relative} for p in self.parameters])

    def _curve(self, name: str, wanted: Callable[[ParameterChange], bool]) -> Curve:
        layers = tuple(sorted({p.layer for p in self.parameters if p.layer is not None}))
        of = {k: [p for p in self.parameters if p.layer == k and wanted(p)] for k in layers}
        return Curve(name, layers, np.array([relative(of[k]) for k in layers]))


def relative(parameters: Sequence[ParameterChange]) -> float:
    """‖ΔW‖/‖W‖ of some parameters taken as one vector; NaN where there are none, or none but zeros before."""
    size = math.fsum(p.norm**2 for p in parameters)
    return math.sqrt(math.fsum(p.change**2 for p in parameters) / size) if size > 0 else math.nan


def rank(parameters: Sequence[ParameterChange]) -> float:
    """Effective rank of the change of a module: of its matrix."""
    known = [p.rank for p in parameters if not math.isnan(p.rank)]
    return max(known, default=math.nan)
