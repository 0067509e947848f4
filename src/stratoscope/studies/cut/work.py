"""What a cut is chosen from: the whole model's scores, and those of every cut that could be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.progress import advanced
from stratoscope.core.value import Value
from stratoscope.data.baselines import majority_scores
from stratoscope.data.metrics import difference_interval
from stratoscope.data.tasks.data import SPLITS
from stratoscope.models.heads.fit import fit_head
from stratoscope.models.heads.minimise import Goal, Scale, scale_of
from stratoscope.models.open.held import Held
from stratoscope.models.read.head import head_scores, predict
from stratoscope.models.read.store import Stored
from stratoscope.models.surgery.blocks import keeping, parameters_kept, wearing
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats, Inputs
from stratoscope.results.cutting.cut import Candidate
from stratoscope.runs.run import Item, Tensors
from stratoscope.studies.cut.confirm import halves
from stratoscope.studies.cut.options import ANY, BLOCKS, TOP, CutOptions
from stratoscope.studies.depth.judge import Work as Judging
from stratoscope.studies.depth.judge import span_scores

CONVERGED = "converged"
SCORED_TOGETHER = 4096
"""Rows that are scored in one part: enough to be sorted by length."""


def check(options: CutOptions) -> None:
    """Refuse what cannot work before anything is read."""
    if not 0.5 < options.confidence < 1:
        raise StratoscopeError(f"expected a --confidence above 0.5 and below 1, got {options.confidence:g}")
    if options.blocks not in BLOCKS:
        raise unknown_name("choice of blocks", str(options.blocks), BLOCKS)
    if options.head and options.blocks != TOP:
        raise StratoscopeError("a head is tuned for a cut from the top only; leave out --head or --blocks any")


@dataclass(frozen=True)
class Work(Judging):
    """The whole model and the rows it is held against."""

    options: CutOptions
    budget: float

    @cached_property
    def rows(self) -> tuple[IntArray, IntArray]:
        """Validation rows on which the cut is chosen, and those on which it is confirmed."""
        return halves(len(self.task.validation), self.options.seed)

    @property
    def choose(self) -> IntArray:
        return self.rows[0]

    @property
    def sure(self) -> IntArray:
        return self.rows[1]

    @property
    def blocks(self) -> int:
        return self.tuned.surveyed.layers - 1

    @property
    def key(self) -> list[Any]:
        """What parts are made from."""
        return [self.tuned.surveyed.fingerprint, self.task.fingerprint, self.tuned.length]

    def score(self, scores: Floats, rows: IntArray) -> float:
        """The metric of scores (rows, k)."""
        return self.metric.score(scores, self.targets[rows])

    @cached_property
    def majority(self) -> float:
        """The metric of the majority label on the rows for the confirmation."""
        return self.score(majority_scores(self.task)[self.sure], self.sure)

    def candidate(self, kept: tuple[int, ...], scores: Floats, whole: Floats) -> Candidate:
        """A cut by its scores on the rows for the choice, and those of the whole model there."""
        labels = self.targets[self.choose]
        ends = difference_interval(self.metric, scores, whole, labels, seed=self.seed)
        value = self.metric.score(scores, labels)
        change = Value(value - self.metric.score(whole, labels), *ends)
        return Candidate(kept, value, change, parameters_kept(self.model.module, kept))

    def gone(self, kept: Sequence[int]) -> tuple[int, ...]:
        """The blocks that are not kept."""
        return tuple(k for k in range(1, self.blocks + 1) if k not in kept)


@dataclass(frozen=True)
class TunedHead:
    """A head tuned for one layer, as a part keeps it."""

    parameters: Mapping[str, Tensor]
    """By the names they have in the model."""
    converged: bool


@dataclass(frozen=True)
class Judged:
    """Every cut that was looked at."""

    candidates: tuple[Candidate, ...]
    whole: Floats
    """(n, k): scores of the whole model on all validation rows."""
    confirming: Callable[[tuple[int, ...]], Floats]
    """Scores (sure, k) of a cut, by the blocks it keeps, on the rows that took no part in the choice."""
    heads: Mapping[tuple[int, ...], TunedHead]
    """Heads that were tuned, by the blocks kept below them."""


def judge(work: Work) -> Judged:
    """Score every cut on the rows for the choice; one pass over the rows, or as many as skipping spans takes."""
    return _spans(work) if work.options.blocks == ANY else _depths(work)


def _depths(work: Work) -> Judged:
    """The head on every layer, as it is or tuned for it."""
    module, splits = work.model.module, SPLITS if work.options.head else SPLITS[1:]
    (stored,) = work.store([(work.tuned, work.readings(work.tuned, splits))])
    heads = _tuned(work, stored["train"]) if work.options.head else {}
    scores = {}
    for depth in range(work.options.keep, work.blocks):
        kept = tuple(range(1, depth + 1))
        with wearing(module, heads[kept].parameters if kept in heads else {}):
            scores[kept] = head_scores(module, stored["validation"].head_input(depth), choices=work.choices)
    whole = stored["validation"].scores
    candidates = tuple(work.candidate(kept, s[work.choose], whole[work.choose]) for kept, s in scores.items())
    return Judged(candidates, whole, lambda kept: scores[kept][work.sure], heads)


def _tuned(work: Work, train: Stored) -> dict[tuple[int, ...], TunedHead]:
    depths = range(work.options.keep, work.blocks)
    parts = work.run.map(
        _tuned_head,
        [{"depth": depth} for depth in depths],
        name="head",
        key=[*work.key, work.seed],
        label=f"tuning heads on {work.tuned.spec.label}",
        shared=_Heads(work.held, train, work.goal, scale_of(train.head_input(work.blocks)), work.seed),
        resources=work.items,
    )
    heads = {}
    for depth, part in zip(depths, parts, strict=True):
        parameters = {name: p for name, p in part.items() if name != CONVERGED}
        heads[tuple(range(1, depth + 1))] = TunedHead(parameters, bool(part[CONVERGED]))
    return heads


@dataclass(frozen=True)
class _Heads:
    """What the tuning of heads for all depths shares."""

    model: Held
    train: Stored
    goal: Goal
    start: Scale
    seed: int


def _tuned_head(shared: _Heads, item: Item) -> Tensors:
    x = shared.train.head_input(item["depth"])
    fitted = fit_head(shared.model().module, x, shared.goal, start=shared.start, seed=shared.seed)
    return {**fitted.parameters, CONVERGED: torch.tensor(fitted.converged)}


def _spans(work: Work) -> Judged:
    """Every run of blocks left out; cuts to be confirmed are run again, on the rows they have not seen."""
    whole = _scores(work, np.arange(len(work.inputs)))
    spans = span_scores(work, work.choose, whole.shape[1])
    candidates = [
        work.candidate(kept, spans[first - 1, last - 1], whole[work.choose])
        for last in range(1, work.blocks + 1)
        for first in range(1, last + 1)
        if len(kept := work.gone(range(first, last + 1))) >= work.options.keep
    ]
    return Judged(tuple(candidates), whole, lambda kept: _scores(work, work.sure, kept), {})


def _scores(work: Work, rows: IntArray, kept: tuple[int, ...] | None = None) -> Floats:
    """(rows, k): scores of the model, whole or with some of its blocks, in pieces that workers share."""
    some = [rows[start : start + SCORED_TOGETHER].tolist() for start in range(0, len(rows), SCORED_TOGETHER)]
    parts = work.run.map(
        _scored,
        [{"rows": s, "kept": kept} for s in some],
        name="scored",
        key=work.key,
        label=f"scoring {work.tuned.spec.label}" if kept is None else "",
        shared=_Scoring(work.held, work.inputs, work.batch_tokens),
        weights=[len(s) for s in some],
        resources=work.held.resources,
    )
    return np.concatenate([part["scores"].numpy() for part in parts])


@dataclass(frozen=True)
class _Scoring:
    """What the scores of all rows share."""

    model: Held
    inputs: Inputs
    batch_tokens: int | None


def _scored(shared: _Scoring, item: Item) -> Tensors:
    model = shared.model()
    with keeping(model.module, item["kept"]) if item["kept"] is not None else nullcontext():
        rows = np.array(item["rows"])
        scores = predict(model, shared.inputs, rows=rows, batch_tokens=shared.batch_tokens, advance=advanced)
    return {"scores": torch.from_numpy(scores)}
