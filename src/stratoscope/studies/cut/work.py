"""What a cut is chosen from: the whole model's scores, and those of every cut that could be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.options import check_options
from stratoscope.data.metrics import Metric, metric_named
from stratoscope.data.tasks.data import SPLITS, TaskData
from stratoscope.models.heads.fit import fit_head
from stratoscope.models.heads.fitting import Goal, scale_of
from stratoscope.models.open.loading import OpenedModel, load_config, open_model, resolve
from stratoscope.models.read.head import head_scores, predict, reads_mean
from stratoscope.models.read.store import Stored, store_layers
from stratoscope.models.surgery.blocks import keeping
from stratoscope.models.surgery.spans import score_spans
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats, Inputs, tokenise
from stratoscope.results.cut import Candidate
from stratoscope.runs.run import Run
from stratoscope.studies.cut.confirm import halves
from stratoscope.studies.cut.options import ANY, BLOCKS, TOP, CutOptions
from stratoscope.studies.depth.judge import Side
from stratoscope.studies.depth.study import head_reading

CONVERGED = "converged"


def check(options: CutOptions) -> None:
    """Refuse what cannot work before anything is read."""
    check_options(options)
    if not 0.5 < options.confidence < 1:
        raise StratoscopeError(f"expected a --confidence above 0.5 and below 1, got {options.confidence:g}")
    if options.blocks not in BLOCKS:
        raise unknown_name("choice of blocks", options.blocks, BLOCKS)
    if options.head and options.blocks != TOP:
        raise StratoscopeError("a head is tuned for a cut from the top only; leave out --head or --blocks any")


@dataclass(frozen=True)
class Work:
    """The whole model and the rows it is held against."""

    side: Side
    task: TaskData
    options: CutOptions
    budget: float
    run: Run

    @cached_property
    def model(self) -> OpenedModel:
        """With its own head, in float32, on the device; loaded when first asked for."""
        return open_model(self.side.spec, self.task, seen=self.side.seen, progress=self.run.progress)

    @cached_property
    def inputs(self) -> Mapping[str, Inputs]:
        """By split; the training rows only when a head is tuned."""
        splits = SPLITS if self.options.head else SPLITS[1:]
        return {s: tokenise(self.task, s, self.side.seen.encoder, length=self.side.length) for s in splits}

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
    def metric(self) -> Metric:
        return metric_named(self.task.metric)

    @property
    def blocks(self) -> int:
        return self.side.seen.layers - 1

    def score(self, scores: Floats, rows: IntArray) -> float:
        """The metric of scores (rows, k)."""
        return self.metric.score(scores, self.inputs["validation"].targets[rows])


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
    confirming: Callable[[Candidate], Floats]
    """Scores (sure, k) of a cut on the rows that took no part in the choice."""
    heads: Mapping[tuple[int, ...], TunedHead]
    """Heads that were tuned, by the blocks kept below them."""


def judge(work: Work) -> Judged:
    """Score every cut on the rows for the choice; one pass over the rows, or as many as skipping spans takes."""
    return _spans(work) if work.options.blocks == ANY else _depths(work)


@contextmanager
def wearing(module: nn.Module, parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """Put these parameters, by name, in the place of the model's own; all is put back afterwards."""
    own = {name: p for name, p in module.named_parameters() if name in parameters}
    before = {name: p.data for name, p in own.items()}
    try:
        for name, p in own.items():
            p.data = parameters[name].to(p.device, p.dtype)
        yield
    finally:
        for name, p in own.items():
            p.data = before[name]


def _depths(work: Work) -> Judged:
    """The head on every layer, as it is or tuned for it."""
    inputs, vectors = work.inputs["validation"], _vectors(work, "validation")
    depths = range(work.options.keep, work.blocks)
    heads = _tuned(work, depths) if work.options.head else {}
    scores = {}
    for depth in depths:
        kept = tuple(range(1, depth + 1))
        with wearing(work.model.module, heads[kept].parameters if kept in heads else {}):
            scores[kept] = head_scores(work.model.module, vectors.head_input(depth), choices=inputs.choices)
    candidates = tuple(Candidate(kept, work.score(s[work.choose], work.choose)) for kept, s in scores.items())
    return Judged(candidates, vectors.scores, lambda c: scores[c.kept][work.sure], heads)


def _tuned(work: Work, depths: range) -> dict[tuple[int, ...], TunedHead]:
    train = _vectors(work, "train")
    goal = Goal(work.inputs["train"].targets, work.inputs["train"].choices, work.task.regression)
    start = scale_of(train.head_input(work.blocks))
    made_from = [work.side.seen.fingerprint, work.task.fingerprint, work.side.length, work.options.seed]

    def make(depth: int) -> dict[str, Tensor]:
        x = train.head_input(depth)
        fitted = fit_head(work.model.module, x, goal, start=start, seed=work.options.seed)
        return {**fitted.parameters, CONVERGED: torch.tensor(fitted.converged)}

    heads = {}
    with work.run.progress.step(f"tuning heads on {work.side.spec.label}", len(depths)) as advance:
        for depth in depths:
            part = dict(work.run.part("head", [*made_from, depth], partial(make, depth)))
            converged = bool(part.pop(CONVERGED))
            heads[tuple(range(1, depth + 1))] = TunedHead(part, converged)
            advance(1)
    return heads


def _vectors(work: Work, split: str) -> Stored:
    spec, tokens = work.side.spec, work.options.batch_tokens
    mean = reads_mean(load_config(spec, resolve(spec)))
    reading = head_reading(work.side, work.task, split, mean=mean, scored=True, tokens=tokens)
    return store_layers(lambda: work.model, work.side.seen, reading, work.run)


def _spans(work: Work) -> Judged:
    """Every run of blocks left out; cuts to be confirmed are run again, on the rows they have not seen."""
    inputs, tokens, label = work.inputs["validation"], work.options.batch_tokens, work.side.spec.label
    key = [work.side.seen.fingerprint, work.task.fingerprint, work.side.length]

    def whole_scores() -> dict[str, Tensor]:
        with work.run.progress.step(f"scoring {label}", len(inputs)) as advance:
            scores = predict(work.model, inputs, batch_tokens=tokens, advance=advance)
        return {"scores": torch.from_numpy(scores)}

    def span_scores() -> dict[str, Tensor]:
        with work.run.progress.step(f"skipping blocks of {label}", len(work.choose)) as advance:
            found = score_spans(work.model, inputs, rows=work.choose, batch_tokens=tokens, advance=advance)
        return {f"{a}-{b}": torch.from_numpy(s) for (a, b), s in found.items()}

    whole = work.run.part("whole", key, whole_scores)["scores"].numpy()
    candidates = []
    spans = work.run.part("spans", [*key, work.choose.tolist()], span_scores)
    for first, last in sorted(map(_span, spans), key=lambda span: (span[1], span[0])):
        scores = spans[f"{first}-{last}"]
        kept = tuple(k for k in range(1, work.blocks + 1) if not first <= k <= last)
        if len(kept) >= work.options.keep:
            candidates.append(Candidate(kept, work.score(scores.numpy(), work.choose)))
    return Judged(tuple(candidates), whole, partial(_rerun, work), {})


def _span(name: str) -> tuple[int, int]:
    first, _, last = name.partition("-")
    return int(first), int(last)


def _rerun(work: Work, candidate: Candidate) -> Floats:
    with keeping(work.model.module, candidate.kept):
        return predict(work.model, work.inputs["validation"], rows=work.sure, batch_tokens=work.options.batch_tokens)
