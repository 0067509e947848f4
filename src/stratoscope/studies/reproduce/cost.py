"""What a job would cost, about, before it is run: from the models' shapes and the number of words."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache

from stratoscope.aligners.fit import NETWORK
from stratoscope.aligners.networks import PaperFlow
from stratoscope.aligners.training import PAPER_BATCH, PAPER_LAST, recipe, untrained
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.data.readers import read_corpus
from stratoscope.data.tagged import read_tagged
from stratoscope.data.tasks.data import TaskData
from stratoscope.data.tasks.source import TaskSource
from stratoscope.models.open.loading import ModelSpec
from stratoscope.models.saved.source import survey_source
from stratoscope.models.text.encoder import words_of
from stratoscope.models.train.trainer import planned_steps
from stratoscope.studies.align.attention import TEXTS
from stratoscope.studies.align.options import ATTENTION
from stratoscope.studies.align.work import NORM_RESAMPLES, chosen_methods
from stratoscope.studies.finetune.recipes import resolve
from stratoscope.studies.probing.options import ProbeOptions
from stratoscope.studies.probing.study import WORK_PER_WORD
from stratoscope.studies.reproduce.jobs import Job

TOKENS_PER_WORD = 1.3
FLOP_PER_SECOND = 5e10
"""Of one core in matrix products, about."""
FORWARD = 24.0
"""Operations per token, block and squared width: two for each of the 12 d² weights of a block."""
BACKWARD = 2.0
"""A training step's backward pass in units of its forward pass."""
EAGER = 3.0
"""Reading attention weights, between words, in units of a forward pass."""
HEAD_WIDTH, HEAD_PAIR = 64, 20.0
"""Neurons of a head, about, and operations per pair of heads and of words: logarithms take most of them."""

EXACT = 60.0
"""Operations per row and squared width of all exact maps together."""
CROSS = 4.0
"""Those of ridge from a layer whose axes are known to another."""
NORM = 2.0
"""Those of a nuclear norm, whose covariance is decomposed besides: `EIGENVALUES` per cubed width."""
EIGENVALUES = 10.0
TRAINING = 6.0
"""Operations per weight and row of a training step: two of the forward pass, four of the backward pass."""
STEP = 2e8
"""As many again for every step, however small: a network is dozens of little products, and the optimizer moves it."""
STEPS = 0.6
"""Steps of a fit over those of its schedule, about: a third where nothing is gained, twice where it is to the end."""


def estimate(job: Job, shapes: dict[str, tuple[int, int]]) -> tuple[float, str]:
    """Operations (FLOP) of a job, or NaN and why that is not known; `shapes` gathers models that jobs will make."""
    try:
        sides = [_shape(m.source, shapes) for m in (*job.models, *job.across, *job.before)]
        if job.analysis.on == "tags":
            train, others = _tagged(str(job.data), job.extra["property"], job.chosen())
            layers = sum(blocks + 1 for blocks, _ in sides)
            return _reading(sides, train + others) + layers * train * WORK_PER_WORD, ""
        if job.run in ("study alignment", "study recovery"):
            return _aligning(job, sides), ""
        if job.task is None:
            words, pairs = _text(str(job.data), job.chosen().limit)
            if job.run == "attention":
                heads = sum(blocks * width / HEAD_WIDTH for blocks, width in sides)
                return EAGER * _reading(sides, words) + pairs * heads**2 / 2 * HEAD_PAIR, ""
            return _reading(sides, words) + (1 + job.chosen().bootstrap) * _scoring(sides, words), ""
        return _on_task(job, sides, shapes), ""
    except StratoscopeError as e:
        return float("nan"), str(e)


def shown(flop: float, why: str) -> str:
    """A cost in a few words."""
    if why:
        return f"not known: {why}"
    minutes = flop / FLOP_PER_SECOND / 60
    time = "less than a minute" if minutes < 1 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    return f"{flop:.1e} FLOP, {time} of a core"


