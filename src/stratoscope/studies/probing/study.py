"""What every layer and neuron knows of a property of words, before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.claims.durrani2021 import judge_probing
from stratoscope.core.curve import Curve
from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.options import answering
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import PERCENTILES, Interval, Value, Values, spread
from stratoscope.data.tagged import SPLITS, Tagged, read_tagged
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import ModelSpec, Survey, open_model, survey
from stratoscope.models.read.store import Reading, chosen_layers, store_layers
from stratoscope.models.text.rows import SUBWORDS, Rows, plan_rows
from stratoscope.probes.neurons import RANKINGS
from stratoscope.probes.objective import Penalties
from stratoscope.probes.tasks import by_word, control_tags, majority
from stratoscope.results.probing import PUBLISHED, SOLVED, SOLVERS, LayerProbes, Layers, Neuron, NeuronProbes, Probing
from stratoscope.runs.run import Draw, Run
from stratoscope.statistics.rows import StoredRows
from stratoscope.studies.asked import (
    Model,
    chosen,
    model_info,
    models_asked,
    request_for,
    run_study,
    several,
    spec_of,
)
from stratoscope.studies.compare.plan import named
from stratoscope.studies.probing.options import ProbeOptions
from stratoscope.studies.probing.work import (
    SHOWN,
    Shared,
    probed_neurons,
    published_layer,
    ranked_neurons,
    solved_layer,
)

REPLICATES = 1000
WORK_PER_WORD = 1e8
"""About how many operations (FLOP) a layer's probes take for every training word."""
TOGETHER = 50
"""Resamples drawn at once."""
INTERVAL = Interval(0.95, PERCENTILES)
NEIGHBOURS = 4
"""Words shown on either side of a word in context."""


@dataclass(frozen=True)
class Plan:
    """Everything a probing run depends on."""

    models: tuple[tuple[ModelSpec, Survey], ...]
    corpus: Tagged
    rows: dict[str, Rows]
    """Words that every model can give and that have a tag, by split."""
    tags: dict[str, Tensor]
    notes: tuple[str, ...]
    options: ProbeOptions

    @property
    def inputs(self) -> dict[str, Any]:
        """Identity of the models and of the words with their tags."""
        found = [[spec.label, seen.fingerprint, seen.dtype] for spec, seen in self.models]
        return {
            "models": found,
            "corpus": self.corpus.fingerprint,
            "rows": {s: r.fingerprint for s, r in self.rows.items()},
        }

    def layers(self, seen: Survey) -> tuple[int, ...]:
        return chosen_layers(seen, self.options.layers)


