"""Compare every layer of any set of models under any set of measures, in one pass over the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stratoscope.claims import judge_comparison
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Matrix
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.readers import Data
from stratoscope.measures.bootstrap import bootstrap, check_memory
from stratoscope.measures.permuted import permuted_chance
from stratoscope.measures.score import Scoring, score_layers
from stratoscope.measures.structure import findings
from stratoscope.measures.table import WORTH_SAYING
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey
from stratoscope.models.read.store import PART, Reading, Wanted, store_all, together
from stratoscope.models.saved.files import is_saved
from stratoscope.models.saved.source import open_source
from stratoscope.models.saved.write import check_target, file_for, save_activations
from stratoscope.results.comparison import Comparison
from stratoscope.runs.run import Draw, Run, part_prefix
from stratoscope.statistics.rows import StoredRows, count
from stratoscope.studies.asked import Model, chosen, data_asked, models_asked, run_study, several, shard_of, spec_of
from stratoscope.studies.compare.options import CompareOptions, SimilarityOptions
from stratoscope.studies.compare.plan import Plan, make_plan, named


def compare(
    models: Model | Sequence[Model],
    *,
    data: Data,
    out: str | Path | None = None,
    options: CompareOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Comparison:
    """Compare all layers of all models; with `out`, finished parts are kept there and reused.

    Further keywords are the fields of `CompareOptions`, among them `unit`, `measures` and `bootstrap`, and how to read
    `data`: `text`, `pair`, `label`, `columns`.
    """
    return _compare(several(models), data, out, chosen(CompareOptions, options, keywords), progress, draw)


def study_similarity(
    models: Model | Sequence[Model],
    *,
    data: Data,
    out: str | Path | None = None,
    options: SimilarityOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Comparison:
    """Compare models as Wu et al. 2020 do (Fig. 1, 2, 3, 8, 9): five measures and localization on one page.

    With `random_init` every checkpoint gets a control of its own, as in Fig. 2, drawn from a seed of its own. Further
    keywords are the fields of `SimilarityOptions`.
    """
    options = chosen(SimilarityOptions, options, keywords)
    specs = named([spec_of(m) for m in several(models)])
    chance = [s for s in specs if options.random_init and not is_saved(s.source)]
    controls = [
        replace(s, random_init=True, seed=options.seed + k, name=f"{s.label}-random") for k, s in enumerate(chance)
    ]
    plain = CompareOptions(**{**vars(options), "random_init": False})
    command = {"command": "study similarity"} | ({"random_init": True} if options.random_init else {})
    return _compare([*specs, *controls], data, out, plain, progress, draw, **command)


def _compare(
    models: Sequence[Model],
    data: Data,
    out: str | Path | None,
    options: CompareOptions,
    progress: Progress | None,
    draw: Draw | None,
    **command: Any,
) -> Comparison:
    """The comparison; `command` is what `run.yaml` says in place of `compare`."""
    progress = progress or Silent()
    plan = make_plan(models, data, options, progress)
    targets = _targets(plan)
    if targets and shard_of(options) is not None:
        raise StratoscopeError("shards do not save activations; leave out --save-activations, or --shard and --merge")
    for path in targets:
        check_target(path, overwrite=options.overwrite)
    comparison = run_study(
        plan.request,
        options,
        out,
        lambda running: score_plan(plan, read_plan(plan, running), running),
        asked=asked_of(plan, models, data) | command,
        work=work_of(plan),
        keep=lambda part: options.keep and part.startswith(part_prefix(PART)),
        progress=progress,
        draw=draw,
    )
    for path in targets:
        if not path.exists():
            progress.note(f"{path} was not written, because the result was there already; give --overwrite")
    return comparison


def asked_of(plan: Plan, models: Model | Sequence[Model], data: Data) -> dict[str, Any]:
    """The models and the data in the user's own words."""
    given = [spec for spec in plan.specs if not spec.random_init]
    named = any(spec_of(m).name for m in several(models))
    asked = {"models": [spec.source for spec in given], **data_asked(data), **models_asked(given)}
    asked |= {"name": [spec.name for spec in given] if named else [], "base": given[0].base}
    return asked | ({} if given[0].dtype == "float32" else {"dtype": given[0].dtype})


def work_of(plan: Plan) -> float:
    """About how many operations (FLOP) the comparison takes: little work is done in this process."""
    width = max(surveyed.width for surveyed in plan.surveys)
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
        store=options.store,
    )
    wanted = [Wanted(held(*model, running), model[1], reading) for model in plan.models]
    stored = [s.rows[unit] for s in store_all(wanted, running)]
    for path, of in zip(_targets(plan), stored, strict=False):
        if left_out := save_activations(path, of, plan.rows, plan.corpus):
            running.progress.note(f"{left_out} sentences are not in {path}: not every model has all of their words")
    return together(stored)


def held(spec: ModelSpec, surveyed: Survey, running: Run) -> Held | Callable[[], OpenedModel]:
    """One of several models, as a worker anywhere can open it; saved activations are looked up here."""
    if is_saved(spec.source):
        return partial(open_source, spec, surveyed=surveyed, progress=running.progress)
    opening = partial(open_source, spec, surveyed=surveyed)
    return Held(opening, surveyed, progress=running.progress, one_of_many=True)


def _targets(plan: Plan) -> list[Path]:
    """The file that each model's activations are saved to, where that was asked for."""
    path, specs = plan.options.save_activations, plan.specs
    return [] if path is None else [file_for(path, spec.label, several=len(specs) > 1) for spec in specs]


