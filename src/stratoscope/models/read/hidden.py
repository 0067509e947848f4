"""Activations of every layer for the planned rows, batch after batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.corpus import Corpus
from stratoscope.models.open.loading import LoadedModel
from stratoscope.models.text.encoder import Encoded, Encoder, IntArray, words_of
from stratoscope.models.text.rows import SUBWORDS, Groups, Rows, check_unit, group_tokens, keys

BATCH_BYTES = 2**28
"""Memory the hidden states of one batch may take."""
BATCH_TOKENS = {"cpu": 1024}
"""Most padded tokens in a batch. A CPU gains nothing from larger ones, which mix more lengths and so pad more
(UD English dev, MiniLM, one thread: 12 % more tokens and 20 % more time at 4096 than at 1024)."""
BATCH_TOKENS_ELSEWHERE = 65_536


def extract(
    model: LoadedModel,
    corpus: Corpus,
    rows: Rows,
    *,
    unit: str,
    subword: str = "last",
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[IntArray, list[Tensor]]]:
    """Yield `(positions into rows, [L+1 tensors (m, width)])`, float32 on the CPU, until every row came once.

    Sentences are run longest first in batches of like length, so that memory peaks at the start. Padding, dropout
    and the other sentences of a batch have no part in a row's values.
    """
    _check(model, corpus, rows, unit=unit, subword=subword)
    encoded = model.encoder.encode(corpus, unit)
    groups = _narrow(group_tokens(encoded, model.encoder, unit), subword if unit == "word" else "mean")
    group = _find(groups, rows, model.name)
    sentences, first_row = np.unique(rows.sentence, return_index=True)
    last_row = np.append(first_row[1:], len(rows))
    lengths = encoded.lengths[sentences]
    _check_window(model.encoder, sentences, lengths)
    budget = batch_tokens or default_batch_tokens(model)
    extra = forward_options(model.module)
    with (
        (progress or Silent()).step(f"reading with {model.name}", int(lengths.sum())) as advance,
        evaluating(model.module),
    ):
        for batch in batches(lengths, budget):
            inputs = padded(encoded, sentences[batch], model.encoder)
            members = np.concatenate([np.arange(first_row[b], last_row[b]) for b in batch])
            places, bags = _places(
                encoded, groups, group[members], sentences[batch], left=model.encoder.family.pads_left
            )
            with torch.inference_mode():
                output = model.module(
                    **{k: v.to(model.device) for k, v in inputs.items()}, output_hidden_states=True, **extra
                )
            hidden = list(output.hidden_states)
            del output
            if len(hidden) != model.layers:
                raise StratoscopeError(
                    f"'{model.name}' returned {len(hidden)} layers, expected {model.layers} from its configuration;"
                    " its architecture is not supported"
                )
            layers = _gather(hidden, places.to(model.device), None if bags is None else bags.to(model.device))
            _check_finite(layers, members, model.name, corpus, rows)
            yield members, layers
            advance(int(lengths[batch].sum()))


def batches(lengths: IntArray, budget: int) -> Iterator[IntArray]:
    """Cut sentences, longest first, into batches whose padded size stays within `budget` tokens (one always fits)."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, budget // max(1, int(lengths[order[start]])))
        yield order[start : start + size]
        start += size


def padded(encoded: Encoded, sentences: IntArray, encoder: Encoder) -> dict[str, Tensor]:
    """One batch of model inputs (batch, longest); what is padding is masked."""
    lengths = encoded.lengths[sentences]
    longest = int(lengths.max())
    columns = np.arange(longest)
    shift = (longest - lengths) if encoder.family.pads_left else np.zeros_like(lengths)
    mask = (columns >= shift[:, None]) & (columns < (shift + lengths)[:, None])
    source = np.where(mask, encoded.starts[sentences][:, None] + columns - shift[:, None], 0)
    inputs = {"input_ids": np.where(mask, encoded.ids[source], encoder.pad_id), "attention_mask": mask.astype(np.int64)}
    if encoder.segments:
        inputs["token_type_ids"] = np.where(mask, encoded.segments[source], 0)
    return {name: torch.from_numpy(value) for name, value in inputs.items()}


