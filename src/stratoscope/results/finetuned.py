"""One fine-tuned model: how it was made and how it does its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratoscope.core.value import Value
from stratoscope.results.result import Result


@dataclass(frozen=True, kw_only=True)
class Finetuned(Result):
    """One fine-tuned model, as its folder holds it: a standard checkpoint with the labels' names."""

    KIND = "finetuned"

    folder: Path = field(default=Path(), metadata={"stored": "no"})
    """Where the checkpoint is."""
    seed: int
    base: Mapping[str, Any]
    """Name, source, family and fingerprint of the model it was tuned from."""
    task: Mapping[str, Any]
    """Name, fingerprint, format, labels, rows of both splits, texts that were truncated."""
    metric: str
    score: Value
    """The metric on the validation rows, with its interval over them."""
    parts: Mapping[str, float]
    """Each part of the metric by its own name, such as accuracy and F1."""
    baselines: Mapping[str, float]
    """Majority label and bag of words on the same rows."""
    recipe: Mapping[str, Any]
    """Name, reference and schedule, with the user's own values in place."""
    freeze: str | None
    parameters: Mapping[str, int]
    """Frozen and trained."""
    head: str
    """`fresh` (drawn from the seed) or `kept` (as the checkpoint had it)."""
    loss: tuple[tuple[float, ...], ...]
    """Training loss: step, mean over the steps since the last entry."""
    early: Mapping[str, Any]
    """Scores on the way: the rows they are on, and (step, score) pairs."""
    seconds: float
    weights: str
    """Fingerprint of the checkpoint as it was written."""
    pruned: Mapping[str, Any] | None = None
    """What was dropped from the base before tuning, if anything."""
