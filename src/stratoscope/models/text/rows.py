"""Which rows are compared: the same (sentence, word) pairs for every model, and what had to be left out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy as np

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.names import UNITS
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.models.text.encoder import BoolArray, Encoded, Encoder, IntArray, words_of

SUBWORDS = ("last", "first", "mean")
EMPTY = "empty sentences"
CHUNK = 1024
"""Sentences looked at together; of what they hold only the rows are kept."""


@dataclass(frozen=True)
class Rows:
    """Identity of the n rows compared, the same for every model."""

    fingerprint: str
    """Hash over the corpus fingerprint, the unit, the truncation and the kept (sentence, word) pairs."""
    corpus: str
    """Fingerprint of the corpus the indices point into."""
    unit: str
    sentence: IntArray
    """(n,) index into `corpus.sentences`, never decreasing."""
    word: IntArray
    """(n,) index of the word (or real token) inside the sentence; 0 for cls and mean."""
    dropped: Mapping[str, int]
    """What was left out for all models: reason and count."""
    truncate: int | None = None
    """Tokens kept of a longer text; without it longer texts are left out."""
    truncated: Mapping[str, int] = field(default_factory=dict)
    """Texts of which each model reads only the first tokens, by its name, where there are some."""

    def __len__(self) -> int:
        return len(self.sentence)

    def slice(self, corpus: Corpus, first: int, last: int) -> tuple[Corpus, Rows]:
        """Rows `first` to `last` as rows of their own, over the part of the corpus they come from."""
        start, stop = int(self.sentence[first]), int(self.sentence[last - 1]) + 1
        part = corpus.slice(start, stop)
        return part, replace(
            self,
            fingerprint=f"{self.fingerprint}[{first}:{last}]",
            corpus=part.fingerprint,
            sentence=self.sentence[first:last] - start,
            word=self.word[first:last],
            dropped={},
            truncated={},
        )

    def within(self, sample: Corpus, whole: Corpus) -> Rows:
        """The same rows as rows of the corpus that theirs is a sample of."""
        place = np.searchsorted(np.asarray(whole.positions), np.asarray(sample.positions))
        return replace(self, corpus=whole.fingerprint, sentence=place[self.sentence])


@dataclass(frozen=True)
class Groups:
    """The tokens behind each candidate row of one model; row r reads `tokens[starts[r]:starts[r + 1]]`."""

    sentence: IntArray
    word: IntArray
    starts: IntArray
    tokens: IntArray
    """Positions in the flat token arrays of an `Encoded`."""


def group_tokens(encoded: Encoded, unit: str) -> Groups:
    """The rows of `unit` this model could give, in corpus order, one group of tokens each.

    - word: the sub-words of one word of the first text (a second text is context only);
    - cls: the token the classification head reads;
    - mean: all real tokens of both texts;
    - token: each real token of both texts, numbered inside the sentence.
    """
    if unit == "word":
        tokens = np.flatnonzero(encoded.word >= 0)
        return _consecutive(encoded, tokens, encoded.word[tokens].astype(np.int64))
    real = np.flatnonzero(encoded.real)
    sentence = encoded.sentence[real]
    if unit == "token":
        first = np.searchsorted(sentence, sentence)
        return Groups(sentence, np.arange(len(real)) - first, np.arange(len(real) + 1), real)
    means = _consecutive(encoded, real, np.zeros_like(real))
    if unit == "mean":
        return means
    first_token = encoded.encoder.family.cls == "first"
    ends = encoded.starts[means.sentence] if first_token else encoded.starts[means.sentence + 1] - 1
    return Groups(means.sentence, means.word, np.arange(len(ends) + 1), ends)


def encode_for(
    encoder: Encoder, sentences: Sequence[Sentence], units: Sequence[str], truncate: int | None = None
) -> Encoded:
    """Tokenise sentences so that the rows of these units can be read from one pass over them."""
    if truncate is None and "word" in units and len(set(units)) > 1:
        raise ValueError("words of whole sentences are tokenised one by one; read other units apart, or truncate")
    limit = None if truncate is None else min(truncate, encoder.window or truncate)
    return encoder.encode(sentences, by_word="word" in units, truncate=limit)


def plan_rows(corpus: Corpus, encoders: Sequence[Encoder], unit: str, truncate: int | None = None) -> Rows:
    """Choose the rows every model can give: the intersection over models, with each loss counted and named.

    A sentence longer than a model's window is left out whole; with `truncate`, its first so many tokens are read
    instead (as many as fit the window). A word a tokenizer turns into nothing is left out, and so is a sentence
    without any real token.
    """
    check_unit(unit)
    if not encoders:
        raise StratoscopeError("no model was given; expected at least one to plan rows for")
    dropped = {EMPTY: 0} | {reason: 0 for encoder in encoders for reason in _reasons(encoder)}
    truncated = dict.fromkeys((e.name for e in encoders), 0)
    cut = "" if truncate is None else f"first {truncate} tokens "
    seal = hashlib.sha256(f"{corpus.fingerprint} {unit} {cut}".encode())
    kept: list[IntArray] = []
    for start in range(0, len(corpus), CHUNK):
        part = list(corpus.sentences[start : start + CHUNK])
        empty = np.array([not (words_of(s) if unit == "word" else s.text.strip()) for s in part], dtype=np.bool_)
        dropped[EMPTY] += int(empty.sum())
        tokens = [encode_for(encoder, part, [unit], truncate) for encoder in encoders]
        for encoded in tokens:
            truncated[encoded.encoder.name] += int((encoded.truncated & ~empty).sum())
        pairs = (_pairs(encoded, part, unit, ~empty, dropped) for encoded in tokens)
        common = reduce(partial(np.intersect1d, assume_unique=True), pairs)
        if unit == "token":
            _check_same_tokens(tokens, np.unique(common >> 32), start)
        kept.append(common + (start << 32))
        seal.update(kept[-1].tobytes())
    rows = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
    dropped = {reason: n for reason, n in dropped.items() if n}
    if not len(rows):
        why = "; ".join(f"{n} {reason}" for reason, n in dropped.items()) or "the data is empty"
        raise StratoscopeError(
            f"no rows are left of '{corpus.name}' for unit '{unit}' ({why}); give other text or models"
        )
    return Rows(
        fingerprint=seal.hexdigest(),
        corpus=corpus.fingerprint,
        unit=unit,
        sentence=rows >> 32,
        word=rows & 0xFFFFFFFF,
        dropped=dropped,
        truncate=truncate,
        truncated={name: n for name, n in truncated.items() if n},
    )


def check_unit(unit: str) -> None:
    """Refuse an unknown unit."""
    if unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)


def keys(sentence: IntArray, word: IntArray) -> IntArray:
    """One sortable number per (sentence, word)."""
    return (sentence.astype(np.int64) << 32) | word


def _pairs(
    encoded: Encoded, part: Sequence[Sentence], unit: str, usable: BoolArray, dropped: dict[str, int]
) -> IntArray:
    """Keys of the rows one model can give of some sentences; what it cannot is counted."""
    too_long, cut_off, lost_words, no_token = _reasons(encoded.encoder)
    groups = group_tokens(encoded, unit)
    long = usable & (encoded.lengths > (encoded.encoder.window or np.inf))
    dropped[too_long] += int(long.sum())
    usable = usable & ~long
    if unit == "word":
        present = np.bincount(groups.sentence, minlength=len(part))
        lost = np.array([len(words_of(s)) for s in part]) - present
        dropped[cut_off] += int(lost[usable & encoded.truncated].sum())
        dropped[lost_words] += int(lost[usable & ~encoded.truncated].sum())
    else:
        none = usable.copy()
        none[groups.sentence] = False
        dropped[no_token] += int(none.sum())
    rows = np.flatnonzero(usable[groups.sentence])
    return keys(groups.sentence[rows], groups.word[rows])


def _reasons(encoder: Encoder) -> tuple[str, str, str, str]:
    """Why a model cannot give a row."""
    return (
        f"sentences longer than {encoder.name}'s window ({encoder.window} tokens)",
        f"words beyond the first tokens of long texts, which are all that {encoder.name} reads",
        f"words {encoder.name}'s tokenizer turns into nothing",
        f"sentences in which {encoder.name}'s tokenizer finds no token",
    )


def _consecutive(encoded: Encoded, tokens: IntArray, word: IntArray) -> Groups:
    """Group tokens by (sentence, word); tokens of one group follow each other."""
    pair = keys(encoded.sentence[tokens], word)
    starts = np.flatnonzero(np.diff(pair, prepend=-1))
    return Groups(pair[starts] >> 32, pair[starts] & 0xFFFFFFFF, np.append(starts, len(tokens)), tokens)


def _check_same_tokens(models: Sequence[Encoded], sentences: IntArray, start: int) -> None:
    """Unit token pairs the k-th token of one model with the k-th of the other: they must be the same token."""
    reference = models[0]
    for encoded in models[1:]:
        for s in sentences:
            spans = ((e, slice(e.starts[s], e.starts[s + 1])) for e in (reference, encoded))
            a, b = (e.ids[span][e.real[span]] for e, span in spans)
            common = min(len(a), len(b)) if reference.truncated[s] or encoded.truncated[s] else max(len(a), len(b))
            if not np.array_equal(a[:common], b[:common]):
                raise StratoscopeError(
                    f"unit 'token' needs models that share a tokenizer, but '{reference.encoder.name}' and"
                    f" '{encoded.encoder.name}' split sentence {start + s} differently; use unit 'word'"
                )
