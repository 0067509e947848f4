"""Floors: the majority label by hand, and a bag of words that learns what words can tell and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from stratoscope.data import baselines
from stratoscope.data.baselines import bag_of_words, bag_of_words_scores, majority, majority_scores
from stratoscope.data.tasks.data import Example, TaskData

WORDS = [f"word{k}" for k in range(60)]


def text(rng: random.Random, *extra: str) -> str:
    words = [*rng.sample(WORDS, 6), *extra]
    rng.shuffle(words)
    return " ".join(words)


def task(examples: list[Example], labels: tuple[str, ...] | None, form: str, metric: str = "accuracy") -> TaskData:
    cut = len(examples) * 2 // 3
    return TaskData("toy", tuple(examples[:cut]), tuple(examples[cut:]), labels, form, metric)


def sentiment(n: int = 300, marks: tuple[str, str] = ("bad", "good")) -> TaskData:
    rng = random.Random(0)
    rows = [Example(((text(rng, marks[k % 2]), None),), k % 2) for k in range(n)]
    return task(rows, ("bad", "good"), "single")


def overlap(*, graded: bool) -> TaskData:
    """Pairs that share three words in five, or none: no single word tells which."""
    rng = random.Random(1)
    rows = []
    for k in range(600):
        words = rng.sample(WORDS, 10)
        shared = k % 6 if graded else 3 * (k % 2)
        rows.append(Example(((" ".join(words[:5]), " ".join(words[:shared] + words[5 : 10 - shared])),), shared))
    if graded:
        return task(rows, None, "pair", "correlation")
    return task([replace(e, label=e.label / 3) for e in rows], ("differ", "same"), "pair", "f1")


def choices(n: int = 300) -> TaskData:
    rng = random.Random(2)
    rows = []
    for _ in range(n):
        right = rng.randrange(3)
        context = text(rng)
        rows.append(Example(tuple((context, text(rng, *(["right"] if c == right else []))) for c in range(3)), right))
    return task(rows, ("0", "1", "2"), "choice")


def test_majority_by_hand() -> None:
    def rows(labels: str) -> tuple[Example, ...]:
        return tuple(Example((("x", None),), int(c)) for c in labels)

    data = TaskData("m", rows("11102"), rows("0112"), ("a", "b", "c"), "single", "accuracy")
    assert majority(data) == 0.5
    assert majority_scores(data).tolist() == [[0, 1, 0]] * 4
    assert majority(replace(data, metric="matthews")) == 0
    two = TaskData("m", rows("1110"), rows("0111"), ("a", "b"), "single", "f1")
    assert majority(two) == pytest.approx((3 / 4 + 6 / 7) / 2, abs=1e-15)
    assert majority(replace(two, train=rows("0110"))) == pytest.approx((1 / 4 + 0) / 2)  # a tie: the first label
    numbers = TaskData("m", rows("0123"), rows("0123"), None, "single", "correlation")
    assert majority_scores(numbers).tolist() == [[1.5]] * 4
    assert majority(numbers) == 0


def test_one_telling_word_is_found() -> None:
    assert majority(sentiment()) == 0.5
    assert bag_of_words(sentiment()) == 1


@pytest.mark.parametrize("marks", [("!", "?"), ("a", "i")])
def test_marks_and_single_letters_are_words(marks: tuple[str, str]) -> None:
    assert bag_of_words(sentiment(marks=marks)) == 1


def test_nothing_is_learned_from_noise() -> None:
    """Negative control: shuffled labels leave the baseline at chance, within three standard errors."""
    data, rng = sentiment(900), random.Random(3)

    def shuffled(examples: tuple[Example, ...]) -> tuple[Example, ...]:
        labels = rng.sample([e.label for e in examples], len(examples))
        return tuple(replace(e, label=y) for e, y in zip(examples, labels, strict=True))

    noise = replace(data, train=shuffled(data.train), validation=shuffled(data.validation))
    assert abs(bag_of_words(noise) - 0.5) < 3 * np.sqrt(0.25 / 300)


def test_the_words_two_texts_share_are_seen() -> None:
    assert bag_of_words(overlap(graded=False)) > 0.95
    assert bag_of_words(overlap(graded=True)) > 0.95


def test_choices_are_scored_one_by_one() -> None:
    data = choices()
    assert majority(data) < 0.5
    assert bag_of_words_scores(data).shape == (100, 3)
    assert bag_of_words(data) == 1
    turned = replace(data, validation=tuple(Example(e.texts[::-1], 2 - e.label) for e in data.validation))
    assert np.allclose(bag_of_words_scores(turned), bag_of_words_scores(data)[:, ::-1])


def tfidf(train: list[str], *others: list[str]) -> list[np.ndarray]:
    """By the book: (1 + ln tf)·(1 + ln((1 + n) / (1 + df))), rows of length one."""
    names = sorted({w for t in train for w in t.split()})
    df = np.array([sum(w in t.split() for t in train) for w in names])
    found = []
    for texts in others:
        tf = np.array([[t.split().count(w) for w in names] for t in texts], dtype=float)
        x = np.where(tf > 0, 1 + np.log(np.maximum(tf, 1)), 0) * (1 + np.log((1 + len(train)) / (1 + df)))
        found.append(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300))
    return found


def test_a_single_text_is_plain_tfidf_and_logistic_regression() -> None:
    data = sentiment(90, marks=("bad bad bad word1", "good word1 word1"))
    train, judge = ([e.texts[0][0] for e in data.split(s)] for s in ("train", "validation"))
    x, z = tfidf(train, train, judge)
    model = LogisticRegression(max_iter=1000).fit(x, data.targets("train"))
    assert np.allclose(bag_of_words_scores(data), model.predict_proba(z), atol=1e-6)


def test_a_pair_adds_what_is_shared_what_differs_and_the_cosine() -> None:
    data = overlap(graded=False).sample(train=90, validation=30, seed=0)
    train, judge = ([e.texts[0] for e in data.split(s)] for s in ("train", "validation"))
    sides = [[pair[side] or "" for pair in pairs] for pairs in (train, judge) for side in (0, 1)]
    xa, xb, za, zb = tfidf(sides[0] + sides[1], *sides)

    def features(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.hstack([a, b, a * b, abs(a - b), (a * b).sum(1, keepdims=True)])

    model = LogisticRegression(max_iter=1000).fit(features(xa, xb), data.targets("train"))
    assert np.allclose(bag_of_words_scores(data), model.predict_proba(features(za, zb)), atol=1e-6)


def test_a_class_without_training_rows_is_never_predicted() -> None:
    data = replace(sentiment(), labels=("bad", "good", "unseen"))
    first, *rest = data.validation
    data = replace(data, validation=(replace(first, label=2), *rest))
    scores = bag_of_words_scores(data)
    assert scores.shape == (100, 3)
    assert (scores[:, 2] == 0).all()
    assert bag_of_words(data) == 99 / 100


def test_many_rows_are_sampled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sentiment()
    monkeypatch.setattr(baselines, "MOST_ROWS", 30)
    small = data.sample(train=30, validation=None, seed=0)
    scores = bag_of_words_scores(data)
    assert np.array_equal(scores, bag_of_words_scores(small))
    monkeypatch.setattr(baselines, "MOST_ROWS", 1000)
    assert not np.allclose(scores, bag_of_words_scores(data))
