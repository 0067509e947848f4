"""How to compare weights."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import Working, option, overwrite


@dataclass(frozen=True)
class WeightsOptions(Working):
    """How to compare weights: flags, YAML keys and keywords are these fields."""

    rank: bool = option(True, "Effective rank of every change, which takes most of the time.")
    overwrite: bool = overwrite()
