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
    control: bool = option(False, "Add a control with random weights.")
    skip: bool = option(True, "Also measure the model with spans of blocks skipped.")
    rank: bool = option(True, "Compute the effective rank of every weight change.")
    examples: bool = option(True, "List individual texts; --no-examples keeps all text out of the folder.")
    seed: int = seed()
    length: int | None = length()
    batch_tokens: int | None = batch_tokens()
    memory: float | None = memory()
    overwrite: bool = overwrite()