def probe(
    models: Model | Sequence[Model],
    *,
    corpus: str | Path | Tagged,
    property: str,
    out: str | Path | None = None,
    options: ProbeOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Probing:
    """Probe every layer for a property of words, such as `upos`; further keywords are the fields of `ProbeOptions`.

    The first model is the base of the others. With `neurons=True` the neurons of all layers are ranked too.
    """
    options, progress = chosen(ProbeOptions, options, keywords), progress or Silent()
    plan = make_plan(several(models), corpus, property, options, progress)
    specs = [spec for spec, _ in plan.models]
    words = {} if isinstance(corpus, Tagged) else {"corpus": str(corpus)}
    return run_study(
        request_for("probing", plan.inputs, options),
        options,
        out,
        lambda running: compute(plan, running),
        asked={"models": [s.source for s in specs], **words, "property": property, **models_asked(specs)},
        progress=progress,
        draw=draw,
        work=float(len(plan.rows["train"])) * WORK_PER_WORD,
    )


def make_plan(
    models: Sequence[Model],
    corpus: str | Path | Tagged,
    property: str,
    options: ProbeOptions,
    progress: Progress,
) -> Plan:
    """Look at the models and the corpus, and refuse what cannot be probed."""
    for name, value, known in (
        ("solver", options.solver, SOLVERS),
        ("ranking", options.ranking, tuple(RANKINGS)),
        ("subword", options.subword, SUBWORDS),
    ):
        if value not in known:
            raise unknown_name(name, value, known)
    if options.share >= 0.5:
        raise StratoscopeError(f"expected a --share below 0.5, so that top and bottom differ, got {options.share:g}")
    specs = named([spec_of(m) for m in models])
    read = (
        corpus
        if isinstance(corpus, Tagged)
        else read_tagged(corpus, property, columns=options.columns, seed=options.seed)
    )
    read = read.sample(options.limit, options.seed)
    surveys = [survey(spec, progress=progress) for spec in specs]
    for seen in surveys:
        chosen_layers(seen, options.layers)
    rows, tags, notes = {}, {}, list[str]()
    for split in SPLITS:
        planned = plan_rows(read.splits[split], [s.encoder for s in surveys], "word")
        numbers = read.numbers(split, planned.sentence, planned.word)
        with_tag = numbers > -2
        unseen = int((numbers == -1).sum())
        remarks = {
            **planned.dropped,
            "words without a tag, which are context only": int((~with_tag).sum()),
        }
        notes += [f"{split}: left out: {n} {what}" for what, n in remarks.items() if n]
        notes += [f"{split}: {unseen} words have tags unseen in training and count as wrong"] if unseen else []
        rows[split] = replace(
            planned,
            sentence=planned.sentence[with_tag],
            word=planned.word[with_tag],
            fingerprint=f"{planned.fingerprint} {read.property_name}",
        )
        tags[split] = torch.from_numpy(numbers[with_tag])
    if read.rare:
        few = ", ".join(f"{tag} ({n})" for tag, n in list(read.rare.items())[:5])
        notes.append(f"tags with few training words: {few}{' ...' if len(read.rare) > 5 else ''}")
    return Plan(tuple(zip(specs, surveys, strict=True)), read, rows, tags, tuple(notes), options)


def compute(plan: Plan, running: Run) -> Probing:
    """Read every model once, probe its layers one by one, then the neurons of all of them."""
    words = {split: [w for w, _ in plan.corpus.at(split, r.sentence, r.word)] for split, r in plan.rows.items()}
    shares = np.bincount(plan.tags["train"].numpy(), minlength=len(plan.corpus.tags)).astype(np.float64)
    control = {s: torch.from_numpy(control_tags(w, shares, plan.options.seed)) for s, w in words.items()}
    shared = [
        Shared(stored, plan.tags, control, len(shares), plan.options.gap, plan.options.seed)
        for stored in (read_model(plan, spec, seen, running) for spec, seen in plan.models)
    ]
    resamples = Resamples(plan.rows["test"].sentence, plan.options.seed)
    key = [plan.inputs, answering(plan.options)]
    kinds = [(SOLVED, solved_layer), *([(PUBLISHED, published_layer)] if plan.options.solver == PUBLISHED else [])]
    probes = []
    for solver, work in kinds:
        items = [
            {"model": m, "layer": k, "solver": solver}
            for m, (_, seen) in enumerate(plan.models)
            for k in range(len(plan.layers(seen)))
        ]
        parts = running.map(work, items, name="probe", key=key, label=f"{solver} probes of layers", shared=shared)
        for m, (spec, seen) in enumerate(plan.models):
            own = [p for item, p in zip(items, parts, strict=True) if item["model"] == m]
            probes.append(layer_probes(spec.label, solver, plan.layers(seen), own, resamples))
    neurons = neuron_probes(plan, shared, words, resamples, running, key) if plan.options.neurons else ()
    train, test = (plan.tags[s].numpy() for s in ("train", "test"))
    floors = [resamples.value(r) for r in (majority(train, test), by_word(words["train"], train, words["test"], test))]
    base = plan.models[0][0].label
    infos = tuple(model_info(spec, seen, base=base if k else None) for k, (spec, seen) in enumerate(plan.models))
    result = Probing(
        models=infos,
        data={
            "corpus": plan.corpus.name,
            "property": plan.corpus.property_name,
            "fingerprint": plan.corpus.fingerprint,
            "sentences": {s: len(c) for s, c in plan.corpus.splits.items()},
            "words": {s: len(r) for s, r in plan.rows.items()},
            "control_seed": plan.options.seed,
        },
        tags=plan.corpus.tags,
        tag_words=tuple(int(n) for n in shares),
        majority=floors[0],
        by_word=floors[1],
        layers=Layers(tuple(probes)),
        neuron_probes=tuple(neurons),
        warnings=(*plan.notes, *_unsolved(probes, plan.options.gap)),
    )
    return replace(result, statements=judge_probing(result))


def read_model(plan: Plan, spec: ModelSpec, seen: Survey, running: Run) -> dict[str, StoredRows]:
    """Every layer's words of every split."""
    open = Held(partial(open_model, spec, seen=seen), seen, progress=running.progress)
    options, found = plan.options, {}
    for split in SPLITS:
        reading = Reading(
            plan.corpus.splits[split],
            {"word": plan.rows[split]},
            subword=options.subword,
            layers=options.layers,
            batch_tokens=options.batch_tokens,
        )
        found[split] = store_layers(open, seen, reading, running).rows["word"]
    return found


class Resamples:
    """The same resamples of the test sentences for every probe; only counts per sentence are kept."""

    def __init__(self, sentence: Any, seed: int) -> None:
        self.first = np.flatnonzero(np.r_[True, np.diff(sentence) != 0])
        self.words = np.diff(np.r_[self.first, len(sentence)]).astype(np.float64)
        self.seed = seed

    def shares(self, right: Any) -> tuple[Values, Values]:
        """(series,) share of right words, and (resamples, series) on every resample, of (series, words)."""
        counts = np.add.reduceat(np.asarray(right, dtype=np.float64), self.first, axis=1).T
        generator, drawn = np.random.default_rng(self.seed), []
        n = len(self.words)
        for start in range(0, REPLICATES, TOGETHER):
            weights = generator.multinomial(n, np.full(n, 1 / n), size=min(TOGETHER, REPLICATES - start)).astype(
                np.float64
            )
            drawn.append(weights @ counts / (weights @ self.words)[:, None])
        return counts.sum(0) / self.words.sum(), np.concatenate(drawn)

    def value(self, right: Any) -> Value:
        """The share of right words with its interval."""
        values, drawn = self.shares(np.asarray(right)[None])
        return value_of(values[0], drawn[:, 0])


def value_of(value: float, drawn: Values) -> Value:
    low, high = spread(np.asarray(value), drawn, INTERVAL)
    return Value(float(value), float(low), float(high))


def curve_of(name: str, layers: tuple[int, ...], values: Values, drawn: Values) -> Curve:
    low, high = spread(values, drawn, INTERVAL)
    return Curve(name, layers, values, low, high, INTERVAL, drawn)


def layer_probes(
    model: str, solver: str, layers: tuple[int, ...], parts: Sequence[Any], resamples: Resamples
) -> LayerProbes:
    """The curves of one model from what was found for each layer."""
    right, control = (np.stack([p[name].double().mean(0).numpy() for p in parts]) for name in ("right", "control"))
    (values, drawn), (of_control, drawn_control) = (resamples.shares(r) for r in (right, control))
    numbers = np.stack([p["numbers"].numpy() for p in parts]).T
    seeds = [p["right"].double().mean(1) for p in parts]
    deviation = np.array([float(s.std()) if len(s) > 1 else np.nan for s in seeds])
    return LayerProbes(
        model,
        solver,
        curve_of(model, layers, values, drawn),
        curve_of(model, layers, of_control, drawn_control),
        curve_of(model, layers, values - of_control, drawn - drawn_control),
        bits=numbers[5],
        dev_accuracy=numbers[0],
        l1=numbers[1],
        l2=numbers[2],
        gap=numbers[3],
        certified=numbers[4],
        deviation=deviation,
    )


def neuron_probes(
    plan: Plan, shared: list[Shared], words: dict[str, list[str]], resamples: Resamples, running: Run, key: Any
) -> list[NeuronProbes]:
    """The ranked neurons of every model."""
    options, models = plan.options, range(len(plan.models))
    counts = [len(plan.layers(seen)) for _, seen in plan.models]
    items = [{"model": m, "layers": list(range(counts[m])), "ranking": options.ranking} for m in models]
    ranked = running.map(ranked_neurons, items, name="ranking", key=key, label="ranking neurons", shared=shared)
    items = [{**item, "share": options.share, "delta": options.delta} for item in items]
    found = running.map(
        probed_neurons, items, name="neurons", key=key, label="probes of neurons", shared=(shared, ranked)
    )
    return [
        _neurons(plan, spec.label, seen, r, f, words["test"], resamples)
        for (spec, seen), r, f in zip(plan.models, ranked, found, strict=True)
    ]


def _neurons(
    plan: Plan, label: str, seen: Survey, ranked: Any, found: Any, words: list[str], resamples: Resamples
) -> NeuronProbes:
    names = ("oracle", "top", "bottom", "random", "minimal", "oracle_control", "minimal_control")
    values, drawn = resamples.shares(np.stack([found[name].numpy() for name in names]))
    of = {name: value_of(values[k], drawn[:, k]) for k, name in enumerate(names)}
    order, layers, width = ranked["ranking"].numpy(), plan.layers(seen), seen.width
    pair, minimal = int(ranked["pair"][0]), int(found["minimal_size"])
    counted = order[: minimal or max(1, round(plan.options.share * len(order)))]
    counts = np.zeros((len(layers), len(plan.corpus.tags)))
    np.add.at(counts, (counted // width, found["tag"].numpy()[counted]), 1)
    first = tuple(
        Neuron(
            layers[int(k) // width],
            int(k) % width,
            plan.corpus.tags[int(found["tag"][k])],
            float(found["mass"][k]),
            tuple(in_context(plan.rows["test"].sentence, words, int(row)) for row in found["words"][place]),
        )
        for place, k in enumerate(order[:SHOWN])
    )
    keep_top, keep_bottom, zero_top = found["ablated"].tolist()
    return NeuronProbes(
        model=label, width=width, layers=layers, ranking=order.astype(np.float64), first=first,
        l1=float(Penalties.grid().l1[pair]), l2=float(Penalties.grid().l2[pair]),
        oracle=of["oracle"], oracle_selectivity=value_of(values[0] - values[5], drawn[:, 0] - drawn[:, 5]),
        share=plan.options.share, top=of["top"], bottom=of["bottom"], random=of["random"],
        keep_top=keep_top, keep_bottom=keep_bottom, zero_top=zero_top,
        steps=found["steps"].numpy(), step_accuracy=found["step_accuracy"].numpy(),
        minimal=minimal, minimal_accuracy=of["minimal"],
        minimal_selectivity=value_of(values[4] - values[6], drawn[:, 4] - drawn[:, 6]),
        counts=counts, replicates=drawn[:, :4],
    )  # fmt: skip


def in_context(sentence: Any, words: list[str], row: int) -> str:
    """A word between its neighbours of the same sentence, in brackets."""
    near = [
        k
        for k in range(max(0, row - NEIGHBOURS), min(len(words), row + NEIGHBOURS + 1))
        if sentence[k] == sentence[row]
    ]
    return " ".join(f"[{words[k]}]" if k == row else words[k] for k in near)


def _unsolved(probes: Sequence[LayerProbes], gap: float) -> list[str]:
    notes = []
    for p in probes:
        far = [str(k) for k, g in zip(p.accuracy.layers, p.gap, strict=True) if g > gap]
        if far:
            worst = float(np.nanmax(p.gap))
            notes.append(
                f"{p.model}: layers {', '.join(far)} stay up to {worst:.3f} above the optimum for some penalties"
            )
    return notes


__all__ = ["ProbeOptions", "probe"]
