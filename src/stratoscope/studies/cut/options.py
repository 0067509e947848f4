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
    head: bool = option(False, "Tune the head further for the layer it will read.")
    confidence: float = option(0.95, "Confidence level that the loss stays within the budget.")
    blocks: str | None = option(
        None, "top: truncate (default); any: skip any span; of a decoder span (default) or any: any set of blocks."
    )
    keep: int = option(1, "Smallest number of blocks that stay.", least=1)
    force: bool = option(False, "Write a cut that is no better than always giving the majority label, too.")
    overwrite: bool = overwrite()
