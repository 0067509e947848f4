"""Run each model once over the corpus and keep every layer's rows in the run folder, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.corpus import Corpus
from stratoscope.models.open.loading import LoadedModel, ModelSpec, Survey, choose_device, load
from stratoscope.models.read.hidden import extract
from stratoscope.models.text.rows import Rows
from stratoscope.runs.run import Run, part_prefix
from stratoscope.statistics.rows import CHUNK

ACTIVATIONS = "activations"
SHARD_BYTES = 5e8
"""Memory the rows of one shard may take: what a killed run loses at most, and enough text to sort by length."""

Pieces = list[tuple[str, str]]
"""(path, tensor name) of every chunk of one layer."""


@dataclass(frozen=True)
class Reading:
    """What to read from every model."""

    corpus: Corpus
    rows: Rows
    unit: str
    subword: str
    layers: tuple[int, ...] | None
    """Layers to keep, all when None."""
    batch_tokens: int | None


def chunk_starts(sentence: np.ndarray[tuple[int], np.dtype[np.int64]], size: int = CHUNK) -> list[int]:
    """Cut rows into chunks of whole sentences, at most `size` rows each unless one sentence is longer."""
    ends = [*(np.flatnonzero(np.diff(sentence)) + 1).tolist(), len(sentence)]
    starts, last = [0], 0
    for end in ends:
        if end - starts[-1] > size and last > starts[-1]:
            starts.append(last)
        last = end
    return [*starts, len(sentence)]


def chosen_layers(survey: Survey, name: str, layers: tuple[int, ...] | None) -> tuple[int, ...]:
    """The layers asked for, checked against those the model has."""
    if layers is None:
        return tuple(range(survey.layers))
    for k in layers:
        if not 0 <= k < survey.layers:
            raise StratoscopeError(f"'{name}' has no layer {k}; its layers are 0-{survey.layers - 1} (0 = embeddings)")
    return layers


def keep_activations(spec: ModelSpec, survey: Survey, reading: Reading, running: Run) -> list[Pieces]:
    """Files with the rows of each chosen layer; the model is loaded only if a shard is missing or damaged."""
    layers = chosen_layers(survey, spec.label, reading.layers)
    bounds = chunk_starts(reading.rows.sentence)
    chunks = max(1, int(SHARD_BYTES / (len(layers) * survey.width * 4 * CHUNK)))
    shards = [bounds[k : k + chunks + 1] for k in range(0, len(bounds) - 1, chunks)]
    made_from = [
        survey.fingerprint,
        survey.dtype,
        str(choose_device(spec.device)),
        reading.rows.fingerprint,
        reading.subword,
        list(layers),
    ]
    model = cache(lambda: load(spec, seen=survey))
    paths = []
    with running.progress.step(f"reading with {spec.label}", len(reading.rows)) as advance:
        for shard in shards:
            make = partial(_shard, model, reading, layers, shard)
            paths.append(running.file(ACTIVATIONS, [*made_from, shard], make))
            advance(shard[-1] - shard[0])
    return [
        [
            (str(path), _tensor_name(layer, start))
            for path, shard in zip(paths, shards, strict=True)
            for start in shard[:-1]
        ]
        for layer in layers
    ]


def made_by_this_code(part: str) -> bool:
    """Whether a part holds activations that a later run can use."""
    return part.startswith(part_prefix(ACTIVATIONS))


def _shard(
    load_model: Callable[[], LoadedModel], reading: Reading, layers: Sequence[int], shard: list[int]
) -> dict[str, Tensor]:
    """Rows of one shard, every layer cut at the chunks' bounds."""
    model, first, last = load_model(), shard[0], shard[-1]
    corpus, rows = reading.rows.slice(reading.corpus, first, last)
    kept = [torch.empty(last - first, model.width) for _ in layers]
    for positions, hidden in extract(
        model, corpus, rows, unit=reading.unit, subword=reading.subword, batch_tokens=reading.batch_tokens
    ):
        where = torch.from_numpy(positions)
        for target, layer in zip(kept, layers, strict=True):
            target[where] = hidden[layer]
    return {
        _tensor_name(layer, a): x[a - first : b - first].clone()
        for layer, x in zip(layers, kept, strict=True)
        for a, b in pairwise(shard)
    }


def _tensor_name(layer: int, start: int) -> str:
    return f"layer{layer}.row{start}"
