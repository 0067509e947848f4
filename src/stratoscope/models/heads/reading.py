"""A model's own task head, applied to vectors instead of text: what truncation at every layer needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import answering, base

POOLER = "pooler"


def head_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters of the head: all outside the encoder, and the encoder's own pooler, which only the head reads."""
    inner = {id(p) for name, p in base(model).named_parameters() if not name.startswith(f"{POOLER}.")}
    return [(name, p) for name, p in model.named_parameters() if id(p) not in inner]


@contextmanager
def reading(model: nn.Module) -> Iterator[Callable[..., Tensor]]:
    """Give the model's head as a function of vectors (m, width), and of parameters by name in the place of its own.

    It gives outputs (m, labels), and the model is whole again afterwards.
    Each vector goes through the model's unchanged forward as a sequence of one token, with the encoder answering that
    vector: heads that read the first token, the last one, or the last that is not padding all find it.
    """
    encoder = base(model)
    if encoder is model:
        raise StratoscopeError("this model has no task head; expected a sequence-classification checkpoint")
    device = next(encoder.parameters()).device

    def head(vectors: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        tokens = torch.zeros(len(vectors), 1, dtype=torch.long, device=device)
        given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        own = {name: p.to(device) for name, p in (parameters or {}).items()}
        with answering(encoder, lambda *args, **kwargs: _answer(encoder, vectors.to(device)[:, None])):
            out: Tensor = functional_call(model, own, (), given, tie_weights=False).logits
        return out

    config: Any = model.config
    padding = getattr(config, "pad_token_id", None)
    config.pad_token_id = 1  # decoders' heads look for the last token that is not padding: token 0 is none
    try:
        yield head
    finally:
        config.pad_token_id = padding


class Answer:
    """What an encoder returns, as far as heads look: hidden states, a pooled vector, and nothing else."""

    def __init__(self, hidden: Tensor, pooled: Tensor | None) -> None:
        self.last_hidden_state = hidden
        self.pooler_output = pooled

    def __getitem__(self, index: int) -> Tensor | None:
        return (self.last_hidden_state, self.pooler_output)[index]

    def __getattr__(self, name: str) -> None:
        return None  # attentions, caches and memories that a head passes on


def _answer(encoder: nn.Module, hidden: Tensor) -> Answer:
    pooler = getattr(encoder, POOLER, None)
    if pooler is None:
        return Answer(hidden, None)
    activation = getattr(encoder, "pooler_activation", None)  # ALBERT's pooler is a bare linear map beside it
    return Answer(hidden, pooler(hidden) if activation is None else activation(pooler(hidden[:, 0])))
