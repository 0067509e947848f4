"""How to judge a model at every depth."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import Working, batch_tokens, length, option, overwrite, seed


@dataclass(frozen=True)
class DepthOptions(Working):
    """How to measure depth: flags, YAML keys and keywords are these fields."""

    seed: int = seed()
    length: int | None = length()
    batch_tokens: int | None = batch_tokens()
    skip: bool = option(True, "Also measure the model with every span of blocks skipped.")
    overwrite: bool = overwrite()
