"""From what was read to the curves and the skip matrix, all with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.claims import judge_depth
from stratoscope.core.curve import Curve
from stratoscope.core.model import ModelInfo
from stratoscope.core.progress import advanced
from stratoscope.core.value import PERCENTILES, Interval, Value, Values, spread
from stratoscope.data.baselines import bag_of_words, majority, majority_scores
from stratoscope.data.metrics import Metric, metric_named, replicates
from stratoscope.data.tasks.data import SPLITS, TaskData
from stratoscope.engine.base import Resources
from stratoscope.models.heads.fit import fit_head
from stratoscope.models.heads.minimise import Goal, Scale, scale_of
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import ModelSpec, OpenedModel, Survey, load_config, open_model, resolve
from stratoscope.models.read.head import head_scores, reads_mean
from stratoscope.models.read.store import HeadInput, Reading, Stored, Wanted, store_all
from stratoscope.models.surgery.spans import score_spans
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats, Inputs, tokenise
from stratoscope.results.cutting.depth import TUNED, TUNEDORIG, UNTUNED, Depth
from stratoscope.runs.run import Run
from stratoscope.studies.asked import model_info

SPAN_ROWS = 256
"""Examples whose skip scores are kept in one part: what a killed run loses at most."""
SPAN_RESAMPLES = 200
"""Resamples of the skip matrix, the first of those of the curves."""
INTERVAL = Interval(0.95, PERCENTILES)


@dataclass(frozen=True)
class Side:
    """One of the two models whose layers are read."""

    spec: ModelSpec
    surveyed: Survey
    length: int
    """Truncate texts to N tokens."""

    @property
    def info(self) -> ModelInfo:
        return model_info(self.spec, self.surveyed)


@dataclass(frozen=True)
class Work:
    """A tuned model, what it is judged on, and where parts are kept."""

    tuned: Side
    task: TaskData
    seed: int
    batch_tokens: int | None
    run: Run

    @cached_property
    def held(self) -> Held:
        """The tuned model with its head, loaded when first asked for."""
        side, name = self.tuned, self.task.fingerprint
        return Held(
            partial(open_model, side.spec, self.task, surveyed=side.surveyed), side.surveyed, name, self.run.progress
        )

    @property
    def model(self) -> OpenedModel:
        return self.held()

    @property
    def items(self) -> Resources:
        """What an item takes that tunes a head of the model, or skips its blocks."""
        return replace(self.held.resources, threaded=False)

    @cached_property
    def inputs(self) -> Inputs:
        """The validation rows, checked and tokenised."""
        return tokenise(self.task, "validation", self.tuned.surveyed.encoder, length=self.tuned.length)

    @cached_property
    def train(self) -> Inputs:
        """The training rows."""
        return tokenise(self.task, "train", self.tuned.surveyed.encoder, length=self.tuned.length)

    @cached_property
    def metric(self) -> Metric:
        return metric_named(self.task.metric)

    @property
    def targets(self) -> Floats:
        return self.inputs.targets

    @property
    def choices(self) -> int:
        return self.inputs.choices

    @property
    def goal(self) -> Goal:
        return Goal(self.train.targets, self.train.choices, self.task.regression)

    def readings(self, side: Side, splits: Sequence[str] = SPLITS) -> dict[str, Reading]:
        """What is read of each split: the vector the head reads at every layer, of the tuned model its scores too."""
        config = load_config(self.tuned.spec, resolve(self.tuned.spec))
        head = HeadInput(mean=reads_mean(config), scored=side is self.tuned)
        how: dict[str, Any] = {"truncate": side.length, "batch_tokens": self.batch_tokens}
        choices = {s: (self.train if s == "train" else self.inputs).choices for s in splits}
        return {s: Reading(self.task.corpus(s), head=head, choices=choices[s], **how) for s in splits}

    def store(self, readings: Sequence[tuple[Side, Mapping[str, Reading]]]) -> list[dict[str, Stored]]:
        """Read each split with each model, opened once, if at all; with its head where that gives scores."""
        wanted = [Wanted(self._opening(side, of), side.surveyed, r) for side, of in readings for r in of.values()]
        stored = iter(store_all(wanted, self.run))
        return [dict(zip(of, stored, strict=False)) for _, of in readings]

    def _opening(self, side: Side, readings: Mapping[str, Reading]) -> Held:
        if any(r.head is not None and r.head.scored for r in readings.values()):
            return self.held
        opening = partial(open_model, side.spec, surveyed=side.surveyed)
        return Held(opening, side.surveyed, progress=self.run.progress, one_of_many=True)

    def resampled(self, scores: Floats) -> Values:
        """(resamples,) the metric of validation scores; the same resamples for all scores."""
        drawn: Values = replicates(self.metric, scores, self.targets, seed=self.seed)
        return drawn

    def curve(self, name: str, scores: Sequence[Floats]) -> Curve:
        """The metric of each layer's validation scores, with intervals over the examples."""
        values = np.array([self.metric.score(s, self.targets) for s in scores])
        drawn = np.stack([self.resampled(s) for s in scores], axis=1)
        low, high = spread(values, drawn, INTERVAL)
        return Curve(name, tuple(range(len(scores))), values, low, high, INTERVAL, drawn)


