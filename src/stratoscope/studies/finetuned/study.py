"""What fine-tuning changed: a base model and what was tuned from it, layer by layer, and cut at every depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratoscope.claims import judge_study
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import at_home
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.corpus import Corpus
from stratoscope.data.tasks.data import TaskData
from stratoscope.measures.structure import LOCALIZING
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.loading import ModelSpec, survey
from stratoscope.models.read.store import Reading, Stored, together
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.cut import Cut
from stratoscope.results.cutting.depth import Depth
from stratoscope.results.study import LOCALIZATION, Study
from stratoscope.runs.run import Draw, Run
from stratoscope.studies.asked import (
    Model,
    chosen,
    models_asked,
    names_asked,
    request_for,
    run_study,
    several,
    spec_of,
    task_asked,
)
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.plan import Plan, check, named, plan_of
from stratoscope.studies.compare.study import score_plan, work_of
from stratoscope.studies.depth.judge import Side, Work, judge
from stratoscope.studies.depth.study import two_sides
from stratoscope.studies.finetuned.options import StudyOptions

__all__ = ["StudyOptions", "study_finetuned"]

MEASURES = ("ckasim", "ckasim-debiased")
"""Biased and debiased CKA, side by side: on few rows they differ."""


@dataclass(frozen=True)
class Roles:
    """The models of a study by their part in it: base, tuned, across, control."""

    sides: tuple[Side, ...]
    tuned: int
    across: int
    control: bool

    def of(self, part: str) -> Sequence[Side]:
        """The models that a part of the study compares: localization leaves out those across."""
        first = 1 + self.tuned
        return (*self.sides[:first], *self.sides[first + self.across :]) if part == LOCALIZATION else self.sides


def study_finetuned(
    base: Model,
    tuned: Model | Sequence[Model],
    task: TaskData,
    *,
    out: str | Path,
    options: StudyOptions | None = None,
    across: Sequence[Model] = (),
    cut: Cut | None = None,
    refused: str = "",
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Study:
    """Compare before with after on the task's validation rows (Phang et al. 2021, §3 and §4), and judge every depth.

    Each text is read once per model, truncated as in training, for every part of the study. `across` are other models,
    of any family, depth and width, such as another family tuned on the same task: they are compared on the same rows,
    so what their tokenizers drop is dropped for all. `cut` is what a cut of the first tuned model came to, and
    `refused` why there is none, for the same page. Further keywords are the fields of `StudyOptions`.
    """
    options, progress = chosen(StudyOptions, options, keywords), progress or Silent()
    tuned = several(tuned)
    if not options.units:
        raise StratoscopeError("expected at least one unit, such as cls, got none")
    if not tuned:
        raise StratoscopeError("expected at least one fine-tuned model, got none; name it after the base model")
    given = [spec_of(m) for m in (base, *tuned, *across)]
    _check_across(given, 1 + len(tuned))
    specs = named(given, random_init=options.control, seed=options.seed)
    after, before = two_sides(specs[1], specs[0], task, options.length, progress, judged=options.depth)
    others = [Side(spec, survey(spec, progress=progress), after.length) for spec in specs[2:]]
    models = Roles((before, after, *others), len(tuned), len(across), options.control)
    plans = plans_of(models, task.corpus("validation").sample(options.limit, options.seed), options)
    inputs = {
        "models": [[side.spec.label, side.surveyed.fingerprint, side.surveyed.dtype] for side in models.sides],
        "roles": [models.tuned, models.across, models.control],
        "task": [task.name, task.fingerprint, task.metric],
        "length": after.length,
        "rows": {name: plan.rows.fingerprint for name, plan in plans.items()},
        "cut": refused if cut is None else cut.provenance.get("digest", ""),
    }
    asked = {
        "base": given[0].source,
        "tuned": [spec.source for spec in given[1 : 1 + len(tuned)]],
        "across": [spec.source for spec in given[1 + len(tuned) :]],
    }
    return run_study(
        request_for("study", inputs, options),
        options,
        out,
        lambda running: replace(_compute(models, task, options, plans, running), cut=cut, refused=refused),
        asked={**asked, **task_asked(task), **models_asked(given), **names_asked(given)},
        work=sum(map(work_of, plans.values())),
        progress=progress,
        draw=draw,
    )


def plans_of(models: Roles, corpus: Corpus, options: StudyOptions) -> dict[str, Plan]:
    """What is compared, by unit, and the words for localization: the same rows for all."""
    shared = ("limit", "seed", "bootstrap", "batch_tokens", "memory", "workers")
    how = CompareOptions(measures=MEASURES, **{name: getattr(options, name) for name in shared})
    parts = {unit: replace(how, unit=unit) for unit in options.units}
    if options.localization:
        parts[LOCALIZATION] = replace(how, unit="word", measures=LOCALIZING, bootstrap=0)
    plans = {}
    for part, asked in parts.items():
        check(asked)
        sides = models.of(part)
        specs, surveys = [side.spec for side in sides], [side.surveyed for side in sides]
        plans[part] = plan_of(specs, surveys, corpus, asked, truncate=sides[0].length)
    return plans


def _compute(models: Roles, task: TaskData, options: StudyOptions, plans: Mapping[str, Plan], running: Run) -> Study:
    base, tuned = models.sides[:2]
    work = Work(tuned, task, options.seed, options.batch_tokens, running)
    stored = read_task(models, work, plans, deep=options.depth)
    heads = stored[tuned.spec.label], (base, stored[base.spec.label])
    depth = judge(work, *heads) if options.depth else None
    return study_of(models, plans, {label: of["validation"] for label, of in stored.items()}, depth, running)


def study_of(
    models: Roles, plans: Mapping[str, Plan], stored: Mapping[str, Stored], depth: Depth | None, running: Run
) -> Study:
    """The study of what was read, by label of the model, judged."""
    compared: dict[str, Comparison] = {}
    for part, plan in plans.items():
        compared[part] = score_plan(plan, together([stored[s.label].rows[part] for s in plan.specs]), running)
    labels, after = [side.spec.label for side in models.sides], 1 + models.tuned
    study = Study(
        localization=compared.pop(LOCALIZATION, None),
        comparisons=compared,
        base=labels[0],
        tuned=tuple(labels[1:after]),
        control=labels[-1] if models.control else None,
        depth=depth,
        across=tuple(labels[after : after + models.across]),
    )
    return replace(study, statements=judge_study(study))


def read_task(models: Roles, work: Work, plans: Mapping[str, Plan], *, deep: bool) -> dict[str, dict[str, Stored]]:
    """What every part of the study needs of each model, each text read once."""
    whole = work.task.corpus("validation")
    within = {part: plan.rows.within(plan.corpus, whole) for part, plan in plans.items()}
    readings: list[tuple[Side, dict[str, Reading]]] = []
    for side in models.sides:
        if deep and side in models.sides[:2]:
            of = work.readings(side)
        else:
            of = {"validation": Reading(whole, truncate=side.length, batch_tokens=work.batch_tokens)}
        rows = {part: r for part, r in within.items() if side in models.of(part)}
        readings.append((side, {**of, "validation": replace(of["validation"], rows=rows)}))
    return dict(zip((side.spec.label for side in models.sides), work.store(readings), strict=True))


def _check_across(specs: Sequence[ModelSpec], known: int) -> None:
    """Refuse a model across that is among the first `known` or comes twice: its panel would be another one again."""
    given = [_identity(spec) for spec in specs]
    for k, spec in enumerate(specs[known:], start=known):
        if given[k] in given[:k]:
            raise StratoscopeError(
                f"expected --across models besides the base and the tuned ones, each once, got '{spec.source}' again; "
                "leave it out"
            )


def _identity(spec: ModelSpec) -> tuple[str, str | None]:
    if spec.loaded is not None:
        return spec.loaded.fingerprint, None
    if locate(spec.source).local:
        return str(at_home(spec.source).resolve()), None
    return spec.source, spec.revision
