"""Scores of a model with every span of its blocks skipped, without tuning; what spans have in common runs once.

Skipping blocks first..last leaves 1..first-1 and last+1..L. One pass of the whole model gives the states before every
block, which are all the beginnings there are; then, for each `last`, the states before blocks 1..last go as one stacked
batch through blocks last+1..L. Beyond the whole model's own L block runs per row that makes

    sum over last of last * (L - last) = (L^3 - L) / 6,

exactly half of the (L^3 - L) / 3 that a loop over the spans takes, and no two of them compute the same thing. Where
spans are limited to a length, only the states before the last so many blocks are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import answering, blocks, depth, family_of, watching, width
from stratoscope.models.open.guard import forward_options
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.loop import batches, evaluating, token_budget
from stratoscope.models.surgery.blocks import keeping
from stratoscope.models.text.encoder import Encoded, IntArray
from stratoscope.models.text.examples import Floats, Inputs

Span = tuple[int, int]
"""First and last block skipped, 1-based, both included."""

Scoring = Callable[[Tensor, Mapping[str, Tensor]], Callable[[Tensor], Floats]]
"""From logits of the whole model and the batch to what makes scores (k rows, columns) of k stacked batches' logits."""

STACKED = 4
"""States that fill a batch: rows are taken in batches of the budget divided by it, so that spans do run together."""


def as_they_are(whole: Tensor, given: Mapping[str, Tensor]) -> Callable[[Tensor], Floats]:
    """The logits of a classifier are its scores."""
    return lambda logits: np.asarray(logits.cpu().double().numpy())


def score_spans(
    model: OpenedModel,
    inputs: Inputs | Encoded,
    *,
    rows: IntArray | None = None,
    longest: int | None = None,
    scoring: Scoring = as_they_are,
    token_bytes: int = 0,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> dict[Span, Floats]:
    """Scores (n, k) of all examples, or of `rows` in their order, with every span skipped; `advance` counts rows.

    Every 1 <= first <= last <= L comes once, those of at most `longest` blocks where that is given; `token_bytes` is
    what the logits of one token take. The states kept of a batch take at most `BATCH_BYTES`, and no run has more
    than `batch_tokens` padded tokens, unless a single example does.
    """
    rows = np.arange(len(inputs.lengths)) if rows is None else rows
    module = model.module
    total = depth(module.config)
    budget = token_budget(model, token_bytes, batch_tokens)
    states = max(1, total) * width(module.config) * next(module.parameters()).element_size()
    together = token_budget(model, states, max(1, budget // STACKED))
    scores: dict[Span, Floats] = {}
    with evaluating(module), torch.inference_mode():
        for batch in batches(inputs.lengths[rows], lambda length: 1 if model.alone else together // length):
            given = {k: v.to(model.device) for k, v in inputs.batch(rows[batch]).items() if k != "labels"}
            for span, of_span in _scored(module, given, total, budget, longest or total, scoring).items():
                scores.setdefault(span, np.empty((len(rows), of_span.shape[1])))[batch] = of_span
            advance(len(batch))
    return scores


def _scored(
    module: Any, given: Mapping[str, Tensor], total: int, budget: int, longest: int, scoring: Scoring
) -> dict[Span, Floats]:
    """Scores (batch, k) of one batch of rows with each span skipped."""
    options, scores = forward_options(module), dict[Span, Floats]()

    def run(stacked: int = 1) -> Tensor:
        """The batch again for each state, in the order in which states are stacked; choices stay with their example."""
        repeated = {name: values.repeat(stacked, *[1] * (values.dim() - 1)) for name, values in given.items()}
        logits: Tensor = module(**repeated, **options).logits
        return logits

    with watching(module, family_of(module)) as runs:
        score = scoring(run(), given)
    if total and len(runs) != total:  # without blocks a stand-in may run
        raise StratoscopeError(
            f"cannot skip blocks of architecture '{module.config.model_type}': expected {total} block runs in a"
            f" forward pass, got {len(runs)}; see 'stratoscope families' for what is supported"
        )
    if total:  # nothing runs before block 1, so the model makes that state itself
        with keeping(module, range(2, total + 1)):
            scores[1, 1] = score(run())
    size = max(1, budget // given["input_ids"].numel())
    beside = len(runs[0][1]) - 1 if total and isinstance(runs[0][1], tuple | list) else None
    for last in range(2, total + 1):
        with keeping(module, range(last, total + 1)), _standing_in(module, beside) as answer:
            for start in range(max(0, last - longest), last, size):
                stack = [state for state, _ in runs[start : min(start + size, last)]]
                answer(stack)
                parts = np.split(score(run(len(stack))), len(stack))
                scores |= {(first, last): part for first, part in enumerate(parts, start=start + 1)}
    return scores


@contextmanager
def _standing_in(module: nn.Module, beside: int | None) -> Iterator[Callable[[Sequence[Tensor]], None]]:
    """Let the first block answer, at its first call in a pass, the stacked states it is handed beforehand.

    It returns so many things beside them, or the bare tensor if None. Later calls in the pass are its own: ALBERT's
    first block is its last one too.
    """
    family = family_of(module)
    block: Any = blocks(module, family)[0]
    own, waiting = block.forward, list[Tensor]()

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not waiting:
            return own(*args, **kwargs)
        state = waiting.pop()
        return state if beside is None else (state, *[None] * beside)

    with answering(block, forward):
        yield lambda states: waiting.append(torch.cat(list(states), dim=int(family.sequence_first)))
