"""What a probe is held against: the commonest tag, each word's commonest tag, and a control task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Tags = npt.NDArray[np.signedinteger[Any]]
Types = npt.NDArray[np.int32]


def majority(train: Tags, test: Tags) -> npt.NDArray[np.bool_]:
    """Which test words the commonest training tag is right for; of equally common ones the first."""
    right: npt.NDArray[np.bool_] = test == np.bincount(train).argmax()
    return right


def number_types(words: Iterable[str], count: int, known: dict[str, int]) -> Types:
    """The number of each word's type in `known`, where new ones get the next: all that is kept of so many words."""
    return np.fromiter((known.setdefault(word, len(known)) for word in words), dtype=np.int32, count=count)


def by_word(train_types: Types, train: Tags, test_types: Types, test: Tags) -> npt.NDArray[np.bool_]:
    """Which test words the commonest training tag of the same type is right for; of unseen types that of all.

    Of equally common tags the first.
    """
    tags = np.bincount(train)
    pairs, counts = np.unique(train_types * np.int64(len(tags)) + train, return_counts=True)
    type_, tag = np.divmod(pairs, len(tags))
    order = np.lexsort((tag, -counts, type_))
    first = order[np.flatnonzero(np.diff(type_[order], prepend=-1))]
    common = np.full(max(int(train_types.max()), int(test_types.max())) + 1, tags.argmax())
    common[type_[first]] = tag[first]
    right: npt.NDArray[np.bool_] = common[test_types] == test
    return right


def control_tags(types: Sequence[str], shares: npt.NDArray[np.float64], seed: int) -> Tags:
    """A random tag for each word type, drawn from the distribution of the tags (Hewitt & Liang 2019).

    A type's tag depends on the word, the seed and the shares only, so that all splits and models agree.
    """
    ends = np.cumsum(shares / shares.sum())
    drawn = np.array([_uniform(word, seed) for word in types])
    return np.searchsorted(ends[:-1], drawn, side="right")


def _uniform(word: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed} {word}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56
