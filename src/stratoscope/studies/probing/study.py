"""What every layer and neuron knows of a property of words, before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.claims.durrani2021 import judge_probing
from stratoscope.core.options import answering
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import Value, Values
from stratoscope.data.tagged import SPLITS, Tagged
from stratoscope.models.read.memory import kept_in_file
from stratoscope.models.read.store import Reading, Wanted, store_all
from stratoscope.probes.tasks import by_word, control_tags, majority, number_types
from stratoscope.results.probing import NUMBERS, PUBLISHED, SOLVED, LayerProbes, Layers, Probing
from stratoscope.runs.run import Draw, Run
from stratoscope.statistics.rows import StoredRows
from stratoscope.studies.asked import Model, chosen, model_info, models_asked, request_for, run_study, several
from stratoscope.studies.compare.study import held
from stratoscope.studies.probing.neurons import neuron_probes, unsolved_subsets
from stratoscope.studies.probing.options import ProbeOptions
from stratoscope.studies.probing.plan import Plan, make_plan
from stratoscope.studies.probing.resamples import Resamples, curve_of
from stratoscope.studies.probing.work import Shared, published_layer, solved_layer

WORK_PER_WORD = 1e8
"""About how many operations (FLOP) a layer's probes take for every training word."""


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


def compute(plan: Plan, running: Run) -> Probing:
    """Read every model once, probe its layers one by one, then the neurons of all of them."""
    resamples = Resamples(plan.rows["test"].sentence, plan.options.seed)
    shares = np.bincount(plan.tags["train"].numpy(), minlength=len(plan.corpus.tags)).astype(np.float64)
    control, floors = _beside(plan, shares, resamples)
    shared = [
        Shared(stored, plan.tags, control, len(shares), plan.options.gap, plan.options.seed)
        for stored in read_models(plan, running)
    ]
    key = [plan.inputs, answering(plan.options)]
    kinds = [(SOLVED, solved_layer), *([(PUBLISHED, published_layer)] if plan.options.solver == PUBLISHED else [])]
    probes = []
    for solver, work in kinds:
        items = [
            {"model": m, "layer": k, "solver": solver}
            for m, (_, surveyed) in enumerate(plan.models)
            for k in range(len(plan.layers(surveyed)))
        ]
        parts = running.map(work, items, name="probe", key=key, label=f"{solver} probes of layers", shared=shared)
        for m, (spec, surveyed) in enumerate(plan.models):
            own = [p for item, p in zip(items, parts, strict=True) if item["model"] == m]
            probes.append(layer_probes(spec.label, solver, plan.layers(surveyed), own, resamples))
    neurons = neuron_probes(plan, shared, resamples, running, key) if plan.options.neurons else ()
    base = plan.models[0][0].label
    infos = tuple(
        model_info(spec, surveyed, base=base if k else None) for k, (spec, surveyed) in enumerate(plan.models)
    )
    result = Probing(
        models=infos,
        data={
            "corpus": plan.corpus.name,
            "property": plan.corpus.property_name,
            "fingerprint": plan.corpus.fingerprint,
            "splits": {s: plan.corpus.drawn.get(s) or c.name for s, c in plan.corpus.splits.items()},
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
        warnings=(*plan.notes, *_unsolved(probes, plan.options.gap), *unsolved_subsets(neurons, plan.options.gap)),
    )
    return replace(result, statements=judge_probing(result))


def _beside(plan: Plan, shares: Values, resamples: Resamples) -> tuple[dict[str, Tensor], list[Value]]:
    """Tags of the control task by split, and what always the commonest tag, and each word's own, score."""
    known: dict[str, int] = {}
    types = {
        split: number_types((w for w, _ in plan.corpus.at(split, r.sentence, r.word)), len(r), known)
        for split, r in plan.rows.items()
    }
    train, test = (plan.tags[s].numpy() for s in ("train", "test"))
    right = majority(train, test), by_word(types["train"], train, types["test"], test)
    tags = control_tags(list(known), shares, plan.options.seed).astype(train.dtype)
    return {s: torch.from_numpy(kept_in_file(tags[t])) for s, t in types.items()}, [resamples.value(r) for r in right]


def read_models(plan: Plan, running: Run) -> list[dict[str, StoredRows]]:
    """Of each model every layer's words of every split."""
    how: dict[str, Any] = {k: getattr(plan.options, k) for k in ("subword", "layers", "batch_tokens")}
    readings = [Reading(plan.corpus.splits[s], {"word": plan.rows[s]}, **how) for s in SPLITS]
    wanted = [Wanted(held(*model, running), model[1], reading) for model in plan.models for reading in readings]
    rows = [stored.rows["word"] for stored in store_all(wanted, running)]
    return [dict(zip(SPLITS, rows[k : k + len(SPLITS)], strict=True)) for k in range(0, len(rows), len(SPLITS))]


def layer_probes(
    model: str, solver: str, layers: tuple[int, ...], parts: Sequence[Any], resamples: Resamples
) -> LayerProbes:
    """The curves of one model from what was found for each layer."""
    (values, drawn), (of_control, drawn_control) = (
        resamples.shares(p[name].double().mean(0).numpy() for p in parts) for name in ("right", "control")
    )
    seeds = [p["right"].double().mean(1) for p in parts]
    deviation = np.array([float(s.std()) if len(s) > 1 else np.nan for s in seeds])
    return LayerProbes(
        model,
        solver,
        curve_of(model, layers, values, drawn),
        curve_of(model, layers, of_control, drawn_control),
        curve_of(model, layers, values - of_control, drawn - drawn_control),
        **{name: np.array([float(p[name]) for p in parts]) for name in NUMBERS},
        deviation=deviation,
    )


def _unsolved(probes: Sequence[LayerProbes], gap: float) -> list[str]:
    """Which layers have probes that ended at their cap of passes."""
    notes = []
    for p in (p for p in probes if np.nansum(p.stopped) > 0):
        far = [str(k) for k, n in zip(p.accuracy.layers, p.stopped, strict=True) if n > 0]
        notes.append(
            f"{p.model}: {int(p.stopped.sum())} probes of layers {', '.join(far)} stopped before they were within"
            f" {gap:g} of their optimum, at most {np.nanmax(p.gap):.3f} above it"
        )
    return notes


__all__ = ["ProbeOptions", "probe"]
