"""Text to token ids, the same way for every model: whole sentences, never truncated, with each token's word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.families import Family

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

CHUNK = 1024
"""Sentences tokenised at once; bounds the memory of the tokenizer's own objects."""
SANE_LENGTH = 1_000_000
"""`model_max_length` above this means "not set" (transformers writes 1e30)."""


@dataclass(frozen=True)
class Encoded:
    """The tokens of all sentences, one after the other; sentence s owns tokens `starts[s]:starts[s + 1]`."""

    starts: IntArray
    ids: IntArray
    segments: IntArray
    """token_type_ids."""
    real: BoolArray
    """False for special tokens the tokenizer added; a special token written in the text itself is real."""
    word: IntArray
    """Index of the token's word in the sentence's first text; −1 for added tokens and the second text."""

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens per sentence, special ones included."""
        return np.diff(self.starts)

    @cached_property
    def sentence(self) -> IntArray:
        """The sentence of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


@dataclass(frozen=True)
class Encoder:
    """A tokenizer with what the model it feeds can take; needs no weights."""

    name: str
    tokenizer: Any
    """A fast tokenizer."""
    family: Family
    window: int | None
    """Most tokens the model reads at once, special ones included; None when there is no limit."""
    vocabulary: int
    """Rows of the model's embedding table."""
    segments: bool
    """Whether the model must be given token_type_ids."""

    @property
    def pad_id(self) -> int:
        """Id put into masked positions; without a padding token any id does, and eos is the custom."""
        for i in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if i is not None:
                return int(i)
        return 0

    @cached_property
    def blank_before_words(self) -> bool:
        """Whether a pre-split word needs its blank back to be tokenised as inside a text (byte-level BPE, Gemma)."""
        backend = self.tokenizer.backend_tokenizer
        text = backend.encode("a a", add_special_tokens=False).ids
        split, blank = (
            backend.encode(words, is_pretokenized=True, add_special_tokens=False).ids
            for words in (["a", "a"], ["a", " a"])
        )
        return bool(split != text and blank == text)

    def encode(self, corpus: Corpus, unit: str) -> Encoded:
        """Tokenise every sentence; unit `word` reads pre-split words (or the text cut at blanks), others the text."""
        by_word = unit == "word"
        read = self._words_of if by_word else _texts_of
        backend = self.tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        ids, segments, real, word, lengths = [], [], [], [], [0]
        for start in range(0, len(corpus.sentences), CHUNK):
            inputs = [read(s) for s in corpus.sentences[start : start + CHUNK]]
            for e in backend.encode_batch(inputs, is_pretokenized=by_word):
                lengths.append(len(e.ids))
                ids.append(np.array(e.ids, dtype=np.int64))
                segments.append(np.array(e.type_ids, dtype=np.int64))
                real.append(np.array(e.special_tokens_mask, dtype=np.int64) == 0)
                if by_word:
                    pairs = zip(e.word_ids, e.sequence_ids, strict=True)
                    word.append(np.array([w if q == 0 else -1 for w, q in pairs], dtype=np.int64))
        flat = _join(ids)
        if flat.size and flat.max() >= self.vocabulary:
            raise StratoscopeError(
                f"the tokenizer of '{self.name}' gives token id {flat.max()}, but the model has {self.vocabulary}"
                " embeddings; give a checkpoint whose tokenizer and weights belong together"
            )
        return Encoded(
            starts=np.cumsum(lengths, dtype=np.int64),
            ids=flat,
            segments=_join(segments),
            real=_join(real).astype(np.bool_),
            word=_join(word) if by_word else np.full(len(flat), -1, dtype=np.int64),
        )

    def _words_of(self, sentence: Sentence) -> Any:
        first = self._spaced(words_of(sentence))
        return first if sentence.pair is None else (first, self._spaced(sentence.pair.split()))

    def _spaced(self, words: Sequence[str]) -> list[str]:
        """Give words after the first their blank back, where needed; a word of nothing but blanks stays as it is."""
        blank = " " if self.blank_before_words else ""
        return [blank + sound(w) if k and w.strip() else sound(w) for k, w in enumerate(words)]


def words_of(sentence: Sentence) -> Sequence[str]:
    """The words of the first text: as the source split them, or else split at blanks."""
    return sentence.text.split() if sentence.words is None else sentence.words


def window_of(config: Any, tokenizer: Any, family: Family) -> int | None:
    """Most tokens the model reads at once: the smaller of the tokenizer's limit and the model's positions."""
    limits = [int(tokenizer.model_max_length)] if tokenizer.model_max_length < SANE_LENGTH else []
    count = (
        None if family.positions == "unbounded" else getattr(config.get_text_config(), "max_position_embeddings", None)
    )
    if count is not None and count > 0:
        pad = getattr(config, "pad_token_id", None)
        taken = (1 if pad is None else pad) + 1 if family.positions == "after-padding" else 0
        limits.append(count - taken)
    return min(limits, default=None)


def _texts_of(sentence: Sentence) -> Any:
    return sound(sentence.text) if sentence.pair is None else (sound(sentence.text), sound(sentence.pair))


def sound(text: str) -> str:
    """Half a surrogate pair (from a broken JSON escape) is no text a tokenizer takes; it becomes '?'."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _join(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
