"""How a decoder's perplexity on text depends on its depth: what depth buys when there is no task."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratoscope.core.progress import Progress, Silent, advanced
from stratoscope.data.corpus import Corpus
from stratoscope.data.readers import Data, corpus_of
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import CAUSAL, ModelSpec, Survey, check_head, open_model, survey
from stratoscope.models.read.perplexity import TextLosses, summaries, text_losses
from stratoscope.models.text.examples import text_length
from stratoscope.results.cutting.perplexity import Perplexities, Skipped
from stratoscope.runs.run import Draw, Item, Run, Tensors
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
from stratoscope.studies.perplexity.spans import Cut, predicted, skipped, spans_of

TEXTS = 512
"""Texts read together: enough to sort by length, and what a killed run loses at most."""


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
    surveyed = survey(spec, progress=progress)
    asked = {"model": spec.source, **data_asked(data), **models_asked([spec]), **names_asked([spec]), "base": spec.base}
    inputs = {"model": [spec.label, surveyed.fingerprint, surveyed.dtype], "corpus": corpus.fingerprint}
    return run_study(
        request_for("perplexity", inputs, options),
        options,
        out,
        lambda running: _compute(spec, surveyed, corpus, options, running),
        asked=asked,
        progress=progress,
        draw=draw,
    )


def _compute(
    spec: ModelSpec, surveyed: Survey, corpus: Corpus, options: PerplexityOptions, running: Run
) -> Perplexities:
    held = Held(partial(open_model, spec, CAUSAL, surveyed=surveyed), surveyed, CAUSAL, running.progress)
    bounds = list(pairwise([*range(0, len(corpus), TEXTS), len(corpus)]))
    parts = running.map(
        _losses,
        [{"first": first} for first, _ in bounds],
        name="losses",
        key=[surveyed.fingerprint, surveyed.dtype, surveyed.device, corpus.fingerprint, options.length],
        label=f"perplexity of {spec.label} at every depth",
        shared=(held, options.length, options.batch_tokens),
        weights=[last - first for first, last in bounds],
        resources=held.resources,
        given=lambda item: {"texts": corpus.slice(item["first"], item["first"] + TEXTS).held()},
    )
    losses = [TextLosses(p["sums"].numpy(), p["tokens"].numpy(), int(p["truncated"])) for p in parts]
    about = {"name": corpus.name, "fingerprint": corpus.fingerprint, "texts": len(corpus)}
    points = tuple(summaries(losses, corpus))
    spans, texts = _spans(held, surveyed, corpus, options, running)
    return Perplexities(model_info(spec, surveyed), about, points, spans, texts)


def _losses(shared: tuple[Held, int | None, int | None], item: Item) -> Tensors:
    """Losses of some texts at every depth."""
    held, length, tokens = shared
    losses = text_losses(held(), item["texts"], length=length, batch_tokens=tokens, advance=advanced)
    counts = {"tokens": torch.from_numpy(losses.tokens), "truncated": torch.tensor(losses.truncated)}
    return {"sums": torch.from_numpy(losses.sums), **counts}


def _spans(
    held: Held, surveyed: Survey, corpus: Corpus, options: PerplexityOptions, running: Run
) -> tuple[tuple[Skipped, ...], int]:
    """Every span that was skipped, and on how many texts."""
    blocks = surveyed.layers - 1
    if not (options.span_length and blocks):
        return (), 0
    corpus = corpus.sample(options.span_texts, options.seed)
    encoded = surveyed.encoder.encode(corpus.sentences[:], truncate=text_length(surveyed.encoder, options.length))
    texts = np.flatnonzero(encoded.lengths > 1)
    if not len(texts):
        return (), 0
    key = [surveyed.fingerprint, surveyed.dtype, surveyed.device, corpus.fingerprint, options.length]
    cut, name = Cut(held, encoded, options.batch_tokens), surveyed.spec.label
    whole = predicted(running, cut, texts, key=key, label=f"reading with {name}")
    longest, label = min(options.span_length, blocks), f"skipping blocks of {name}"
    scores = skipped(running, cut, texts, longest=longest, key=key, label=label)
    return spans_of(scores, whole, (encoded.lengths[texts] - 1).astype(float)), len(texts)
