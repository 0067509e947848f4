"""How a decoder's perplexity on text depends on its depth: what depth buys when there is no task."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.progress import Progress, Silent
from stratoscope.data.corpus import Corpus
from stratoscope.data.readers import Data, corpus_of
from stratoscope.models.open.loading import CAUSAL, ModelSpec, OpenedModel, Survey, check_head, open_model, survey
from stratoscope.models.read.perplexity import TEXTS, Predicted, TextLosses, predictions, summaries, text_losses
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import text_length
from stratoscope.results.cutting.perplexity import Perplexities, Skipped
from stratoscope.runs.run import Draw, Run
from stratoscope.studies.asked import (
    Model,
    chosen,
    data_asked,
    model_info,
    models_asked,
    names_asked,
    request_for,
    run_study,
    spec_of,
)
from stratoscope.studies.perplexity.options import PerplexityOptions
from stratoscope.studies.perplexity.spans import predicted, skipped, spans_of


def perplexity(
    model: Model,
    data: Data,
    *,
    out: str | Path | None = None,
    options: PerplexityOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Perplexities:
    """Perplexity of a decoder truncated to 0, 1, ..., L blocks, and without every span of a few of them.

    Nothing is tuned: the final norm and the language-model head read each layer as they are. Further keywords are the
    fields of `PerplexityOptions`.
    """
    options, progress = chosen(PerplexityOptions, options, keywords), progress or Silent()
    spec = spec_of(model)
    check_head(spec, CAUSAL)
    how = {"text": options.text, "columns": options.columns, "split": options.split}
    corpus = corpus_of(data, **how).sample(options.limit, options.seed)
    seen = survey(spec, progress=progress)
    asked = {"model": spec.source, **data_asked(data), **models_asked([spec]), **names_asked([spec]), "base": spec.base}
    inputs = {"model": [spec.label, seen.fingerprint, seen.dtype], "corpus": corpus.fingerprint}
    return run_study(
        request_for("perplexity", inputs, options),
        options,
        out,
        lambda running: _compute(spec, seen, corpus, options, running),
        asked=asked,
        progress=progress,
        draw=draw,
    )


def _compute(spec: ModelSpec, seen: Survey, corpus: Corpus, options: PerplexityOptions, running: Run) -> Perplexities:
    opened = cache(lambda: open_model(spec, CAUSAL, seen=seen, progress=running.progress))
    parts = []
    with running.progress.step(f"perplexity of {spec.label} at every depth", len(corpus)) as advance:
        for first in range(0, len(corpus), TEXTS):

            def make(first: int = first) -> dict[str, Tensor]:
                losses = text_losses(opened(), corpus, first, length=options.length, batch_tokens=options.batch_tokens)
                counts = {"tokens": torch.from_numpy(losses.tokens), "truncated": torch.tensor(losses.truncated)}
                return {"sums": torch.from_numpy(losses.sums), **counts}

            key = [seen.fingerprint, seen.dtype, seen.device, corpus.fingerprint, options.length, first]
            t = running.part("losses", key, make)
            parts.append(TextLosses(t["sums"].numpy(), t["tokens"].numpy(), int(t["truncated"])))
            advance(min(TEXTS, len(corpus) - first))
    about = {"name": corpus.name, "fingerprint": corpus.fingerprint, "texts": len(corpus)}
    points = tuple(summaries(parts, corpus))
    spans, texts = _spans(opened, seen, corpus, options, running)
    return Perplexities(model_info(spec, seen), about, points, spans, texts)


def _spans(
    opened: Callable[[], OpenedModel], seen: Survey, corpus: Corpus, options: PerplexityOptions, running: Run
) -> tuple[tuple[Skipped, ...], int]:
    """Every span that was skipped, and on how many texts."""
    blocks = seen.layers - 1
    if not (options.span_length and blocks):
        return (), 0
    corpus = corpus.sample(options.span_texts, options.seed)
    encoded = seen.encoder.encode(corpus.sentences[:], truncate=text_length(seen.encoder, options.length))
    texts = np.flatnonzero(encoded.lengths > 1)
    if not len(texts):
        return (), 0
    key = [seen.fingerprint, seen.dtype, seen.device, corpus.fingerprint, options.length]
    name, tokens = seen.spec.label, options.batch_tokens

    def say(some: IntArray) -> Predicted:
        return predictions(opened(), encoded, some, batch_tokens=tokens)

    whole = predicted(running, say, texts, key=key, label=f"reading with {name}")
    scores = skipped(
        running,
        opened,
        encoded,
        texts,
        longest=min(options.span_length, blocks),
        key=key,
        label=f"skipping blocks of {name}",
        batch_tokens=tokens,
    )
    return spans_of(scores, whole, (encoded.lengths[texts] - 1).astype(float)), len(texts)
