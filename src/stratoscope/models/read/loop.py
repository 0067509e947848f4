"""The one forward loop: a model runs over texts once, and every reader is handed each batch.

A reader says what it needs of a pass (hidden states, attention weights, logits); what nobody needs is not computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.families import base, depth
from stratoscope.models.open.guard import forward_options, quiet
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.text.encoder import Encoded, IntArray
from stratoscope.models.text.examples import by_example, padded_lengths, texts_of

HIDDEN, ATTENTION, LOGITS = "hidden", "attention", "logits"
"""What a pass can give: states of every layer, attention weights of every block, what the model's own head says."""

BATCH_BYTES = 2**28
"""Memory that what is read of one batch may take."""
ATTENTION_BYTES = 2**26
"""Memory that the attention weights of one batch may take; they grow with the square of the length."""
BATCH_TOKENS = {"cpu": 1024}
"""Most padded tokens in a batch. A CPU gains nothing from larger ones, which mix more lengths and so pad more
(UD English dev, MiniLM, one thread: 12 % more tokens and 20 % more time at 4096 than at 1024)."""
BATCH_TOKENS_ELSEWHERE = 65_536

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Batch:
    """Some texts as the model was given them."""

    positions: IntArray
    """Which of the examples that were asked for these are."""
    texts: IntArray
    """Indices of the texts; the choices of an example follow each other."""
    shift: IntArray
    """Column at which each text begins."""
    inputs: dict[str, Tensor]
    """(texts, longest), on the model's device."""


@dataclass(frozen=True)
class Output:
    """What a pass gave for a batch; what no reader needs is empty."""

    hidden: Sequence[Tensor] = ()
    """L+1 states (texts, tokens, width)."""
    attention: Sequence[Tensor] = ()
    """L weights (texts, heads, tokens, tokens)."""
    logits: Tensor | None = None
    """(examples, labels), or (texts, tokens, vocabulary) of a language model."""


class Reader(ABC):
    """Takes from every batch what it is there for."""

    needs: frozenset[str]
    """Some of `HIDDEN`, `ATTENTION`, `LOGITS`."""
    token_bytes: int = 0
    """Memory it takes for each token of a batch, where that is more than the hidden states'."""

    @abstractmethod
    def update(self, batch: Batch, output: Output) -> None:
        """See one batch; called without gradients, but outside inference mode."""


def read(
    model: OpenedModel,
    encoded: Encoded,
    readers: Sequence[Reader],
    *,
    examples: IntArray | None = None,
    choices: int = 1,
    batch_tokens: int | None = None,
    advance: Advance = lambda n: None,
) -> None:
    """Run the model once over all examples, or over these; `advance` counts them.

    An example is a text, or `choices` texts after each other. They are run longest first in batches of like length, so
    that memory peaks at the start. Padding, dropout and the other texts of a batch have no part in what is read.
    """
    needs = frozenset().union(*(r.needs for r in readers))
    module = model.module if LOGITS in needs else base(model.module)
    lengths = padded_lengths(encoded.lengths, choices)
    examples = np.arange(len(lengths)) if examples is None else examples
    fits = _fits(model, needs, max(r.token_bytes for r in readers), batch_tokens, choices)
    options = forward_options(module)
    outputs = {
        f"output_{name}": True for what, name in ((HIDDEN, "hidden_states"), (ATTENTION, "attentions")) if what in needs
    }
    with evaluating(module), eager(module) if ATTENTION in needs else nullcontext():
        for positions in batches(lengths[examples], fits):
            texts = texts_of(examples[positions], choices)
            inputs = {k: v.to(model.device) for k, v in encoded.batch(texts).items()}
            given = inputs if module is base(module) else by_example(inputs, choices)
            with torch.inference_mode():
                result = module(**given, **outputs, **options)
            output = _checked(model, needs, result, inputs["input_ids"])
            del result
            batch = Batch(positions, texts, encoded.shift(texts), inputs)
            with torch.no_grad():
                for reader in readers:
                    reader.update(batch, output)
            del output  # before the next batch takes its place beside it
            advance(len(positions))


