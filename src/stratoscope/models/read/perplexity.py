"""How well a causal language model predicts text at every depth: what is asked of a decoder when there is no task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus
from stratoscope.data.metrics import REPLICATES, Floats, percentiles
from stratoscope.models.families import answering, base, family_of, final_norm
from stratoscope.models.heads.reading import Answer
from stratoscope.models.open.guard import forward_options
from stratoscope.models.open.loading import OpenedModel
from stratoscope.models.read.loop import HIDDEN, LOGITS, Advance, Batch, Output, Reader, evaluating, read
from stratoscope.models.text.encoder import Encoded, IntArray
from stratoscope.models.text.examples import text_length
from stratoscope.results.cutting.perplexity import Perplexity

TRIAL = 16
"""Tokens of the text on which a model is tried for looking ahead."""
LEVEL = 0.95


@dataclass(frozen=True)
class TextLosses:
    """-log p of some texts, at every depth."""

    sums: Floats
    """(L+1, texts) over the predicted tokens of each text."""
    tokens: IntArray
    """(texts,) how many those are."""
    truncated: int
    """Texts of which only the first tokens were read."""


class LossReader(Reader):
    """-log p of every text with 0, 1, ..., L blocks, from the states after every block.

    Each state goes through the final norm, if there is one, and the language-model head, as in a model truncated there.
    """

    needs = frozenset({HIDDEN})

    def __init__(self, model: OpenedModel, texts: int) -> None:
        self.model = model
        self.norm = final_norm(model.module, family_of(model.module))
        self.token_bytes = logit_bytes(model)
        self.sums: Floats = np.empty((0, texts))
        self.texts = texts

    def update(self, batch: Batch, output: Output) -> None:
        states = output.hidden
        if not len(self.sums):
            self.sums = np.empty((len(states), self.texts))
        for k, state in enumerate(states):  # the last has been through the norm
            answer = Answer(state if self.norm is None or k == len(states) - 1 else self.norm(state), None)
            with answering(base(self.model.module), lambda *_, answer=answer, **__: answer):
                logits = _logits(self.model.module, batch.inputs)
            assert logits is not None
            self.sums[k, batch.positions] = [loss for loss, _ in _judged(logits, batch.inputs)]


@dataclass(frozen=True)
class Predicted:
    """What a model says of some texts, as it stands."""

    losses: Floats
    """(texts,) -log p over the predicted tokens of each."""
    likely: IntArray
    """(texts, most tokens of any text - 1) the likeliest token everywhere; -1 where the text has ended."""

    def agreement(self, other: Predicted) -> IntArray:
        """(texts,) predicted tokens of which both say the same first."""
        same: IntArray = ((self.likely == other.likely) & (self.likely >= 0)).sum(axis=1)
        return same


class PredictionReader(Reader):
    """-log p of every text and the likeliest tokens, from the model's own head."""

    needs = frozenset({LOGITS})

    def __init__(self, model: OpenedModel, texts: int, longest: int) -> None:
        self.token_bytes = logit_bytes(model)
        self.found = Predicted(np.empty(texts), np.full((texts, longest - 1), -1))

    def update(self, batch: Batch, output: Output) -> None:
        assert output.logits is not None
        for k, (loss, likely) in zip(batch.positions, _judged(output.logits, batch.inputs), strict=True):
            self.found.losses[k] = loss
            self.found.likely[k, : len(likely)] = likely.cpu().numpy()


def predictions(
    model: OpenedModel,
    encoded: Encoded,
    texts: IntArray,
    *,
    batch_tokens: int | None = None,
    advance: Advance = lambda n: None,
) -> Predicted:
    """What the model as it stands says of these texts, each of two tokens or more."""
    reader = PredictionReader(model, len(texts), int(encoded.lengths.max()))
    read(model, encoded, [reader], examples=texts, batch_tokens=batch_tokens, advance=advance)
    return reader.found


def against_whole(whole: Tensor, given: Mapping[str, Tensor]) -> Callable[[Tensor], Floats]:
    """Scores of a decoder for `score_spans`: -log p of each text, and tokens of which the whole model says the same."""
    first = [likely for _, likely in _judged(whole, given)]

    def scores(logits: Tensor) -> Floats:
        stacked = len(logits) // len(first)
        repeated = {name: values.repeat(stacked, 1) for name, values in given.items()}
        pairs = zip(_judged(logits, repeated), first * stacked, strict=True)
        return np.array([(loss, int((likely == own).sum())) for (loss, likely), own in pairs])

    return scores


def logit_bytes(model: OpenedModel) -> int:
    """Memory that the logits of one token take."""
    size: int = next(model.module.parameters()).element_size()
    return model.encoder.vocabulary * size


