"""Compare every layer of any set of models under any set of measures, in one pass over the text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stratoscope.claims import judge_comparison
from stratoscope.core.matrix import Matrix
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.corpus import Corpus
from stratoscope.engine.local import local_engine
from stratoscope.measures.bootstrap import bootstrap, check_memory
from stratoscope.measures.permuted import permuted_chance
from stratoscope.measures.score import Scoring, score_layers
from stratoscope.measures.structure import findings
from stratoscope.measures.table import WORTH_SAYING
from stratoscope.models.open.loading import ModelSpec
from stratoscope.models.read.store import PART, Reading, store_layers, together
from stratoscope.models.saved.files import is_saved
from stratoscope.models.saved.source import open_source
from stratoscope.models.saved.write import check_target, file_for, save_activations
from stratoscope.results.comparison import Comparison
from stratoscope.runs.run import Draw, Run, part_prefix, run
from stratoscope.statistics.rows import StoredRows
from stratoscope.studies.asked import data_asked, models_asked, protocol
from stratoscope.studies.compare.options import CompareOptions, SimilarityOptions
from stratoscope.studies.compare.plan import Plan, make_plan, named


def compare(
    models: Sequence[str | Path | ModelSpec],
    *,
    data: str | Path | Corpus,
    out: str | Path | None = None,
    options: CompareOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    command: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare all layers of all models; with `out`, finished parts are kept there and reused.

    `command` is for `study_similarity`: what `run.yaml` says in place of `compare`.
    """
    options, progress = options or CompareOptions(), progress or Silent()
    plan = make_plan(models, data, options, progress)
    targets = _targets(plan)
    for path in targets:
        check_target(path, overwrite=options.overwrite)
    given = [spec for spec in plan.specs if not spec.random_init]
    names = {"name": [spec.name for spec in given]} if any(isinstance(m, ModelSpec) and m.name for m in models) else {}
    asked = {"models": [spec.source for spec in given], **names, **data_asked(data), **models_asked(given)}
    asked |= {} if given[0].dtype == "float32" else {"dtype": given[0].dtype}
    comparison = run(
        plan.request,
        out,
        lambda running: score_plan(plan, read_plan(plan, running), running),
        progress=progress,
        overwrite=options.overwrite,
        keep=lambda part: options.keep and part.startswith(part_prefix(PART)),
        draw=draw,
        protocol={**protocol("compare", asked, options=options), **(command or {})},
        engine=lambda: local_engine(options.workers, work_of(plan)),
        memory=options.memory,
    )
    for path in targets:
        if not path.exists():
            progress.note(f"{path} was not written, because the result was there already; give --overwrite")
    return comparison


def study_similarity(
    models: Sequence[str | Path | ModelSpec],
    *,
    data: str | Path | Corpus,
    out: str | Path | None = None,
    options: SimilarityOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
) -> Comparison:
    """Compare models as Wu et al. 2020 do (Fig. 1, 2, 3, 8, 9): five measures and localization on one page.

    With `random_init` every checkpoint gets a control of its own, as in Fig. 2, drawn from a seed of its own.
    """
    options = options or SimilarityOptions()
    specs = named([m if isinstance(m, ModelSpec) else ModelSpec(str(m)) for m in models])
    chance = [s for s in specs if options.random_init and not is_saved(s.source)]
    controls = [
        replace(s, random_init=True, seed=options.seed + k, name=f"{s.label}-random") for k, s in enumerate(chance)
    ]
    plain = CompareOptions(**{**vars(options), "random_init": False})
    command = {"command": "study similarity"} | ({"random_init": True} if options.random_init else {})
    how: dict[str, Any] = {"data": data, "out": out, "options": plain, "progress": progress, "draw": draw}
    return compare([*specs, *controls], command=command, **how)


def work_of(plan: Plan) -> float:
    """About how many operations (FLOP) the comparison takes: little work is done in this process."""
    width = max(seen.width for seen in plan.surveys)
    return len(plan.rows) * float(len(plan.layers) * width) ** 2 * max(1, plan.options.bootstrap)


def read_plan(plan: Plan, running: Run) -> StoredRows:
    """Every layer's rows, read with each model once."""
    unit, options = plan.rows.unit, plan.options
    reading = Reading(
        plan.corpus,
        {unit: plan.rows},
        subword=options.subword,
        layers=options.layers,
        batch_tokens=options.batch_tokens,
    )
    opened = [(partial(open_source, spec, seen=seen, progress=running.progress), seen) for spec, seen in plan.models]
    stored = [store_layers(open, seen, reading, running).rows[unit] for open, seen in opened]
    for path, of in zip(_targets(plan), stored, strict=False):
        if left_out := save_activations(path, of, plan.rows, plan.corpus):
            running.progress.note(f"{left_out} sentences are not in {path}: not every model has all of their words")
    return together(stored)


def _targets(plan: Plan) -> list[Path]:
    """The file that each model's activations are saved to, where that was asked for."""
    path, specs = plan.options.save_activations, plan.specs
    return [] if path is None else [file_for(path, spec.label, several=len(specs) > 1) for spec in specs]


