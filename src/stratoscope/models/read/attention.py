"""Word-level attention: what each head of each block attends to from every word of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.read.loop import ATTENTION, Batch, Output, Reader
from stratoscope.models.text.encoder import Encoded, IntArray
from stratoscope.models.text.rows import Rows

NO_MASS = 1e-30
"""Attention to real words below which a row is lost to underflow and says nothing of which word it prefers."""


@dataclass(frozen=True)
class WordAttention:
    """One text as all heads of a model see it, block 1 first."""

    values: npt.NDArray[np.float32]
    """(blocks · heads, all targets of all rows): a distribution for each source word, one after the other."""
    lengths: IntArray
    """(words,): targets of each row."""


class AttentionReader(Reader):
    """Gathers attention between the planned words of each text; `texts` then holds it by the index of the text.

    Attention is summed over the sub-words of a target word and averaged over those of a source word (Clark et al.
    2019); what goes to other tokens, special ones and words that are not planned, is left out and each row normalised
    to 1, or, with `specials`, kept together as a target of its own before the words. `causal` rows keep the targets up
    to their own word only. A row that has nothing left is uniform, and counted.
    """

    needs = frozenset({ATTENTION})

    def __init__(
        self,
        encoded: Encoded,
        rows: Rows,
        *,
        causal: bool = False,
        specials: bool = False,
        blocks: Sequence[int] | None = None,
    ) -> None:
        """`rows` are the words of the texts that `encoded` holds the tokens of; `blocks`, all unless given, from 1."""
        if rows.unit != "word":
            raise ValueError(f"attention is between words, got rows of unit '{rows.unit}'")
        self.encoded, self.rows, self.causal, self.specials, self.blocks = encoded, rows, causal, specials, blocks
        self.texts: dict[int, WordAttention] = {}
        self.empty: IntArray = np.zeros(0, dtype=np.int64)
        """(blocks · heads,): rows that had nothing left."""

    def update(self, batch: Batch, output: Output) -> None:
        chosen = output.attention if self.blocks is None else [output.attention[k - 1] for k in self.blocks]
        for slot, text in enumerate(batch.texts):
            first, length = int(batch.shift[slot]), int(self.encoded.lengths[text])
            own = slice(first, first + length)
            onto = self._words(int(text)).to(chosen[0].device)
            parts = [self._between(part[slot, :, own, own], onto, int(text)) for part in chosen]
            values, lengths, empty = zip(*parts, strict=True)
            self.texts[int(text)] = WordAttention(np.concatenate(values), lengths[0])
            none: IntArray = np.concatenate(empty)
            self.empty = none + self.empty if len(self.empty) else none

    def _between(self, weights: Tensor, onto: Tensor, text: int) -> tuple[npt.NDArray[np.float32], IntArray, IntArray]:
        """One block of a text: what follows from it, in float64, takes many times the room of what is kept."""
        weights, mean = weights.float(), (onto / onto.sum(0)).T
        between = mean @ (weights @ onto)
        if self.specials:
            others = (onto.sum(1) == 0).float()
            between = torch.cat([mean @ (weights @ others)[..., None], between], dim=-1)
        return self._normalised(between.cpu().double().numpy(), text)

    def _words(self, text: int) -> Tensor:
        """(tokens, words): 1 where a token belongs to a planned word of the text."""
        start, stop = self.encoded.starts[text], self.encoded.starts[text + 1]
        a, b = np.searchsorted(self.rows.sentence, [text, text + 1])
        return torch.from_numpy(self.encoded.word[start:stop, None] == self.rows.word[None, a:b]).float()

    def _normalised(
        self, between: npt.NDArray[np.float64], text: int
    ) -> tuple[npt.NDArray[np.float32], IntArray, IntArray]:
        """Distributions of all rows, one after the other, the targets of each, and rows of each head without any."""
        if not np.isfinite(between).all():
            name = self.encoded.encoder.name
            raise StratoscopeError(
                f"'{name}' gives attention weights that are not finite in text {text}",
                "check its weights",
                "load it with --dtype float32",
            )
        words, targets = between.shape[1:]
        kept = np.ones((words, targets), dtype=np.bool_)
        if self.causal:
            kept = np.tri(words, targets, k=targets - words, dtype=np.bool_)
        between = between * kept
        mass = between.sum(axis=-1, keepdims=True)
        empty = mass < NO_MASS
        lengths = kept.sum(axis=1)
        share = np.where(empty, 1 / lengths[:, None], between / np.where(empty, 1, mass))
        return share[:, kept].astype(np.float32), lengths, empty.sum(axis=(1, 2))
