"""Toy tasks a tiny model can learn, and progress that remembers what it was told."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stratoscope.data.tasks.data import CHOICE, SINGLE, Example, TaskData

GOOD, BAD = ("warm", "funny", "finest", "wonderful"), ("lazy", "wooden", "nowhere", "old")
TOPICS = ("film", "dog", "story", "ending", "theatre")


def verdicts(rows: int, seed: int, *, pair: bool = False) -> tuple[Example, ...]:
    """Short sentences whose last word gives the class away."""
    draw = random.Random(seed)
    texts = [f"the {draw.choice(TOPICS)} is {draw.choice(GOOD if k % 2 else BAD)}" for k in range(rows)]
    return tuple(Example(((text, "yes" if pair else None),), float(k % 2)) for k, text in enumerate(texts))


def classification(rows: int = 32, *, seed: int = 0) -> TaskData:
    """Two classes; validation rows are the training rows."""
    return TaskData("toy", verdicts(rows, seed), verdicts(rows, seed), ("bad", "good"), SINGLE, "accuracy")


def regression(rows: int = 32) -> TaskData:
    rated = tuple(Example(e.texts, 4 * e.label + 0.5) for e in verdicts(rows, 0))
    return TaskData("rated", rated, rated, None, SINGLE, "correlation")


def choices(rows: int = 32) -> TaskData:
    """Three endings, of which the friendly one is right."""
    draw = random.Random(0)
    made = []
    for k in range(rows):
        words = [draw.choice(GOOD if c == k % 3 else BAD) for c in range(3)]
        made.append(Example(tuple((f"the {TOPICS[k % 5]}", f"is {w}") for w in words), float(k % 3)))
    return TaskData("endings", tuple(made), tuple(made), ("0", "1", "2"), CHOICE, "accuracy")


class Told:
    """Progress that keeps notes, and calls `at` after every unit of a step whose label begins with `of`."""

    def __init__(self, at: Callable[[int], None] = lambda n: None, of: str = "fine-tuning") -> None:
        self.notes: list[str] = []
        self.at = at
        self.of = of

    @contextmanager
    def step(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        done = 0

        def advance(n: int) -> None:
            nonlocal done
            done += n
            if label.startswith(self.of):
                self.at(done)

        yield advance

    def note(self, message: str) -> None:
        self.notes.append(message)
