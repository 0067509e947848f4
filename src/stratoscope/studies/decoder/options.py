"""How to cut a decoder without a task."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import Working, batch_tokens, option, overwrite, seed

SPAN, ANY = BLOCKS = ("span", "any")
"""Remove one span of blocks, wherever it lies; or one block after the other, each the best that is left."""


@dataclass(frozen=True)
class DecoderOnly:
    """What a task has no use for."""

    limit: int | None = option(600, "Decoder: use a random sample of N texts.", least=1)
    span_length: int = option(4, "Decoder: remove at most N blocks.", least=1)
    patch: bool = option(True, "Decoder: refit the block before the gap where that helps.")


@dataclass(frozen=True)
class CutDecoderOptions(DecoderOnly, Working):
    """How to cut a decoder: flags, YAML keys and keywords are these fields."""

    seed: int = seed()
    length: int | None = option(None, "Truncate texts to N tokens.")
    batch_tokens: int | None = batch_tokens()
    confidence: float = option(0.95, "Confidence level that the perplexity stays within --max-ppl.")
    blocks: str = option(SPAN, "span: one span of blocks; any: a set of blocks, chosen one after the other.")
    keep: int = option(1, "Keep at least N blocks.", least=1)
    text: str | None = option(None, "Column that holds the text.")
    columns: str | None = option(None, "Names of the columns of a CSV or TSV without a header.")
    overwrite: bool = overwrite()


def parse_max_ppl(text: str | float) -> float:
    """A ratio of perplexities such as `1.1x` or 1.1: above 1."""
    form = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*[x×]?\s*", "" if isinstance(text, bool) else str(text))
    allowed = float(form[1]) if form else 0.0
    if not 1 < allowed <= 1000:
        raise StratoscopeError(
            f"expected --max-ppl above 1x and at most 1000x, got '{text}'; 1.1x allows a perplexity 10 % above that of"
            " the whole model"
        )
    return allowed