def judge(
    work: Work,
    tuned: Mapping[str, Stored],
    base: tuple[Side, Mapping[str, Stored]] | None = None,
    *,
    skip: bool = True,
) -> Depth:
    """Everything depth has to say, from the stored head inputs of both splits."""
    task, side, progress = work.task, work.tuned, work.run.progress
    floor = {"majority": majority(task), "bag_of_words": bag_of_words(task)}
    layers = range(side.surveyed.layers)
    validation = tuned["validation"]
    untuned = [head_scores(work.model.module, validation.head_input(k), choices=work.choices) for k in layers]
    start = scale_of(tuned["train"].head_input(layers[-1]))
    curves, notes = [work.curve(UNTUNED, untuned)], _truncated(work)
    predicted = None
    for name, (of, stored) in {TUNED: (side, tuned), **({TUNEDORIG: base} if base else {})}.items():
        scores, remarks = tuned_heads(work, of, stored, start)
        curves.append(work.curve(name, scores))
        notes += remarks
        if name == TUNED and not task.regression:
            predicted = np.array([s.argmax(axis=1) for s in (*scores, validation.scores)], dtype=np.float64)
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
        base=base[0].info if base else None,
        task=described(task),
        full=full,
        curves=tuple(curves),
        predicted=predicted,
        full_replicates=drawn,
        warnings=tuple(notes),
        provenance={"length": side.length, "head": "keeps its own pooler; tuned heads read standardised features"},
        majority=floor["majority"],
        bag_of_words=floor["bag_of_words"],
    )
    if skip:
        result = skipped(work, result, whole)
    return replace(result, statements=judge_depth(result))


def tuned_heads(work: Work, side: Side, stored: Mapping[str, Stored], start: Scale) -> tuple[list[Floats], list[str]]:
    """Validation scores of a head tuned on each layer, and what a reader should know of them."""
    label, scores, constant, short = side.spec.label, [], [], []
    own = side is work.tuned
    made_from = [side.surveyed.fingerprint, work.tuned.surveyed.fingerprint, work.task.fingerprint, side.length, own]
    parts = work.run.map(
        _tuned_head,
        [{"layer": k} for k in range(side.surveyed.layers)],
        name="head",
        key=[*made_from, work.seed],
        label=f"tuning heads on {label}",
        shared=_Heads(work.held, work.task, stored, work.goal, start, work.choices, work.seed),
        resources=work.items,
    )
    for k, part in enumerate(parts):
        scores.append(part["scores"].numpy())
        if part["state"][0]:
            constant.append(str(k))
        elif not part["state"][1]:
            short.append(str(k))
    same = "gives the head the same vector for every text; a head tuned on it can only name the majority"
    notes = [f"{label}: layer {', '.join(constant)} {same}"] if constant else []
    if short:
        notes.append(f"{label}: the head tuned on layer {', '.join(short)} had not converged when it was stopped")
    return scores, notes


