"""How to cut a model."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import Working, batch_tokens, length, option, overwrite, seed

TOP, ANY = BLOCKS = ("top", "any")
"""Cut off the top blocks; or leave out any run of blocks, wherever it lies."""


@dataclass(frozen=True)
class CutOptions(Working):
    """How to cut: flags, YAML keys and keywords are these fields."""

    seed: int = seed()
    length: int | None = length()
    batch_tokens: int | None = batch_tokens()
    head: bool = option(False, "Tune the head further on the layer it will read.")
    confidence: float = option(0.95, "Confidence level that the loss stays within the budget.")
    blocks: str | None = option(
        None, "top (default) truncates, any removes any span. Decoder: span (default), or any for a set of blocks."
    )
    keep: int = option(1, "Keep at least N blocks.", least=1)
    force: bool = option(False, "Write the cut even if it is no better than the majority label.")
    overwrite: bool = overwrite()
