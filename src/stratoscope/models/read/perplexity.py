"""How well a causal language model predicts text: what is asked of a decoder when there is no task."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress
from stratoscope.data.corpus import Corpus
from stratoscope.data.metrics import REPLICATES, Floats, percentiles
from stratoscope.models.families import generates
from stratoscope.models.open.checkpoints import Checkpoint
from stratoscope.models.open.guard import guarded, seeded
from stratoscope.models.open.loading import (
    LoadedModel,
    ModelSpec,
    checked,
    choose_device,
    load_config,
    load_options,
    survey,
)
from stratoscope.models.read.hidden import (
    BATCH_BYTES,
    BATCH_TOKENS,
    BATCH_TOKENS_ELSEWHERE,
    batches,
    evaluating,
    forward_options,
    padded,
)
from stratoscope.models.text.encoder import Encoded, Encoder, IntArray
from stratoscope.models.text.examples import text_length

TRIAL = 16
"""Tokens of the text on which a model is tried for looking ahead."""
LEVEL = 0.95


@dataclass(frozen=True)
class Perplexity:
    """Token-level perplexity on a corpus, with its 95 % interval over texts (NaN when there is one text only)."""

    value: float
    low: float
    high: float
    tokens: int
    """Tokens predicted: all but the first of every text."""
    texts: int
    """Texts with a token to predict; those of a single token have none."""
    cut: int
    """Texts of which only the first tokens were read."""


def perplexity(
    model: nn.Module,
    encoder: Encoder,
    corpus: Corpus,
    *,
    length: int | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> Perplexity:
    """exp(mean over tokens of -log p(token | tokens before it in its text)).

    Texts are tokenised as the tokenizer does (with a token before the text if it puts one there), and of each the first
    `length` tokens are read. The interval resamples texts, since tokens of one text hang together. `advance` counts
    texts.
    """
    encoded, cut = first_tokens(encoder.encode(corpus, "token"), text_length(encoder, length))
    texts = np.flatnonzero(encoded.lengths > 1)
    if not len(texts):
        reason = "no text" if not len(corpus) else f"{len(corpus)} of at most one token each"
        raise StratoscopeError(
            f"perplexity: expected texts of two tokens or more, got {reason} in '{corpus.name}'; give longer texts"
        )
    parameter = next(model.parameters())
    budget = batch_tokens or BATCH_TOKENS.get(parameter.device.type, BATCH_TOKENS_ELSEWHERE)
    budget = max(1, min(budget, BATCH_BYTES // (encoder.vocabulary * parameter.element_size())))
    losses = np.empty(len(texts))
    with evaluating(model), torch.inference_mode():
        check_causal(model, encoder, encoded, int(texts[encoded.lengths[texts].argmax()]))
        for batch in batches(encoded.lengths[texts], budget):
            losses[batch] = token_losses(model, padded(encoded, texts[batch], encoder))
            advance(len(batch))
    if not np.isfinite(losses).all():
        k = corpus.positions[texts[np.flatnonzero(~np.isfinite(losses))[0]]]
        raise StratoscopeError(
            f"'{encoder.name}' gives a probability that is not finite in text {k} of '{corpus.name}'",
            "check its weights",
            "load it with --dtype float32",
        )
    return summary(losses, encoded.lengths[texts] - 1, cut)


def load_causal(spec: ModelSpec, *, progress: Progress | None = None) -> LoadedModel:
    """Load a model with its language-model head, under the same guards as a bare encoder."""
    device = choose_device(spec.device)
    checkpoint = checked(spec)
    config = load_config(spec, checkpoint)
    # Code of the checkpoint's own is not known beforehand; `perplexity` tries whether a model looks ahead.
    if not (generates(config) or getattr(config, "is_decoder", False) or getattr(config, "auto_map", None)):
        raise StratoscopeError(
            f"'{spec.label}' is a {config.model_type}, which is no causal language model, and perplexity needs one;"
            " give a decoder such as GPT-2, Llama or Qwen, or a task"
        )
    seen = survey(spec, progress=progress)
    module = _fresh(config, spec, checkpoint) if spec.random_init else _stored(config, spec, checkpoint)
    return LoadedModel(
        name=spec.label,
        source=spec.source,
        module=module.to(device).eval().requires_grad_(False),
        encoder=seen.encoder,
        layers=seen.layers,
        width=seen.width,
        fingerprint=seen.fingerprint,
        device=device,
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
    )


def _stored(config: Any, spec: ModelSpec, checkpoint: Checkpoint) -> nn.Module:
    with guarded(spec.source, "weights", local=checkpoint.local), seeded(0):
        from transformers import AutoModelForCausalLM

        load: Any = AutoModelForCausalLM.from_pretrained
        module, info = load(
            checkpoint.source,
            config=None if checkpoint.gguf_file else config,
            dtype=spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype),
            use_safetensors=None if spec.allow_pickle else True,
            output_loading_info=True,
            **load_options(spec, checkpoint),
        )
    if missing := sorted(info["missing_keys"]):
        raise StratoscopeError(
            f"'{spec.source}' lacks {len(missing)} of the language model's weights (first: {missing[0]}), which would"
            f" be made up at random; give a complete {config.model_type} checkpoint with its language-model head"
        )
    loaded: nn.Module = module
    return loaded


def _fresh(config: Any, spec: ModelSpec, checkpoint: Checkpoint) -> nn.Module:
    """Random weights; transformers draws the encoder first, so its weights are those it has without a head."""
    with guarded(spec.source, "architecture", local=checkpoint.local), seeded(spec.seed):
        from transformers import AutoModelForCausalLM

        build: Any = AutoModelForCausalLM.from_config
        module: nn.Module = build(config, dtype=torch.float32, trust_remote_code=spec.trust_remote_code)
    return module if spec.dtype == "auto" else module.to(getattr(torch, spec.dtype))


def first_tokens(encoded: Encoded, limit: int) -> tuple[Encoded, int]:
    """At most `limit` tokens of every text, and the number of texts that had more."""
    lengths = np.minimum(encoded.lengths, limit)
    kept = np.arange(len(encoded.ids)) - encoded.starts[encoded.sentence] < limit
    short = Encoded(
        starts=np.cumsum([0, *lengths], dtype=np.int64),
        ids=encoded.ids[kept],
        segments=encoded.segments[kept],
        real=encoded.real[kept],
        word=encoded.word[kept],
    )
    return short, int((encoded.lengths > limit).sum())


def _logits(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor | None:
    """What the model says of the next token everywhere (batch, tokens, vocabulary), if it says so at all."""
    device = next(model.parameters()).device
    output = model(**{k: v.to(device) for k, v in inputs.items()}, **forward_options(model))
    logits: Tensor | None = getattr(output, "logits", None)
    return logits if logits is not None and logits.dim() == 3 else None


def check_causal(model: nn.Module, encoder: Encoder, encoded: Encoded, text: int) -> None:
    """Try two texts that differ in their last token only: what comes before it must be predicted alike."""
    inputs = {
        name: values[:, :TRIAL].repeat(2, 1) for name, values in padded(encoded, np.array([text]), encoder).items()
    }
    inputs["input_ids"][1, -1] = (inputs["input_ids"][0, -1] + 1) % encoder.vocabulary
    logits = _logits(model, inputs)
    if logits is not None:
        one, other = logits[:, :-1].float()
        # The rows are computed side by side, so they differ by rounding at most; NaN is told later, with its text.
        if not (one - other).abs().max() > torch.finfo(logits.dtype).eps ** 0.5 * one.abs().max():
            return
    reason = "it has no language-model head" if logits is None else "its predictions depend on later tokens"
    raise StratoscopeError(
        f"perplexity needs a causal language model, but '{encoder.name}' is none ({reason});"
        " give a decoder such as GPT-2, Llama or Qwen, or a task"
    )


def token_losses(model: nn.Module, inputs: dict[str, Tensor]) -> Floats:
    """Sum of -log p over the predicted tokens of each text (batch,), padding left out."""
    logits = _logits(model, inputs)
    assert logits is not None
    found = []
    # Text by text, so that the vocabulary is widened to float32 and normalised for one of them at a time.
    for said, ids, mask in zip(logits, inputs["input_ids"], inputs["attention_mask"], strict=True):
        wanted = ids[1 : int(mask.sum())].to(said.device)
        loss = nn.functional.cross_entropy(said[: len(wanted)].float(), wanted, reduction="none")
        found.append(float(loss.cpu().double().sum()))
    return np.array(found)


def summary(losses: Floats, tokens: IntArray, cut: int) -> Perplexity:
    def mean(rows: IntArray) -> float:
        return float(losses[rows].sum() / tokens[rows].sum())

    n = len(losses)
    low, high = percentiles(mean, n, 0, replicates=REPLICATES, level=LEVEL) if n > 1 else (math.nan, math.nan)
    with np.errstate(over="ignore"):  # a model cut to pieces may be infinitely surprised
        value, low, high = (float(np.exp(x)) for x in (mean(np.arange(n)), low, high))
    return Perplexity(value, low, high, int(tokens.sum()), n, cut)
