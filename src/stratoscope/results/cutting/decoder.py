"""A decoder cut without a task: which blocks went, how that was chosen and confirmed, and what it costs and saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratoscope.core.value import MISSING, Value
from stratoscope.results.cutting.perplexity import Skipped
from stratoscope.results.result import Result


@dataclass(frozen=True)
class Tried:
    """The best cut of so many blocks, on the texts for the choice; perplexities are ratios to the whole model's."""

    removed: tuple[int, ...]
    ratio: Value
    """As it is."""
    patched: Value
    """With the block before each gap refitted on other texts; missing where nothing was."""
    patch: bool
    """Whether the patch is kept: it lowers the perplexity."""
    agreement: float
    """Share of tokens of which cut and whole model say the same first; with the patch where that is kept."""
    angular: tuple[int, ...]
    """The span that angular distance would have chosen (Gromov et al. 2024)."""
    angular_ratio: Value
    influence: tuple[int, ...]
    """The blocks that block influence would have chosen (Men et al. 2024)."""
    influence_ratio: Value
    held_out: Value = MISSING
    """On texts that took no part in choosing and fitting, its upper end one-sided; missing where it was not tested."""
    verdict: str = ""

    @property
    def best(self) -> Value:
        """The ratio of the cut as it would be made."""
        return self.patched if self.patch else self.ratio


@dataclass(frozen=True, kw_only=True)
class CutDecoder(Result):
    """A decoder with fewer blocks, as its folder holds it: a standard checkpoint with a model card."""

    KIND = "decoder"

    folder: Path = field(default=Path(), metadata={"stored": "no"})
    """Where the checkpoint is."""
    model: Mapping[str, Any]
    """The whole model: name, source, hub, family, fingerprint, blocks."""
    kept: tuple[int, ...]
    """Blocks of the whole model that stayed, from 1."""
    dropped: tuple[int, ...]
    patched: tuple[int, ...]
    """Blocks of the whole model whose down projection was refitted."""
    corpus: Mapping[str, Any]
    """Name, fingerprint and number of texts."""
    max_ppl: float
    """Largest perplexity allowed, over the whole model's."""
    confidence: float
    texts: Mapping[str, int]
    """Texts for the choice, for the patches and for the confirmation, and the seed of the three shares."""
    tried: tuple[Tried, ...]
    spans: tuple[Skipped, ...]
    """Every span that was skipped, on the texts for the choice."""
    before: Value
    after: Value
    ratio: Value
    """Perplexity after over before on the texts that confirmed it, paired; the upper end is one-sided."""
    agreement: Value
    """Share of tokens of which both say the same first."""
    length: int
    parameters: Mapping[str, int]
    latency: Mapping[str, Any]
    reload: Mapping[str, Any]
    """Texts on which the checkpoint gave the same logits with plain transformers, and how far apart they were."""
