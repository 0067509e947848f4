"""Scores of a model with every span of its blocks skipped, without tuning; what spans have in common runs once.

Skipping blocks first..last leaves 1..first-1 and last+1..L. One pass of the whole model gives the states before every
block, which are all the beginnings there are; then, for each `last`, the states before blocks 1..last go as one stacked
batch through blocks last+1..L. Beyond the whole model's own L block runs per row that makes

    sum over last of last * (L - last) = (L^3 - L) / 6,

exactly half of the (L^3 - L) / 3 that a loop over the spans takes, and no two of them compute the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import blocks, depth, family_of, width
from stratoscope.models.open.guard import forward_options
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.loop import batches, evaluating, token_budget
from stratoscope.models.surgery.blocks import keeping
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats, Inputs

Span = tuple[int, int]
"""First and last block skipped, 1-based, both included."""

STACKED = 4
"""States that fill a batch: rows are taken in batches of the budget divided by it, so that spans do run together."""


@dataclass(frozen=True)
class SpanScores:
    """Scores (n, k) of the whole model and with each span of its blocks skipped."""

    whole: Floats
    skipped: Mapping[Span, Floats]
    """Every 1 <= first <= last <= L, once."""


def score_spans(
    model: OpenedModel,
    inputs: Inputs,
    *,
    rows: IntArray | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> SpanScores:
    """Score all examples, or `rows` in their order, with every span skipped and with none; `advance` counts rows.

    The states kept of a batch take at most `BATCH_BYTES`, and no run has more than `batch_tokens` padded tokens, unless
    a single example does.
    """
    rows = np.arange(len(inputs)) if rows is None else rows
    module = model.module
    total = depth(module.config)
    budget = token_budget(model, 0, batch_tokens)
    states = max(1, total) * width(module.config) * next(module.parameters()).element_size()
    together = token_budget(model, states, max(1, budget // STACKED))
    scores: dict[Span, Floats] = {}
    with evaluating(module), torch.inference_mode():
        for batch in batches(inputs.lengths[rows], lambda length: 1 if model.alone else together // length):
            given = {k: v.to(model.device) for k, v in inputs.batch(rows[batch]).items() if k != "labels"}
            for span, logits in _scored(module, given, total, budget).items():
                scores.setdefault(span, np.empty((len(rows), logits.shape[1])))[batch] = logits
            advance(len(batch))
    return SpanScores(scores.pop(NONE), scores)


NONE: Span = (1, 0)
"""The span of no block: the whole model."""


def _scored(module: Any, given: Mapping[str, Tensor], total: int, budget: int) -> dict[Span, Floats]:
    """Logits (batch, k) of one batch of rows, for the whole model and with each span skipped."""
    options = forward_options(module)

    def run(stacked: int = 1) -> Floats:
        found: Floats = module(**_repeated(given, stacked), **options).logits.cpu().double().numpy()
        return found

    with _watching(module, total) as seen:
        scores = {NONE: run()}
    if len(seen.states) != total:
        raise StratoscopeError(
            f"cannot skip blocks of architecture '{module.config.model_type}': expected {total} block runs in a"
            f" forward pass, got {len(seen.states)}; see 'stratoscope families' for what is supported"
        )
    if total:  # nothing runs before block 1, so the model makes that state itself
        with keeping(module, range(2, total + 1)):
            scores[1, 1] = run()
    size = max(1, budget // given["input_ids"].numel())
    for last in range(2, total + 1):
        with keeping(module, range(last, total + 1)), _standing_in(module, seen) as answer:
            for start in range(0, last, size):
                stack = seen.states[start : min(start + size, last)]
                answer(stack)
                parts = np.split(run(len(stack)), len(stack))
                scores |= {(first, last): part for first, part in enumerate(parts, start=start + 1)}
    return scores


@dataclass
class _Seen:
    """What blocks were given and how they answered, in order of application."""

    states: list[Tensor] = field(default_factory=list)
    beside: int | None = None
    """How many things a block returns beside the hidden state; None = it returns the bare tensor."""


@contextmanager
def _watching(module: nn.Module, total: int) -> Iterator[_Seen]:
    """Note the state before each block: what follows block 1 outside it (DeBERTa-v2's convolution) is then in it."""
    seen = _Seen()

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        seen.states.append(args[0] if args else kwargs["hidden_states"])
        seen.beside = len(output) - 1 if isinstance(output, tuple | list) else None

    # A set, since ALBERT applies one module many times; none of it when a stand-in is all that is left of the blocks.
    watched = set(blocks(module, family_of(module))[:total])
    hooks = [b.register_forward_hook(note, with_kwargs=True) for b in watched]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _standing_in(module: nn.Module, seen: _Seen) -> Iterator[Callable[[Sequence[Tensor]], None]]:
    """Let the first block answer, at its first call in a pass, the stacked states it is handed beforehand.

    Later calls in the pass are its own: ALBERT's first block is its last one too.
    """
    family = family_of(module)
    block: Any = blocks(module, family)[0]
    own, replaced = block.forward, vars(block).get("forward")
    waiting: list[Tensor] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not waiting:
            return own(*args, **kwargs)
        state = waiting.pop()
        return state if seen.beside is None else (state, *[None] * seen.beside)

    block.forward = forward
    try:
        yield lambda states: waiting.append(torch.cat(list(states), dim=int(family.sequence_first)))
    finally:
        del block.forward  # the class's own shows again
        if replaced is not None:
            block.forward = replaced


def _repeated(given: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """The batch again for each state, in the order in which states are stacked; choices stay with their example."""
    return {name: values.repeat(times, *[1] * (values.dim() - 1)) for name, values in given.items()}
