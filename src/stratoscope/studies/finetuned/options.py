"""How to study what fine-tuning changed."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core import names
from stratoscope.core.options import Working, batch_tokens, bootstrap, length, memory, option, overwrite, seed

UNITS = ("cls", "mean")


@dataclass(frozen=True)
class StudyOptions(Working):
    """How to study: flags, YAML keys and keywords are these fields."""

    units: tuple[str, ...] = option(UNITS, "cls, mean, ...; may be repeated.", flag="--unit", choices=names.UNITS)
    limit: int | None = option(1000, "Compare layers on a random sample of N validation rows; depth is judged on all.")
    bootstrap: int = bootstrap(100, "Replicates for 95 % intervals over sentences; 0 for none.")
    control: bool = option(True, "Compare with random weights too.")
    depth: bool = option(True, "Truncation and skipping too.")
    localization: bool = option(False, "Localization of words before and after too; slow on deep models.")
    seed: int = seed()
    length: int | None = length()
    batch_tokens: int | None = batch_tokens()
    memory: float | None = memory()
    overwrite: bool = overwrite()
