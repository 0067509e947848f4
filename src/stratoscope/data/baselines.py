"""Baselines of a task, majority and bag of words: what a model must beat before its layers are worth a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stratoscope.data.metrics import metric_named
from stratoscope.data.tasks.data import CHOICE, TaskData

Floats = npt.NDArray[np.float64]

MOST_ROWS = 100_000
"""Training rows the bag of words learns from; the largest tasks are sampled down to as many."""

WORD = r"\w+|[^\w\s]"
"""A run of letters and digits, or one mark: single letters and punctuation count as words."""


def majority(task: TaskData) -> float:
    """The task's metric for the most frequent training label, or the mean target of a regression."""
    return metric_named(task.metric).score(majority_scores(task), task.targets("validation"))


def bag_of_words(task: TaskData) -> float:
    """The task's metric for TF-IDF features under logistic regression, or ridge when targets are numbers."""
    return metric_named(task.metric).score(bag_of_words_scores(task), task.targets("validation"))


def majority_scores(task: TaskData) -> Floats:
    """Scores (n, k) of the validation rows; of equally frequent labels the first wins."""
    targets, n = task.targets("train"), len(task.validation)
    if task.labels is None:
        return np.full((n, 1), targets.mean())
    counts = np.bincount(targets.astype(np.int64), minlength=len(task.labels))
    return np.tile(np.eye(len(task.labels))[counts.argmax()], (n, 1))


def bag_of_words_scores(task: TaskData) -> Floats:
    """Scores (n, k) of the validation rows; each choice of a multiple-choice row is scored on its own."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    task = task.sample(train=MOST_ROWS, validation=None, seed=0)
    train, validation = ([pair for e in task.split(s) for pair in e.texts] for s in ("train", "validation"))
    words = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD)
    words.fit([text for pair in train for text in pair if text is not None])
    x, z = _features(words, train), _features(words, validation)
    targets = task.targets("train")
    if task.labels is None:
        return np.asarray(Ridge(solver="sparse_cg").fit(x, targets).predict(z), dtype=np.float64)[:, None]
    if task.format == CHOICE:
        right = np.array([k == e.label for e in task.train for k in range(len(e.texts))])
        odds = LogisticRegression(max_iter=1000).fit(x, right).decision_function(z)
        return np.asarray(odds, dtype=np.float64).reshape(len(task.validation), -1)
    fitted = LogisticRegression(max_iter=1000).fit(x, targets)
    scores = np.zeros((len(task.validation), len(task.labels)))
    # A class that no training row has keeps the score 0, the least a probability can be.
    scores[:, fitted.classes_.astype(np.int64)] = fitted.predict_proba(z)
    return scores


def _features(words: Any, pairs: Sequence[tuple[str, str | None]]) -> Any:
    """Sparse TF-IDF rows; of a pair also what the texts share, how they differ and their cosine.

    Two bags side by side cannot tell whether the texts are about the same thing, and would be too low a floor.
    """
    from scipy import sparse

    a = words.transform([text for text, _ in pairs])
    if all(pair is None for _, pair in pairs):
        return a
    b = words.transform([pair or "" for _, pair in pairs])
    shared = a.multiply(b)
    return sparse.hstack([a, b, shared, abs(a - b), sparse.csr_array(shared.sum(axis=1).reshape(-1, 1))], format="csr")
