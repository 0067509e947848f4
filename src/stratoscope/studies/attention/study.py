"""Compare the attention of every layer of any set of models, heads and layers alike, streamed over the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from stratoscope.claims import judge_attention
from stratoscope.core.matrix import Matrix
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import BOOTSTRAP, Interval, spread
from stratoscope.data.corpus import Corpus
from stratoscope.engine.base import Resources
from stratoscope.measures.attention.layers import HeadAxis, group_weights, score_panel, weighted
from stratoscope.measures.attention.rows import Doubles
from stratoscope.measures.attention.sums import COUNTS, PAIRS, SCATTER, SKIPPED
from stratoscope.measures.attention.table import AttentionMeasure, attention_measure
from stratoscope.measures.table import chance_level, parse
from stratoscope.models.text.encoder import words_of
from stratoscope.results.attention import Attention, Pattern
from stratoscope.runs.run import Draw, Run
from stratoscope.studies.asked import Model, chosen, request_for, run_study, several
from stratoscope.studies.attention.options import AttentionOptions
from stratoscope.studies.attention.plan import AttentionPlan, plan_attention
from stratoscope.studies.attention.work import EMPTY, OpenModels, Shared, pack_texts, read_shard
from stratoscope.studies.compare.study import asked_of

SPECIALS = "(special tokens)"
TOGETHER = 64
"""Resamples scored at once."""
Parts = Sequence[Path | Mapping[str, Tensor]]


def attention(
    models: Model | Sequence[Model],
    *,
    data: str | Path | Corpus,
    out: str | Path | None = None,
    options: AttentionOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    command: str = "attention",
    **keywords: Any,
) -> Attention:
    """Compare the attention of all layers of all models; with `out`, finished parts are kept there and reused.

    Further keywords are the fields of `AttentionOptions`, among them `measures`, `causal` and `bootstrap`; `command` is
    the one that `run.yaml` repeats.
    """
    options, progress = chosen(AttentionOptions, options, keywords), progress or Silent()
    plan = plan_attention(several(models), data, options, progress)
    measures = [m.name for m in plan.measures]
    return run_study(
        request_for("attention", plan.words.inputs, options, measures=measures),
        options,
        out,
        lambda running: compare_heads(plan, running),
        asked=asked_of(plan.words, models, data) | {"command": command},
        work=float(plan.axis.starts[-1]) ** 2 * float(np.square(plan.lengths).sum()) * len(measures),
        progress=progress,
        draw=draw,
    )


def compare_heads(plan: AttentionPlan, running: Run) -> Attention:
    """Read the text shard by shard, then score every layer with every later one, on the estimate and on resamples."""
    shards = read_shards(plan, running)
    items = [{"layer": k, "measures": [m.name for m in plan.measures]} for k in range(len(plan.layers))]
    weights = group_weights(len(plan.groups), plan.options.bootstrap, plan.options.seed)
    panels = running.map(
        score_layer,
        items,
        name="scores",
        key=[plan.key, plan.options.bootstrap],
        label="comparing layers",
        shared=Scoring(shards, plan.axis, weights),
    )
    totals = {name: _summed(shards, name).numpy() for name in (COUNTS, SKIPPED, EMPTY)}
    sizes = sorted({h for _, h in plan.layers})
    distributed = [m.name for m in plan.measures if m.of_heads is None]
    levels = {name: chance_level(parse(name).measure, int(totals[COUNTS][1]), sizes[-1]) for name in distributed}
    result = Attention(
        matrices=tuple(_matrix(plan, m, panels) for m in plan.measures),
        models=plan.words.model_infos,
        data=plan.data,
        findings={"chance": levels} if levels else {},
        arrays={
            m.name: plan.axis.unpacked([p[f"heads.{m.name}"].numpy() for p in panels]).astype(np.float32)
            for m in plan.measures
            if m.of_heads is not None
        },
        heads_of=plan.axis.heads,
        patterns=tuple(_patterns(plan, shards)),
        warnings=(*plan.words.notes, *_notes(plan, totals)),
        provenance=plan.words.provenance,
    )
    return replace(result, statements=judge_attention(result))


def read_shards(plan: AttentionPlan, running: Run) -> Parts:
    """The sums of every shard, one file each."""
    options, order = plan.options, np.concatenate(plan.groups)
    texts = running.file("texts", plan.key, lambda: pack_texts(plan.words.corpus, plan.words.rows, order))
    place = {int(s): k for k, s in enumerate(order)}
    keep = [place[s] for s in plan.samples]
    sizes = [len(g) for g in plan.groups]
    needs = sorted({name for m in plan.measures for name in m.needs})
    items: list[dict[str, Any]] = []
    for a, b in plan.shards:
        first, last = sum(sizes[:a]), sum(sizes[:b])
        inside = sorted(k - first for k in keep if first <= k < last)
        items.append({"first": first, "sizes": sizes[a:b], "keep": inside, "wanted": needs})
    shared = Shared(
        texts=str(texts),
        models=OpenModels(plan.words.models, running.memory / running.engine.workers / 2),
        layers=options.layers,
        axis=plan.axis,
        wanted=frozenset(needs),
        eps=plan.eps,
        causal=options.causal,
        specials=options.keep_specials,
        batch_tokens=options.batch_tokens,
    )
    takes = Resources(gpus=float(any(surveyed.device.startswith("cuda") for _, surveyed in plan.words.models)))
    how: dict[str, Any] = {"name": "heads", "key": plan.key, "label": "reading attention", "shared": shared}
    return running.map_files(read_shard, items, **how, resources=takes)


@dataclass(frozen=True)
class Scoring:
    """What the scores of all layers share."""

    shards: Parts
    axis: HeadAxis
    weights: Doubles
    """(1 + resamples, groups)."""


def score_layer(shared: Scoring, item: dict[str, Any]) -> dict[str, Tensor]:
    """Scores of a layer and every later one on the estimate and every resample; similarity of heads on the estimate."""
    axis, layer = shared.axis, item["layer"]
    measures = [attention_measure(name) for name in item["measures"]]
    groups = _panel(shared.shards, axis, layer, {name for m in measures for name in m.needs})
    scored: list[dict[str, Doubles]] = []
    for first in range(0, len(shared.weights), TOGETHER):
        sums = weighted(groups, shared.weights[first : first + TOGETHER])
        scored.append(score_panel(axis, layer, sums, measures))
    whole = weighted(groups, shared.weights[:1])
    heads = {f"heads.{m.name}": m.of_heads(whole)[0].clip(*m.bounds) for m in measures if m.of_heads is not None}
    scores = {f"scores.{m.name}": np.concatenate([f[m.name] for f in scored]) for m in measures}
    return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in (scores | heads).items()}


def _panel(shards: Parts, axis: HeadAxis, layer: int, needs: set[str]) -> dict[str, Doubles]:
    """The layer's panel of every group of sentences (first axis); of large sums only what is of this layer is read."""
    start, stop = axis.span(layer)
    others = {"own", "total", COUNTS} if SCATTER in needs else {COUNTS}
    parts: dict[str, list[Doubles]] = {name: [] for name in needs | others}
    for shard in shards:
        for name, kept in parts.items():
            where = slice(start, stop) if name in PAIRS else slice(None)
            kept.append(_part(shard, name, where).numpy())
    joined = {name: np.concatenate(kept) for name, kept in parts.items()}
    return {k: v.reshape(len(v), *axis.shape(layer)) if k in PAIRS else v for k, v in joined.items()}


