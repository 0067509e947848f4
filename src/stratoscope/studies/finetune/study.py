"""Fine-tune a base model on a task, once per seed, into standard checkpoints that say how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import LOCAL, said
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import Value
from stratoscope.data.baselines import bag_of_words, majority
from stratoscope.data.metrics import interval, metric_named
from stratoscope.data.tasks.data import TaskData
from stratoscope.engine.base import Resources
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, choose_device, open_model, survey
from stratoscope.models.read.head import predict
from stratoscope.models.text.examples import Inputs, text_length, tokenise
from stratoscope.models.train.freezing import Frozen, freeze_, parse_freeze
from stratoscope.models.train.trainer import Schedule, Setup, Trained, planned_steps, train_, windows
from stratoscope.results.finetuned import Finetuned
from stratoscope.runs.run import Request, Run
from stratoscope.studies.asked import (
    Model,
    chosen,
    engine_of,
    in_turn,
    models_asked,
    names_asked,
    run_study,
    shard_of,
    spec_of,
    task_asked,
)
from stratoscope.studies.checkpoint import is_whole, put_in_place, write_checkpoint
from stratoscope.studies.finetune.options import FinetuneOptions, TrainingOptions
from stratoscope.studies.finetune.recipes import RECIPES, Recipe, resolve

__all__ = ["RECIPES", "FinetuneOptions", "Finetuned", "Recipe", "finetune"]

TRAINING = "training"
"""Among the parts of a run: the Trainer's own checkpoints."""
EARLY = (0.25, 0.5, 0.75)
"""Points of the run at which the model is scored on the way."""
EARLY_ROWS = 128
"""Validation examples it is scored on then."""


@dataclass(frozen=True)
class _Work:
    """What the runs of all seeds share."""

    base: ModelSpec
    surveyed: Survey
    task: TaskData
    recipe: Recipe
    """With the user's own values in place."""
    options: TrainingOptions
    freeze: str | None
    schedule: Schedule
    train: Inputs
    validation: Inputs
    length: int
    pruned: Mapping[str, Any] | None

    def request(self, seed: int) -> Request:
        """Everything the weights and the score of one seed depend on."""
        asked = {**asdict(self.schedule), "length": self.length, "freeze": self.freeze, "seed": seed}
        inputs = {
            "base": [self.surveyed.fingerprint, self.base.dtype],
            "task": [self.task.fingerprint, self.task.metric],
            "pruned": self.pruned,
        }
        return Request("finetuned", inputs, asked, said=said(self.options))


