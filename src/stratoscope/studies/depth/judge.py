"""From what was read to the curves and the skip matrix, all with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.claims import judge_depth
from stratoscope.core.curve import Curve
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import PERCENTILES, Interval, Value, Values, spread
from stratoscope.data.baselines import bag_of_words, majority, majority_scores
from stratoscope.data.metrics import Metric, metric_named, replicates
from stratoscope.data.tasks.data import SPLITS, TaskData
from stratoscope.models.heads.fit import fit_head
from stratoscope.models.heads.fitting import Goal, Scale, scale_of
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, load_config, open_model, resolve
from stratoscope.models.read.head import head_scores, reads_mean
from stratoscope.models.read.store import Stored
from stratoscope.models.surgery.spans import score_spans
from stratoscope.models.text.examples import Floats, Inputs, tokenise
from stratoscope.results.depth import TUNED, TUNEDORIG, UNTUNED, Depth
from stratoscope.runs.run import Run
from stratoscope.studies.depth.options import DepthOptions

SPAN_ROWS = 256
"""Examples whose skip scores are kept in one part: what a killed run loses at most."""
SPAN_RESAMPLES = 200
"""Resamples of the skip matrix, the first of those of the curves."""
INTERVAL = Interval(0.95, PERCENTILES)


@dataclass(frozen=True)
class Side:
    """One of the two models whose layers are read."""

    spec: ModelSpec
    seen: Survey
    length: int
    """Tokens kept of a text."""

    @property
    def info(self) -> ModelInfo:
        seen = self.seen
        return ModelInfo(self.spec.label, self.spec.source, seen.family.name, seen.layers, seen.width, seen.fingerprint)


@dataclass(frozen=True)
class Work:
    """What is judged, on what, and where its parts are kept."""

    tuned: Side
    base: Side | None
    task: TaskData
    options: DepthOptions
    run: Run

    def tuned_model(self) -> OpenedModel:
        """The tuned model with its head, loaded at the first call."""
        return self._tuned

    def base_model(self) -> OpenedModel:
        assert self.base is not None
        return open_model(self.base.spec, seen=self.base.seen, progress=self.run.progress)

    @cached_property
    def _tuned(self) -> OpenedModel:
        return open_model(self.tuned.spec, self.task, seen=self.tuned.seen, progress=self.run.progress)

    @cached_property
    def reads_mean(self) -> bool:
        """Whether the head reads the mean over the tokens."""
        return reads_mean(load_config(self.tuned.spec, resolve(self.tuned.spec)))

    @cached_property
    def inputs(self) -> Inputs:
        """The validation rows, for skipping blocks."""
        return tokenise(self.task, "validation", self.tuned.seen.encoder, length=self.tuned.length)

    @cached_property
    def metric(self) -> Metric:
        return metric_named(self.task.metric)

    @cached_property
    def targets(self) -> Floats:
        return self.task.targets("validation")

    @cached_property
    def choices(self) -> int:
        return len(self.task.validation[0].texts)

    @cached_property
    def goal(self) -> Goal:
        return Goal(self.task.targets("train"), self.choices, self.task.regression)

    def resampled(self, scores: Floats) -> Values:
        """(resamples,) the metric of validation scores; the same resamples for all scores."""
        drawn: Values = replicates(self.metric, scores, self.targets, seed=self.options.seed)
        return drawn

    def curve(self, name: str, scores: Sequence[Floats]) -> Curve:
        """The metric of each layer's validation scores, with intervals over the examples."""
        values = np.array([self.metric.score(s, self.targets) for s in scores])
        drawn = np.stack([self.resampled(s) for s in scores], axis=1)
        low, high = spread(values, drawn, INTERVAL)
        return Curve(name, tuple(range(len(scores))), values, low, high, INTERVAL, drawn)


def judge(work: Work, tuned: Mapping[str, Stored], base: Mapping[str, Stored] | None = None) -> Depth:
    """Everything depth has to say, from the stored head inputs of both splits."""
    task, side, progress = work.task, work.tuned, work.run.progress
    floor = {"majority": majority(task), "bag_of_words": bag_of_words(task)}
    layers = range(side.seen.layers)
    validation = tuned["validation"]
    untuned = [head_scores(work.tuned_model().module, validation.head_input(k), choices=work.choices) for k in layers]
    start = scale_of(tuned["train"].head_input(layers[-1]))
    curves, notes = [work.curve(UNTUNED, untuned)], _truncated(work)
    for name, of, stored in ((TUNED, side, tuned), (TUNEDORIG, work.base, base)):
        if of is not None and stored is not None:
            scores, remarks = tuned_heads(work, of, stored, start)
            curves.append(work.curve(name, scores))
            notes += remarks
    whole = validation.scores
    drawn = work.resampled(whole)
    low, high = (float(edge) for edge in np.quantile(drawn, [0.025, 0.975]))
    full = Value(work.metric.score(whole, work.targets), low, high)
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
    result = Depth(
        model=side.info,
        base=None if work.base is None else work.base.info,
        task=described(task),
        full=full,
        curves=tuple(curves),
        full_replicates=drawn,
        warnings=tuple(notes),
        provenance={"length": side.length, "head": "keeps its own pooler; tuned heads read standardised features"},
        majority=floor["majority"],
        bag_of_words=floor["bag_of_words"],
    )
    if work.options.skip:
        result = skipped(work, result, whole)
    return replace(result, statements=judge_depth(result))


