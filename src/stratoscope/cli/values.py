"""Values typed on the command line, turned into what studies take."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.open.loading import ModelSpec

UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parse_bytes(text: str | None) -> float | None:
    """Read a size such as `4GB`, `800M` or `1e9`."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([KMGT]?)i?B?\s*", text, flags=re.IGNORECASE)
    try:
        size = float(match[1]) * UNITS[match[2].upper()] if match else 0.0
    except ValueError:
        size = 0.0
    if not 0 < size < math.inf:
        raise StratoscopeError(f"expected a size such as 4GB or 800MB, got '{text}'")
    return size


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Read layers such as `0,3-6` (inclusive)."""
    if text is None:
        return None
    layers: set[int] = set()
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4}))?\s*", piece)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise StratoscopeError(f"expected layers such as '0,3-6', got '{text}'")
        layers |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(layers))


def specs(
    models: Sequence[str],
    names: Sequence[str],
    *,
    revision: str | None,
    dtype: str,
    device: str,
    allow_pickle: bool,
    trust_remote_code: bool,
) -> list[ModelSpec]:
    """Models as the user named them."""
    if names and len(names) != len(models):
        raise StratoscopeError(f"expected one --name per model ({len(models)}) or none, got {len(names)}")
    chosen = [
        ModelSpec(
            source,
            revision=revision,
            dtype=dtype,
            device=device,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
        )
        for source in models
    ]
    return [replace(s, name=name) for s, name in zip(chosen, names, strict=True)] if names else chosen
