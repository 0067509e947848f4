"""The polarity of words, by a lexicon, in texts: words and texts of each split appear in no other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.data.tagged import NONE, Tagged, tagged

PROPERTY = "polarity"
WORDS = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
TEXTS, TYPES = {"train": 0.6, "dev": 0.15, "test": 0.25}, {"train": 0.5, "dev": 0.2, "test": 0.3}
"""Shares of the texts and of the words of the lexicon in each split."""


def read_lexicon(path: Path) -> dict[str, str]:
    """Each word with its polarity, from lines of word, mean rating and more, separated by tabs."""
    polarity = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        word, rating, *_ = line.split("\t")
        polarity[word.lower()] = "positive" if float(rating) > 0 else "negative"
    return polarity


def polarity_corpus(name: str, texts: Iterable[str], lexicon: dict[str, str]) -> Tagged:
    """Texts whose words of the lexicon have a polarity, each in one split only, so that none can be learnt by heart.

    All other words are context.
    """
    sentences: dict[str, list[Sentence]] = {split: [] for split in TEXTS}
    for text in dict.fromkeys(texts):
        split, words = _split(text, TEXTS), tuple(WORDS.findall(text))
        known = [
            lexicon[w.lower()] if _split(w.lower(), TYPES) == split and w.lower() in lexicon else NONE for w in words
        ]
        if set(known) != {NONE} and words:
            sentences[split].append(Sentence(text, words, tags={PROPERTY: tuple(known)}))
    if few := [split for split, own in sentences.items() if not own]:
        raise StratoscopeError(f"{name}: expected words of the lexicon in {', '.join(few)}, got none; give more texts")
    return tagged(
        name, PROPERTY, {s: Corpus(f"{name}/{s}", tuple(own), tuple(range(len(own)))) for s, own in sentences.items()}
    )


def _split(text: str, shares: dict[str, float]) -> str:
    """The split of a text or word: by its checksum, so that it is the same wherever it is met."""
    place, end = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48, 0.0
    for split, share in shares.items():
        end += share
        if place < end:
            return split
    return split