def batches(lengths: IntArray, fits: Callable[[int], int]) -> Iterator[IntArray]:
    """Cut texts, longest first, into batches of as many as fit at the length of the longest (one always does)."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, fits(max(1, int(lengths[order[start]]))))
        yield order[start : start + size]
        start += size


def token_budget(model: OpenedModel, token_bytes: int, batch_tokens: int | None = None) -> int:
    """Padded tokens per batch: as many as asked for or as the device likes, and no more than the memory holds."""
    most = batch_tokens or BATCH_TOKENS.get(model.device.type, BATCH_TOKENS_ELSEWHERE)
    return max(1, min(most, BATCH_BYTES // max(1, token_bytes)))


def hidden_bytes(model: OpenedModel) -> int:
    """Memory the hidden states of one token take in all layers."""
    size: int = next(model.module.parameters()).element_size()
    return model.layers * model.width * size


def _fits(
    model: OpenedModel, needs: frozenset[str], token_bytes: int, batch_tokens: int | None, choices: int
) -> Callable[[int], int]:
    """How many examples of one padded length go into a batch."""
    if model.alone:
        if choices > 1:
            raise StratoscopeError(
                f"the states of '{model.name}' change with padding, so its texts are read one at a time, and those of"
                " multiple choice cannot be; choose another model or another task"
            )
        return lambda length: 1
    budget = token_budget(model, max(token_bytes, hidden_bytes(model) if HIDDEN in needs else 0), batch_tokens)
    if ATTENTION not in needs:
        return lambda length: budget // length
    config = model.module.config.get_text_config()
    pair = (model.layers - 1) * config.num_attention_heads * next(model.module.parameters()).element_size()
    return lambda length: min(budget // length, ATTENTION_BYTES // (pair * length**2))


def _checked(model: OpenedModel, needs: frozenset[str], found: Any, ids: Tensor) -> Output:
    """What was asked for, in the shapes that the inputs have."""
    texts, tokens = ids.shape
    blocks = depth(base(model.module).config)
    hidden = tuple(found.hidden_states or ()) if HIDDEN in needs else ()
    if HIDDEN in needs and not blocks:  # what records the states sits in the blocks
        hidden = (found.last_hidden_state,)
    if HIDDEN in needs and len(hidden) != blocks + 1:
        raise StratoscopeError(
            f"'{model.name}' returned {len(hidden)} layers, expected {blocks + 1} from its configuration;"
            " its architecture is not supported"
        )
    for k, state in enumerate(hidden):
        if state.shape[:2] != (texts, tokens):
            raise StratoscopeError(
                f"'{model.name}' was given {texts} texts of {tokens} tokens and returned states of shape"
                f" {tuple(state.shape)} at layer {k}, so it is not known which token a state belongs to;"
                " its architecture is not supported for texts of this length"
            )
    attention = tuple(a for a in found.attentions or () if a is not None) if ATTENTION in needs else ()
    if ATTENTION in needs and [a.shape[2:] for a in attention] != [(tokens, tokens)] * blocks:
        raise StratoscopeError(
            f"'{model.name}' returned attention weights of {len(attention)} blocks, expected {blocks} of shape"
            f" {tokens} x {tokens}; its architecture does not give them"
        )
    return Output(hidden, attention, found.logits if LOGITS in needs else None)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch dropout off, and put every module's mode back afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextmanager
def eager(module: Any) -> Iterator[None]:
    """Compute attention in the way that gives its weights, and put back the model's own way afterwards."""
    configs = list({id(m.config): m.config for m in module.modules() if hasattr(m, "config")}.values())
    before = [config._attn_implementation for config in configs]
    try:
        with quiet():
            module.set_attn_implementation("eager")
        yield
    finally:
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation_internal = own  # the setter would change configurations inside it too
