"""What each layer is worth to a task: the model cut at every layer in three ways, and with every span skipped."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from stratoscope.core.depth import DEPTH, TUNED, TUNEDORIG, UNTUNED, Curve, Depth, Point
from stratoscope.core.errors import ForeignResultError, StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.result import ModelInfo
from stratoscope.core.runfolder import RunFolder, digest
from stratoscope.data.baselines import bag_of_words, majority, majority_scores
from stratoscope.data.metrics import interval, metric_named
from stratoscope.data.taskdata import SPLITS, TaskData
from stratoscope.models.examples import Floats, Inputs, text_length, tokenise
from stratoscope.models.headfit import Goal, Scale, fit_head, scale_of
from stratoscope.models.layervectors import StoredVectors, head_scores, keep_vectors, reads_mean
from stratoscope.models.loading import ModelSpec, Survey, choose_device, load, survey
from stratoscope.models.spans import each_span
from stratoscope.models.tuned import check_head, load_tuned
from stratoscope.studies.finetune import RECORD, Finetuned

LIBRARIES = ("stratoscope", "torch", "transformers", "numpy", "scikit-learn")
SPAN_ROWS = 256
"""Examples whose skip scores are kept in one part: what a killed run loses at most."""


@dataclass(frozen=True)
class DepthOptions:
    """How to measure depth; every field is also a CLI option. Device and dtype are those of the models."""

    seed: int = 0
    """Of the rows held out when heads are tuned, and of the intervals."""
    length: int | None = None
    """Tokens kept of a text; what the model was fine-tuned with, where its folder says so."""
    batch_tokens: int | None = None
    skip: bool = True
    """Skip every span of blocks too."""
    overwrite: bool = False


@dataclass(frozen=True)
class _Encoder:
    """One of the two models whose layers are read, with the task as it reads it."""

    spec: ModelSpec
    seen: Survey
    inputs: dict[str, Inputs]
    """By split."""
    length: int
    module: Callable[[], Any]
    """Loads the model at the first call."""

    @property
    def info(self) -> ModelInfo:
        seen = self.seen
        return ModelInfo(self.spec.label, self.spec.source, seen.family.name, seen.layers, seen.width, seen.fingerprint)


@dataclass(frozen=True)
class _Work:
    tuned: _Encoder
    base: _Encoder | None
    task: TaskData
    options: DepthOptions
    folder: RunFolder
    progress: Progress

    @property
    def goal(self) -> Goal:
        return Goal(self.task.targets("train"), self.tuned.inputs["train"].choices, self.task.regression)

    def point(self, scores: Floats) -> Point:
        """The metric of validation scores, with its interval over the examples."""
        metric, targets = metric_named(self.task.metric), self.task.targets("validation")
        return Point(metric.score(scores, targets), *interval(metric, scores, targets, seed=self.options.seed))


def depth(
    tuned: str | Path | ModelSpec,
    task: TaskData,
    *,
    base: str | Path | ModelSpec | None = None,
    out: str | Path,
    options: DepthOptions | None = None,
    progress: Progress | None = None,
) -> Depth:
    """Judge a fine-tuned model with its head on every layer and with spans of blocks skipped, into `out`/depth.json.

    With `base`, heads are tuned on its layers too. Finished parts are kept in `out`, so that a killed run goes on.
    """
    options, progress = options or DepthOptions(), progress or Silent()
    _check(options)
    specs = [
        m if isinstance(m, ModelSpec) else ModelSpec(str(m)) for m in ((tuned,) if base is None else (tuned, base))
    ]
    for spec in specs:
        choose_device(spec.device)
    check_head(specs[0], task)
    surveys = [survey(spec, progress=progress) for spec in specs]
    _check_base(specs, surveys)
    length = text_length(surveys[0].encoder, options.length, otherwise=_trained_length(specs[0]))
    encoders = [
        _encoder(spec, seen, task, length, judged=k == 0)
        for k, (spec, seen) in enumerate(zip(specs, surveys, strict=True))
    ]
    request = _request(encoders, task, options)
    with RunFolder.open(out) as folder:
        finished = _finished(folder, request, overwrite=options.overwrite)
        if finished is not None:
            progress.note(f"{folder.path} already holds this result; nothing to do")
        else:
            work = _Work(encoders[0], encoders[1] if base is not None else None, task, options, folder, progress)
            finished = _run(work, request)
            finished.save(folder.path)
        folder.drop_parts()
    return finished


def _run(work: _Work, request: str) -> Depth:
    task, tuned, progress = work.task, work.tuned, work.progress
    floor = {"majority": majority(task), "bag_of_words": bag_of_words(task)}
    stored = {split: _vectors(work, tuned, split) for split in SPLITS}
    choices = tuned.inputs["validation"].choices
    validation = stored["validation"]
    untuned = [head_scores(tuned.module(), validation.layer(k), choices=choices) for k in range(tuned.seen.layers)]
    start = scale_of(stored["train"].layer(tuned.seen.layers - 1))
    curves, notes = [Curve(UNTUNED, tuple(map(work.point, untuned)))], _texts_cut(work)
    for name, encoder in ((TUNED, tuned), (TUNEDORIG, work.base)):
        if encoder is None:
            continue
        vectors = stored if encoder is tuned else {split: _vectors(work, encoder, split) for split in SPLITS}
        scores, remarks = _tuned_heads(work, encoder, vectors, start)
        curves.append(Curve(name, tuple(map(work.point, scores))))
        notes += remarks
    whole = validation.scores
    full = work.point(whole)
    skip, agreement = _skipped(work, whole) if work.options.skip else (None, None)
    if full.value <= max(floor.values()):
        best = max(floor, key=lambda name: floor[name])
        words = "bag of words" if best == "bag_of_words" else "majority label"
        notes.insert(
            0,
            f"the whole model ({task.metric} {full.value:.3f}) does not beat the {words} ({floor[best]:.3f}): its"
            " layers say little about the task",
        )
    for note in notes:
        progress.note(note)
    return Depth(
        model=tuned.info,
        base=None if work.base is None else work.base.info,
        task=_described(task),
        full=full,
        curves=tuple(curves),
        skip=skip,
        skip_agreement=agreement,
        warnings=tuple(notes),
        provenance=_provenance(work, request),
        **floor,
    )


def _vectors(work: _Work, encoder: _Encoder, split: str) -> StoredVectors:
    return keep_vectors(
        encoder.module,
        encoder.inputs[split],
        work.folder,
        layers=encoder.seen.layers,
        width=encoder.seen.width,
        made_from=[encoder.seen.fingerprint, work.task.fingerprint, split, encoder.length, encoder is work.tuned],
        label=f"reading {work.task.name} {split} with {encoder.spec.label}",
        mean=reads_mean(work.tuned.module()),
        batch_tokens=work.options.batch_tokens,
        progress=work.progress,
    )


def _tuned_heads(
    work: _Work, encoder: _Encoder, vectors: dict[str, StoredVectors], start: Scale
) -> tuple[list[Floats], list[str]]:
    """Validation scores of a head tuned on each layer, and what a reader should know of them."""
    label, found, constant, short = encoder.spec.label, [], [], []
    with work.progress.step(f"tuning heads on {label}", encoder.seen.layers) as advance:
        for k in range(encoder.seen.layers):
            made_from = [encoder.info.fingerprint, work.tuned.info.fingerprint, work.task.fingerprint, encoder.length]
            name = f"head-{digest([*made_from, encoder is work.tuned, k, work.options.seed])}.safetensors"
            if not work.folder.has(name):
                work.folder.save(name, partial(save_file, _tuned_head(work, vectors, k, start)))
            part = load_file(work.folder.part(name))
            found.append(part["scores"].numpy())
            if part["state"][0]:
                constant.append(k)
            elif not part["state"][1]:
                short.append(k)
            advance(1)
    notes = []
    if constant:
        notes.append(
            f"{label}: layer {_listed(constant)} gives the head the same vector for every text; a head tuned on it can"
            " only name the majority"
        )
    if short:
        notes.append(f"{label}: the head tuned on layer {_listed(short)} had not converged when it was stopped")
    return found, notes


def _tuned_head(work: _Work, vectors: dict[str, StoredVectors], k: int, start: Scale) -> dict[str, torch.Tensor]:
    x = vectors["train"].layer(k)
    if scale_of(x).constant:
        return {"scores": torch.from_numpy(majority_scores(work.task)), "state": torch.tensor([True, True])}
    fitted = fit_head(work.tuned.module(), x, work.goal, start=start, seed=work.options.seed)
    scores = fitted.scores(work.tuned.module(), vectors["validation"].layer(k), choices=work.goal.choices)
    return {"scores": torch.from_numpy(scores), "state": torch.tensor([False, fitted.converged])}


def _skipped(work: _Work, whole: Floats) -> tuple[Floats, Floats]:
    """Metric and agreement with the whole model for every span, NaN below the diagonal."""
    tuned, task = work.tuned, work.task
    inputs, blocks = tuned.inputs["validation"], tuned.seen.layers - 1
    bounds = [*range(0, len(inputs), SPAN_ROWS), len(inputs)]
    pieces = []
    with work.progress.step(f"skipping blocks of {tuned.spec.label}", len(inputs)) as advance:
        for first, last in pairwise(bounds):
            made_from = [tuned.info.fingerprint, task.fingerprint, tuned.length, first, last]
            name = f"spans-{digest(made_from)}.safetensors"
            if work.folder.has(name):
                advance(last - first)
            else:
                scores = torch.full((blocks, blocks, last - first, whole.shape[1]), torch.nan, dtype=torch.float64)
                rows, tokens = np.arange(first, last), work.options.batch_tokens
                for a, b, found in each_span(tuned.module(), inputs, rows=rows, batch_tokens=tokens, advance=advance):
                    scores[a - 1, b - 1] = torch.from_numpy(found)
                work.folder.save(name, partial(save_file, {"scores": scores}))
            pieces.append(load_file(work.folder.part(name))["scores"].numpy())
    joined: Floats = np.concatenate(pieces, axis=2)
    metric, targets = metric_named(task.metric), task.targets("validation")
    value, agreement = np.full((blocks, blocks), np.nan), np.full((blocks, blocks), np.nan)
    for i, j in zip(*np.triu_indices(blocks), strict=True):
        value[i, j] = metric.score(joined[i, j], targets)
        if not task.regression:
            agreement[i, j] = (joined[i, j].argmax(axis=1) == whole.argmax(axis=1)).mean()
    return value, agreement


def _encoder(spec: ModelSpec, seen: Survey, task: TaskData, length: int, *, judged: bool) -> _Encoder:
    length = text_length(seen.encoder, length) if judged else min(length, seen.encoder.window or length)
    inputs = {split: tokenise(task, split, seen.encoder, length=length) for split in SPLITS}

    @cache
    def module() -> Any:
        if judged:
            return load_tuned(spec, task, seen=seen).module.to(choose_device(spec.device))
        return load(spec, seen=seen).module

    return _Encoder(spec, seen, inputs, length, module)


def _trained_length(spec: ModelSpec) -> int | None:
    """Tokens of a text in fine-tuning, if the folder is one of ours."""
    if not (Path(spec.source) / RECORD).is_file():
        return None
    return int(Finetuned.load(spec.source).record["recipe"]["length"])


def _check(options: DepthOptions) -> None:
    if not 0 <= options.seed < 2**63:
        raise StratoscopeError(f"expected a --seed of at least 0 and below 2^63, got {options.seed}")
    if options.batch_tokens is not None and options.batch_tokens < 1:
        raise StratoscopeError(f"expected --batch-tokens of at least 1, got {options.batch_tokens}")


def _check_base(specs: Sequence[ModelSpec], surveys: Sequence[Survey]) -> None:
    if len(specs) < 2:
        return
    shapes = [(s.family.name, s.layers - 1, s.width) for s in surveys]
    if shapes[0] != shapes[1]:
        (a, b), (first, second) = shapes, (s.label for s in specs)
        raise StratoscopeError(
            f"'{first}' ({a[0]}, {a[1]} blocks, width {a[2]}) was not tuned from '{second}' ({b[0]}, {b[1]} blocks,"
            f" width {b[2]}); give the model it was tuned from as --base, or leave --base out"
        )


def _texts_cut(work: _Work) -> list[str]:
    inputs = work.tuned.inputs
    cut = sum(inputs[split].cut for split in SPLITS)
    return (
        [f"{cut} texts of {work.task.name} are longer than {work.tuned.length} tokens and were cut to that"]
        if cut
        else []
    )


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))


def _request(encoders: Sequence[_Encoder], task: TaskData, options: DepthOptions) -> str:
    """Digest of everything the numbers depend on."""
    return digest(
        {
            "models": [[e.spec.label, e.seen.fingerprint, e.seen.dtype, e.length] for e in encoders],
            "task": [task.name, task.fingerprint, task.metric],
            "seed": options.seed,
            "skip": options.skip,
            "version": version("stratoscope"),
        },
        length=64,
    )


def _finished(folder: RunFolder, request: str, *, overwrite: bool) -> Depth | None:
    """The folder's result if it answers this very request; another one is not overwritten unasked."""
    if not (folder.path / DEPTH).is_file():
        return None
    try:
        found = Depth.load(folder.path)
    except ForeignResultError as e:
        if overwrite:
            return None
        raise StratoscopeError(f"{e}, in another folder or with --overwrite") from e
    except StratoscopeError:
        return None  # damaged: made again
    if found.provenance.get("request") == request:
        return found
    if not overwrite:
        raise StratoscopeError(f"{folder.path} holds another result; choose another --out or give --overwrite")
    return None


def _described(task: TaskData) -> dict[str, Any]:
    return {
        "name": task.name,
        "metric": task.metric,
        "labels": None if task.labels is None else list(task.labels),
        "format": task.format,
        "fingerprint": task.fingerprint,
        "n_train": len(task.train),
        "n_validation": len(task.validation),
        "note": task.note,
    }


def _provenance(work: _Work, request: str) -> dict[str, Any]:
    return {
        "request": request,
        "seed": work.options.seed,
        "length": work.tuned.length,
        "skip": work.options.skip,
        "head": "keeps its own pooler; tuned heads read standardised features",
        "versions": {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
    }
