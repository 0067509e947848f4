"""What a measure is: a comparison of two layers, and the facts it declares about itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from stratoscope.measures.pair import Pair
from stratoscope.statistics.rows import LayerRows

Invariance = Literal["translation", "scaling", "permutation", "neuron-scaling", "orthogonal", "invertible"]

SCALING: frozenset[Invariance] = frozenset({"translation", "scaling", "permutation"})
NEURONS: frozenset[Invariance] = SCALING | {"neuron-scaling"}
ORTHOGONAL: frozenset[Invariance] = SCALING | {"orthogonal"}
INVERTIBLE: frozenset[Invariance] = NEURONS | {"orthogonal", "invertible"}


@dataclass(frozen=True)
class Scores:
    """One pair's scores in both directions, with companions worth keeping."""

    forward: float
    """x as first argument, y as second."""
    backward: float
    """y as first argument, x as second."""
    arrays: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Named extras, forward and backward."""

    @classmethod
    def symmetric(cls, value: float, **arrays: Tensor) -> Scores:
        """Scores of a measure that does not know which layer came first."""
        return cls(value, value, {k: (v, v) for k, v in arrays.items()})


Item = dict[str, Any]
"""A piece of work as plain data."""
Sums = Mapping[str, Tensor]
"""Partial results: those of one name add up."""


@dataclass(frozen=True)
class RowWork:
    """How a measure that needs the rows themselves is computed for all layers at once, in pieces that add up."""

    plan: Callable[[LayerRows, int], list[Item]]
    """Pieces of work for these rows and this seed."""
    work: Callable[[LayerRows, Item], Sums]
    """One piece's partial sums."""
    finish: Callable[[Sums], Tensor]
    """Scores of every pair of layers from the added sums."""


@dataclass(frozen=True)
class Measure:
    """A row of the table of measures."""

    name: str
    summary: str
    reference: str
    symmetric: bool
    invariant_x: frozenset[Invariance]
    """Changes of the first argument that leave the score as it is."""
    invariant_y: frozenset[Invariance]
    """Changes of the second argument that leave the score as it is."""
    bounds: tuple[float, float] = (0, 1)
    compare: Callable[[Pair, float], Scores] | None = None
    """Scores of a pair of layers from their covariances, averaged over the best fraction."""
    rows: RowWork | None = None
    """How it is computed instead when covariances are not enough."""
    whitens: bool = False
    """Whether it inverts a covariance, so that rows must be whitened first."""
    averages: bool = False
    """Whether `@fraction` makes sense: the score is a mean over neurons or correlations."""
    repeats: bool = True
    """Whether rows may repeat, as in a resample: False where a whole covariance is inverted and they act as fewer, and
    where a row would be its own neighbour."""
    saturates: bool = False
    """Whether any two layers score the maximum when rows do not outnumber neurons."""
    chance: Callable[[int, int], float] | None = None
    """What unrelated layers score at most on average, from the number of rows and the widest layer; None for 0."""
    quadratic: bool = False
    """Whether its cost grows with the square of the number of rows."""
    undefined: str = ""
    """Why a layer that varies may have no score; it is then absent, not 0."""
    for_few_rows: bool = False
    """Whether `all` takes it only where rows do not outnumber neurons, in place of a measure that saturates."""


def best(values: Tensor, top: float) -> Tensor:
    """The largest values, a fraction of them and at least one (Wu et al. 2020, footnote 3)."""
    return values.topk(max(1, math.ceil(top * len(values) - 1e-9))).values if top < 1 else values


def best_mean(values: Tensor, top: float) -> float:
    """Mean over the best fraction of the values."""
    return float(best(values, top).mean())
