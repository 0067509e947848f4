"""Text to token ids, the same way for every model, and batches of them as a model takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Sentence
from stratoscope.models.families import Family, vocabulary

IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

CHUNK = 1024
"""Sentences tokenised at once; bounds the memory of the tokenizer's own objects."""
SANE_LENGTH = 1_000_000
"""`model_max_length` above this means "not set" (transformers writes 1e30)."""
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Encoded:
    """The tokens of some texts, one after the other; text s owns tokens `starts[s]:starts[s + 1]`."""

    encoder: Encoder
    """What made them."""
    starts: IntArray
    ids: Int32Array
    segments: Int32Array
    """token_type_ids."""
    real: BoolArray
    """False for special tokens the tokenizer added; a special token written in the text itself is real."""
    word: Int32Array
    """Index of the token's word in the sentence's first text; −1 for added tokens, the second text and blanks."""
    truncated: BoolArray
    """(texts,) whether only the first tokens of the text are here."""

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens per text, special ones included."""
        return np.diff(self.starts)

    @cached_property
    def sentence(self) -> IntArray:
        """The text of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def shift(self, texts: IntArray) -> IntArray:
        """Column at which each text begins when these are padded to one length."""
        lengths = self.lengths[texts]
        return lengths.max() - lengths if self.encoder.family.pads_left else np.zeros_like(lengths)

    def batch(self, texts: IntArray) -> dict[str, Tensor]:
        """Model inputs (texts, longest); what is padding is masked."""
        lengths, shift = self.lengths[texts], self.shift(texts)
        columns = np.arange(int(lengths.max()))
        mask = (columns >= shift[:, None]) & (columns < (shift + lengths)[:, None])
        source = np.where(mask, self.starts[texts][:, None] + columns - shift[:, None], 0)
        inputs = {"input_ids": np.where(mask, self.ids[source], self.encoder.pad_id), "attention_mask": mask}
        if self.encoder.segments:
            inputs["token_type_ids"] = np.where(mask, self.segments[source], 0)
        return {name: torch.from_numpy(value.astype(np.int64)) for name, value in inputs.items()}


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
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return int(next(i for i in ids if i is not None))

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

    def encode(self, sentences: Sequence[Sentence], *, by_word: bool = False, truncate: int | None = None) -> Encoded:
        """Tokenise texts, whole or to at most `truncate` tokens (the longer text of a pair gives way first).

        `by_word` also gives each token's word. Whole sentences then go in as words, split by the source or else at
        blanks; truncated ones as the same text as without `by_word`, with words found by their place in it, so that
        the tokens are those of every other unit. A word that is cut in two is no word.
        """
        split = by_word and truncate is None
        backend = self.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        if truncate is not None:
            backend.enable_truncation(max_length=truncate, strategy="longest_first")
        parts = []
        try:
            for start in range(0, max(1, len(sentences)), CHUNK):
                chunk = list(sentences[start : start + CHUNK])
                inputs = [self._words_of(s) if split else _texts_of(s) for s in chunk]
                encodings = backend.encode_batch(inputs, is_pretokenized=split)
                words = (
                    _words_given(e) if split else _words_found(s, e) for s, e in zip(chunk, encodings, strict=True)
                )
                parts.append(_arrays(encodings, words if by_word else ()))
        finally:
            backend.no_truncation()  # or it would be saved with the tokenizer
        lengths, ids, segments, special, word, truncated = map(np.concatenate, zip(*parts, strict=True))
        if ids.size and ids.max() >= self.vocabulary:
            raise StratoscopeError(
                f"the tokenizer of '{self.name}' gives token id {ids.max()}, but the model has {self.vocabulary}"
                " embeddings; give a checkpoint whose tokenizer and weights belong together"
            )
        return Encoded(
            encoder=self,
            starts=np.append(0, np.cumsum(lengths)),
            ids=ids,
            segments=segments,
            real=special == 0,
            word=word if by_word else np.broadcast_to(np.int32(-1), ids.shape),
            truncated=truncated,
        )

    def _words_of(self, sentence: Sentence) -> Any:
        first = self._spaced(words_of(sentence))
        return first if sentence.pair is None else (first, self._spaced(sentence.pair.split()))

    def _spaced(self, words: Sequence[str]) -> list[str]:
        """Give words after the first their blank back, where needed; a word of nothing but blanks stays as it is."""
        blank = " " if self.blank_before_words else ""
        return [blank + sound(w) if k and w.strip() else sound(w) for k, w in enumerate(words)]


