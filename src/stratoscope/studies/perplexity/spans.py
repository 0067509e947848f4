"""Every span of a decoder's blocks skipped, some texts at a time, so that a killed run resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.value import Value, ratio_of_sums
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.perplexity import LEVEL, Predicted, against_whole, logit_bytes
from stratoscope.models.surgery.spans import Span, score_spans
from stratoscope.models.text.encoder import Encoded, IntArray
from stratoscope.models.text.examples import Floats
from stratoscope.results.cutting.perplexity import Skipped
from stratoscope.runs.run import Run

AT_ONCE = 4
"""Texts of a part of skipped spans: what a killed run loses at most."""
PASSES_AT_ONCE = 64
"""Texts of a part that takes one pass."""


def predicted(
    running: Run,
    say: Callable[[IntArray], Predicted],
    texts: IntArray,
    *,
    key: Any,
    label: str = "",
) -> Predicted:
    """What a model says of these texts: `say` asks it, `key` is what it is made from; a step where it has a label."""
    found = []
    with running.progress.step(label, len(texts)) if label else nullcontext(lambda n: None) as advance:
        for start in range(0, len(texts), PASSES_AT_ONCE):
            some = texts[start : start + PASSES_AT_ONCE]

            def make(some: IntArray = some) -> dict[str, Tensor]:
                said = say(some)
                return {"losses": torch.from_numpy(said.losses), "likely": torch.from_numpy(said.likely)}

            part = running.part("said", [key, some.tolist()], make)
            found.append(Predicted(part["losses"].numpy(), part["likely"].numpy()))
            advance(len(some))
    return Predicted(np.concatenate([p.losses for p in found]), np.concatenate([p.likely for p in found]))


def skipped(
    running: Run,
    model: Callable[[], OpenedModel],
    encoded: Encoded,
    texts: IntArray,
    *,
    longest: int,
    key: Any,
    label: str,
    batch_tokens: int | None = None,
) -> dict[Span, Floats]:
    """Of every span of at most `longest` blocks (texts, 2): -log p, and tokens that the whole model says too."""
    parts: list[Mapping[str, Tensor]] = []
    with running.progress.step(label, len(texts)) as advance:
        for start in range(0, len(texts), AT_ONCE):
            some = texts[start : start + AT_ONCE]

            def make(some: IntArray = some) -> dict[str, Tensor]:
                found = score_spans(
                    model(),
                    encoded,
                    rows=some,
                    longest=longest,
                    scoring=against_whole,
                    token_bytes=logit_bytes(model()),
                    batch_tokens=batch_tokens,
                )
                return {f"{a}-{b}": torch.from_numpy(scores) for (a, b), scores in found.items()}

            parts.append(running.part("spans", [key, longest, some.tolist()], make))
            advance(len(some))
    names = [tuple(map(int, name.split("-"))) for name in (parts[0] if parts else ())]
    ordered = sorted(names, key=lambda span: (span[1] - span[0], span))
    return {(a, b): np.concatenate([part[f"{a}-{b}"].numpy() for part in parts]) for a, b in ordered}


def spans_of(scores: Mapping[Span, Floats], whole: Predicted, tokens: Floats) -> tuple[Skipped, ...]:
    """The spans as a result has them."""
    return tuple(
        Skipped(first, last, ratio(s[:, 0], whole.losses, tokens), float(s[:, 1].sum() / tokens.sum()))
        for (first, last), s in scores.items()
    )


def ratio(losses: Floats, whole: Floats, tokens: Floats, *, level: float = LEVEL) -> Value:
    """Perplexity over that of the whole model: exp of the mean difference per token, paired over the texts."""
    # A model cut to pieces may be infinitely surprised, or not know what to say at all.
    return exp(ratio_of_sums(np.nan_to_num(losses, nan=np.inf) - whole, tokens, level=level))


def exp(value: Value) -> Value:
    """The exponential of a number and of its ends; what is too large is infinite."""
    with np.errstate(over="ignore"):
        return Value(*(float(np.exp(x)) for x in (value.value, value.low, value.high)))
