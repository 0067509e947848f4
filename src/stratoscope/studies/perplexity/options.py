"""How to judge a decoder by perplexity."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import Working, batch_tokens, option, overwrite, seed


@dataclass(frozen=True)
class PerplexityOptions(Working):
    """How to measure perplexity: flags, YAML keys and keywords are these fields."""

    limit: int | None = option(None, "Use a random sample of N texts.")
    seed: int = seed()
    length: int | None = option(None, "Truncate texts to N tokens.")
    span_length: int = option(4, "Longest span of blocks to skip; 0 skips none.", least=0)
    span_texts: int = option(32, "Skip spans on a random sample of N texts.", least=1)
    text: str | None = option(None, "Column that holds the text.")
    columns: str | None = option(None, "Names of the columns of a CSV or TSV without a header.")
    split: str | None = option(None, "Split of a hub data set.")
    batch_tokens: int | None = batch_tokens()
    overwrite: bool = overwrite()
