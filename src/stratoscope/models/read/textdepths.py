"""Perplexity of a causal language model truncated at every depth, from one pass over the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus
from stratoscope.models.families import base
from stratoscope.models.heads.reading import Answer, finish
from stratoscope.models.open.loading import LoadedModel
from stratoscope.models.read.hidden import (
    BATCH_BYTES,
    BATCH_TOKENS,
    BATCH_TOKENS_ELSEWHERE,
    batches,
    evaluating,
    forward_options,
    padded,
)
from stratoscope.models.read.perplexity import Perplexity, check_causal, first_tokens, summary, token_losses
from stratoscope.models.text.examples import text_length


def perplexities(
    model: LoadedModel,
    corpus: Corpus,
    *,
    length: int | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> list[Perplexity]:
    """Perplexity with 0, 1, ..., L blocks; the last is `perplexity` of the whole model. `advance` counts texts.

    The states after every block come from one pass; each goes through the final norm, if there is one, and the
    language-model head, as in a model truncated there.
    """
    module, encoder = model.module, model.encoder
    encoded, cut = first_tokens(encoder.encode(corpus, "token"), text_length(encoder, length))
    texts = np.flatnonzero(encoded.lengths > 1)
    if not len(texts):
        raise StratoscopeError(
            f"perplexity: expected texts of two tokens or more, got none in '{corpus.name}'; give longer texts"
        )
    parameter = next(module.parameters())
    budget = batch_tokens or BATCH_TOKENS.get(parameter.device.type, BATCH_TOKENS_ELSEWHERE)
    per_token = max(encoder.vocabulary, model.layers * model.width) * parameter.element_size()
    losses = np.empty((model.layers, len(texts)))
    norm, options = finish(module), forward_options(module)
    with evaluating(module), torch.inference_mode():
        check_causal(module, encoder, encoded, int(texts[encoded.lengths[texts].argmax()]))
        for batch in batches(encoded.lengths[texts], max(1, min(budget, BATCH_BYTES // per_token))):
            inputs = padded(encoded, texts[batch], encoder)
            given = {k: v.to(parameter.device) for k, v in inputs.items()}
            states = base(module)(**given, output_hidden_states=True, **options).hidden_states
            for k, state in enumerate(states):  # the last has been through the norm
                with _answering(module, state if k == len(states) - 1 else norm(state)):
                    losses[k, batch] = token_losses(module, inputs)
            advance(len(batch))
    tokens = encoded.lengths[texts] - 1
    return [summary(found, tokens, cut) for found in losses]


@contextmanager
def _answering(module: Any, state: Tensor) -> Iterator[None]:
    """Let the encoder answer these hidden states, whatever it is asked."""
    encoder: Any = base(module)
    encoder.forward = lambda *args, **kwargs: Answer(state, None)
    try:
        yield
    finally:
        del encoder.forward  # the class's own shows again