def default_batch_tokens(model: LoadedModel) -> int:
    """Padded tokens per batch that keep the hidden states of all layers within `BATCH_BYTES`."""
    per_token: int = model.layers * model.width * next(model.module.parameters()).element_size()
    return max(1, min(BATCH_TOKENS.get(model.device.type, BATCH_TOKENS_ELSEWHERE), BATCH_BYTES // per_token))


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


def _check(model: LoadedModel, corpus: Corpus, rows: Rows, *, unit: str, subword: str) -> None:
    check_unit(unit)
    if subword not in SUBWORDS:
        raise unknown_name("subword", subword, SUBWORDS)
    if (rows.corpus, rows.unit) != (corpus.fingerprint, unit):
        raise StratoscopeError(
            f"the rows were planned for unit '{rows.unit}' of corpus {rows.corpus[:8]}, but '{model.name}' was asked"
            f" for unit '{unit}' of corpus {corpus.fingerprint[:8]}; plan the rows again"
        )


def _check_window(encoder: Encoder, sentences: IntArray, lengths: IntArray) -> None:
    k = int(lengths.argmax())
    if encoder.window is not None and lengths[k] > encoder.window:
        raise StratoscopeError(
            f"sentence {sentences[k]} has {lengths[k]} tokens, '{encoder.name}' reads {encoder.window};"
            " plan the rows with every model that is compared"
        )


def _narrow(groups: Groups, subword: str) -> Groups:
    """Keep of each group its first or last token, or all of them."""
    if subword == "mean":
        return groups
    tokens = groups.tokens[groups.starts[1:] - 1 if subword == "last" else groups.starts[:-1]]
    return Groups(groups.sentence, groups.word, np.arange(len(tokens) + 1), tokens)


def _find(groups: Groups, rows: Rows, name: str) -> IntArray:
    """The group of each row."""
    have, wanted = keys(groups.sentence, groups.word), keys(rows.sentence, rows.word)
    found = np.minimum(np.searchsorted(have, wanted), max(len(have) - 1, 0))
    missing = np.flatnonzero(have[found] != wanted) if len(have) else np.arange(len(wanted))
    if len(missing):
        r = missing[0]
        raise StratoscopeError(
            f"'{name}' has no word {rows.word[r]} in sentence {rows.sentence[r]} ({len(missing)} rows are missing);"
            " plan the rows with every model that is compared"
        )
    return found


def _places(
    encoded: Encoded, groups: Groups, group: IntArray, sentences: IntArray, *, left: bool
) -> tuple[Tensor, Tensor | None]:
    """Positions on the flattened (batch · sequence) axis, and where each row's begin when rows have several."""
    starts, ends = groups.starts[group], groups.starts[group + 1]
    sizes = ends - starts
    offsets = np.cumsum(sizes) - sizes
    tokens = groups.tokens[np.repeat(starts - offsets, sizes) + np.arange(int(sizes.sum()))]
    slot = np.zeros(int(sentences.max()) + 1, dtype=np.int64)
    slot[sentences] = np.arange(len(sentences))
    lengths = encoded.lengths[sentences]
    longest = int(lengths.max())
    base = slot * longest
    s = encoded.sentence[tokens]
    shift = longest - lengths[slot[s]] if left else 0
    flat = base[s] + shift + tokens - encoded.starts[s]
    single = len(tokens) == len(group)
    return torch.from_numpy(flat), None if single else torch.from_numpy(offsets)


def _gather(hidden: list[Tensor], places: Tensor, bags: Tensor | None) -> list[Tensor]:
    """Read the rows of every layer, freeing each layer's full tensor on the way.

    Runs outside inference mode, so that what is yielded may later be trained on.
    """
    layers = []
    hidden.reverse()
    with torch.no_grad():
        while hidden:
            flat = hidden.pop().flatten(0, 1)
            if bags is None:
                rows = flat.index_select(0, places)
            else:
                rows = nn.functional.embedding_bag(places, flat.float(), bags, mode="mean")
            layers.append(rows.to("cpu", torch.float32))
    return layers


def _check_finite(layers: list[Tensor], members: IntArray, name: str, corpus: Corpus, rows: Rows) -> None:
    """A float64 sum of float32 values is finite exactly when all of them are."""
    for k, x in enumerate(layers):
        if bool(x.sum(dtype=torch.float64).isfinite()):
            continue
        r = members[int((~x.isfinite()).any(dim=1).nonzero()[0])]
        raise StratoscopeError(
            f"'{name}' gives a value that is not finite at layer {k}, sentence {corpus.positions[rows.sentence[r]]},"
            f" {_described(corpus, rows, int(r))}",
            "check its weights",
            "load it with --dtype float32",
        )


def _described(corpus: Corpus, rows: Rows, r: int) -> str:
    if rows.unit != "word":
        return f"{rows.unit} {rows.word[r]}" if rows.unit == "token" else f"unit {rows.unit}"
    word = words_of(corpus.sentences[rows.sentence[r]])[rows.word[r]]
    return f"word {rows.word[r]} ('{word}')"


def forward_options(module: nn.Module) -> dict[str, Any]:
    """Switch off the caches a decoder (or XLNet) would fill for a next call that never comes."""
    accepted = inspect.signature(module.forward).parameters
    return {name: False for name in ("use_cache", "use_mems") if name in accepted}
