"""Is a model what it is taken for? As many blocks as its weights, and, in an unknown architecture, states where they
should be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress
from stratoscope.models.families import Family, base, block_list, blocks, final_norm, watching
from stratoscope.models.open.guard import forward_options, quiet
from stratoscope.models.text.encoder import Encoded, Encoder, IntArray

LENGTHS = (5, 12)
"""Tokens of the two texts an unknown architecture is tried on."""


def check_blocks(model: nn.Module, family: Family, unexpected: Iterable[str], source: str) -> None:
    """Refuse weights of blocks that the configuration does not count: the model would be cut without a word."""
    place = re.compile(rf"(?:^|\.){re.escape(family.blocks)}\.(\d+)\.")
    stored = max((int(m[1]) + 1 for key in unexpected if (m := place.search(key))), default=0)
    built = len(block_list(model, family))
    if stored > built:
        raise StratoscopeError(
            f"the weights of '{source}' have {stored} blocks, its configuration counts {built}; correct"
            " num_hidden_layers in config.json, or save the model with the blocks it should have"
        )


def verify(model: nn.Module, encoder: Encoder, progress: Progress) -> bool:
    """Try an architecture outside the table on two short texts; whether its texts must be read one at a time.

    Layer 0 must be what block 1 is given, layer k what block k hands on, and the last one what comes out of the final
    norm; an architecture that returns other states is refused. Where padding changes the states, texts are read alone.
    """
    inner, family = base(model), encoder.family
    encoded, attention = _trial(encoder), getattr(inner, "attention_type", None)
    try:
        with quiet():
            with watching(inner, family) as runs, torch.inference_mode():
                states = _states(inner, encoded, np.array([1]))
            _check_states(states, runs, inner, encoder)
            alone = not _padding_is_ignored(inner, encoded, states)
    except StratoscopeError:
        raise
    except Exception as error:  # an architecture nobody has looked at may raise anything
        raise StratoscopeError(
            f"cannot verify the layers of '{encoder.name}' ({family.name}): a trial run failed ({error});"
            " see 'stratoscope families' for what is supported"
        ) from error
    how = "change with padding, so each text is read alone" if alone else "do not change with padding"
    progress.note(
        f"'{encoder.name}' ({family.name}): verified on two short texts that its {len(states)} layers are the input of"
        f" block 1 and the output of each block; they {how}"
    )
    if getattr(inner, "attention_type", None) != attention:  # BigBird switches for good at the first short text
        progress.note(f"'{encoder.name}' is read with attention of type '{inner.attention_type}', not '{attention}'")
    return alone


def _trial(encoder: Encoder) -> Encoded:
    """Two texts of different length, of any tokens but padding."""
    count = sum(LENGTHS)
    ids = [k for k in range(encoder.vocabulary) if k != encoder.pad_id][-4 * count :: 2]
    ids = [ids[k % len(ids)] for k in range(count)]
    return Encoded(
        encoder,
        starts=np.cumsum([0, *LENGTHS]),
        ids=np.array(ids, dtype=np.int32),
        segments=np.zeros(count, dtype=np.int32),
        real=np.ones(count, dtype=np.bool_),
        word=np.full(count, -1, dtype=np.int32),
        truncated=np.zeros(len(LENGTHS), dtype=np.bool_),
    )


def _states(inner: Any, encoded: Encoded, texts: IntArray) -> list[Tensor]:
    device = next(inner.parameters()).device
    given = {name: values.to(device) for name, values in encoded.batch(texts).items()}
    states = inner(**given, output_hidden_states=True, **forward_options(inner)).hidden_states
    return list(states or ())


def _check_states(states: list[Tensor], runs: list[tuple[Tensor, Any]], inner: nn.Module, encoder: Encoder) -> None:
    family = encoder.family
    count, norm = len(blocks(inner, family)), final_norm(inner, family)
    wrong = None
    if len(states) != count + 1 or len(runs) != count:
        wrong = f"{len(states)} hidden states and {len(runs)} block runs for {count} blocks"
    else:
        made = runs[-1][1]
        last = made[0] if isinstance(made, tuple | list) else made
        with torch.inference_mode():
            expected = [*(given for given, _ in runs), last if norm is None else norm(last)]
        k = next((k for k in range(count + 1) if not _same(states[k], expected[k])), None)
        if k is not None:
            after = f" after '{family.final_norm}'" if k == count and norm is not None else ""
            wrong = f"hidden state {k} is not the {'input of block 1' if k == 0 else f'output of block {k}'}{after}"
    if wrong:
        raise StratoscopeError(
            f"the layers of '{encoder.name}' ({family.name}, not in the table of families) are not where they should"
            f" be: {wrong}; see 'stratoscope families' for what is supported"
        )


def _padding_is_ignored(inner: nn.Module, encoded: Encoded, long: list[Tensor]) -> bool:
    """Whether the two texts give the same states alone and padded together."""
    both = np.array([0, 1])
    with torch.inference_mode():
        short, together = _states(inner, encoded, both[:1]), _states(inner, encoded, both)
    begin = int(encoded.shift(both)[0])
    return all(
        c.shape[1] == b.shape[1] and _same(a[0], c[0, begin : begin + a.shape[1]]) and _same(b[0], c[1])
        for a, b, c in zip(short, long, together, strict=True)
    )


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding, and for what a model pads the end of its own input with (Longformer)."""
    if a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0] and a.shape[1] < b.shape[1]:
        b = b[:, : a.shape[1]]
    if a.shape != b.shape and a.dim() > 1 and a.shape == b.transpose(0, 1).shape:
        b = b.transpose(0, 1)
    if a.shape != b.shape:
        return False
    apart = (a.float() - b.float()).abs().max()
    return bool(apart <= 16 * torch.finfo(a.dtype).eps ** 0.75 * a.float().abs().max().clamp_min(1e-6))
