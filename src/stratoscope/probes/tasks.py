"""What a probe is held against: the commonest tag, each word's commonest tag, and a control task."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Tags = npt.NDArray[np.int64]


def majority(train: Tags, test: Tags) -> npt.NDArray[np.bool_]:
    """Which test words the commonest training tag is right for; of equally common ones the first."""
    right: npt.NDArray[np.bool_] = test == np.bincount(train).argmax()
    return right


def by_word(train_words: Sequence[str], train: Tags, test_words: Sequence[str], test: Tags) -> npt.NDArray[np.bool_]:
    """Which test words the commonest training tag of the same word is right for; of unseen words that of all."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for word, tag in zip(train_words, train.tolist(), strict=True):
        counts[word][tag] += 1
    common = {word: min(c, key=lambda tag: (-c[tag], tag)) for word, c in counts.items()}
    rest = int(np.bincount(train).argmax())
    return np.array([common.get(word, rest) == tag for word, tag in zip(test_words, test.tolist(), strict=True)])


def control_tags(words: Sequence[str], shares: npt.NDArray[np.float64], seed: int) -> Tags:
    """A random tag for each word type, drawn from the distribution of the tags (Hewitt & Liang 2019).

    A word's tag depends on the word, the seed and the shares only, so that all splits and models agree.
    """
    ends = np.cumsum(shares / shares.sum())
    drawn = {word: _uniform(word, seed) for word in set(words)}
    return np.searchsorted(ends[:-1], [drawn[word] for word in words], side="right").astype(np.int64)


def _uniform(word: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed} {word}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56