@dataclass(frozen=True)
class _Heads:
    """What the tuning of all layers' heads shares."""

    model: Held
    task: TaskData
    stored: Mapping[str, Stored]
    goal: Goal
    start: Scale
    choices: int
    seed: int


def _tuned_head(shared: _Heads, item: dict[str, Any]) -> dict[str, Tensor]:
    k, stored = item["layer"], shared.stored
    x = stored["train"].head_input(k)
    if scale_of(x).constant:
        return {"scores": torch.from_numpy(majority_scores(shared.task)), "state": torch.tensor([True, True])}
    module = shared.model().module
    fitted = fit_head(module, x, shared.goal, start=shared.start, seed=shared.seed)
    scores = fitted.scores(module, stored["validation"].head_input(k), choices=shared.choices)
    return {"scores": torch.from_numpy(scores), "state": torch.tensor([False, fitted.converged])}


@dataclass(frozen=True)
class _Spans:
    """What all rows share whose blocks are skipped."""

    model: Held
    inputs: Inputs
    shape: tuple[int, int]
    """Blocks, and scores of a row."""
    batch_tokens: int | None


def _skipped_rows(shared: _Spans, item: dict[str, Any]) -> dict[str, Tensor]:
    """(blocks, blocks, rows, k): scores with every span skipped."""
    (blocks, k), rows = shared.shape, np.array(item["rows"])
    scores = torch.full((blocks, blocks, len(rows), k), torch.nan, dtype=torch.float64)
    every = score_spans(shared.model(), shared.inputs, rows=rows, batch_tokens=shared.batch_tokens, advance=advanced)
    for (a, b), one in every.items():
        scores[a - 1, b - 1] = torch.from_numpy(one)
    return {"scores": scores}


def span_scores(work: Work, rows: IntArray, width: int) -> Floats:
    """(blocks, blocks, rows, width): scores of these rows with every span skipped, NaN below the diagonal."""
    side, blocks = work.tuned, work.tuned.surveyed.layers - 1
    some = [rows[start : start + SPAN_ROWS].tolist() for start in range(0, len(rows), SPAN_ROWS)]
    parts = work.run.map(
        _skipped_rows,
        [{"rows": s} for s in some],
        name="spans",
        key=[side.surveyed.fingerprint, work.task.fingerprint, side.length],
        label=f"skipping blocks of {side.spec.label}",
        shared=_Spans(work.held, work.inputs, (blocks, width), work.batch_tokens),
        weights=[len(s) for s in some],
        resources=work.items,
    )
    joined: Floats = np.concatenate([part["scores"].numpy() for part in parts], axis=2)
    return joined


def skipped(work: Work, result: Depth, whole: Floats) -> Depth:
    """The result with metric and agreement for every span skipped (NaN below the diagonal), also on resamples."""
    task, blocks = work.task, work.tuned.surveyed.layers - 1
    joined = span_scores(work, np.arange(len(task.validation)), whole.shape[1])
    value, agreement = np.full((blocks, blocks), np.nan), np.full((blocks, blocks), np.nan)
    upper = np.triu_indices(blocks)
    for i, j in zip(*upper, strict=True):
        value[i, j] = work.metric.score(joined[i, j], work.targets)
        if not task.regression:
            agreement[i, j] = (joined[i, j].argmax(axis=1) == whole.argmax(axis=1)).mean()
    drawn = np.full((SPAN_RESAMPLES, blocks, blocks), np.nan)
    drawn[:, *upper] = replicates(work.metric, joined[upper], work.targets, seed=work.seed, number=SPAN_RESAMPLES)
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
    count = work.train.truncated + work.inputs.truncated
    note = f"{count} texts of {work.task.name} are longer than {work.tuned.length} tokens and were truncated"
    return [note] if count else []
