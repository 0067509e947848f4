"""Fine-tune a base model on a task, once per seed, into standard checkpoints that say how they were made."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.kinds import TUNED
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.runfolder import LOCK, RunFolder, canonical_json, digest, disk_errors, write_text
from stratoscope.data.baselines import bag_of_words, majority
from stratoscope.data.metrics import interval, metric_named
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.checkpoints import Checkpoint, fingerprint
from stratoscope.models.open.guard import quiet
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, choose_device, open_model, survey
from stratoscope.models.read.head import predict
from stratoscope.models.text.examples import Inputs, text_length, tokenise
from stratoscope.models.train.freezing import Frozen, freeze_, parse_freeze
from stratoscope.models.train.trainer import Schedule, Setup, Trained, planned_steps, train_, windows
from stratoscope.studies.finetune.recipes import RECIPES, FinetuneOptions, Recipe, resolve

__all__ = ["RECIPES", "FinetuneOptions", "Finetuned", "Recipe", "finetune"]

RECORD = TUNED.file
CHECKPOINTS = "checkpoints"
FORMAT = 1
LIBRARIES = ("stratoscope", "torch", "transformers", "accelerate", "numpy", "scikit-learn")
EARLY = (0.25, 0.5, 0.75)
"""Points of the run at which the model is scored on the way."""
EARLY_ROWS = 128
"""Validation examples it is scored on then."""


@dataclass(frozen=True)
class Finetuned:
    """One fine-tuned model, as its folder holds it."""

    folder: Path
    """A standard checkpoint: weights, tokenizer and configuration with the labels' names."""
    record: Mapping[str, Any]
    """Content of `finetune.json`."""

    @property
    def seed(self) -> int:
        return int(self.record["seed"])

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return str(self.record["metric"]["name"])

    @property
    def score(self) -> float:
        """The metric on the validation examples."""
        return float(self.record["metric"]["value"])

    @property
    def interval(self) -> tuple[float, float]:
        """Bootstrap interval of the score over the validation examples."""
        return float(self.record["metric"]["low"]), float(self.record["metric"]["high"])

    @classmethod
    def load(cls, folder: str | Path) -> Finetuned:
        """Read the record of a fine-tuned model; needs no model."""
        path = Path(folder) / RECORD
        if not path.is_file():
            raise StratoscopeError(f"no {RECORD} in {folder}; run 'stratoscope finetune ... --out' first")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            seal = record.pop("sha256")
            if record["format"] != FORMAT:
                raise StratoscopeError(f"{path} has format {record['format']}, this version reads {FORMAT}")
            if seal != digest(record, length=64):
                raise ValueError("its checksum does not match")
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise StratoscopeError(f"{path} is damaged ({e}); run the same command again to mend it") from e
        return cls(Path(folder), record)


@dataclass(frozen=True)
class _Work:
    """What the runs of all seeds share."""

    base: ModelSpec
    seen: Survey
    task: TaskData
    recipe: Recipe
    """With the user's own values in place."""
    options: FinetuneOptions
    schedule: Schedule
    train: Inputs
    validation: Inputs
    length: int
    progress: Progress


def finetune(
    base: str | Path | ModelSpec,
    task: TaskData,
    *,
    out: str | Path,
    options: FinetuneOptions | None = None,
    progress: Progress | None = None,
) -> list[Finetuned]:
    """Fine-tune `base` once per seed into `out`/seed-<seed>; finished seeds are kept, a killed one goes on.

    Device and dtype are those of `base`: weights are trained in float32, a narrower dtype is that of the products.
    """
    options, progress = options or FinetuneOptions(), progress or Silent()
    spec = base if isinstance(base, ModelSpec) else ModelSpec(str(base))
    recipe = resolve(options, task.name)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    choose_device(spec.device)
    folders = {seed: Path(out) / f"seed-{seed}" for seed in seeds}
    if strange := next((f for f in folders.values() if f.exists() and not (Path(out) / LOCK).exists()), None):
        raise StratoscopeError(f"{strange} is there already and no run made it; choose another --out")
    with RunFolder.open(out):
        work = _prepare(spec, task, recipe, options, progress)
        return [_run(work, folder, seed) for seed, folder in folders.items()]


def _prepare(spec: ModelSpec, task: TaskData, recipe: Recipe, options: FinetuneOptions, progress: Progress) -> _Work:
    seen = survey(spec, progress=progress)
    if options.freeze is not None:
        parse_freeze(options.freeze, seen.layers - 1)
    length = text_length(seen.encoder, options.length, otherwise=recipe.length)
    train, validation = (tokenise(task, split, seen.encoder, length=length) for split in ("train", "validation"))
    if cut := train.truncated + validation.truncated:
        progress.note(f"{cut} texts of {task.name} are longer than {length} tokens and were cut to that")
    steps = planned_steps(len(train), recipe.batch, recipe.epochs, recipe.max_steps)
    warmup = round(recipe.warmup * steps) if recipe.warmup < 1 else int(recipe.warmup)
    if warmup >= steps:
        raise StratoscopeError(
            f"expected fewer warm-up steps than the run's {steps}, got {warmup}; give a lower --warmup or more steps"
        )
    schedule = Schedule(recipe.lr, recipe.batch, steps, warmup, recipe.epsilon, grouped=recipe.grouped)
    return _Work(spec, seen, task, recipe, options, schedule, train, validation, length, progress)


