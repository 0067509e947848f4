"""What a job would cost, about, before it is run: from the models' shapes and the number of words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

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
from stratoscope.studies.align.work import chosen_methods
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
TRAINING = 300 * 256 * 6.0
"""Steps of a network, rows in each, and operations per weight of a forward and a backward pass."""
COUPLINGS = 6 * 2 * 256.0
"""Weights of the couplings per feature."""


def estimate(job: Job, shapes: dict[str, tuple[int, int]]) -> tuple[float, str]:
    """Operations (FLOP) of a job, or NaN and why that is not known; `shapes` gathers models that jobs will make."""
    try:
        sides = [_shape(m.source, shapes) for m in (*job.models, *job.across)]
        if job.analysis.on == "tags":
            train, others = _tagged(str(job.data), job.extra["property"], job.chosen())
            layers = sum(blocks + 1 for blocks, _ in sides)
            return _reading(sides, train + others) + layers * train * WORK_PER_WORD, ""
        if hasattr(job.chosen(), "method") and job.task is None:
            return _aligning(job, sides), ""
        if job.task is None:
            words, pairs = _text(str(job.data), job.chosen().limit)
            if job.run == "attention":
                heads = sum(blocks * width / HEAD_WIDTH for blocks, width in sides)
                return EAGER * _reading(sides, words) + pairs * heads**2 / 2 * HEAD_PAIR, ""
            return _reading(sides, words) + (1 + job.chosen().bootstrap) * _scoring(sides, words), ""
        if job.analysis.trains:
            shapes |= {f"{job.name}/": sides[0]}
        task = _task(job.task)
        length = job.chosen().length
        train, validation = (_words(task, split, length) for split in ("train", "validation"))
        if job.analysis.trains:
            chosen = job.chosen()
            recipe = resolve(chosen, task.name)
            steps = planned_steps(len(task.train), recipe.batch, recipe.epochs, recipe.max_steps)
            share = steps * recipe.batch / len(task.train)
            return chosen.seeds * (1 + BACKWARD) * share * _reading(sides[:1], train), ""
        passes = _reading(sides, train + validation)
        spans = sides[0][0] / 2 if getattr(job.chosen(), "skip", False) or job.run == "cut" else 0.0
        return passes + spans * _reading(sides[:1], validation), ""
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


def _reading(sides: Sequence[tuple[int, int]], words: float) -> float:
    return sum(FORWARD * blocks * width**2 for blocks, width in sides) * words * TOKENS_PER_WORD


def _aligning(job: Job, sides: Sequence[tuple[int, int]]) -> float:
    """Reading, and fitting: exact maps by decompositions of both spaces, networks by passes over the rows."""
    chosen = job.chosen()
    recovering = job.run == "study recovery"
    rows = float((max(chosen.train) if recovering else chosen.train) + chosen.test)
    flop = _reading(sides, _text(job.data, int(rows))[0]) if job.data else 0.0
    widths: list[float]
    if recovering:
        widths = [float(d) for d in chosen.dim] * chosen.truths * len(chosen.train)
    else:
        number = min(len(job.models) * (len(job.models) - 1) // 2, chosen.pairs or sys.maxsize)
        blocks, width = sides[0]
        widths = [float(width)] * (blocks + 1) * number * (2 if job.before else 1)
    networks = len({"inn", "mlp"} & set(chosen_methods(chosen.method)))
    for d in widths:
        flop += rows * EXACT * d * d + networks * TRAINING * (d * d + COUPLINGS * d)
    return flop


def _scoring(sides: Sequence[tuple[int, int]], words: float) -> float:
    return words * float(sum((blocks + 1) * width for blocks, width in sides)) ** 2
