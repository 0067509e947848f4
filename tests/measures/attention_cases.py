"""Attention of a few heads over sentences of every awkward kind, and the slow obvious loops over them."""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial.distance import jensenshannon
from scipy.stats import pearsonr

from stratoscope.measures.attention.rows import Doubles, Floats, HeadRows

HEADS = 7


def sentence(words: int, *, seed: int, heads: int = HEADS, targets: int | None = None) -> Floats:
    """(heads, words, targets): peaked, flat, sparse, uniform and one-hot rows, and two heads that are nearly equal."""
    rng = np.random.default_rng(seed)
    targets = targets or words
    a = np.stack([rng.dirichlet(np.full(targets, scale), size=words) for scale in np.geomspace(0.03, 30, heads)])
    a[1] = np.where(rng.random(a[1].shape) < 0.5, 0, a[1])  # zeros
    a[1, a[1].sum(axis=-1) == 0] = np.eye(targets)[0]
    a[2] = 1 / targets  # uniform
    a[3] = np.eye(targets)[rng.integers(targets, size=words)]  # one-hot: disjoint from another row or equal to it
    a[5] = a[4] * (1 + 1e-5 * rng.standard_normal(a[4].shape))
    return (a / a.sum(axis=-1, keepdims=True)).astype(np.float32)


def flat(sentences: list[Floats]) -> HeadRows:
    """Sentences (heads, words, targets) as the sums read them."""
    return HeadRows(
        np.concatenate([s.reshape(len(s), -1) for s in sentences], axis=1),
        np.concatenate([np.full(s.shape[1], s.shape[2]) for s in sentences]),
        np.array([s.shape[1] for s in sentences]),
    )


def awkward() -> list[Floats]:
    """Sentences of 1, 2, 3, 25 and 300 words."""
    return [sentence(n, seed=n) for n in (1, 2, 3, 25, 300)]


def slow_similarity(name: str, sentences: list[Floats]) -> Doubles:
    """Similarity of every pair of heads by scipy, pair by pair and row by row."""
    heads = len(sentences[0])
    found = np.full((heads, heads), math.nan)
    for i in range(heads):
        for j in range(heads):
            pairs = [(s[i].astype(np.float64), s[j].astype(np.float64)) for s in sentences]
            found[i, j] = SLOW[name](pairs)
    return found


def _norms(pairs: list[tuple[Doubles, Doubles]], relative: bool) -> float:
    return 1 - float(np.mean([np.linalg.norm(a - b) / ((2 * len(a)) ** 0.5 if relative else 1) for a, b in pairs]))


def _pearson(pairs: list[tuple[Doubles, Doubles]]) -> float:
    varied = [(x, y) for a, b in pairs for x, y in zip(a, b, strict=True) if np.ptp(x) > 1e-6 and np.ptp(y) > 1e-6]
    return float(np.mean([pearsonr(x, y).statistic for x, y in varied])) if varied else math.nan


def _js(pairs: list[tuple[Doubles, Doubles]]) -> float:
    return 1 - float(np.mean([jensenshannon(x, y) ** 2 for a, b in pairs for x, y in zip(a, b, strict=True)]))


SLOW = {
    "frobenius": lambda pairs: _norms(pairs, False),
    "frobenius-normalised": lambda pairs: _norms(pairs, True),
    "pearson": _pearson,
    "js": _js,
}
