"""How to tell two models apart."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core import names
from stratoscope.core.options import Working, batch_tokens, bootstrap, length, memory, option, overwrite, seed


@dataclass(frozen=True)
class DiffOptions(Working):
    """How to tell two models apart: flags, YAML keys and keywords are these fields."""

    units: tuple[str, ...] = option(
        (),
        "cls, mean, ...; may be repeated. By default cls and mean with a task, else mean.",
        flag="--unit",
        choices=names.UNITS,
    )
    limit: int | None = option(1000, "Compare layers on a random sample of N rows.")
    bootstrap: int = bootstrap(100, "Replicates for 95 % intervals over sentences; 0 for none.")
    control: bool = option(False, "Compare with random weights too.")
    skip: bool = option(True, "Skip spans of blocks too.")
    rank: bool = option(True, "Effective rank of the change of every weight.")
    examples: bool = option(True, "Report single texts; without, no text is in the folder.")
    seed: int = seed()
    length: int | None = length()
    batch_tokens: int | None = batch_tokens()
    memory: float | None = memory()
    overwrite: bool = overwrite()