def tuned_heads(work: Work, side: Side, stored: Mapping[str, Stored], start: Scale) -> tuple[list[Floats], list[str]]:
    """Validation scores of a head tuned on each layer, and what a reader should know of them."""
    label, scores, constant, short = side.spec.label, [], [], []
    own = side is work.tuned
    made_from = [side.seen.fingerprint, work.tuned.seen.fingerprint, work.task.fingerprint, side.length, own]
    with work.run.progress.step(f"tuning heads on {label}", side.seen.layers) as advance:
        for k in range(side.seen.layers):
            key = [*made_from, k, work.options.seed]
            part = work.run.part("head", key, lambda k=k: _tuned_head(work, stored, k, start))  # type: ignore[misc]
            scores.append(part["scores"].numpy())
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
    return scores, notes


def _tuned_head(work: Work, stored: Mapping[str, Stored], k: int, start: Scale) -> dict[str, Tensor]:
    x = stored["train"].head_input(k)
    if scale_of(x).constant:
        return {"scores": torch.from_numpy(majority_scores(work.task)), "state": torch.tensor([True, True])}
    model = work.tuned_model()
    fitted = fit_head(model.module, x, work.goal, start=start, seed=work.options.seed)
    scores = fitted.scores(model.module, stored["validation"].head_input(k), choices=work.choices)
    return {"scores": torch.from_numpy(scores), "state": torch.tensor([False, fitted.converged])}


def skipped(work: Work, result: Depth, whole: Floats) -> Depth:
    """The result with metric and agreement for every span skipped (NaN below the diagonal), also on resamples."""
    side, task, tokens = work.tuned, work.task, work.options.batch_tokens
    blocks, n = side.seen.layers - 1, len(task.validation)
    pieces = []
    with work.run.progress.step(f"skipping blocks of {side.spec.label}", n) as advance:
        for first, last in pairwise([*range(0, n, SPAN_ROWS), n]):

            def make(rows: Any = (first, last)) -> dict[str, Tensor]:
                scores = torch.full((blocks, blocks, rows[1] - rows[0], whole.shape[1]), torch.nan, dtype=torch.float64)
                every = score_spans(work.tuned_model(), work.inputs, rows=np.arange(*rows), batch_tokens=tokens)
                for (a, b), one in every.items():
                    scores[a - 1, b - 1] = torch.from_numpy(one)
                return {"scores": scores}

            key = [side.seen.fingerprint, task.fingerprint, side.length, first, last]
            pieces.append(work.run.part("spans", key, make)["scores"].numpy())
            advance(last - first)
    joined: Floats = np.concatenate(pieces, axis=2)
    value, agreement = np.full((blocks, blocks), np.nan), np.full((blocks, blocks), np.nan)
    upper = np.triu_indices(blocks)
    for i, j in zip(*upper, strict=True):
        value[i, j] = work.metric.score(joined[i, j], work.targets)
        if not task.regression:
            agreement[i, j] = (joined[i, j].argmax(axis=1) == whole.argmax(axis=1)).mean()
    drawn = np.full((SPAN_RESAMPLES, blocks, blocks), np.nan)
    how: dict[str, Any] = {"seed": work.options.seed, "number": SPAN_RESAMPLES}
    drawn[:, *upper] = replicates(work.metric, joined[upper], work.targets, **how)
    return replace(result, skip=value, skip_agreement=agreement, skip_replicates=drawn)


def described(task: TaskData) -> dict[str, Any]:
    """The task as a result records it."""
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


def _truncated(work: Work) -> list[str]:
    splits = [tokenise(work.task, split, work.tuned.seen.encoder, length=work.tuned.length) for split in SPLITS]
    count = sum(inputs.truncated for inputs in splits)
    return (
        [f"{count} texts of {work.task.name} are longer than {work.tuned.length} tokens and were truncated"]
        if count
        else []
    )


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
