"""A figure or table of a paper, reproduced: what was run, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stratoscope.core.value import MISSING, Value
from stratoscope.results.result import Result


@dataclass(frozen=True)
class Done:
    """One analysis of a protocol."""

    folder: str
    """Inside the folder of the reproduction; it holds a result of its own."""
    command: str
    """What does the same."""
    metric: str = ""
    score: Value = MISSING
    """Of a model that was trained."""


@dataclass(frozen=True)
class Reproduction(Result):
    """The analyses that a protocol asked for, and the published claims it is about, judged on them."""

    KIND = "reproduction"

    paper: str
    item: str
    title: str
    data: str
    """What the paper used."""
    pictures: tuple[str, ...]
    """Ids of what the pages of the analyses show of it."""
    done: tuple[Done, ...]
    folder: Path = field(default=Path(), metadata={"stored": "no"})
