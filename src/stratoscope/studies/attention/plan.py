"""What a comparison of attention will do, known and checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer
from stratoscope.core.progress import Progress
from stratoscope.data.corpus import Corpus
from stratoscope.measures.attention.layers import HeadAxis
from stratoscope.measures.attention.table import AttentionMeasure, attention_measures
from stratoscope.models.open.loading import load_config, resolve
from stratoscope.models.saved.files import is_saved
from stratoscope.models.text.encoder import IntArray
from stratoscope.studies.asked import Model, spec_of
from stratoscope.studies.attention.options import AttentionOptions
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.plan import Plan, make_plan

GROUPS = 50
"""Groups of sentences that are kept apart and resampled."""
SHARD_WORK = 5e9
"""Pairs of heads times word pairs from which on groups have a shard of their own: some seconds of work."""
SAMPLE_LENGTHS = (10, 25, 100)
"""Words that sentences kept to look at have, about; none has more than the last."""
SAMPLE_WEIGHTS = 4_000_000
"""Weights kept to look at, at most, over all heads and sentences."""


@dataclass(frozen=True)
class AttentionPlan:
    """Everything a comparison of attention depends on."""

    words: Plan
    """Models, text and the words that every model reads."""
    measures: tuple[AttentionMeasure, ...]
    options: AttentionOptions
    heads: tuple[int, ...]
    """Heads of a layer of each model."""

    @cached_property
    def layers(self) -> tuple[tuple[Layer, int], ...]:
        """Every layer compared, in the order of the axes, with its number of heads."""
        layers = []
        for (spec, surveyed), heads in zip(self.words.models, self.heads, strict=True):
            chosen = self.options.layers or range(1, surveyed.layers)
            layers += [(Layer(spec.label, k), heads) for k in chosen]
        return tuple(layers)

    @cached_property
    def axis(self) -> HeadAxis:
        return HeadAxis(tuple(heads for _, heads in self.layers))

    @cached_property
    def lengths(self) -> IntArray:
        """Words of every sentence."""
        return np.bincount(self.words.rows.sentence, minlength=len(self.words.corpus))

    @cached_property
    def groups(self) -> tuple[IntArray, ...]:
        """Sentences in groups drawn with the seed; each has as many as any other, give or take one."""
        used = np.flatnonzero(self.lengths)
        order = np.random.default_rng(self.options.seed).permutation(used)
        drawn = [np.sort(order[k :: min(GROUPS, len(used))]) for k in range(min(GROUPS, len(used)))]
        # Longest first: sentences read together are of like length, and memory peaks at the start.
        return tuple(g[np.argsort(-self.lengths[g], kind="stable")] for g in drawn)

    @cached_property
    def shards(self) -> tuple[tuple[int, int], ...]:
        """First group of each shard and the one after its last: as many as make it worth a part."""
        heads = self.axis.starts[-1]
        work = np.cumsum([float(np.square(self.lengths[g]).sum()) * heads**2 / 2 for g in self.groups])
        last = (work // SHARD_WORK).astype(int)
        edges = [0, *(np.flatnonzero(np.diff(last)) + 1).tolist(), len(self.groups)]
        return tuple(pairwise(edges))

    @cached_property
    def samples(self) -> tuple[int, ...]:
        """Sentences to look at: the nearest to each of a few lengths, as far as there is room."""
        samples: list[int] = []
        room = SAMPLE_WEIGHTS / self.axis.starts[-1]
        for length in SAMPLE_LENGTHS:
            fits = np.flatnonzero((self.lengths > 1) & (self.lengths <= min(SAMPLE_LENGTHS[-1], room**0.5)))
            fits = np.setdiff1d(fits, samples)
            if not len(fits):
                break
            samples.append(int(fits[np.abs(self.lengths[fits] - length).argmin()]))
            room -= float(self.lengths[samples[-1]]) ** 2
        return tuple(samples)

    @property
    def eps(self) -> float:
        """Rounding of the coarsest model."""
        return max(torch.finfo(getattr(torch, surveyed.dtype)).eps for surveyed in self.words.surveys)

    @property
    def key(self) -> Any:
        """All that a part depends on besides the sums wanted: names the parts."""
        options = self.options
        kept = [options.causal, options.keep_specials, options.layers, options.seed]
        return [self.words.inputs, self.words.devices, kept]

    @property
    def data(self) -> dict[str, Any]:
        """The text as the result records it."""
        options = self.options
        settings = {"causal": options.causal, "keep_specials": options.keep_specials, "groups": len(self.groups)}
        squares = np.square(self.lengths).sum()
        return self.words.data | settings | {"word_pairs": int(squares), "longest": int(self.lengths.max())}


def plan_attention(
    models: Sequence[Model], data: str | Path | Corpus, options: AttentionOptions, progress: Progress
) -> AttentionPlan:
    """Look at the models and the text, and refuse what cannot be compared."""
    if not options.measures:
        raise StratoscopeError("expected at least one measure, got none; give --measure js or --measure all")
    measures = attention_measures(options.measures)
    if 0 in (options.layers or ()):
        raise StratoscopeError("attention has no layer 0: block k is layer k; leave 0 out of --layers")
    if saved := next((spec_of(m).source for m in models if is_saved(spec_of(m).source)), None):
        raise StratoscopeError(f"'{saved}' holds saved activations, which have no attention; give a checkpoint")
    shared = {f.name for f in fields(AttentionOptions)} & {f.name for f in fields(CompareOptions)} - {"measures"}
    about_words = CompareOptions(measures=("ckasim-debiased",), **{name: getattr(options, name) for name in shared})
    words = make_plan(models, data, about_words, progress)
    heads = [load_config(spec, resolve(spec)).get_text_config().num_attention_heads for spec in words.specs]
    return AttentionPlan(words, measures, options, tuple(int(h) for h in heads))
