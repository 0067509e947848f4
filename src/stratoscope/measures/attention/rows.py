"""Attention of many heads over the same sentences, as the sums read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DOUBLES = 2_000_000
"""Weights taken to float64 at once, about: of a long sentence some rows after the other."""


@dataclass(frozen=True)
class HeadRows:
    """What every head pays attention to from each word of some sentences: distributions, one after the other.

    A row is a source word, its values are its targets; causal rows are shorter than their sentence.
    """

    values: Floats
    """(heads, all targets of all rows); each row sums to 1."""
    lengths: Ints
    """(rows,): targets of each row."""
    words: Ints
    """(sentences,): rows of each sentence."""

    @property
    def edges(self) -> Ints:
        """(sentences + 1,): where the targets of each sentence begin, and the end of the last."""
        places = np.concatenate([[0], np.cumsum(self.lengths)])
        found: Ints = places[np.concatenate([[0], np.cumsum(self.words)])]
        return found

    def sentences(self) -> Iterator[HeadRows]:
        """Each sentence as rows of its own."""
        ends = np.cumsum(self.words)
        for first, last, (a, b) in zip(ends - self.words, ends, pairwise(self.edges), strict=True):
            yield HeadRows(self.values[:, a:b], self.lengths[first:last], np.array([last - first]))

    def chunks(self, places: int) -> Iterator[HeadRows]:
        """The same rows in runs of about so many places, at least one row each; for what needs no whole sentence."""
        ends = np.cumsum(self.lengths)
        edges = [0, *(np.flatnonzero(np.diff((ends - self.lengths) // places)) + 1).tolist(), len(ends)]
        for first, last in pairwise(edges):
            where = slice(int(ends[first] - self.lengths[first]), int(ends[last - 1]))
            yield HeadRows(self.values[:, where], self.lengths[first:last], np.array([last - first]))

    @classmethod
    def join(cls, parts: list[HeadRows]) -> HeadRows:
        """The same heads over the sentences of all parts."""
        return cls(
            np.concatenate([p.values for p in parts], axis=1),
            np.concatenate([p.lengths for p in parts]),
            np.concatenate([p.words for p in parts]),
        )
