"""A base model without some of its blocks, before it is tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratoscope.results.result import Result


@dataclass(frozen=True, kw_only=True)
class Pruned(Result):
    """What was dropped, and which weights are left."""

    KIND = "pruned"

    what: Mapping[str, Any]
    """Source and fingerprint of the whole model, what was dropped, its blocks and those kept."""
    weights: str
    """Fingerprint of the checkpoint as it was written."""