def finetune(
    base: Model,
    task: TaskData,
    *,
    out: str | Path,
    options: FinetuneOptions | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> list[Finetuned]:
    """Fine-tune `base` once per seed into `out`/seed-<seed>; finished seeds are kept, a killed one resumes.

    Device and dtype are those of `base`: weights are trained in float32, a narrower dtype is that of the products.
    Each seed is a run of its own. Further keywords are the fields of `FinetuneOptions`.
    """
    options, spec = chosen(FinetuneOptions, options, keywords), spec_of(base)
    return tune(spec, task, out, options, progress or Silent(), asked={"base": spec.source, **names_asked([spec])})


def tune(
    spec: ModelSpec,
    task: TaskData,
    out: str | Path,
    options: TrainingOptions,
    progress: Progress,
    *,
    asked: Mapping[str, Any],
    pruned: Mapping[str, Any] | None = None,
) -> list[Finetuned]:
    """As `finetune`, also for `prune`, which trains what it left of a model: `pruned` says what it took."""
    if not str(out).strip():
        raise StratoscopeError("expected a folder for --out, got an empty name")
    recipe = resolve(options, task.name)
    choose_device(spec.device)
    work = _prepare(spec, task, recipe, options, pruned, progress)
    asked = {**asked, **task_asked(task), **models_asked([spec])}
    items = [{"seed": seed} for seed in range(options.first_seed, options.first_seed + options.seeds)]
    if options.engine == LOCAL and options.workers in (None, 1):
        runs = [partial(_tuned, work, Path(out), asked, progress, item["seed"]) for item in items]
        return in_turn(runs, shard_of(options))
    if shard_of(options) is not None:
        raise StratoscopeError("expected seeds shared out by --shard, --workers or --engine ray, got two of them")
    Path(out).mkdir(parents=True, exist_ok=True)
    made: dict[int, Finetuned] = {}
    with closing(engine_of(options)) as engine, progress.step("fine-tuning seeds", len(items)) as advance:
        engine.attach(Path(out), progress)
        shared = _Seeds(work, Path(out).absolute(), asked)
        for k, (result, notes) in engine.map(_seed, items, shared, _takes(work)):
            made[k] = replace(result, folder=Path(out) / f"seed-{items[k]['seed']}")
            for note in notes:
                progress.note(note)
            advance(1)
    return [made[k] for k in range(len(items))]


def _tuned(work: _Work, out: Path, asked: Mapping[str, Any], progress: Progress, seed: int) -> Finetuned:
    """The run of one seed, in a folder of its own."""
    folder = out / f"seed-{seed}"
    result = run_study(
        work.request(seed),
        replace(work.options, seeds=1, first_seed=seed, engine=LOCAL, workers=None, shard=None, merge=False),
        folder,
        partial(_compute, work, seed),
        asked=asked,
        progress=progress,
        whole=lambda folder, result: is_whole(folder, result.weights),
        alone=True,
    )
    return replace(result, folder=folder)


@dataclass(frozen=True)
class _Seeds:
    """What workers share that run a seed each: unlike parts, a seed has a folder and a lock of its own."""

    work: _Work
    out: Path
    asked: Mapping[str, Any]


class _Notes(Silent):
    """Keeps what a worker has to say."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _seed(shared: _Seeds, item: Mapping[str, Any]) -> tuple[Finetuned, list[str]]:
    progress = _Notes()
    return _tuned(shared.work, shared.out, shared.asked, progress, item["seed"]), progress.notes


def _takes(work: _Work) -> Resources:
    """A training holds the weights, their gradients and two moments."""
    takes = Held(open_model, work.surveyed).resources
    return replace(takes, memory=4 * takes.memory, model=False, threaded=False)


def _prepare(
    spec: ModelSpec,
    task: TaskData,
    recipe: Recipe,
    options: TrainingOptions,
    pruned: Mapping[str, Any] | None,
    progress: Progress,
) -> _Work:
    surveyed = survey(spec, progress=progress)
    freeze: str | None = getattr(options, "freeze", None)
    if freeze is not None:
        parse_freeze(freeze, surveyed.layers - 1)
    length = text_length(surveyed.encoder, options.length, otherwise=recipe.length)
    train, validation = (tokenise(task, split, surveyed.encoder, length=length) for split in ("train", "validation"))
    if truncated := train.truncated + validation.truncated:
        progress.note(f"{truncated} texts of {task.name} are longer than {length} tokens and were truncated")
    steps = planned_steps(len(train), recipe.batch, recipe.epochs, recipe.max_steps)
    warmup = round(recipe.warmup * steps) if recipe.warmup < 1 else int(recipe.warmup)
    if warmup >= steps:
        raise StratoscopeError(
            f"expected fewer warm-up steps than the run's {steps}, got {warmup}; give a lower --warmup or more steps"
        )
    schedule = Schedule(recipe.lr, recipe.batch, steps, warmup, recipe.epsilon, grouped=recipe.grouped)
    return _Work(spec, surveyed, task, recipe, options, freeze, schedule, train, validation, length, pruned)


def _compute(work: _Work, seed: int, running: Run) -> Finetuned:
    assert running.folder is not None
    name, progress = running.folder.path.name, running.progress
    floor = {"majority": majority(work.task), "bag_of_words": bag_of_words(work.task)}
    # Trained on the CPU first: the Trainer moves it.
    model = open_model(
        replace(work.base, device="cpu"), work.task, surveyed=work.surveyed, seed=seed, progress=progress
    )
    model.module.requires_grad_(True)
    frozen = freeze_(model.module, work.freeze)
    trained = train_(model.module, work.train, work.schedule, _setup(work, model, running, seed))
    with progress.step(f"scoring {name}", len(work.validation)) as advance:
        scores = predict(model, work.validation, advance=advance)
    metric = metric_named(work.task.metric)
    targets = work.validation.targets
    score = Value(metric.score(scores, targets), *interval(metric, scores, targets))
    if score.value <= (best := max(floor.values())):
        progress.note(
            f"{name}: {metric.name} {score.value:.3f} does not beat the simple baselines ({best:.3f}); its layers say"
            " little about the task"
        )
    write_checkpoint(running.folder, model.module.to("cpu").requires_grad_(True), model.encoder.tokenizer)
    return Finetuned(
        seed=seed,
        score=score,
        metric=metric.name,
        parts=dict(metric.detail(scores, targets)),
        baselines=floor,
        weights=put_in_place(running.folder),
        **_described(work, model, frozen, trained),
    )


def _setup(work: _Work, model: OpenedModel, running: Run, seed: int) -> Setup:
    assert running.folder is not None
    metric = metric_named(work.task.metric)
    rows = np.linspace(0, len(work.validation) - 1, _early_rows(work)).astype(np.int64)

    def early() -> float:
        return metric.score(predict(model, work.validation, rows=rows), work.validation.targets[rows])

    steps = work.schedule.steps
    return Setup(
        folder=running.folder.part(TRAINING),
        request=work.request(seed).digest,
        label=f"fine-tuning {work.base.label}, seed {seed}",
        progress=running.progress,
        device=choose_device(work.base.device),
        precision=work.base.dtype,
        seed=seed,
        checkpoint_steps=work.options.checkpoint_steps,
        early=(f"{metric.name} on {len(rows)} validation examples", early),
        early_steps=tuple({round(share * steps) for share in EARLY} - {0, steps}),
    )


def _early_rows(work: _Work) -> int:
    """Three looks at so many rows cost about a tenth of the training at most."""
    return min(EARLY_ROWS, len(work.validation), max(16, work.schedule.steps * work.schedule.batch // 10))


def _described(work: _Work, model: OpenedModel, frozen: Frozen, trained: Trained) -> dict[str, Any]:
    task, recipe = work.task, work.recipe
    return {
        "base": {
            "name": work.base.label,
            "source": work.base.source,
            "family": work.surveyed.family.name,
            "fingerprint": work.surveyed.fingerprint,
            "random_init": work.base.random_init,
        },
        "task": {
            "name": task.name,
            "fingerprint": task.fingerprint,
            "format": task.format,
            "labels": None if task.labels is None else list(task.labels),
            "train": len(task.train),
            "validation": len(task.validation),
            "truncated": work.train.truncated + work.validation.truncated,
            "note": task.note,
        },
        "recipe": {"name": recipe.name, "reference": recipe.reference, "length": work.length, "epochs": recipe.epochs}
        | asdict(work.schedule),
        "freeze": work.freeze,
        "parameters": {"frozen": frozen.frozen, "trained": frozen.trained},
        "head": str(model.head),
        "loss": tuple(tuple(float(x) for x in w) for w in windows(trained.losses)),
        "early": {"rows": _early_rows(work), "scores": [list(e) for e in trained.early]},
        "seconds": round(trained.seconds, 3),
        "pruned": work.pruned,
        "provenance": {"device": work.base.device, "dtype": work.base.dtype},
    }
