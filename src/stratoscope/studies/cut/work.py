"""What a cut is chosen from: the whole model's scores, and those of every cut that could be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.progress import Progress
from stratoscope.core.runfolder import RunFolder
from stratoscope.data.metrics import Metric, metric_named
from stratoscope.data.tasks.data import SPLITS, TaskData
from stratoscope.models.heads.fit import FittedHead, fit_head
from stratoscope.models.heads.fitting import Goal, scale_of
from stratoscope.models.open.loading import (
    ModelSpec,
    OpenedModel,
    Survey,
    check_head,
    choose_device,
    open_model,
    survey,
)
from stratoscope.models.read.head import head_scores, predict, reads_mean
from stratoscope.models.read.store import HeadInput, Reading, Stored, store_layers
from stratoscope.models.surgery.blocks import keeping
from stratoscope.models.surgery.spans import score_spans
from stratoscope.models.text.encoder import IntArray
from stratoscope.models.text.examples import Floats, Inputs, text_length, tokenise
from stratoscope.studies.compare.activations import FolderRun
from stratoscope.studies.cut.confirm import Candidate, halves
from stratoscope.studies.depth.study import trained_length

TOP, ANY = BLOCKS = ("top", "any")
"""Cut off the top blocks; or leave out any run of blocks, wherever it lies."""


@dataclass(frozen=True)
class CutOptions:
    """How to cut; every field is also a CLI option. Device and dtype are those of the model."""

    seed: int = 0
    """Of the two halves of the validation rows, and of the intervals."""
    length: int | None = None
    """Tokens kept of a text; what the model was fine-tuned with, where its folder says so."""
    batch_tokens: int | None = None
    head: bool = False
    """Tune the head further, on the training rows, for the layer it will read."""
    confidence: float = 0.95
    """With which the loss is within the budget."""
    blocks: str = TOP
    """One of `BLOCKS`."""
    keep: int = 1
    """Blocks that stay at least."""


def check(options: CutOptions) -> None:
    """Refuse what cannot work before anything is read."""
    if not 0 <= options.seed < 2**63:
        raise StratoscopeError(f"expected a --seed of at least 0 and below 2^63, got {options.seed}")
    if not 0.5 < options.confidence < 1:
        raise StratoscopeError(f"expected a --confidence above 0.5 and below 1, got {options.confidence:g}")
    if options.batch_tokens is not None and options.batch_tokens < 1:
        raise StratoscopeError(f"expected --batch-tokens of at least 1, got {options.batch_tokens}")
    if options.keep < 1:
        raise StratoscopeError(f"expected --keep of at least 1 block, got {options.keep}")
    if options.blocks not in BLOCKS:
        raise unknown_name("choice of blocks", options.blocks, BLOCKS)
    if options.head and options.blocks != TOP:
        raise StratoscopeError("a head is tuned for a cut from the top only; leave out --head or --blocks any")


@dataclass(frozen=True)
class Work:
    """The whole model and the rows it is held against."""

    spec: ModelSpec
    seen: Survey
    model: OpenedModel
    """With its own head, in float32, on the device."""
    task: TaskData
    options: CutOptions
    budget: float
    inputs: Mapping[str, Inputs]
    """By split; the training rows only when a head is tuned."""
    length: int
    choose: IntArray
    """Validation rows on which the cut is chosen."""
    sure: IntArray
    """Validation rows on which it is confirmed."""
    folder: RunFolder
    progress: Progress

    @property
    def module(self) -> Any:
        return self.model.module

    @property
    def metric(self) -> Metric:
        return metric_named(self.task.metric)

    @property
    def blocks(self) -> int:
        return self.seen.layers - 1

    def score(self, scores: Floats, rows: IntArray) -> float:
        """The metric of scores (rows, k)."""
        return self.metric.score(scores, self.inputs["validation"].targets[rows])


@dataclass(frozen=True)
class Judged:
    """Every cut that was looked at."""

    candidates: tuple[Candidate, ...]
    whole: Floats
    """(n, k): scores of the whole model on all validation rows."""
    confirming: Callable[[Candidate], Floats]
    """Scores (sure, k) of a cut on the rows that took no part in the choice."""
    heads: Mapping[tuple[int, ...], FittedHead]
    """Heads that were tuned, by the blocks kept below them."""


def prepare(
    spec: ModelSpec, task: TaskData, options: CutOptions, *, budget: float, folder: RunFolder, progress: Progress
) -> Work:
    """Load the model and tokenise the rows; what cannot be cut is refused here."""
    choose_device(spec.device)
    check_head(spec, task)
    seen = survey(spec, progress=progress)
    if seen.layers - 1 <= options.keep:
        raise StratoscopeError(
            f"'{spec.label}' has {seen.layers - 1} blocks and {options.keep} must stay, so there is nothing to cut;"
            " give a deeper model or a lower --keep"
        )
    length = text_length(seen.encoder, options.length, otherwise=trained_length(spec))
    splits = SPLITS if options.head else SPLITS[1:]
    inputs = {split: tokenise(task, split, seen.encoder, length=length) for split in splits}
    model = open_model(spec, task, seen=seen, progress=progress)
    choose, sure = halves(len(task.validation), options.seed)
    return Work(spec, seen, model, task, options, budget, inputs, length, choose, sure, folder, progress)


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
        with wearing(work.module, heads[kept].parameters if kept in heads else {}):
            scores[kept] = head_scores(work.module, vectors.head_input(depth), choices=inputs.choices)
    candidates = tuple(Candidate(kept, work.score(s[work.choose], work.choose)) for kept, s in scores.items())
    return Judged(candidates, vectors.scores, lambda c: scores[c.kept][work.sure], heads)


def _tuned(work: Work, depths: range) -> dict[tuple[int, ...], FittedHead]:
    train = _vectors(work, "train")
    goal = Goal(work.inputs["train"].targets, work.inputs["train"].choices, work.task.regression)
    start = scale_of(train.head_input(work.blocks))
    heads = {}
    with work.progress.step(f"tuning heads on {work.spec.label}", len(depths)) as advance:
        for depth in depths:
            fitted = fit_head(work.module, train.head_input(depth), goal, start=start, seed=work.options.seed)
            heads[tuple(range(1, depth + 1))] = fitted
            advance(1)
    return heads


def _vectors(work: Work, split: str) -> Stored:
    reading = Reading(
        work.task.corpus(split),
        head=HeadInput(mean=reads_mean(work.module)),
        choices=work.inputs[split].choices,
        truncate=work.length,
        batch_tokens=work.options.batch_tokens,
    )
    return store_layers(lambda: work.model, work.seen, reading, FolderRun(work.folder, work.progress))


def _spans(work: Work) -> Judged:
    """Every run of blocks left out; cuts to be confirmed are run again, on the rows they have not seen."""
    inputs, size = work.inputs["validation"], work.options.batch_tokens
    with work.progress.step(f"scoring {work.spec.label}", len(inputs)) as advance:
        whole = predict(work.model, inputs, batch_tokens=size, advance=advance)
    candidates = []
    with work.progress.step(f"skipping blocks of {work.spec.label}", len(work.choose)) as advance:
        spans = score_spans(work.model, inputs, rows=work.choose, batch_tokens=size, advance=advance)
        for (first, last), scores in spans.skipped.items():
            kept = tuple(k for k in range(1, work.blocks + 1) if not first <= k <= last)
            if len(kept) >= work.options.keep:
                candidates.append(Candidate(kept, work.score(scores, work.choose)))

    def confirming(candidate: Candidate) -> Floats:
        with keeping(work.module, candidate.kept):
            return predict(work.model, inputs, rows=work.sure, batch_tokens=size)

    return Judged(tuple(candidates), whole, confirming, {})