def _arrays(found: Sequence[Any], words: Iterable[Any]) -> tuple[Any, ...]:
    """The tokens of one chunk of texts, out of the tokenizer's own objects."""
    return (
        np.array([len(e.ids) for e in found], dtype=np.int64),
        np.fromiter(chain.from_iterable(e.ids for e in found), dtype=np.int32),
        np.fromiter(chain.from_iterable(e.type_ids for e in found), dtype=np.int32),
        np.fromiter(chain.from_iterable(e.special_tokens_mask for e in found), dtype=np.int8),
        np.fromiter(chain.from_iterable(words), dtype=np.int32),
        np.array([bool(e.overflowing) for e in found], dtype=np.bool_),
    )


def words_of(sentence: Sentence) -> Sequence[str]:
    """The words of the first text: as the source split them, or else split at blanks."""
    return sentence.text.split() if sentence.words is None else sentence.words


def _words_given(encoding: Any) -> list[int]:
    """The word of each token of a text that went in as words."""
    return [w if q == 0 else -1 for w, q in zip(encoding.word_ids, encoding.sequence_ids, strict=True)]


def _words_found(sentence: Sentence, encoding: Any) -> IntArray:
    """The word of each token of a raw text: the one in which it ends; a blank belongs to the word after it."""
    word_ends = _word_ends(sentence)
    ends = np.array([b for _, b in encoding.offsets], dtype=np.int64)
    word = np.searchsorted(word_ends, ends)
    inside = np.array([q == 0 for q in encoding.sequence_ids], dtype=np.bool_) & (word < len(word_ends))
    word[~inside] = -1
    if encoding.overflowing and inside.any():
        last = word.max()
        if ends[word == last].max() < word_ends[last]:
            word[word == last] = -1
    return word


def _word_ends(sentence: Sentence) -> IntArray:
    """Where each word ends in the text; one that is not found in it takes no room."""
    if sentence.words is None:
        ends = [m.end() for m in _WORD.finditer(sentence.text)]
    else:
        ends, place = [], 0
        for word in sentence.words:
            start = sentence.text.find(word, place)
            place = place if start < 0 else start + len(word)
            ends.append(place)
    return np.array(ends, dtype=np.int64)


def window_of(config: Any, tokenizer: Any, family: Family) -> int | None:
    """Most tokens the model reads at once: the smaller of the tokenizer's limit and the model's positions."""
    limits = [int(tokenizer.model_max_length)] if tokenizer.model_max_length < SANE_LENGTH else []
    count = getattr(config.get_text_config(), "max_position_embeddings", None) or 0
    if family.positions != "unbounded" and count > 0:
        pad = getattr(config, "pad_token_id", None)
        taken = (1 if pad is None else pad) + 1 if family.positions == "after-padding" else 0
        limits.append(count - taken)
    return min(limits, default=None)


def encoder_of(name: str, config: Any, tokenizer: Any, family: Family) -> Encoder:
    """The encoder that feeds a model of this configuration."""
    return Encoder(
        name=name,
        tokenizer=tokenizer,
        family=family,
        window=window_of(config, tokenizer, family),
        vocabulary=vocabulary(config),
        segments=family.segments and getattr(config, "type_vocab_size", 2) > 1,
    )


def _texts_of(sentence: Sentence) -> Any:
    return sound(sentence.text) if sentence.pair is None else (sound(sentence.text), sound(sentence.pair))


def sound(text: str) -> str:
    """Half a surrogate pair (from a broken JSON escape) is no text a tokenizer takes; it becomes '?'."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
