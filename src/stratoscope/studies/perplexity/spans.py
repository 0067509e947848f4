"""Every span of a decoder's blocks skipped, some texts at a time, so that a killed run resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.progress import advanced
from stratoscope.core.value import Value, ratio_of_sums
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.perplexity import LEVEL, Predicted, against_whole, logit_bytes, predictions
from stratoscope.models.surgery.blocks import keeping, wearing
from stratoscope.models.surgery.spans import Span, score_spans
from stratoscope.models.text.encoder import Encoded, IntArray
from stratoscope.models.text.examples import Floats
from stratoscope.results.cutting.perplexity import Skipped
from stratoscope.runs.run import Item, Run, Tensors

AT_ONCE = 4
"""Texts of a part of skipped spans: what a killed run loses at most."""
PASSES_AT_ONCE = 64
"""Texts of a part that takes one pass."""


@dataclass(frozen=True)
class Cut:
    """A decoder as it is asked about texts: which of its blocks run, and weights in place of its own."""

    model: Held
    encoded: Encoded
    batch_tokens: int | None = None
    kept: tuple[int, ...] | None = None
    """All where None."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @contextmanager
    def opened(self) -> Iterator[OpenedModel]:
        """The model, so long; all is put back afterwards."""
        model = self.model()
        with ExitStack() as stack:
            stack.enter_context(wearing(model.module, self.weights))
            if self.kept is not None:
                stack.enter_context(keeping(model.module, self.kept))
            yield model


def predicted(running: Run, cut: Cut, texts: IntArray, *, key: Any, label: str = "") -> Predicted:
    """What a model says of these texts; `key` is what it is made from. A step is shown where it has a label."""
    some = [texts[start : start + PASSES_AT_ONCE] for start in range(0, len(texts), PASSES_AT_ONCE)]
    parts = running.map(
        _said,
        [{"texts": s.tolist()} for s in some],
        name="said",
        key=key,
        label=label,
        shared=cut,
        weights=[len(s) for s in some],
        resources=cut.model.resources,
    )
    return Predicted(*(np.concatenate([p[name].numpy() for p in parts]) for name in ("losses", "likely")))


def _said(cut: Cut, item: Item) -> Tensors:
    with cut.opened() as model:
        said = predictions(model, cut.encoded, np.array(item["texts"]), batch_tokens=cut.batch_tokens, advance=advanced)
    return {"losses": torch.from_numpy(said.losses), "likely": torch.from_numpy(said.likely)}


def skipped(running: Run, cut: Cut, texts: IntArray, *, longest: int, key: Any, label: str) -> dict[Span, Floats]:
    """Of every span of at most `longest` blocks (texts, 2): -log p, and tokens that the whole model says too."""
    some = [texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE)]
    parts = running.map(
        _skipped,
        [{"texts": s.tolist(), "longest": longest} for s in some],
        name="spans",
        key=key,
        label=label,
        shared=cut,
        weights=[len(s) for s in some],
        resources=cut.model.resources,
    )
    names = [tuple(map(int, name.split("-"))) for name in (parts[0] if parts else ())]
    ordered = sorted(names, key=lambda span: (span[1] - span[0], span))
    return {(a, b): np.concatenate([part[f"{a}-{b}"].numpy() for part in parts]) for a, b in ordered}


def _skipped(cut: Cut, item: Item) -> Tensors:
    with cut.opened() as model:
        by_span = score_spans(
            model,
            cut.encoded,
            rows=np.array(item["texts"]),
            longest=item["longest"],
            scoring=against_whole,
            token_bytes=logit_bytes(model),
            batch_tokens=cut.batch_tokens,
            advance=advanced,
        )
    return {f"{a}-{b}": torch.from_numpy(scores) for (a, b), scores in by_span.items()}


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
