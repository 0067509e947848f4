"""A cut model: what was taken out, how it was chosen and confirmed, and what it costs and saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratoscope.core.value import MISSING, Value
from stratoscope.results.result import Result


@dataclass(frozen=True)
class Tested:
    """A cut whose loss was measured on rows that took no part in the choice."""

    kept: tuple[int, ...]
    loss: Value
    """Change of the metric, negative for a loss; the lower end is the one-sided bound."""
    confirmed: bool
    """Whether the bound is within the budget."""
    exact: bool = False
    """The bound is, for the most part, that of losses these rows happen not to show."""
    at_majority: bool = False
    """Not confirmed because it is no better than the majority label."""


@dataclass(frozen=True)
class Candidate:
    """A cut that was tried: its metric on the rows for the choice, and what became of it."""

    kept: tuple[int, ...]
    value: float
    change: Value = MISSING
    """Of the metric against the whole model's on the same rows, paired, with a 95 % interval."""
    parameters: int = 0
    verdict: str = ""


@dataclass(frozen=True, kw_only=True)
class Cut(Result):
    """A cut model, as its folder holds it: a standard checkpoint with a model card."""

    KIND = "cut"

    folder: Path = field(default=Path(), metadata={"stored": "no"})
    """Where the checkpoint is."""
    model: Mapping[str, Any]
    """The whole model: name, source, hub, family, fingerprint, blocks."""
    loads_with: str
    """The transformers class that loads the checkpoint."""
    kept: tuple[int, ...]
    """Blocks of the whole model that stayed, from 1."""
    dropped: tuple[int, ...]
    task: Mapping[str, Any]
    metric: str
    budget: float
    confidence: float
    rows: Mapping[str, int]
    """Rows for the choice, rows that confirmed it, and the seed of the two halves."""
    whole_on_choice_rows: float
    candidates: tuple[Candidate, ...]
    tested: tuple[Tested, ...]
    before: Value
    after: Value
    difference: Value
    """Change of the metric of the cut that was made."""
    baselines: Mapping[str, float]
    """On the rows that confirmed the cut."""
    head: Mapping[str, bool]
    """Whether the head was tuned, and whether its tuning converged."""
    length: int
    parameters: Mapping[str, int]
    latency: Mapping[str, Any]
    """Time over the whole model's: of the model written, and by number of blocks of every cut that was tried."""
    reload: Mapping[str, Any]
    """Rows on which the checkpoint gave the same logits with plain transformers, and how far apart they were."""
