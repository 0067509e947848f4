"""Toy tasks a tiny model can learn, progress that keeps notes or ends a run, and a count of what models read."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stratoscope.core.record import to_plain
from stratoscope.data.tasks.data import CHOICE, SINGLE, Example, TaskData
from stratoscope.studies.finetune.options import FinetuneOptions

GOOD, BAD = ("warm", "funny", "finest", "wonderful"), ("lazy", "wooden", "nowhere", "old")
LEARN = FinetuneOptions(recipe="quick", lr=3e-3, epochs=10, batch=8, length=24)
"""Enough for a tiny model without dropout to learn these tasks."""
TOPICS = ("film", "dog", "story", "ending", "theatre")


def verdicts(rows: int, seed: int, *, pair: bool = False) -> tuple[Example, ...]:
    """Short sentences whose last word gives the class away."""
    draw = random.Random(seed)
    texts = [f"the {draw.choice(TOPICS)} is {draw.choice(GOOD if k % 2 else BAD)}" for k in range(rows)]
    return tuple(Example(((text, "yes" if pair else None),), float(k % 2)) for k, text in enumerate(texts))


def classification(rows: int = 32, *, seed: int = 0) -> TaskData:
    """Two classes; validation rows are the training rows."""
    return TaskData("toy", verdicts(rows, seed), verdicts(rows, seed), ("bad", "good"), SINGLE, "accuracy")


def distinct(train: int = 24, validation: int = 40) -> TaskData:
    """Texts of which no two are alike, 9 to 35 tokens long; the last word gives the class away."""
    pairs = [(a, b) for a in TOPICS for b in TOPICS]
    texts = [(f"{w} {a} {b}" if k % 3 else f"the {w} {a} and the {b} is {w}", float(w in GOOD))
             for k, ((a, b), w) in enumerate((p, w) for p in pairs for w in (*GOOD, *BAD))]  # fmt: skip
    random.Random(0).shuffle(texts)
    examples = [Example(((t, None),), label) for t, label in texts]
    parts = tuple(examples[:train]), tuple(examples[train : train + validation])
    return TaskData("distinct", *parts, ("bad", "good"), SINGLE, "accuracy")


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


class KilledError(Exception):
    """Ends a run in the middle."""


def killing(of: str, after: int) -> Told:
    """Progress that ends the run once so many units of the steps whose label begins with `of` are done."""

    def end(done: int) -> None:
        if done >= after:
            raise KilledError

    return Told(end, of)


class Reads:
    """Which texts went through which encoder: token ids without padding, counted by the model's weights."""

    def __init__(self) -> None:
        self.texts: dict[float, Counter[tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return sum(counted.total() for counted in self.texts.values())

    def watch(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward pass of an encoder, counted."""

        @functools.wraps(forward)  # callers look at its parameters
        def counted(module: Any, *args: Any, **kwargs: Any) -> Any:
            ids, mask = args[0] if args else kwargs["input_ids"], kwargs["attention_mask"]
            weights = round(float(sum(p.detach().double().sum() for p in module.parameters())), 6)
            seen = self.texts.setdefault(weights, Counter())
            seen.update(tuple(row[keep.bool()].tolist()) for row, keep in zip(ids, mask, strict=True))
            return forward(module, *args, **kwargs)

        return counted


def plain(result: Any) -> Any:
    """A result as plain data with all its arrays, to be compared."""
    return to_plain(result)
