"""The residual stream of a decoder: the state before every block and after the last, and how far a block moves it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratoscope.models.families import family_of, watching
from stratoscope.models.open.guard import forward_options
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.loop import Advance, batches, evaluating, hidden_bytes, token_budget
from stratoscope.models.text.encoder import Encoded, IntArray
from stratoscope.models.text.examples import Floats


@dataclass(frozen=True)
class Moves:
    """How far blocks move the stream, by what others have proposed to cut by."""

    influence: Floats
    """(L,) of each block 1 - mean over tokens of cos(state before, state after) (Men et al. 2024, eq. 1)."""
    angular: Floats
    """(L+1, L+1) from state i to state j of a text's last token, arccos(cos) / π (Gromov et al. 2024, eq. 7)."""

    def least_influential(self, blocks: int) -> tuple[int, ...]:
        """The blocks of least influence, from 1."""
        return tuple(sorted(int(k) + 1 for k in np.argsort(self.influence, kind="stable")[:blocks]))

    def nearest_span(self, blocks: int) -> tuple[int, ...]:
        """So many blocks in a row whose ends are the fewest degrees apart, from 1."""
        first = int(np.diagonal(self.angular, blocks).argmin()) + 1
        return tuple(range(first, first + blocks))


def streams(
    model: OpenedModel,
    encoded: Encoded,
    texts: IntArray,
    *,
    batch_tokens: int | None = None,
    advance: Advance = lambda n: None,
) -> Iterator[list[list[Tensor]]]:
    """Of each batch of texts, for every text its L+1 states (tokens, width), padding left out.

    Unlike `hidden_states`, the last is what the last block gave, before any final norm.
    """
    module, options = model.module, forward_options(model.module.base_model)
    budget = token_budget(model, hidden_bytes(model), batch_tokens)
    with evaluating(module):
        for positions in batches(encoded.lengths[texts], lambda length: 1 if model.alone else budget // length):
            given = {k: v.to(model.device) for k, v in encoded.batch(texts[positions]).items()}
            with watching(module, family_of(module)) as runs, torch.inference_mode():
                module.base_model(**given, **options)
            last = runs[-1][1]
            states = [*(before for before, _ in runs), last[0] if isinstance(last, tuple | list) else last]
            lengths = encoded.lengths[texts[positions]]
            with torch.no_grad():
                yield [[state[k, : lengths[k]] for state in states] for k in range(len(positions))]
            advance(len(positions))


def moves(model: OpenedModel, encoded: Encoded, texts: IntArray, *, batch_tokens: int | None = None) -> Moves:
    """How far every block, and every span of blocks, moves the stream on these texts."""
    away, tokens = np.zeros(model.layers - 1), 0
    angles = np.zeros((model.layers, model.layers))
    for batch in streams(model, encoded, texts, batch_tokens=batch_tokens):
        for states in batch:
            unit = torch.nn.functional.normalize(torch.stack(states).double(), dim=-1)
            away += (1 - (unit[1:] * unit[:-1]).sum(-1)).sum(-1).cpu().numpy()
            tokens += unit.shape[1]
            ends = unit[:, -1]
            angles += ((ends @ ends.T).clamp(-1, 1).arccos() / np.pi).cpu().numpy()
    return Moves(away / max(tokens, 1), angles / max(len(texts), 1))
