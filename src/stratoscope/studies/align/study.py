"""Is there a bijection between two models' spaces? Maps between the same layers of every pair of models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.aligners.fit import FEWEST_ROWS
from stratoscope.aligners.scores import INTERVAL, around_mean, relative, resamples, scores
from stratoscope.aligners.texts import check_texts
from stratoscope.claims import judge_alignment
from stratoscope.core.curve import Curve
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.options import check_names
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import spread
from stratoscope.data.corpus import Corpus
from stratoscope.models.text.encoder import IntArray
from stratoscope.results.alignment import IDENTITY, SHUFFLED, Alignment, LayerFit
from stratoscope.runs.run import Draw, Run
from stratoscope.statistics.rows import LayerRows, gather
from stratoscope.studies.align.attention import FROM_A_TEXT, WordPairs, any_causal, read_pairs, sample_pairs
from stratoscope.studies.align.options import ATTENTION, AlignOptions
from stratoscope.studies.align.work import (
    check_fitted,
    chosen_methods,
    cross_layer,
    fit_items,
    fit_layers,
    missing,
    norm_interval,
    nuclear_norm,
    read_bytes,
    split_rows,
)
from stratoscope.studies.asked import Model, chosen, data_asked, models_asked, request_for, run_study, spec_of
from stratoscope.studies.attention.options import AttentionOptions
from stratoscope.studies.attention.plan import AttentionPlan, plan_attention
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.plan import Plan, make_plan
from stratoscope.studies.compare.study import read_plan

MODELS, BEFORE, CEILING = "models", "before", "ceiling"
FEWEST_TEST_ROWS = 10


@dataclass(frozen=True)
class Work:
    """Models and rows, which of them are fitted on, and which pairs."""

    plan: Plan
    after: int
    """How many of the models are those asked about."""
    before: int
    """How many of the others are those before fine-tuning; what is left are other seeds of the last one asked about."""
    methods: tuple[str, ...]
    options: AlignOptions
    attention: AttentionPlan | None = None
    """Where rows are word pairs."""

    @cached_property
    def pairs_of_words(self) -> WordPairs | None:
        """The sample of them that is read."""
        if self.attention is None:
            return None
        o = self.options
        number = o.train + o.test + 2 * FROM_A_TEXT  # a text is on one side, whole
        return sample_pairs(self.attention.lengths, number, seed=o.seed, causal=any_causal(self.attention))

    @cached_property
    def axis(self) -> list[tuple[Layer, int]]:
        """Every layer in the order it is stored, with its width."""
        return (
            list(self.attention.layers) if self.attention else [(a, surveyed.width) for a, surveyed in self.plan.layers]
        )

    def read(self, running: Run) -> LayerRows:
        """The rows of every layer."""
        if self.attention and self.pairs_of_words:
            return read_pairs(self.attention, self.pairs_of_words, running)
        return read_plan(self.plan, running)

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor]:
        o = self.options
        return split_rows(self.text, o.train, o.test, seed=o.seed)

    @cached_property
    def text(self) -> IntArray:
        """The text of every row."""
        return self.pairs_of_words.text if self.pairs_of_words else self.plan.rows.sentence

    @cached_property
    def place(self) -> dict[tuple[str, int], int]:
        """Position of each layer among the stored ones."""
        return {(a.model, a.index): k for k, (a, _) in enumerate(self.axis)}

    def layers(self, *models: str) -> list[int]:
        """Layers that all these models have."""
        own = [{k for name, k in self.place if name == m} for m in models]
        return sorted(set.intersection(*own))

    @cached_property
    def pairs(self) -> list[tuple[str, str, str]]:
        """Group and both models of every pair, or of a random sample of them."""
        names = [spec.label for spec in self.plan.specs]
        pairs = []
        seeds = self.after + self.before
        for group, some in ((MODELS, names[: self.after]), (BEFORE, names[self.after : seeds])):
            every = list(combinations(some, 2))
            if self.options.pairs is not None and self.options.pairs < len(every):
                drawn = np.random.default_rng(self.options.seed).permutation(len(every))[: self.options.pairs]
                every = [every[k] for k in sorted(drawn)]
            pairs += [(group, a, b) for a, b in every]
        return pairs + [(CEILING, seed, names[self.after - 1]) for seed in names[seeds:]]


def align(
    *models: Model,
    data: str | Path | Corpus,
    before: Sequence[Model] = (),
    ceiling: Sequence[Model] = (),
    out: str | Path | None = None,
    options: AlignOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Alignment:
    """Fit maps between the same layers of all pairs of models on some rows, and judge them on others.

    `before` are the models before fine-tuning, aligned with each other in the same way; `ceiling` are other seeds of
    the last model, whose maps to it show how well any could do. Further keywords are the fields of `AlignOptions`.
    """
    options, progress = chosen(AlignOptions, options, keywords), progress or Silent()
    check_names(options)
    if len(models) < 2:
        raise StratoscopeError(f"expected at least two models to align, got {len(models)}")
    if len(before) == 1:
        raise StratoscopeError("expected at least two models --before, which are aligned with each other, got 1")
    if options.layer is not None and options.layers is not None:
        raise StratoscopeError("expected one of --layer and --layers, got both")
    methods = chosen_methods(options.method, paper=options.paper)
    how, attention, every = comparing(options), None, [*models, *before, *ceiling]
    if options.unit == ATTENTION:
        given = {f.name: getattr(how, f.name) for f in fields(AttentionOptions) if hasattr(how, f.name)}
        attention = plan_attention(every, data, AttentionOptions(**given | {"measures": ("js",)}), progress)
    plan = attention.words if attention else make_plan(every, data, how, progress)
    work = Work(plan, len(models), len(before), methods, options, attention)
    _check_widths(work)
    for side, least, what in zip(
        work.sides, (FEWEST_ROWS, FEWEST_TEST_ROWS), ("fit maps on", "judge them on"), strict=True
    ):
        if len(side) < least:
            total = f"{len(side)} of the {len(work.text)} there are"
            raise StratoscopeError(f"expected at least {least} rows to {what}, got {total}; give more text")
    check_texts(len(work.sides[0]), work.text[work.sides[0].numpy()])
    after, others = plan.specs[: work.after], plan.specs[work.after :]
    names = {"name": [s.name for s in after]} if any(spec_of(m).name for m in models) else {}
    asked = {"models": [s.source for s in after], **names, **data_asked(data), **models_asked(after)}
    for name, some in (("before", others[: work.before]), ("ceiling", others[work.before :])):
        asked |= {name: [s.source for s in some]} if some else {}
    return run_study(
        request_for("alignment", {**plan.inputs, "after": work.after, "before": work.before}, options, method=methods),
        options,
        out,
        lambda running: compute(work, work.read(running), running),
        asked=asked,
        work=math.inf,
        progress=progress,
        draw=draw,
    )


def _check_widths(work: Work) -> None:
    """Refuse, before any work, to look for bijections alone between spaces that all differ in width."""
    widths = [[work.axis[work.place[m, k]][1] for m in (a, b)] for _, a, b in work.pairs for k in work.layers(a, b)]
    if set(work.options.method) == {"inn"} and not any(x == y for x, y in widths):
        raise StratoscopeError(
            f"a bijection needs spaces of one width, got {' and '.join(map(str, widths[0]))}; use ridge or mlp"
        )


def comparing(options: AlignOptions) -> CompareOptions:
    """The same rows as a comparison reads; every text gives a row at least, so no more texts than rows asked for."""
    return CompareOptions(
        unit="word" if options.unit == ATTENTION else options.unit,
        measures=("ckasim-debiased",),  # no score is made; this one has no chance level to warn of
        layers=options.layers if options.layer is None else (options.layer,),
        limit=options.train + options.test,
        **{k: getattr(options, k) for k in ("seed", "text", "pair", "label", "columns", "split")},
        **{k: getattr(options, k) for k in ("batch_tokens", "memory", "workers")},
    )


def compute(work: Work, rows: LayerRows, running: Run) -> Alignment:
    """All fits, each pair of layers a part of its own."""
    o, plan = work.options, work.plan
    train, test = work.sides
    shared: dict[str, Any] = {"rows": rows, "train": train, "test": test}
    shared["texts"] = work.text[torch.cat(work.sides).numpy()]
    key = [plan.key, o.unit, o.train, o.test, o.seed]
    alone = o.layer is not None and sum(group == MODELS for group, _, _ in work.pairs) == 1
    how = {"seed": o.seed, "paper": o.paper}
    items, of = [], []
    for group, a, b in work.pairs:
        for k in work.layers(a, b):
            floors = () if group == CEILING else (SHUFFLED, IDENTITY)
            some = fit_items(work.place[a, k], work.place[b, k], (*work.methods, *floors), **how)
            items += [{**item, "keep": alone and group == MODELS} for item in some]
            of += [(group, a, b, k)] * len(some)
    parts = running.map(fit_layers, items, name="maps", key=key, label="fitting maps", shared=shared)
    check_fitted(o.method, parts)
    fits = [f for where, part, item in zip(of, parts, items, strict=True) for f in _fits(work, where, part, item)]
    kept = next((p for p in reversed(parts) if "record" in p), None) if alone else None
    result = Alignment(
        models=plan.model_infos,
        data={**plan.data, "unit": o.unit, "train": len(train), "test": len(test)},
        fits=tuple(fits),
        matrices=() if o.layer is not None else tuple(matrices(work, running, shared, key)),
        norms=() if work.attention else tuple(norms(work, running, shared, key)),
        map_record={} if kept is None else json.loads(read_bytes(kept["record"])),
        map_tensors={} if kept is None else {k[4:]: v.numpy() for k, v in kept.items() if k.startswith("map.")},
        warnings=(*missing(work.methods, parts), *plan.notes, *_few(work)),
        provenance=plan.provenance,
    )
    return replace(result, statements=judge_alignment(result))


def _fits(
    work: Work, where: tuple[str, str, str, int], part: Mapping[str, Tensor], item: Mapping[str, Any]
) -> Iterator[LayerFit]:
    group, a, b, k = where
    layers, widths = zip(*work.axis, strict=True)
    x, y = layers[work.place[a, k]], layers[work.place[b, k]]
    for method in item["methods"]:
        if f"squares.{method}" in part:
            squares, around = part[f"squares.{method}"].numpy(), part["around"].numpy()
            width, inversion = widths[work.place[b, k]], float(part[f"inversion.{method}"])
            texts, seed = work.text[work.sides[1].numpy()], work.options.seed
            fit = scores(method, squares, around, width, inversion=inversion, texts=texts, seed=seed)
            yield LayerFit(x, y, group, fit)


def _few(work: Work) -> list[str]:
    """A warning where there are no more rows than unknowns."""
    n, widest = len(work.sides[0]), max(width for _, width in work.axis)
    if n > widest:
        return []
    return [
        f"maps are fitted on {n:,} rows of up to {widest:,} features: linreg fits so few exactly, whatever they are,"
        " and others mostly follow what they are shrunk to; give more rows"
    ]


def matrices(work: Work, running: Run, shared: Mapping[str, Any], key: Any) -> Iterator[Matrix]:
    """Relative error of ridge between all layers of the first pair, and among the layers of the first model."""
    layers = [a for a, _ in work.axis]
    _, first, second = work.pairs[0]
    own = {name: [k for k, a in enumerate(layers) if a.model == name] for name in (first, second)}
    columns = own[first] + own[second]
    items = [{"x": x, "ys": columns, "seed": work.options.seed} for x in own[first]]
    parts = running.map(cross_layer, items, name="cross", key=key, label="all pairs of layers", shared=shared)
    texts = work.text[shared["test"].numpy()]
    weights = resamples(len(texts), texts=texts, seed=work.options.seed)
    squares = np.stack([p["squares"].numpy() for p in parts])
    around = np.stack([around_mean(gather(shared["rows"], k, shared["test"]).float()) for k in columns])
    values = relative(squares.sum(-1), around.sum(-1))
    drawn = relative(np.einsum("rn,ijn->rij", weights, squares), (weights @ around.T)[:, None])
    low, high = spread(values, drawn, INTERVAL)
    half = len(own[first])
    for name, part in ((f"{first} to {second}", slice(half, None)), (f"{first} to itself", slice(0, half))):
        down, across = tuple(layers[k] for k in own[first]), tuple(layers[k] for k in columns[part])
        v, a, b, every = (m[..., part] for m in (values, low, high, drawn))
        yield Matrix(f"ridge error, {name}", down, across, v, a, b, INTERVAL, every)


def norms(work: Work, running: Run, shared: Mapping[str, Any], key: Any) -> Iterator[Curve]:
    """Nuclear norm of every layer of every model, over the largest of the model."""
    layers = [a for a, _ in work.axis]
    items = [{"layer": k, "seed": work.options.seed} for k in range(len(layers))]
    parts = running.map(nuclear_norm, items, name="norm", key=key, label="nuclear norms", shared=shared)
    interval = norm_interval(len(np.unique(shared["texts"])))
    for spec in work.plan.specs:
        own = [k for k, a in enumerate(layers) if a.model == spec.label]
        nuclear = torch.stack([parts[k]["norm"] for k in own], dim=1).numpy()
        nuclear = nuclear / nuclear[0].max() if nuclear[0].max() > 0 else nuclear
        low, high = spread(nuclear[0], nuclear[1:], interval)
        yield Curve(spec.label, tuple(layers[k].index for k in own), nuclear[0], low, high, interval, nuclear[1:])
