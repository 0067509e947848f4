"""A corpus: sentences in order, each with an identity that survives sampling."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from stratoscope.core.errors import StratoscopeError


@dataclass(frozen=True)
class Sentence:
    """One row of text: a sentence, or a pair of texts, with its label and per-word tags where the source has them."""

    text: str
    """The raw text; words joined by blanks when the source was pre-split."""
    words: tuple[str, ...] | None = None
    """Set when the source is pre-split (CoNLL-U, columns)."""
    pair: str | None = None
    """Second text of a pair task."""
    label: str | None = None
    tags: Mapping[str, tuple[str, ...]] | None = None
    """One tag per word under each name (upos, xpos, column names)."""

    def __post_init__(self) -> None:
        for name, tags in (self.tags or {}).items():
            if self.words is None or len(tags) != len(self.words):
                got = "no words" if self.words is None else f"{len(self.words)} words"
                raise ValueError(f"tags '{name}': expected one per word, got {len(tags)} tags for {got}")


@dataclass(frozen=True)
class Corpus:
    """Sentences of one source, in source order."""

    name: str
    """Label in reports; no part of the identity."""
    sentences: tuple[Sentence, ...]
    positions: tuple[int, ...]
    """Index of each sentence in its source, strictly increasing; a sample keeps those of its sentences."""
    skipped: int = 0
    """Rows of the source left out because their text was blank."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column that text, pair and label were read from, where the source is a table; no part of the identity."""

    def __post_init__(self) -> None:
        if len(self.positions) != len(self.sentences):
            raise ValueError(f"expected one position per sentence ({len(self.sentences)}), got {len(self.positions)}")
        if any(b <= a for a, b in zip(self.positions, self.positions[1:], strict=False)):
            raise ValueError("expected strictly increasing positions; keep sentences in source order")

    def __len__(self) -> int:
        return len(self.sentences)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 over positions and content; the path, name and format of the source do not enter."""
        h = hashlib.sha256(b"stratoscope corpus 1\n")
        for position, sentence in zip(self.positions, self.sentences, strict=True):
            for part in (str(position), *_fields(sentence)):
                # A length before every field, so that no two different sentences share one byte string.
                data = b"" if part is None else part.encode("utf-8", "surrogatepass")
                h.update(b"-" if part is None else b"%d:" % len(data))
                h.update(data)
        return h.hexdigest()

    def sample(self, limit: int | None, seed: int) -> Corpus:
        """At most `limit` sentences drawn without replacement, in corpus order; the same for every model."""
        if limit is None:
            return self
        if limit < 1:
            raise StratoscopeError(f"limit: expected at least 1 sentence, got {limit}; leave it out to use all")
        if limit >= len(self):
            return self
        keep = sorted(random.Random(seed).sample(range(len(self)), limit))
        return replace(
            self,
            sentences=tuple(self.sentences[k] for k in keep),
            positions=tuple(self.positions[k] for k in keep),
        )


def _fields(sentence: Sentence) -> Iterator[str | None]:
    """Everything a sentence holds as a flat list that can be read back: counts come before what they count."""
    yield sentence.text
    yield sentence.pair
    yield sentence.label
    yield None if sentence.words is None else str(len(sentence.words))
    yield from sentence.words or ()
    tags = sentence.tags or {}
    yield str(len(tags))
    for name in sorted(tags):
        yield name
        yield from tags[name]
