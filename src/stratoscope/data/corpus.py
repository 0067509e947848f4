"""A corpus: sentences in order, each with an identity that survives sampling; many of them stay on disk."""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import IO, overload

import numpy as np
import numpy.typing as npt

from stratoscope.core.errors import StratoscopeError

IN_MEMORY = 2048
"""Sentences up to which a source is held in memory; those of a larger one are written to a temporary file."""
READ_AHEAD = 1024
"""Sentences read from that file at once."""


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


class Spool(Sequence[Sentence]):
    """Sentences in a temporary file that goes when nobody holds it; slices and samples share it."""

    def __init__(self, file: IO[bytes], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        self._file, self._starts, self._ends = file, starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, k: int) -> Sentence: ...

    @overload
    def __getitem__(self, k: slice) -> Spool: ...

    def __getitem__(self, k: int | slice) -> Sentence | Spool:
        if isinstance(k, slice):
            return self.take(k)
        start, end = int(self._starts[k]), int(self._ends[k])
        return _parsed(os.pread(self._file.fileno(), end - start, start))

    def __iter__(self) -> Iterator[Sentence]:
        for first in range(0, len(self), READ_AHEAD):
            starts, ends = self._starts[first : first + READ_AHEAD], self._ends[first : first + READ_AHEAD]
            begin = int(starts[0])
            if ends[-1] - begin > 2 * int((ends - starts).sum()):  # a sample lies far apart
                yield from (self[k] for k in range(first, first + len(starts)))
                continue
            data = os.pread(self._file.fileno(), int(ends[-1]) - begin, begin)
            for a, b in zip((starts - begin).tolist(), (ends - begin).tolist(), strict=True):
                yield _parsed(data[a:b])

    def take(self, which: slice | Sequence[int]) -> Spool:
        """Some of the sentences, in any order."""
        index = which if isinstance(which, slice) else np.asarray(which, dtype=np.int64)
        return Spool(self._file, self._starts[index], self._ends[index])


def gather(rows: Iterable[tuple[int, Sentence]]) -> tuple[Sequence[Sentence], Sequence[int]]:
    """Sentences with their positions, as a corpus takes them; read once, and held in memory only if they are few."""
    rows = iter(rows)
    few = list(islice(rows, IN_MEMORY))
    more = next(rows, None)
    if more is None:
        return tuple(s for _, s in few), tuple(k for k, _ in few)
    file = tempfile.TemporaryFile(prefix="stratoscope-")  # noqa: SIM115 - it lives as long as the corpus
    bounds, positions = array("q", [0]), array("q")
    for part in (few, [more], rows):
        for position, sentence in part:
            bounds.append(bounds[-1] + file.write(_line(sentence)))
            positions.append(position)
    file.flush()
    ends = np.frombuffer(bounds, dtype=np.int64)
    plain = positions[-1] == len(positions) - 1
    return Spool(file, ends[:-1], ends[1:]), range(len(positions)) if plain else positions


def _line(sentence: Sentence) -> bytes:
    """ASCII, so that half a surrogate pair survives too."""
    tags = None if sentence.tags is None else dict(sentence.tags)
    parts = [sentence.text, sentence.words, sentence.pair, sentence.label, tags]
    return json.dumps(parts, separators=(",", ":")).encode()


def _parsed(line: bytes) -> Sentence:
    text, words, pair, label, tags = json.loads(line)
    tags = None if tags is None else {name: tuple(values) for name, values in tags.items()}
    return Sentence(text, None if words is None else tuple(words), pair, label, tags)


@dataclass(frozen=True)
class Corpus:
    """Sentences of one source, in source order."""

    name: str
    """Label in reports; no part of the identity."""
    sentences: Sequence[Sentence]
    positions: Sequence[int]
    """Index of each sentence in its source, strictly increasing; a sample keeps those of its sentences."""
    skipped: int = 0
    """Rows of the source left out because their text was blank."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column that text, pair and label were read from, where the source is a table; no part of the identity."""

    def __post_init__(self) -> None:
        if len(self.positions) != len(self.sentences):
            raise ValueError(f"expected one position per sentence ({len(self.sentences)}), got {len(self.positions)}")
        if not isinstance(self.positions, range) and any(b <= a for a, b in pairwise(self.positions)):
            raise ValueError("expected strictly increasing positions; keep sentences in source order")

    def __len__(self) -> int:
        return len(self.sentences)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 over positions and content; the path, name and format of the source do not enter."""
        rows = zip(self.positions, self.sentences, strict=True)
        return digest("stratoscope corpus 1", (part for k, s in rows for part in (str(k), *_fields(s))))

    def sample(self, limit: int | None, seed: int) -> Corpus:
        """A random sample of at most `limit` sentences, in corpus order; the same for every model."""
        if limit is None:
            return self
        if limit < 1:
            raise StratoscopeError(f"limit: expected at least 1 sentence, got {limit}; leave it out to use all")
        if limit >= len(self):
            return self
        keep = sorted(random.Random(seed).sample(range(len(self)), limit))
        positions = [self.positions[k] for k in keep]
        if isinstance(self.sentences, Spool) and limit > IN_MEMORY:
            return replace(self, sentences=self.sentences.take(keep), positions=array("q", positions))
        return replace(self, sentences=tuple(self.sentences[k] for k in keep), positions=tuple(positions))

    def slice(self, start: int, stop: int) -> Corpus:
        """Sentences `start` to `stop` as a corpus of their own."""
        return replace(self, sentences=self.sentences[start:stop], positions=self.positions[start:stop])

    def held(self) -> Corpus:
        """The same with all sentences in memory, as it travels."""
        return replace(self, sentences=tuple(self.sentences), positions=tuple(self.positions))


def digest(kind: str, fields: Iterable[str | None]) -> str:
    """Sha256 over fields in order, each with its length before it: no two different lists share one byte string."""
    h = hashlib.sha256(f"{kind}\n".encode())
    for part in fields:
        data = b"" if part is None else part.encode("utf-8", "surrogatepass")
        h.update(b"-" if part is None else b"%d:" % len(data))
        h.update(data)
    return h.hexdigest()


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