def _part(shard: Path | Mapping[str, Tensor], name: str, where: slice) -> Tensor:
    if not isinstance(shard, Path):
        return shard[name][:, where]
    with safe_open(shard, "pt") as f:
        tensor: Tensor = f.get_slice(name)[:, where]
    return tensor


def _summed(shards: Parts, name: str) -> Tensor:
    """A sum over all groups of all shards; of empty rows, over all shards."""
    sums = []
    for shard in shards:
        if isinstance(shard, Path):
            with safe_open(shard, "pt") as f:
                sums.append(f.get_tensor(name))
        else:
            sums.append(shard[name])
    return torch.stack([t if name == EMPTY else t.sum(0) for t in sums]).sum(0)


def _matrix(plan: AttentionPlan, measure: AttentionMeasure, panels: Sequence[Mapping[str, Tensor]]) -> Matrix:
    axes = tuple(layer for layer, _ in plan.layers)
    n = len(axes)
    values = np.full((1 + plan.options.bootstrap, n, n), np.nan)
    for k, panel in enumerate(panels):
        scores = panel[f"scores.{measure.name}"].numpy()
        values[:, k, k:], values[:, k:, k] = scores[..., 0], scores[..., 1]
    matrix = Matrix(measure.name, axes, axes, values[0])
    if not plan.options.bootstrap or len(plan.groups) < 2:
        return matrix
    several = max(map(len, plan.groups)) > 1
    interval = Interval(0.95, BOOTSTRAP, len(plan.groups), "sentence group" if several else "sentence")
    low, high = spread(values[0], values[1:], interval, bounds=measure.bounds)
    return replace(matrix, low=low, high=high, interval=interval, replicates=values[1:])


def _patterns(plan: AttentionPlan, shards: Parts) -> Iterator[Pattern]:
    place = {int(s): k for k, s in enumerate(np.concatenate(plan.groups))}
    rows = plan.words.rows
    for sentence in plan.samples:
        name = f"pattern.{place[sentence]}"
        weights = next(t for shard in shards if (t := _tensor(shard, name)) is not None)
        whole = words_of(plan.words.corpus.sentences[sentence])
        words = tuple(whole[k] for k in rows.word[rows.sentence == sentence])
        specials = (SPECIALS,) if plan.options.keep_specials else ()
        yield Pattern(words, (*specials, *words), weights.numpy())


def _tensor(shard: Path | Mapping[str, Tensor], name: str) -> Tensor | None:
    if not isinstance(shard, Path):
        return shard.get(name)
    with safe_open(shard, "pt") as f:
        return f.get_tensor(name) if name in f.keys() else None  # noqa: SIM118 - no mapping


def _notes(plan: AttentionPlan, totals: Mapping[str, Any]) -> Iterator[str]:
    """Rows that have no correlation, and rows without any attention to words."""
    names = [f"{layer} head {h + 1}" for layer, heads in plan.layers for h in range(heads)]
    rows = int(totals[COUNTS][1])
    notes = {
        SKIPPED: "have no correlation, as their attention does not vary, and are skipped by pearson",
        EMPTY: "have no attention to any word, only to other tokens, and count as uniform",
    }
    for name, what in notes.items():
        count = totals[name]
        if count.any():
            most = int(count.argmax())
            share = count.sum() / rows / len(names)
            yield f"{share:.2%} of all rows {what}; most of {names[most]} ({count[most] / rows:.2%})"
