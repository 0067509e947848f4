"""The examples of a task as model inputs, and a model's scores for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import PAIR, Example, TaskData
from stratoscope.models.read.hidden import BATCH_TOKENS, BATCH_TOKENS_ELSEWHERE, batches, evaluating, padded
from stratoscope.models.text.encoder import CHUNK, Encoded, Encoder, IntArray, sound

Floats = npt.NDArray[np.float64]

LONGEST = 512
"""Tokens kept of a text when neither the user nor the model sets a limit."""
SHORTEST = 8


@dataclass(frozen=True)
class Inputs:
    """Tokenised examples; those of a multiple-choice task have one text per choice."""

    encoded: Encoded
    """One entry per text, the choices of an example after each other."""
    encoder: Encoder
    targets: Floats
    """(n,) class indices, or targets of a regression."""
    choices: int
    regression: bool
    cut: int
    """Texts of which only the first tokens fitted."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def lengths(self) -> IntArray:
        """(n,) tokens an example takes in a batch: its choices, each as long as the longest of them."""
        longest: IntArray = self.encoded.lengths.reshape(-1, self.choices).max(axis=1) * self.choices
        return longest

    def batch(self, rows: Sequence[int] | IntArray) -> dict[str, Tensor]:
        """Model inputs with `labels` for these examples, (batch, tokens) or (batch, choices, tokens)."""
        examples = np.asarray(rows, dtype=np.int64)
        texts = (examples[:, None] * self.choices + np.arange(self.choices)).ravel()
        inputs = padded(self.encoded, texts, self.encoder)
        if self.choices > 1:
            inputs = {k: v.view(len(examples), self.choices, -1) for k, v in inputs.items()}
        labels = torch.from_numpy(self.targets[examples])
        return {**inputs, "labels": labels.float() if self.regression else labels.long()}


def tokenise(task: TaskData, split: str, encoder: Encoder, *, length: int) -> Inputs:
    """Tokenise a split; of what is longer than `length` tokens the end of the longer text is cut off."""
    examples = task.split(split)
    choices = len(examples[0].texts)
    _check(task, examples, choices)
    backend = encoder.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_length=length, strategy="longest_first")
    ids, segments, real, cut = [], [], [], 0
    try:
        texts = [_sounds(*pair) for e in examples for pair in e.texts]
        for start in range(0, len(texts), CHUNK):
            for e in backend.encode_batch(texts[start : start + CHUNK]):
                ids.append(np.array(e.ids, dtype=np.int64))
                segments.append(np.array(e.type_ids, dtype=np.int64))
                real.append(np.array(e.special_tokens_mask) == 0)
                cut += bool(e.overflowing)
    finally:
        backend.no_truncation()  # or it would be saved with the tokenizer
    flat = np.concatenate(ids)
    if flat.size and flat.max() >= encoder.vocabulary:
        raise StratoscopeError(
            f"the tokenizer of '{encoder.name}' gives token id {flat.max()}, but the model has {encoder.vocabulary}"
            " embeddings; give a checkpoint whose tokenizer and weights belong together"
        )
    encoded = Encoded(
        starts=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        ids=flat,
        segments=np.concatenate(segments),
        real=np.concatenate(real),
        word=np.full(len(flat), -1, dtype=np.int64),
    )
    return Inputs(encoded, encoder, task.targets(split), choices, task.regression, cut)


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


def predict(
    module: Any,
    inputs: Inputs,
    *,
    rows: IntArray | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> Floats:
    """Scores (n, k) of a model with a head for all examples or for `rows`: logits, or the value of a regression."""
    rows = np.arange(len(inputs)) if rows is None else rows
    device = next(module.parameters()).device
    budget = batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS_ELSEWHERE)
    scores: Floats | None = None
    with evaluating(module):
        for batch in batches(inputs.lengths[rows], budget):
            given = {k: v.to(device) for k, v in inputs.batch(rows[batch]).items() if k != "labels"}
            with torch.inference_mode():
                logits = module(**given).logits.cpu().double().numpy()
            scores = np.empty((len(rows), logits.shape[1])) if scores is None else scores
            scores[batch] = logits
            advance(len(batch))
    assert scores is not None
    return scores


def _check(task: TaskData, examples: Sequence[Example], choices: int) -> None:
    for k, e in enumerate(examples):
        if task.format != PAIR and choices == 1 and e.texts[0][1] is not None:
            raise StratoscopeError(
                f"{task.name} is a single-sentence task, but its example {k + 1} has a second text; leave the pair"
                " out or choose a pair task"
            )
        if len(e.texts) != choices:
            raise StratoscopeError(
                f"{task.name}: expected {choices} choices in every example, got {len(e.texts)} in example {k + 1}"
            )


def _sounds(text: str, pair: str | None) -> Any:
    return sound(text) if pair is None else (sound(text), sound(pair))