def _shape(source: str, shapes: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Blocks and width of a model, be it one that an earlier job makes."""
    made = next((shape for folder, shape in shapes.items() if folder in source), None)
    return made or _looked_at(source)


@cache
def _looked_at(source: str) -> tuple[int, int]:
    surveyed = survey_source(ModelSpec(source))
    return surveyed.layers - 1, surveyed.width


@cache
def _text(data: str, limit: int | None) -> tuple[float, float]:
    """Words of a text, or of a sample of its sentences, and pairs of words of one sentence."""
    corpus = read_corpus(data)
    words = [len(words_of(s)) for s in corpus.sentences]
    share = 1.0 if limit is None else min(1.0, limit / len(corpus))
    return share * sum(words), share * sum(n * n for n in words)


@cache
def _tagged(corpus: str, property: str, chosen: ProbeOptions) -> tuple[float, float]:
    """Words of the training sentences and of the others."""
    read = read_tagged(corpus, property, columns=chosen.columns, seed=chosen.seed).sample(chosen.limit, chosen.seed)
    words = {split: float(sum(counts.values())) for split, counts in read.counts.items()}
    return words["train"], sum(words.values()) - words["train"]


@cache
def _task(source: TaskSource) -> TaskData:
    return source.read(Silent())


def _words(task: TaskData, split: str, length: int | None) -> float:
    examples = task.train if split == "train" else task.validation
    texts = [" ".join(filter(None, pair)) for e in examples for pair in e.texts]
    return float(sum(min(len(t.split()), length or 512) for t in texts))


def _on_task(job: Job, sides: Sequence[tuple[int, int]], shapes: dict[str, tuple[int, int]]) -> float:
    """Reading a task's rows, and training or fitting on them."""
    assert job.task is not None
    if job.analysis.trains:
        shapes |= {f"{job.name}/": sides[0]}
    task, chosen = _task(job.task), job.chosen()
    train, validation = (_words(task, split, chosen.length) for split in ("train", "validation"))
    if job.analysis.trains:
        trained = resolve(chosen, task.name)
        steps = planned_steps(len(task.train), trained.batch, trained.epochs, trained.max_steps)
        share = steps * trained.batch / len(task.train)
        return float(chosen.seeds * (1 + BACKWARD) * share * _reading(sides[:1], train))
    if job.run == "inject":
        share = min(1.0, chosen.train / len(task.train))
        methods = chosen_methods(chosen.method, paper=chosen.paper)
        return _reading(sides, share * train + validation) + _fitting(
            methods, chosen.train, sides[1][1], paper=chosen.paper
        )
    spans = sides[0][0] / 2 if getattr(chosen, "skip", False) or job.run == "cut" else 0.0
    return _reading(sides, train + validation) + spans * _reading(sides[:1], validation)


def _reading(sides: Sequence[tuple[int, int]], words: float) -> float:
    return sum(FORWARD * blocks * width**2 for blocks, width in sides) * words * TOKENS_PER_WORD


def _aligning(job: Job, sides: Sequence[tuple[int, int]]) -> float:
    """Reading, fitting the maps, and what is said of every layer."""
    chosen = job.chosen()
    methods = chosen_methods(chosen.method, paper=chosen.paper)
    recovering = job.run == "study recovery"
    rows = float((max(chosen.train) if recovering else chosen.train) + chosen.test)
    attention = not recovering and chosen.unit == ATTENTION
    texts = min(rows, TEXTS) if attention else rows
    reading = _reading(sides, _text(job.data, math.ceil(texts))[0]) if job.data else 0.0
    if recovering:
        fits = sum(_fitting(methods, rows, d, paper=chosen.paper) for d in chosen.dim)
        return float(reading + chosen.truths * len(chosen.train) * fits)
    blocks, width = sides[0]
    layers = len(chosen.layers or ()) or (1 if chosen.layer is not None else blocks if attention else blocks + 1)
    width = max(2, width // HEAD_WIDTH) if attention else width
    pairs = sum(min(n * (n - 1) // 2, chosen.pairs or sys.maxsize) for n in (len(job.models), len(job.before)))
    maps = pairs * layers * _fitting(methods, rows, width, paper=chosen.paper)
    norms = 0.0 if attention else (1 + NORM_RESAMPLES) * (rows * NORM + EIGENVALUES * width) * width**2
    crossed = 2 * layers * rows * CROSS * width**2 if chosen.layer is None else 0.0
    return (EAGER if attention else 1.0) * reading + maps + layers * (len(sides) * norms + crossed)


def _fitting(methods: Sequence[str], rows: float, width: int, *, paper: bool) -> float:
    """Exact maps by decompositions of both spaces, networks by passes over the rows."""
    schedule, _ = recipe("inn", width)
    steps, batch = (PAPER_LAST, PAPER_BATCH) if paper else (STEPS * schedule.steps, schedule.batch)
    flop = rows * EXACT * width**2
    for method in set(methods) & set(NETWORK):
        network = untrained(method, width, width, paper=paper)
        weights = sum(p.numel() for p in network.parameters()) * (2 if isinstance(network, PaperFlow) else 1)
        flop += steps * (TRAINING * batch * (weights + width**2) + STEP)
    return flop


def _scoring(sides: Sequence[tuple[int, int]], words: float) -> float:
    return words * float(sum((blocks + 1) * width for blocks, width in sides)) ** 2
