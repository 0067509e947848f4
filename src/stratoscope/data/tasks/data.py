"""The rows of a task: examples in two splits, with an identity that depends on their content only."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.data.corpus import Corpus, Sentence, digest

SINGLE, PAIR, CHOICE = FORMATS = ("single", "pair", "choice")
"""One text a row; two texts a row; one text with several candidate continuations or answers."""

SPLITS = ("train", "validation")
HELD_OUT = 0.2
"""Share of the rows that judges when there is only one file."""
LEAST_TO_SPLIT = 10


@dataclass(frozen=True)
class Example:
    """One row of a task."""

    texts: tuple[tuple[str, str | None], ...]
    """One (text, pair) per choice; exactly one unless the task is multiple choice."""
    label: float
    """Index of the class or of the right choice, or the target of a regression."""


@dataclass(frozen=True)
class TaskData:
    """A task that was read: what to learn from, what to judge on, and how."""

    name: str
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    labels: tuple[str, ...] | None
    """Names of the classes in the order of their indices; positions of the choices; None = regression."""
    format: str
    """One of `FORMATS`."""
    metric: str
    """Name of a row of `metrics.METRICS`."""
    note: str = ""
    """What a reader of the numbers should know of these rows, such as a split made by us."""
    source: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """How the rows were asked for, by the names of `TaskSource`, for `run.yaml`; no part of what they are."""

    def __post_init__(self) -> None:
        for split in SPLITS:
            examples = self.split(split)
            n = len(examples)
            if n < 2:
                raise StratoscopeError(
                    f"{self.name}: expected at least 2 {split} rows, got {n}; too few to learn or judge from"
                )
            if len({e.label for e in examples}) < 2:
                raise StratoscopeError(
                    f"{self.name}: expected {split} rows with different labels, got {n} rows all labelled "
                    f"'{self._named(examples[0])}'; give rows of at least two classes"
                )

    @property
    def regression(self) -> bool:
        return self.labels is None

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 over format, label names and examples in order; name, note, metric and paths do not enter."""
        return digest("stratoscope task 1", self._fields())

    def split(self, name: str) -> tuple[Example, ...]:
        """The examples of `train` or `validation`."""
        if name not in SPLITS:
            raise unknown_name(f"split of {self.name}", name, SPLITS)
        return self.train if name == "train" else self.validation

    def targets(self, split: str) -> npt.NDArray[np.float64]:
        """Labels (n,) of a split, as metrics take them."""
        return np.array([e.label for e in self.split(split)], dtype=np.float64)

    def sample(self, *, train: int | None, validation: int | None, seed: int) -> TaskData:
        """At most so many examples of each split, drawn without replacement, in order; None keeps all."""
        for split, limit in zip(SPLITS, (train, validation), strict=True):
            if limit is not None and limit < 2:
                raise StratoscopeError(
                    f"sample of {self.name}: expected at least 2 {split} examples, got {limit}; "
                    "leave the limit out to use all"
                )
        # One generator a split, so that the validation rows do not depend on how many train.
        return replace(
            self,
            source={**self.source, "train_rows": train, "validation_rows": validation} if seed == 0 else {},
            train=_draw(self.train, train, f"{seed}/train"),
            validation=_draw(self.validation, validation, f"{seed}/validation"),
        )

    def corpus(self, split: str) -> Corpus:
        """The same rows as a corpus, for extraction; labels by name; a multiple-choice example gives a row a choice."""
        examples = self.split(split)
        sentences = tuple(Sentence(text, pair=pair, label=self._named(e)) for e in examples for text, pair in e.texts)
        return Corpus(f"{self.name}/{split}", sentences, tuple(range(len(sentences))))

    def _named(self, example: Example) -> str:
        return repr(float(example.label)) if self.labels is None else self.labels[int(example.label)]

    def _fields(self) -> Iterator[str | None]:
        yield self.format
        yield None if self.labels is None else str(len(self.labels))
        yield from self.labels or ()
        for split in SPLITS:
            yield str(len(self.split(split)))
            for example in self.split(split):
                yield repr(float(example.label))
                yield str(len(example.texts))
                for text, pair in example.texts:
                    yield text
                    yield pair


def hold_out(rows: int, seed: int) -> tuple[list[int], list[int]]:
    """Seeded 80/20 split of row numbers, each part in order: those to train on and those to judge on."""
    held = set(random.Random(f"{seed}/split").sample(range(rows), round(rows * HELD_OUT)))
    return [k for k in range(rows) if k not in held], sorted(held)


def _draw(examples: Sequence[Example], limit: int | None, seed: str) -> tuple[Example, ...]:
    if limit is None or limit >= len(examples):
        return tuple(examples)
    return tuple(examples[k] for k in sorted(random.Random(seed).sample(range(len(examples)), limit)))