def _run(work: _Work, folder: Path, seed: int) -> Finetuned:
    request = _request(work, seed)
    finished = _finished(folder, request, overwrite=work.options.overwrite)
    if finished is not None:
        work.progress.note(f"{folder} already holds this model; nothing to do")
        return finished
    (folder / RECORD).unlink(missing_ok=True)
    floor = {"majority": majority(work.task), "bag_of_words": bag_of_words(work.task)}
    model = open_model(work.base, work.task, seed=seed, seen=work.seen, progress=work.progress)
    frozen = freeze_(model.module, work.options.freeze)
    trained = train_(model.module, work.train, work.schedule, _setup(work, model, folder, request, seed))
    with work.progress.step(f"scoring {folder.name}", len(work.validation)) as advance:
        scores = predict(model, work.validation, advance=advance)
    metric = metric_named(work.task.metric)
    value = metric.score(scores, work.validation.targets)
    low, high = interval(metric, scores, work.validation.targets)
    judged = {"name": metric.name, "value": value, "low": low, "high": high}
    judged["parts"] = dict(metric.detail(scores, work.validation.targets))
    if value <= (best := max(floor.values())):
        work.progress.note(
            f"{folder.name}: {metric.name} {value:.3f} does not beat the simple baselines ({best:.3f}); its layers"
            " say little about the task"
        )
    _save(model, folder)
    record = _record(work, seed, request, model, frozen, trained) | {"metric": judged, "baselines": floor}
    record["weights"] = fingerprint(Checkpoint(str(folder), local=True))
    write_text(folder / RECORD, canonical_json(record | {"sha256": digest(record, length=64)}) + "\n")
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return Finetuned(folder, record)


def _setup(work: _Work, model: OpenedModel, folder: Path, request: str, seed: int) -> Setup:
    metric = metric_named(work.task.metric)
    rows = np.linspace(0, len(work.validation) - 1, _early_rows(work)).astype(np.int64)

    def early() -> float:
        return metric.score(predict(model, work.validation, rows=rows), work.validation.targets[rows])

    steps = work.schedule.steps
    return Setup(
        folder=folder / CHECKPOINTS,
        request=request,
        label=f"fine-tuning {work.base.label}, seed {seed}",
        progress=work.progress,
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


def _save(model: OpenedModel, folder: Path) -> None:
    """Write the checkpoint; `finetune.json`, written after it, says that it is whole."""
    with disk_errors(folder), quiet():
        folder.mkdir(parents=True, exist_ok=True)
        model.module.to("cpu").requires_grad_(True).save_pretrained(folder)
        model.encoder.tokenizer.save_pretrained(folder)


def _request(work: _Work, seed: int) -> str:
    """Digest of everything the weights and the score depend on."""
    return digest(
        {
            "base": [work.seen.fingerprint, work.base.dtype],
            "task": [work.task.fingerprint, work.task.metric],
            "schedule": asdict(work.schedule),
            "length": work.length,
            "freeze": work.options.freeze,
            "seed": seed,
            "version": version("stratoscope"),
        },
        length=64,
    )


def _finished(folder: Path, request: str, *, overwrite: bool) -> Finetuned | None:
    """The folder's model if it answers this very request; another one is not overwritten unasked."""
    if not (folder / RECORD).is_file():
        return None
    try:
        found = Finetuned.load(folder)
    except StratoscopeError:
        return None  # damaged: made again
    if found.record["request"] != request:
        if overwrite:
            shutil.rmtree(folder)
            return None
        raise StratoscopeError(
            f"{folder} holds a model fine-tuned otherwise", "choose another --out", "give --overwrite"
        )
    whole = found.record["weights"] == fingerprint(Checkpoint(str(folder), local=True))
    return found if whole else None


def _record(
    work: _Work, seed: int, request: str, model: OpenedModel, frozen: Frozen, trained: Trained
) -> dict[str, Any]:
    task, recipe = work.task, work.recipe
    return {
        "format": FORMAT,
        "request": request,
        "seed": seed,
        "base": {
            "name": work.base.label,
            "source": work.base.source,
            "family": work.seen.family.name,
            "fingerprint": model.fingerprint,
            "random_init": work.base.random_init,
        },
        "task": {
            "name": task.name,
            "fingerprint": task.fingerprint,
            "format": task.format,
            "labels": None if task.labels is None else list(task.labels),
            "train": len(task.train),
            "validation": len(task.validation),
            "cut": work.train.truncated + work.validation.truncated,
            "note": task.note,
        },
        "recipe": {"name": recipe.name, "reference": recipe.reference, "length": work.length, "epochs": recipe.epochs}
        | asdict(work.schedule),
        "freeze": work.options.freeze,
        "parameters": {"frozen": frozen.frozen, "trained": frozen.trained},
        "head": model.head,
        "device": work.base.device,
        "dtype": work.base.dtype,
        "loss": [list(w) for w in windows(trained.losses)],
        "early": {"rows": _early_rows(work), "scores": [list(e) for e in trained.early]},
        "seconds": round(trained.seconds, 3),
        "versions": {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
    }
