"""Close the gap that removed blocks leave: refit the down projection of the block before it by ridge least squares.

Blocks first..last go. Block p = first - 1 is pre-norm: its output is u + W a + b, with u after the attention and a what
enters the down projection W. The new W brings it as near as it can to the state after block `last`:

    minimise sum over tokens ‖(W - W0) a - (h_last - h_p)‖² + λ ‖W - W0‖²,   λ = ridge · mean diagonal of Σ a aᵀ,

which has the shapes of the old one, so that the checkpoint stays a plain one. A text's first token and tokens whose
state is far longer than is usual in the text are left out of sums and λ: a few states of huge norm (Sun et al. 2024,
massive activations) would decide the fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stratoscope.models.families import blocks, family_of
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.loop import Advance
from stratoscope.models.read.stream import streams
from stratoscope.models.surgery.spans import Span
from stratoscope.models.text.encoder import Encoded, IntArray

RIDGES = (0.1, 1.0)
"""λ against the mean diagonal: enough texts, and few of them."""
OUTLYING = 10.0
"""A state so many times longer than the median of its text's is left out."""


def can_patch(module: nn.Module, span: Span) -> bool:
    """Whether there is a block before the gap whose down projection is known."""
    return family_of(module).down is not None and span[0] > 1


def down_weight(module: nn.Module, block: int) -> tuple[str, nn.Parameter]:
    """Name and weight of the down projection of a block, from 1."""
    weight = _down(module, block).weight
    return next((name, p) for name, p in module.named_parameters() if p is weight)


class Gap:
    """Sums over tokens for one span: Σ a aᵀ (f, f) and Σ a (h_last - h_p)ᵀ (f, d), in float64."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.gram: Tensor | float = 0.0
        self.cross: Tensor | float = 0.0

    def update(self, inner: Tensor, states: Sequence[Tensor]) -> None:
        """See one text: what enters the down projection (tokens, f), and its L+1 states (tokens, d)."""
        first, last = self.span
        before, after = states[first - 1].float(), states[last].float()
        kept = _usual(before) & _usual(after)
        a = inner.float()[kept]
        self.gram = self.gram + (a.T @ a).double().cpu()
        self.cross = self.cross + (a.T @ (after - before)[kept]).double().cpu()

    def solve(self, ridge: float) -> Tensor:
        """What is added to the weights (d, f)."""
        assert isinstance(self.gram, Tensor)
        assert isinstance(self.cross, Tensor)
        penalty = ridge * self.gram.diagonal().mean()
        if not penalty > 0:  # texts of one or two tokens leave nothing to fit
            return torch.zeros_like(self.cross.T)
        factor = torch.linalg.cholesky(self.gram + penalty * torch.eye(len(self.gram), dtype=torch.float64))
        return torch.cholesky_solve(self.cross, factor).T


def fit_patches(
    model: OpenedModel,
    encoded: Encoded,
    texts: IntArray,
    spans: Sequence[Span],
    *,
    batch_tokens: int | None = None,
    advance: Advance = lambda n: None,
) -> list[tuple[Tensor, ...]]:
    """For each span, none of which begins with block 1, the new weights of the block before it, one per ridge."""
    gaps = [Gap(span) for span in spans]
    with _entering(model.module, {span[0] - 1 for span in spans}) as inner:
        for batch in streams(model, encoded, texts, batch_tokens=batch_tokens, advance=advance):
            for k, states in enumerate(batch):
                for gap in gaps:
                    gap.update(inner[gap.span[0] - 1][k][: len(states[0])], states)
    made = []
    for gap in gaps:
        weight = down_weight(model.module, gap.span[0] - 1)[1]
        turned = not isinstance(_down(model.module, gap.span[0] - 1), nn.Linear)  # GPT-2's has it the other way round
        steps = [gap.solve(ridge) for ridge in RIDGES]
        made.append(tuple((weight.double().cpu() + (s.T if turned else s)).to(weight.dtype) for s in steps))
    return made


def _usual(states: Tensor) -> Tensor:
    """Which tokens of a text (tokens, d) are neither its first nor of outlying norm."""
    norms = states.norm(dim=-1)
    usual = norms <= OUTLYING * norms[1:].median() if len(norms) > 1 else torch.zeros_like(norms, dtype=torch.bool)
    usual[0] = False
    return usual


@contextmanager
def _entering(module: nn.Module, wanted: set[int]) -> Iterator[Mapping[int, Tensor]]:
    """What last entered the down projection of these blocks (texts, tokens, f), by block."""
    entering: dict[int, Tensor] = {}

    def hook(block: int) -> Any:
        def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            entering[block] = args[0]

        return note

    with ExitStack() as hooks:
        for block in wanted:
            hooks.enter_context(_down(module, block).register_forward_pre_hook(hook(block)))
        yield entering


def _down(module: nn.Module, block: int) -> Any:
    family = family_of(module)
    assert family.down is not None
    return blocks(module, family)[block - 1].get_submodule(family.down)
