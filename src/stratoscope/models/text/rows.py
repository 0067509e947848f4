"""Which rows are compared: the same (sentence, word) pairs for every model, and what had to be left out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.data.corpus import Corpus
from stratoscope.models.text.encoder import BoolArray, Encoded, Encoder, IntArray, words_of

UNITS = ("word", "cls", "mean", "token")
SUBWORDS = ("last", "first", "mean")


@dataclass(frozen=True)
class Rows:
    """Identity of the n rows compared, the same for every model."""

    fingerprint: str
    """Hash over the corpus fingerprint, the unit and the kept (sentence, word) pairs."""
    corpus: str
    """Fingerprint of the corpus the indices point into."""
    unit: str
    sentence: IntArray
    """(n,) index into `corpus.sentences`, never decreasing."""
    word: IntArray
    """(n,) index of the word (or real token) inside the sentence; 0 for cls and mean."""
    dropped: Mapping[str, int]
    """What was left out for all models: reason and count."""

    def __len__(self) -> int:
        return len(self.sentence)

    def slice(self, corpus: Corpus, first: int, last: int) -> tuple[Corpus, Rows]:
        """Rows `first` to `last` as rows of their own, over the part of the corpus they come from."""
        start, stop = int(self.sentence[first]), int(self.sentence[last - 1]) + 1
        part = Corpus(corpus.name, corpus.sentences[start:stop], corpus.positions[start:stop])
        sentence, word = self.sentence[first:last] - start, self.word[first:last]
        return part, Rows(f"{self.fingerprint}[{first}:{last}]", part.fingerprint, self.unit, sentence, word, {})


@dataclass(frozen=True)
class Groups:
    """The tokens behind each candidate row of one model; row r reads `tokens[starts[r]:starts[r + 1]]`."""

    sentence: IntArray
    word: IntArray
    starts: IntArray
    tokens: IntArray
    """Positions in the flat token arrays of an `Encoded`."""


def group_tokens(encoded: Encoded, encoder: Encoder, unit: str) -> Groups:
    """The rows of `unit` this model could give, in corpus order, one group of tokens each.

    - word: the sub-words of one word of the first text (a second text is context only);
    - cls: the token the classification head reads;
    - mean: all real tokens of both texts;
    - token: each real token of both texts, numbered inside the sentence.
    """
    if unit == "word":
        tokens = np.flatnonzero(encoded.word >= 0)
        return _consecutive(encoded, tokens, encoded.word[tokens])
    real = np.flatnonzero(encoded.real)
    sentence = encoded.sentence[real]
    if unit == "token":
        first = np.searchsorted(sentence, sentence)
        return Groups(sentence, np.arange(len(real)) - first, np.arange(len(real) + 1), real)
    means = _consecutive(encoded, real, np.zeros_like(real))
    if unit == "mean":
        return means
    ends = encoded.starts[means.sentence] if encoder.family.cls == "first" else encoded.starts[means.sentence + 1] - 1
    return Groups(means.sentence, means.word, np.arange(len(ends) + 1), ends)


def plan_rows(corpus: Corpus, encoders: Sequence[Encoder], unit: str) -> Rows:
    """Choose the rows every model can give: the intersection over models, with each loss counted and named.

    A sentence longer than a model's window is left out whole, never truncated; so is a word a tokenizer turns into
    nothing, and a sentence without any real token.
    """
    check_unit(unit)
    dropped: dict[str, int] = {}
    empty = np.array([_is_empty(corpus, k, unit) for k in range(len(corpus))], dtype=np.bool_)
    _count(dropped, "empty sentences", empty)
    kept: IntArray | None = None
    tokens: list[tuple[Encoder, Encoded]] = []
    for encoder in encoders:
        encoded = encoder.encode(corpus, unit)
        groups = group_tokens(encoded, encoder, unit)
        long = ~empty & (encoded.lengths > (encoder.window or np.inf))
        _count(dropped, f"sentences longer than {encoder.name}'s window ({encoder.window} tokens)", long)
        usable = ~empty & ~long
        if unit == "word":
            _count_words(dropped, corpus, groups, usable, encoder.name)
        else:
            none = usable.copy()
            none[groups.sentence] = False
            _count(dropped, f"sentences in which {encoder.name}'s tokenizer finds no token", none)
        rows = np.flatnonzero(usable[groups.sentence])
        pairs = keys(groups.sentence[rows], groups.word[rows])
        kept = pairs if kept is None else np.intersect1d(kept, pairs, assume_unique=True)
        if unit == "token":
            tokens.append((encoder, encoded))
    if kept is None:
        raise StratoscopeError("no model was given; expected at least one to plan rows for")
    if not len(kept):
        why = "; ".join(f"{n} {reason}" for reason, n in dropped.items()) or "the data is empty"
        raise StratoscopeError(
            f"no rows are left of '{corpus.name}' for unit '{unit}' ({why}); give other text or models"
        )
    sentence, word = kept >> 32, kept & 0xFFFFFFFF
    _check_same_tokens(tokens, np.unique(sentence))
    seal = hashlib.sha256(f"{corpus.fingerprint} {unit} ".encode() + kept.tobytes()).hexdigest()
    return Rows(seal, corpus.fingerprint, unit, sentence, word, dropped)


def check_unit(unit: str) -> None:
    """Refuse an unknown unit."""
    if unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)


def keys(sentence: IntArray, word: IntArray) -> IntArray:
    """One sortable number per (sentence, word)."""
    return (sentence << 32) | word


def _consecutive(encoded: Encoded, tokens: IntArray, word: IntArray) -> Groups:
    """Group tokens by (sentence, word); tokens of one group follow each other."""
    pair = keys(encoded.sentence[tokens], word)
    starts = np.flatnonzero(np.diff(pair, prepend=-1))
    return Groups(pair[starts] >> 32, pair[starts] & 0xFFFFFFFF, np.append(starts, len(tokens)), tokens)


def _is_empty(corpus: Corpus, k: int, unit: str) -> bool:
    sentence = corpus.sentences[k]
    return not (words_of(sentence) if unit == "word" else sentence.text.strip())


def _count(dropped: dict[str, int], reason: str, which: BoolArray) -> None:
    if n := int(which.sum()):
        dropped[reason] = n


def _count_words(dropped: dict[str, int], corpus: Corpus, groups: Groups, usable: BoolArray, name: str) -> None:
    expected = sum(len(words_of(s)) for s, ok in zip(corpus.sentences, usable, strict=True) if ok)
    if lost := expected - int(usable[groups.sentence].sum()):
        dropped[f"words {name}'s tokenizer turns into nothing"] = lost


def _check_same_tokens(models: list[tuple[Encoder, Encoded]], sentences: IntArray) -> None:
    """Unit token pairs the k-th token of one model with the k-th of the other: they must be the same token."""
    for encoder, encoded in models[1:]:
        first, reference = models[0]
        for s in sentences:
            a, b = (
                e.ids[e.starts[s] : e.starts[s + 1]][e.real[e.starts[s] : e.starts[s + 1]]]
                for e in (reference, encoded)
            )
            if not np.array_equal(a, b):
                raise StratoscopeError(
                    f"unit 'token' needs models that share a tokenizer, but '{first.name}' and '{encoder.name}' split"
                    f" sentence {s} differently; use unit 'word'"
                )
