"""What fine-tuning changed: a base model and what was tuned from it, layer by layer, and cut at every depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from stratoscope.claims import judge_study
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.corpus import Corpus
from stratoscope.data.tasks.data import SPLITS, TaskData
from stratoscope.measures.table import requests
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.loading import ModelSpec, Survey, open_model, survey
from stratoscope.models.read.store import Reading, Stored, store_layers, together
from stratoscope.models.text.rows import Rows, plan_rows
from stratoscope.results.comparison import Comparison
from stratoscope.results.cut import Cut
from stratoscope.results.study import LOCALIZATION, Study
from stratoscope.runs.run import Draw, Run
from stratoscope.studies.asked import Model, chosen, models_asked, request_for, run_study, several, spec_of, task_asked
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.plan import Plan, check, check_number, named, notes_of
from stratoscope.studies.compare.study import score_plan, work_of
from stratoscope.studies.depth.judge import Side, Work, judge
from stratoscope.studies.depth.options import DepthOptions
from stratoscope.studies.depth.study import head_reading, two_sides
from stratoscope.studies.finetuned.options import StudyOptions

__all__ = ["StudyOptions", "study_finetuned"]

MEASURES = ("ckasim", "ckasim-debiased")
"""Biased and debiased CKA, side by side: on few rows they differ."""
LOCALIZING = ("neuronsim", "svsim")


@dataclass(frozen=True)
class _Models:
    """The models of a study by their part in it: base, tuned, across, control."""

    specs: tuple[ModelSpec, ...]
    surveys: tuple[Survey, ...]
    tuned: int
    across: int
    control: bool

    @property
    def labels(self) -> list[str]:
        return [spec.label for spec in self.specs]

    @property
    def without_across(self) -> list[int]:
        """Positions of all models but those across."""
        first = 1 + self.tuned
        return [k for k in range(len(self.specs)) if not first <= k < first + self.across]


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
    sides = two_sides(specs[1], specs[0], task, options.length, progress, judged=options.depth)
    known = {specs[1]: sides[0].seen, specs[0]: sides[1].seen}
    surveys = [known.get(spec) or survey(spec, progress=progress) for spec in specs]
    models = _Models(tuple(specs), tuple(surveys), len(tuned), len(across), options.control)
    plans = _plans(models, task, options, sides[0].length)
    inputs = {
        "models": [[spec.label, seen.fingerprint, seen.dtype] for spec, seen in zip(specs, surveys, strict=True)],
        "roles": [models.tuned, models.across, models.control],
        "task": [task.name, task.fingerprint, task.metric],
        "length": sides[0].length,
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
        lambda running: _compute(models, sides, task, options, plans, (cut, refused), running),
        asked={**asked, **task_asked(task), **models_asked(given)},
        work=sum(map(work_of, plans.values())),
        progress=progress,
        draw=draw,
    )


def _plans(models: _Models, task: TaskData, options: StudyOptions, length: int) -> dict[str, Plan]:
    """What is compared, by unit, and the words for localization: the same sample of validation rows for all."""
    corpus = task.corpus("validation").sample(options.limit, options.seed)
    how = CompareOptions(
        measures=MEASURES,
        limit=options.limit,
        seed=options.seed,
        bootstrap=options.bootstrap,
        batch_tokens=options.batch_tokens,
        memory=options.memory,
        workers=options.workers,
    )
    every = list(range(len(models.specs)))
    plans = {unit: _plan(models, every, corpus, replace(how, unit=unit), length) for unit in options.units}
    if options.localization:
        words = replace(how, unit="word", measures=LOCALIZING, bootstrap=0)
        plans[LOCALIZATION] = _plan(models, models.without_across, corpus, words, length)
    return plans


def _plan(models: _Models, chosen: Sequence[int], corpus: Corpus, how: CompareOptions, length: int) -> Plan:
    check(how)
    specs, surveys = [models.specs[k] for k in chosen], [models.surveys[k] for k in chosen]
    rows = plan_rows(corpus, [s.encoder for s in surveys], how.unit, truncate=length)
    check_number(rows)
    wanted, notes = requests(how.measures, n=len(rows), width=max(s.width for s in surveys))
    notes += notes_of(specs, surveys, corpus, rows)
    return Plan(tuple(specs), tuple(surveys), corpus, rows, tuple(wanted), tuple(notes), how)


def _compute(
    models: _Models,
    sides: Sequence[Side],
    task: TaskData,
    options: StudyOptions,
    plans: Mapping[str, Plan],
    cut: tuple[Cut | None, str],
    running: Run,
) -> Study:
    deep = DepthOptions(seed=options.seed, length=options.length, batch_tokens=options.batch_tokens)
    work = Work(sides[0], sides[1], task, deep, running)
    stored = _read(models, work, options, plans)
    compared: dict[str, Comparison] = {}
    for name, plan in plans.items():
        chosen = models.without_across if name == LOCALIZATION else range(len(models.specs))
        rows = together([stored[k]["validation"].rows[name] for k in chosen])
        compared[name] = score_plan(plan, rows, running)
    localization = compared.pop(LOCALIZATION, None)
    labels = models.labels
    after = 1 + models.tuned
    study = Study(
        comparisons=compared,
        base=labels[0],
        tuned=tuple(labels[1:after]),
        control=labels[-1] if models.control else None,
        depth=judge(work, stored[1], stored[0]) if options.depth else None,
        cut=cut[0],
        refused=cut[1],
        across=tuple(labels[after : after + models.across]),
        localization=localization,
    )
    return replace(study, statements=judge_study(study))


def _read(models: _Models, work: Work, options: StudyOptions, plans: Mapping[str, Plan]) -> list[dict[str, Stored]]:
    """What every part of the study needs of each model, each text read once."""
    task, tokens, length = work.task, options.batch_tokens, work.tuned.length
    whole = task.corpus("validation")
    stored: list[dict[str, Stored]] = []
    for k, (spec, seen) in enumerate(zip(models.specs, models.surveys, strict=True)):
        rows: dict[str, Rows] = {
            name: plan.rows.within(plan.corpus, whole)
            for name, plan in plans.items()
            if name != LOCALIZATION or k in models.without_across
        }
        readings = {"validation": Reading(whole, rows, truncate=length, batch_tokens=tokens)}
        opener: Any = cache(partial(open_model, spec, seen=seen, progress=work.run.progress))
        if options.depth and k < 2:
            side = work.tuned if k == 1 else work.base
            assert side is not None
            opener = work.tuned_model if k == 1 else opener
            both = {s: head_reading(side, task, s, mean=work.reads_mean, scored=k == 1, tokens=tokens) for s in SPLITS}
            readings = {"train": both["train"], "validation": replace(both["validation"], rows=rows)}
        stored.append({split: store_layers(opener, seen, r, work.run) for split, r in readings.items()})
    return stored


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
    if locate(spec.source).local:
        return str(Path(spec.source).expanduser().resolve()), None
    return spec.source, spec.revision