def text_losses(
    model: OpenedModel,
    corpus: Corpus,
    *,
    length: int | None = None,
    batch_tokens: int | None = None,
    advance: Advance = lambda n: None,
) -> TextLosses:
    """Losses of some texts; those of a single token have none and are left out.

    Texts are tokenised as the tokenizer does (with a token before the text if it puts one there) and truncated to
    `length` tokens.
    """
    limit = text_length(model.encoder, length)
    encoded = model.encoder.encode(corpus.sentences, truncate=limit)
    texts = np.flatnonzero(encoded.lengths > 1)
    advance(len(corpus) - len(texts))
    if not len(texts):
        return TextLosses(np.empty((model.layers, 0)), np.empty(0, dtype=np.int64), int(encoded.truncated.sum()))
    check_causal(model, encoded, int(texts[encoded.lengths[texts].argmax()]))
    reader = LossReader(model, len(texts))
    read(model, encoded, [reader], examples=texts, batch_tokens=batch_tokens, advance=advance)
    if not np.isfinite(reader.sums[-1]).all():
        k = corpus.positions[int(texts[np.flatnonzero(~np.isfinite(reader.sums[-1]))[0]])]
        raise StratoscopeError(
            f"'{model.name}' gives a probability that is not finite in text {k} of '{corpus.name}'",
            "check its weights",
            "load it with --dtype float32",
        )
    return TextLosses(reader.sums, encoded.lengths[texts] - 1, int(encoded.truncated.sum()))


def summaries(parts: list[TextLosses], corpus: Corpus) -> list[Perplexity]:
    """exp(mean over tokens of -log p(token | tokens before it in its text)) with 0, 1, ..., L blocks.

    The interval resamples texts, since tokens of one text hang together.
    """
    tokens = np.concatenate([p.tokens for p in parts]) if parts else np.empty(0, dtype=np.int64)
    if not len(tokens):
        reason = "no text" if not len(corpus) else f"{len(corpus)} of at most one token each"
        raise StratoscopeError(
            f"perplexity: expected texts of two tokens or more, got {reason} in '{corpus.name}'; give longer texts"
        )
    sums = np.concatenate([p.sums for p in parts], axis=1)
    return [_summary(losses, tokens, sum(p.truncated for p in parts)) for losses in sums]


def check_causal(model: OpenedModel, encoded: Encoded, text: int) -> None:
    """Try two texts that differ in their last token only: what comes before it must be predicted alike."""
    inputs = {name: values[:, :TRIAL].repeat(2, 1) for name, values in encoded.batch(np.array([text])).items()}
    inputs["input_ids"][1, -1] = (inputs["input_ids"][0, -1] + 1) % model.encoder.vocabulary
    with evaluating(model.module), torch.inference_mode():
        logits = _logits(model.module, inputs)
    if logits is not None:
        one, other = logits[:, :-1].float()
        # The rows are computed side by side, so they differ by rounding at most; NaN is reported later, with its text.
        if not (one - other).abs().max() > torch.finfo(logits.dtype).eps ** 0.5 * one.abs().max():
            return
    reason = "it has no language-model head" if logits is None else "its predictions depend on later tokens"
    raise StratoscopeError(
        f"perplexity needs a causal language model, but '{model.name}' is none ({reason});"
        " give a decoder such as GPT-2, Llama or Qwen, or a task"
    )


def _logits(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor | None:
    """What the model says of the next token everywhere (batch, tokens, vocabulary), if it says so at all."""
    device = next(module.parameters()).device
    output = module(**{k: v.to(device) for k, v in inputs.items()}, **forward_options(module))
    logits: Tensor | None = getattr(output, "logits", None)
    return logits if logits is not None and logits.dim() == 3 else None


def _judged(logits: Tensor, inputs: Mapping[str, Tensor]) -> Iterator[tuple[float, Tensor]]:
    """Of each text the sum of -log p over its predicted tokens and the likeliest tokens, padding left out."""
    # Text by text, so that the vocabulary is widened to float32 and normalised for one of them at a time.
    for said, ids, mask in zip(logits, inputs["input_ids"], inputs["attention_mask"], strict=True):
        targets = ids[1 : int(mask.sum())]
        loss = nn.functional.cross_entropy(said[: len(targets)].float(), targets, reduction="none")
        yield float(loss.cpu().double().sum()), said[: len(targets)].argmax(dim=-1)


def _summary(losses: Floats, tokens: IntArray, cut: int) -> Perplexity:
    def mean(rows: IntArray) -> float:
        return float(losses[rows].sum() / tokens[rows].sum())

    n = len(losses)
    low, high = percentiles(mean, n, 0, replicates=REPLICATES, level=LEVEL) if n > 1 else (math.nan, math.nan)
    with np.errstate(over="ignore"):  # a model cut to pieces may be infinitely surprised
        value, low, high = (float(np.exp(x)) for x in (mean(np.arange(n)), low, high))
    return Perplexity(value, low, high, int(tokens.sum()), n, cut)