def score_plan(plan: Plan, stored: StoredRows, running: Run) -> Comparison:
    """Score stored rows, with intervals where they were asked for, and judge what they show."""
    options, rows = plan.options, plan.rows
    if options.bootstrap:
        widths = sum(surveyed.width for _, surveyed in plan.layers)
        check_memory(len(rows), widths, workers=running.engine.workers, memory=running.memory)
        many = options.bootstrap
        running.progress.note(
            f"{many} bootstrap replicates: about {many} times the scoring (linear CKA on few rows: less)"
        )
    how: dict[str, Any] = {"run": running, "key": plan.key, "seed": options.seed}
    scoring = score_layers(stored, plan.wanted, **how)
    values = {name: s.values for name, s in scoring.scored.items()}
    resampled = {}
    if options.bootstrap:
        sentence = torch.from_numpy(rows.sentence)
        resampled = bootstrap(stored, sentence, plan.wanted, values, replicates=options.bootstrap, **how)
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
        warnings=(*plan.notes, *(d.note for d in resampled.values() if d.note), *_scoring_notes(plan, scoring)),
        provenance=plan.provenance,
        arrays={k: v.numpy() for s in scoring.scored.values() for k, v in s.arrays.items()},
    )
    structure = findings(comparison, standardise=options.standardise)
    if levels := _permuted_chance(plan, stored, running):
        structure["chance"] = levels
        if above := [f"{level:.2f} ({name})" for name, level in levels.items() if level > WORTH_SAYING]:
            note = (
                "Rows of one sentence are not independent: with whole sentences permuted, layers still score up to"
                f" {', '.join(above)}; only higher scores are meaningful."
            )
            comparison = replace(comparison, warnings=(*comparison.warnings, note))
    if stored.exact:
        comparison = _with_rounding(plan, stored, comparison, running)
    comparison = replace(comparison, findings=structure)
    return replace(comparison, statements=judge_comparison(comparison))


def _with_rounding(plan: Plan, stored: StoredRows, comparison: Comparison, running: Run) -> Comparison:
    """The comparison with what float16 on disk changed: every measure once more on the first rows, kept both ways."""
    exact, kept = stored.first()
    n, width = count(exact), max(surveyed.width for _, surveyed in plan.layers)
    requested = [r for r in plan.wanted if n > width or not r.measure.whitens]
    silent, seed = replace(running, progress=Silent()), plan.options.seed
    one, two = (
        score_layers(rows, requested, run=silent, key=[plan.key, how, n], seed=seed).scored
        for rows, how in ((exact, "exact"), (kept, "kept"))
    )
    change = {r.name: float((one[r.name].values - two[r.name].values).abs().nan_to_num().max()) for r in requested}
    said = ", ".join(f"{value:.1g} ({name})" for name, value in change.items())
    note = f"Activations are kept in float16: on the first {n} rows that changes scores by at most {said}."
    if missing := [r.name for r in plan.wanted if r not in requested]:
        note += f" Not measured, since {n} rows are fewer than the {width} neurons: {', '.join(missing)}."
    kept_in = {"dtype": plan.options.store, "rows": n, "change": change}
    provenance = {**comparison.provenance, "store": kept_in}
    return replace(comparison, warnings=(*comparison.warnings, note), provenance=provenance)


def _permuted_chance(plan: Plan, stored: StoredRows, running: Run) -> dict[str, float]:
    """What layers score once whole sentences are permuted, where sentences hold several rows (not independent ones).

    Measures of covariances only: those of kernels would cost as much again as their scores.
    """
    sentence, requested = torch.from_numpy(plan.rows.sentence), [r for r in plan.wanted if r.measure.compare]
    sentences = len(torch.unique_consecutive(sentence))
    if not requested or not 2 <= sentences < len(sentence):
        return {}
    levels = permuted_chance(stored, sentence, requested, run=running, key=plan.key, seed=plan.options.seed)
    return {name: level for name, level in levels.items() if not math.isnan(level)}


def _scoring_notes(plan: Plan, scoring: Scoring) -> list[str]:
    """Which layers have no score, or fewer directions than they could, and why."""
    layers = list(zip(plan.layers, scoring.constant, scoring.lost, strict=True))
    notes = []
    if missing := [str(layer) for (layer, surveyed), constant, _ in layers if constant == surveyed.width]:
        notes.append(f"{', '.join(missing)} do not vary over these rows and are shown as missing")
    if partly := sum(constant for (_, surveyed), constant, _ in layers if constant < surveyed.width):
        notes.append(f"{partly} neurons do not vary over these rows and score 0 in neuronsim and mixedsim")
    most = len(plan.rows) - 1
    # The one direction that LayerNorm takes is not worth a word.
    if lost := [f"{k} of {min(surveyed.width - c, most)} in {layer}" for (layer, surveyed), c, k in layers if k > 1]:
        notes.append(
            "directions that vary by no more than rounding are left out of measures that invert a covariance:"
            f" {', '.join(lost)} (neurons that depend on each other, repeated rows, or signal too faint for the dtype)"
        )
    for request in plan.wanted:
        own = scoring.scored[request.name].values.diagonal().tolist()
        varying = [(layer, v) for ((layer, surveyed), c, _), v in zip(layers, own, strict=True) if c < surveyed.width]
        if undefined := [str(layer) for layer, value in varying if math.isnan(value)]:
            notes.append(f"{request.name} is missing for {', '.join(undefined)}: {request.measure.undefined}")
    return notes


__all__ = ["CompareOptions", "compare", "read_plan", "score_plan"]
