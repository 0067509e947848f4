"""A shard of sentences: all models read them in lock-step, sums of all pairs of heads are kept, the weights are not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.engine.local import hand_back
from stratoscope.measures.attention.layers import HeadAxis
from stratoscope.measures.attention.rows import HeadRows
from stratoscope.measures.attention.sums import HeadSums
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, open_model
from stratoscope.models.read.attention import AttentionReader, WordAttention
from stratoscope.models.read.loop import read
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.rows import Rows, encode_for

PIECE_BYTES = 1.6e7
"""Weights of all models that are held at once (one sentence always is): a few hundred sentences fill it, so that memory
is the same however many follow."""
JOINED_BYTES = 2e6
"""Weights of one group that are joined, which copies them, to be added up."""
EMPTY = "empty"
"""Rows of each head that had no attention to any word."""
Item = dict[str, Any]


@dataclass
class OpenModels:
    """Models opened when first needed; as many stay open as the memory allows. Travels to a worker without them."""

    models: list[tuple[ModelSpec, Survey]]
    room: float
    """Bytes of weights that may stay."""
    opened: dict[int, OpenedModel] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": {}}

    def get(self, k: int) -> OpenedModel:
        """Model k; others go when there is no room for all."""
        if k not in self.opened:
            spec, surveyed = self.models[k]
            self.opened[k] = open_model(spec, surveyed=surveyed)
            if sum(map(_weight_bytes, self.opened.values())) > self.room:
                self.opened = {k: self.opened[k]}
        return self.opened[k]


def _weight_bytes(model: OpenedModel) -> int:
    return sum(p.numel() * p.element_size() for p in model.module.parameters())


@dataclass(frozen=True)
class Shared:
    """What all shards share; plain but for the models, which a worker opens itself."""

    texts: str
    """File made by `pack_texts`."""
    models: OpenModels
    layers: tuple[int, ...] | None
    axis: HeadAxis
    wanted: frozenset[str]
    eps: float
    causal: bool
    specials: bool
    batch_tokens: int | None


def pack_texts(corpus: Corpus, rows: Rows, order: IntArray) -> dict[str, Tensor]:
    """Sentences in this order, and the planned words of each, as tensors of which a worker reads a part."""
    lines = [json.dumps([s.text, s.words, s.pair]).encode() for s in (corpus.sentences[int(k)] for k in order)]
    first, last = (np.searchsorted(rows.sentence, order, side=side) for side in ("left", "right"))
    words = np.concatenate([rows.word[a:b] for a, b in zip(first, last, strict=True)])
    return {
        "text": torch.frombuffer(bytearray(b"".join(lines)), dtype=torch.uint8),
        "text_starts": torch.tensor([0, *accumulate(map(len, lines))]),
        "word": torch.from_numpy(words),
        "word_starts": torch.from_numpy(np.concatenate([[0], np.cumsum(last - first)])),
    }


def _texts(path: str, first: int, last: int) -> tuple[list[Sentence], list[IntArray]]:
    """Sentences `first` to `last` of such a file, and the planned words of each."""
    with safe_open(path, "pt") as f:
        starts, word_starts = (f.get_tensor(f"{what}_starts")[first : last + 1].tolist() for what in ("text", "word"))
        text = f.get_slice("text")[starts[0] : starts[-1]].numpy().tobytes()
        word = f.get_slice("word")[word_starts[0] : word_starts[-1]].numpy()
    lines = [json.loads(text[a - starts[0] : b - starts[0]]) for a, b in pairwise(starts)]
    sentences = [Sentence(t, None if words is None else tuple(words), pair) for t, words, pair in lines]
    return sentences, [word[a - word_starts[0] : b - word_starts[0]] for a, b in pairwise(word_starts)]


def read_shard(shared: Shared, item: Item) -> dict[str, Tensor]:
    """Packed sums of each group of a shard (first axis), and the sentences of it that are kept to look at.

    The item says where the shard begins in the file of texts, how many sentences each group has, and which to keep.
    """
    sums = [HeadSums(shared.wanted, shared.eps) for _ in item["sizes"]]
    ends = np.cumsum(item["sizes"])
    tensors: dict[str, Tensor] = {}
    empty = np.zeros(shared.axis.starts[-1], dtype=np.int64)
    sentences, words = _texts(shared.texts, item["first"], item["first"] + int(ends[-1]))
    heads = shared.axis.starts[-1]
    hand_back()
    for first, last in _pieces([len(w) for w in words], heads, PIECE_BYTES):
        attention, none = _lock_step(shared, sentences[first:last], words[first:last])
        empty += none
        group = np.searchsorted(ends, np.arange(first, last), side="right")
        for g in np.unique(group):
            own = [attention[k] for k in np.flatnonzero(group == g)]
            for a, b in _pieces([len(rows.lengths) for rows in own], heads, JOINED_BYTES):
                sums[g].update(HeadRows.join(own[a:b]))
        for k in (k for k in item["keep"] if first <= k < last):
            tensors[f"pattern.{item['first'] + k}"] = _pattern(attention[k - first])
        del attention, own
        hand_back()
    packed = [shared.axis.pack(s.sums) for s in sums]
    tensors |= {name: torch.from_numpy(np.stack([p[name] for p in packed])) for name in packed[0]}
    return tensors | {EMPTY: torch.from_numpy(empty)}


def _pieces(words: Sequence[int], heads: int, most: float) -> Iterator[tuple[int, int]]:
    """Bounds of runs of sentences whose weights take so many bytes at most together; one sentence may take more."""
    first, room = 0, most
    for k, n in enumerate(words):
        size = 4.0 * heads * n * (n + 1)
        if k > first and size > room:
            yield first, k
            first, room = k, most
        room -= size
    yield first, len(words)


def _lock_step(
    shared: Shared, sentences: Sequence[Sentence], words: Sequence[IntArray]
) -> tuple[list[HeadRows], IntArray]:
    """Each sentence as the heads of all models see it, and rows of each head without any attention to words."""
    corpus = Corpus("shard", tuple(sentences), range(len(sentences)))
    sentence = np.repeat(np.arange(len(words)), [len(w) for w in words])
    rows = Rows("", corpus.fingerprint, "word", sentence, np.concatenate(words), {})
    read_by: list[dict[int, WordAttention]] = []
    empty = []
    for k in range(len(shared.models.models)):
        model = shared.models.get(k)
        encoded = encode_for(model.encoder, corpus.sentences, ["word"])
        reader = AttentionReader(encoded, rows, causal=shared.causal, specials=shared.specials, blocks=shared.layers)
        read(model, encoded, [reader], batch_tokens=shared.batch_tokens, advance=lambda n: hand_back())
        read_by.append(reader.texts)
        empty.append(reader.empty)
    joined = []
    for k in range(len(sentences)):
        parts = [texts.pop(k) for texts in read_by]
        values = np.concatenate([p.values for p in parts])
        joined.append(HeadRows(values, parts[0].lengths, np.array([len(parts[0].lengths)])))
    return joined, np.concatenate(empty)


def _pattern(rows: HeadRows) -> Tensor:
    """(heads, words, targets) in 255ths; what a causal row leaves out is 0."""
    longest = int(rows.lengths.max())
    whole = np.zeros((len(rows.values), len(rows.lengths), longest), dtype=np.float32)
    whole[:, np.arange(longest) < rows.lengths[:, None]] = rows.values
    return torch.from_numpy(np.round(whole * 255).astype(np.uint8))
