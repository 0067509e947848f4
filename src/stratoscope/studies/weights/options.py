"""How to compare weights."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import option, overwrite, workers


@dataclass(frozen=True)
class WeightsOptions:
    """How to compare weights: flags, YAML keys and keywords are these fields."""

    rank: bool = option(True, "Effective rank of every change, which takes most of the time.")
    workers: int | None = workers()
    overwrite: bool = overwrite()