def score_plan(plan: Plan, stored: StoredRows, running: Run) -> Comparison:
    """Score stored rows, with intervals where they were asked for, and judge what they show."""
    options, rows = plan.options, plan.rows
    if options.bootstrap:
        widths = sum(seen.width for _, seen in plan.layers)
        check_memory(len(rows), widths, workers=running.engine.workers, memory=running.memory)
        many = options.bootstrap
        running.progress.note(
            f"{many} bootstrap replicates: about {many} times the scoring (linear CKA on few rows: less)"
        )
    scoring = score_layers(stored, plan.wanted, run=running, key=plan.key, seed=options.seed)
    values = {name: s.values for name, s in scoring.scored.items()}
    resampled = {}
    if options.bootstrap:
        resampled = bootstrap(
            stored,
            torch.from_numpy(rows.sentence),
            plan.wanted,
            values,
            replicates=options.bootstrap,
            run=running,
            key=plan.key,
            seed=options.seed,
        )
    axes = tuple(layer for layer, _ in plan.layers)
    matrices = []
    for name, value in values.items():
        matrix = Matrix(name, axes, axes, value.numpy())
        drawn = resampled.get(name)
        if drawn is not None and drawn.interval is not None:
            low, high, replicates = drawn.low, drawn.high, drawn.replicates
            matrix = replace(matrix, low=low, high=high, interval=drawn.interval, replicates=replicates)
        matrices.append(matrix)
    comparison = Comparison(
        matrices=tuple(matrices),
        models=plan.model_infos,
        data=plan.data,
        warnings=(
            *plan.notes,
            *(drawn.note for drawn in resampled.values() if drawn.note),
            *_constant_notes(plan, scoring),
            *_lost_notes(plan, scoring),
            *_undefined_notes(plan, scoring),
        ),
        provenance=plan.provenance,
        arrays={k: v.numpy() for s in scoring.scored.values() for k, v in s.arrays.items()},
    )
    found = findings(comparison, standardise=options.standardise)
    if levels := _permuted_chance(plan, stored, running):
        found["chance"] = levels
        comparison = replace(comparison, warnings=(*comparison.warnings, *_chance_notes(levels)))
    comparison = replace(comparison, findings=found)
    return replace(comparison, statements=judge_comparison(comparison))


def _permuted_chance(plan: Plan, stored: StoredRows, running: Run) -> dict[str, float]:
    """What layers score once whole sentences are permuted, where sentences hold several rows (not independent ones).

    Measures of covariances only: those of kernels would cost as much again as their scores.
    """
    sentence, wanted = torch.from_numpy(plan.rows.sentence), [r for r in plan.wanted if r.measure.compare]
    sentences = len(torch.unique_consecutive(sentence))
    if not wanted or not 2 <= sentences < len(sentence):
        return {}
    levels = permuted_chance(stored, sentence, wanted, run=running, key=plan.key, seed=plan.options.seed)
    return {name: level for name, level in levels.items() if not math.isnan(level)}


def _chance_notes(levels: dict[str, float]) -> list[str]:
    high = [f"{level:.2f} ({name})" for name, level in levels.items() if level > WORTH_SAYING]
    if not high:
        return []
    return [
        "Rows of one sentence are not independent: with whole sentences permuted, layers still score up to"
        f" {', '.join(high)}; only higher scores are meaningful."
    ]


def _constant_notes(plan: Plan, scoring: Scoring) -> list[str]:
    missing = [str(a) for (a, seen), c in zip(plan.layers, scoring.constant, strict=True) if c == seen.width]
    partly = sum(c for (_, seen), c in zip(plan.layers, scoring.constant, strict=True) if c < seen.width)
    notes = [f"{', '.join(missing)} do not vary over these rows and are shown as missing"] if missing else []
    return notes + (
        [f"{partly} neurons do not vary over these rows and score 0 in neuronsim and mixedsim"] if partly else []
    )


def _lost_notes(plan: Plan, scoring: Scoring) -> list[str]:
    """Which layers have fewer directions than they could; the one that LayerNorm takes is not worth a word."""
    counted = zip(plan.layers, scoring.lost, scoring.constant, strict=True)
    most = len(plan.rows) - 1
    lost = [f"{k} of {min(seen.width - constant, most)} in {a}" for (a, seen), k, constant in counted if k > 1]
    if not lost:
        return []
    return [
        f"directions that vary by no more than rounding are left out of measures that invert a covariance:"
        f" {', '.join(lost)} (neurons that depend on each other, repeated rows, or signal too faint for the dtype)"
    ]


def _undefined_notes(plan: Plan, scoring: Scoring) -> list[str]:
    """Which layers vary and yet have no score under a measure, and why."""
    notes = []
    for request in plan.wanted:
        own = scoring.scored[request.name].values.diagonal().tolist()
        counted = zip(plan.layers, own, scoring.constant, strict=True)
        missing = [str(a) for (a, seen), value, c in counted if math.isnan(value) and c < seen.width]
        if missing:
            notes.append(f"{request.name} is missing for {', '.join(missing)}: {request.measure.undefined}")
    return notes


__all__ = ["CompareOptions", "compare", "read_plan", "score_plan", "study_similarity"]
