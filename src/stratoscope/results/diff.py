"""What fine-tuning changed, told whole: layers, weights, what could be cut, and single texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratoscope.core.value import Value
from stratoscope.results.cutting.perplexity import Skipped
from stratoscope.results.result import Result
from stratoscope.results.study import Study
from stratoscope.results.weights import Weights


@dataclass(frozen=True)
class Example:
    """One text: how far it moved, and what a cut model makes of it."""

    row: int
    """Its place among the rows that were judged, from 0."""
    text: str
    moved: float
    """1 − cosine of its relations to all other texts before and after, at the layer that changed most."""
    label: str = ""
    predicted: str = ""
    """By the whole tuned model."""
    flips: tuple[int, ...] = ()
    """Layers at which the tuned model, cut there and its head tuned on that layer, predicts something else."""
    loss_before: float = math.nan
    """-log p per token of the base model, where both are decoders."""
    loss_after: float = math.nan


@dataclass(frozen=True)
class Language:
    """Two decoders on the same texts, and the tuned one without spans of its blocks."""

    before: Value
    """Perplexity of the base model."""
    after: Value
    ratio: Value
    """After over before, paired over the texts."""
    spans: tuple[Skipped, ...] = ()
    """Every span that was skipped, shortest first."""
    span_texts: int = 0


@dataclass(frozen=True)
class Diff(Result):
    """A base model and one tuned from it: what changed, and what could be cut."""

    KIND = "diff"

    study: Study
    """Layers before and after; with a task, the tuned model judged at every depth."""
    data: Mapping[str, Any]
    """Name, rows that are compared and judged, and rows that heads are tuned on."""
    weights: Weights | None = None
    """None where the weights of both cannot be read from safetensors."""
    language: Language | None = None
    """Where both are decoders and there is no task."""
    unjudged: str = ""
    """Why nothing is said of what could be cut."""
    layer: int | None = None
    """The layer that changed most, where the examples are."""
    examples: tuple[Example, ...] = ()
    """Those that moved most first; none where they were not asked for."""
