"""The parts of a depth study that are kept while it runs: vectors of every layer, tuned heads, scores of every span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from stratoscope.core.codekey import code_key
from stratoscope.core.depth import Point
from stratoscope.core.progress import Progress
from stratoscope.core.result import ModelInfo
from stratoscope.core.runfolder import RunFolder, digest
from stratoscope.data.baselines import majority_scores
from stratoscope.data.metrics import interval, metric_named
from stratoscope.data.tasks.data import SPLITS, TaskData
from stratoscope.models.heads.fit import fit_head
from stratoscope.models.heads.fitting import Goal, Scale, scale_of
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, open_model
from stratoscope.models.read.head import reads_mean
from stratoscope.models.read.store import HeadInput, Reading, Stored, store_layers
from stratoscope.models.surgery.spans import score_spans
from stratoscope.models.text.examples import Floats, Inputs, text_length, tokenise
from stratoscope.studies.compare.activations import FolderRun

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
class Encoder:
    """One of the two models whose layers are read, with the task as it reads it."""

    spec: ModelSpec
    seen: Survey
    inputs: dict[str, Inputs]
    """By split."""
    length: int
    model: Callable[[], OpenedModel]
    """Opens the model at the first call."""

    @property
    def info(self) -> ModelInfo:
        seen = self.seen
        return ModelInfo(self.spec.label, self.spec.source, seen.family.name, seen.layers, seen.width, seen.fingerprint)


@dataclass(frozen=True)
class Work:
    """What a study is made from and where its parts are kept."""

    tuned: Encoder
    base: Encoder | None
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


def encoder_for(spec: ModelSpec, seen: Survey, task: TaskData, length: int, *, judged: bool) -> Encoder:
    """Tokenise the task for a model; the one that is `judged` comes with its head."""
    length = text_length(seen.encoder, length) if judged else min(length, seen.encoder.window or length)
    inputs = {split: tokenise(task, split, seen.encoder, length=length) for split in SPLITS}

    @cache
    def model() -> OpenedModel:
        return open_model(spec, task if judged else None, seen=seen)

    return Encoder(spec, seen, inputs, length, model)


def vectors_of(work: Work, encoder: Encoder, split: str) -> Stored:
    """What the head reads at every layer for the texts of a split."""
    judged = encoder is work.tuned
    reading = Reading(
        work.task.corpus(split),
        head=HeadInput(mean=reads_mean(work.tuned.model().module), scored=judged),
        choices=encoder.inputs[split].choices,
        truncate=encoder.length,
        batch_tokens=work.options.batch_tokens,
    )
    return store_layers(encoder.model, encoder.seen, reading, FolderRun(work.folder, work.progress))


def tuned_heads(
    work: Work, encoder: Encoder, vectors: dict[str, Stored], start: Scale
) -> tuple[list[Floats], list[str]]:
    """Validation scores of a head tuned on each layer, and what a reader should know of them."""
    label, found, constant, short = encoder.spec.label, [], [], []
    with work.progress.step(f"tuning heads on {label}", encoder.seen.layers) as advance:
        for k in range(encoder.seen.layers):
            made_from = [encoder.info.fingerprint, work.tuned.info.fingerprint, work.task.fingerprint, encoder.length]
            name = f"head-{digest([*made_from, encoder is work.tuned, k, work.options.seed, code_key()])}.safetensors"
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


def _tuned_head(work: Work, vectors: dict[str, Stored], k: int, start: Scale) -> dict[str, torch.Tensor]:
    x = vectors["train"].head_input(k)
    if scale_of(x).constant:
        return {"scores": torch.from_numpy(majority_scores(work.task)), "state": torch.tensor([True, True])}
    fitted = fit_head(work.tuned.model().module, x, work.goal, start=start, seed=work.options.seed)
    scores = fitted.scores(work.tuned.model().module, vectors["validation"].head_input(k), choices=work.goal.choices)
    return {"scores": torch.from_numpy(scores), "state": torch.tensor([False, fitted.converged])}


def skipped(work: Work, whole: Floats) -> tuple[Floats, Floats]:
    """Metric and agreement with the whole model for every span, NaN below the diagonal."""
    tuned, task = work.tuned, work.task
    inputs, blocks = tuned.inputs["validation"], tuned.seen.layers - 1
    bounds = [*range(0, len(inputs), SPAN_ROWS), len(inputs)]
    pieces = []
    with work.progress.step(f"skipping blocks of {tuned.spec.label}", len(inputs)) as advance:
        for first, last in pairwise(bounds):
            made_from = [tuned.info.fingerprint, task.fingerprint, tuned.length, first, last]
            name = f"spans-{digest([*made_from, code_key()])}.safetensors"
            if work.folder.has(name):
                advance(last - first)
            else:
                scores = torch.full((blocks, blocks, last - first, whole.shape[1]), torch.nan, dtype=torch.float64)
                rows, tokens = np.arange(first, last), work.options.batch_tokens
                spans = score_spans(tuned.model(), inputs, rows=rows, batch_tokens=tokens, advance=advance)
                for (a, b), found in spans.skipped.items():
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


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
