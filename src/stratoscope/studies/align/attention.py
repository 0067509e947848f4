"""Attention as rows to align: a sample of word pairs, each a row of the weights that the heads of a block give it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stratoscope.data.corpus import Corpus
from stratoscope.models.families import generates
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import load_config, open_model, resolve
from stratoscope.models.read.attention import AttentionReader
from stratoscope.models.read.loop import Batch, Output, read
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.rows import Rows, encode_for
from stratoscope.runs.run import Item, Run, Tensors
from stratoscope.statistics.rows import MemoryRows
from stratoscope.studies.attention.plan import AttentionPlan

FROM_A_TEXT = 32
"""Word pairs of one text at most."""
TEXTS = 400
"""That pairs come from, where there are so many: more texts say more than more pairs of one, and are held out whole."""


@dataclass(frozen=True)
class WordPairs:
    """Word pairs of some texts: `places` of each text among its words squared, source by source."""

    places: Mapping[int, IntArray]

    @property
    def text(self) -> IntArray:
        """The text of every row."""
        return np.repeat(list(self.places), [len(p) for p in self.places.values()])


def any_causal(plan: AttentionPlan) -> bool:
    """Whether one of the models is a decoder, which gives no weight to words to come."""
    configs = [load_config(spec, resolve(spec)) for spec in plan.words.specs]
    return any(generates(c) or getattr(c, "is_decoder", False) for c in configs)


def sample_pairs(lengths: IntArray, number: int, *, seed: int, causal: bool = False) -> WordPairs:
    """At least `number` word pairs where the texts have them, from texts drawn with the seed.

    `causal` leaves out targets after their source, whose weight is 0 whatever the text.
    """
    rng, sampled, left = np.random.default_rng(seed), dict[int, IntArray](), number
    sizes = (lengths * (lengths + 1) // 2 if causal else lengths**2)[lengths > 1]
    few = range(max(1, math.ceil(number / TEXTS)), FROM_A_TEXT)
    most = next((k for k in few if np.minimum(sizes, k).sum() >= number), FROM_A_TEXT)
    for text in rng.permutation(np.flatnonzero(lengths > 1)):  # a lone word attends to itself whatever the model
        if left <= 0:
            break
        words = int(lengths[text])
        places = np.flatnonzero(np.tri(words)) if causal else np.arange(words**2)
        sampled[int(text)] = np.sort(rng.permutation(places)[:most])
        left -= len(sampled[int(text)])
    return WordPairs({text: sampled[text] for text in sorted(sampled)})


class PairReader(AttentionReader):
    """Keeps the weights of the sampled pairs of a text and drops the rest at once."""

    def __init__(self, *args: object, places: Mapping[int, IntArray], **how: object) -> None:
        super().__init__(*args, **how)  # type: ignore[arg-type]
        self.places, self.picked = places, dict[int, Tensor]()

    def update(self, batch: Batch, output: Output) -> None:
        super().update(batch, output)
        for text in map(int, batch.texts):
            self.picked[text] = torch.from_numpy(self.texts.pop(text).values[:, self.places[text]].T.copy())


def read_pairs(plan: AttentionPlan, pairs: WordPairs, running: Run) -> MemoryRows:
    """Every block's rows, read with each model once."""
    words, chosen = plan.words, np.array(list(pairs.places))
    corpus = Corpus("sample", tuple(words.corpus.sentences[k] for k in chosen), range(len(chosen)))
    inside = np.isin(words.rows.sentence, chosen)
    sentence = np.searchsorted(chosen, words.rows.sentence[inside])
    rows = Rows("", corpus.fingerprint, "word", sentence, words.rows.word[inside], {})
    places = dict(enumerate(pairs.places.values()))
    held = [
        Held(partial(open_model, spec, surveyed=s), s, progress=running.progress, one_of_many=True)
        for spec, s in words.models
    ]
    parts = running.map(
        read_weights,
        [{"model": k} for k in range(len(held))],
        name="attention",
        key=[plan.key, [[k, *p.tolist()] for k, p in pairs.places.items()]],
        label="reading attention",
        shared=_Weights(held, corpus, rows, places, plan.options.layers, plan.options.batch_tokens),
        resources=max((h.resources for h in held), key=lambda r: (r.gpus, r.memory)),
    )
    matrices: list[Tensor] = []
    for part, heads in zip(parts, plan.heads, strict=True):
        matrices += part["weights"].reshape(len(part["weights"]), -1, heads).unbind(1)
    return MemoryRows([m.contiguous() for m in matrices])


@dataclass(frozen=True)
class _Weights:
    """What the readings with all models share."""

    models: list[Held]
    corpus: Corpus
    rows: Rows
    places: Mapping[int, IntArray]
    blocks: tuple[int, ...] | None
    batch_tokens: int | None


def read_weights(shared: _Weights, item: Item) -> Tensors:
    """The weights of the sampled pairs in every block of one model."""
    model = shared.models[item["model"]]()
    encoded = encode_for(model.encoder, shared.corpus.sentences, ["word"])
    reader = PairReader(encoded, shared.rows, blocks=shared.blocks, places=shared.places)
    read(model, encoded, [reader], batch_tokens=shared.batch_tokens)
    return {"weights": torch.cat([reader.picked[k] for k in shared.places])}
