"""The examples of a task as model inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import PAIR, TaskData
from stratoscope.models.text.encoder import Encoded, Encoder, IntArray

Floats = npt.NDArray[np.float64]

LONGEST = 512
"""Tokens kept of a text when neither the user nor the model sets a limit."""
SHORTEST = 8


@dataclass(frozen=True)
class Inputs:
    """Tokenised examples; those of a multiple-choice task have one text per choice."""

    encoded: Encoded
    """One entry per text, the choices of an example after each other."""
    targets: Floats
    """(n,) class indices, or targets of a regression."""
    choices: int
    regression: bool

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def truncated(self) -> int:
        """Texts of which only the first tokens fitted."""
        return int(self.encoded.truncated.sum())

    @property
    def lengths(self) -> IntArray:
        """(n,) tokens an example takes in a batch."""
        return padded_lengths(self.encoded.lengths, self.choices)

    def batch(self, rows: Sequence[int] | IntArray) -> dict[str, Tensor]:
        """Model inputs with `labels` for these examples, (batch, tokens) or (batch, choices, tokens)."""
        examples = np.asarray(rows, dtype=np.int64)
        inputs = self.encoded.batch(texts_of(examples, self.choices))
        labels = torch.from_numpy(self.targets[examples])
        return {**by_example(inputs, self.choices), "labels": labels.float() if self.regression else labels.long()}


def padded_lengths(lengths: IntArray, choices: int) -> IntArray:
    """(examples,) tokens an example takes: its choices, each as long as the longest of them."""
    longest: IntArray = lengths.reshape(-1, choices).max(axis=1) * choices
    return longest


def texts_of(examples: IntArray, choices: int) -> IntArray:
    """The texts of these examples: `choices` of each, after each other."""
    texts: IntArray = (examples[:, None] * choices + np.arange(choices)).ravel()
    return texts


def by_example(inputs: dict[str, Tensor], choices: int) -> dict[str, Tensor]:
    """Inputs (texts, tokens) as a model with a head takes them: (examples, choices, tokens) if there are choices."""
    return {k: v.view(-1, choices, v.shape[1]) for k, v in inputs.items()} if choices > 1 else inputs


def tokenise(task: TaskData, split: str, encoder: Encoder, *, length: int) -> Inputs:
    """Tokenise a split; of what is longer than `length` tokens the end of the longer text is cut off."""
    examples = task.split(split)
    choices = len(examples[0].texts)
    for k, e in enumerate(examples, start=1):
        if task.format != PAIR and choices == 1 and e.texts[0][1] is not None:
            raise StratoscopeError(
                f"{task.name} is a single-sentence task, but its example {k} has a second text; leave the pair out or"
                " choose a pair task"
            )
        if len(e.texts) != choices:
            raise StratoscopeError(
                f"{task.name}: expected {choices} choices in every example, got {len(e.texts)} in example {k}"
            )
    encoded = encoder.encode(task.corpus(split).sentences, truncate=length)
    return Inputs(encoded, task.targets(split), choices, task.regression)


def text_length(encoder: Encoder, asked: int | None, *, otherwise: int | None = None) -> int:
    """Tokens kept of a text: what was asked for, if the model reads so many; else `otherwise`, as far as it does."""
    if asked is None:
        return min(encoder.window or LONGEST, otherwise or LONGEST)
    if encoder.window is not None and asked > encoder.window:
        raise StratoscopeError(
            f"expected --length of at most {encoder.window}, the tokens '{encoder.name}' reads; got {asked}"
        )
    if asked < SHORTEST:
        raise StratoscopeError(f"expected --length of at least {SHORTEST} tokens, got {asked}")
    return asked
