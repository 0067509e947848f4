"""Intervals: how much would a score move had other sentences been drawn?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import BOOTSTRAP, JACKKNIFE, Interval, Values, spread
from stratoscope.measures.kernels import weighted
from stratoscope.measures.measure import Item
from stratoscope.measures.score import score_layers
from stratoscope.measures.table import Request, parse
from stratoscope.runs.run import Run, Tensors
from stratoscope.statistics.rows import LayerRows, MemoryRows, Subset, count, gather

FEWEST_REPLICATES = 20
"""Fewer do not tell a standard deviation."""
TOGETHER = 25
"""Resamples that share their kernels."""
BYTES = 4 + 4
"""Of each value of a replicate: the rows, and their coordinates."""


LIGHT_BYTES = 2e9
"""Kernels of all layers that may be held at once: then linear CKA is resampled from them, far sooner."""


@dataclass(frozen=True)
class Resampled:
    """The scores of one measure on every resample, and where a score is expected to stay had others been drawn."""

    replicates: Values | None
    """(resamples, layers, layers); None where no interval can be given."""
    low: Values | None = None
    high: Values | None = None
    interval: Interval | None = None
    note: str = ""
    """Why no interval is given."""


def check_replicates(replicates: int) -> None:
    """Refuse a number of replicates that no interval can be made of; 0 asks for none."""
    if replicates and replicates < FEWEST_REPLICATES:
        raise StratoscopeError(
            f"expected at least {FEWEST_REPLICATES} bootstrap replicates for a 95 % interval (or 0 for none),"
            f" got {replicates}"
        )


def check_memory(n: int, widths: int, *, workers: int, memory: float) -> None:
    """Refuse replicates that do not fit: each worker holds n rows of all layers, `widths` neurons in all."""
    need = BYTES * n * widths * workers
    if need > memory:
        raise StratoscopeError(
            f"resamples of {n} rows of all layers are held in memory: {need / 1e9:.1f} GB, but --memory is"
            f" {memory / 1e9:.1f} GB; give fewer rows with --limit, fewer --workers, or more memory"
        )


def bootstrap(
    rows: LayerRows,
    sentence: Tensor,
    wanted: Sequence[Request],
    values: dict[str, Tensor],
    *,
    replicates: int,
    run: Run | None = None,
    key: Any = None,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Resampled]:
    """Resamples over sentences by the request's name, and their intervals: score ± t · standard error, within bounds.

    The standard error is the bootstrap's: the deviation over resamples of as many sentences, drawn with repeats and
    each with all its rows. For measures whose rows may not repeat it is the jackknife's, over groups of sentences left
    out in turn: of a resample 63 % of the rows are distinct, which makes their bootstrap 0 or five times too wide. See
    `core.value.spread`. On simulated layers the half-width is 0.8 to 1.5 times the true one; for measures that whiten
    it errs on the wide side, 0.9 to 2 times from 5 rows a neuron, up to 3.3 times below.
    """
    check_replicates(replicates)
    run = run or Run()
    widths = [rows.chunk(k, 0).shape[1] for k in range(rows.layers)]
    check_memory(count(rows), sum(widths), workers=run.engine.workers, memory=run.memory)
    sentences = len(_bounds(sentence)) - 1
    groups = min(replicates, sentences)
    left = min(int(_without(sentence, k, groups, seed).sum()) for k in range(groups))
    why = {r.name: _why_withheld(r, sentences, left, max(widths)) for r in wanted}
    resampled = {name: Resampled(None, note=text) for name, text in why.items() if text}
    for method in (BOOTSTRAP, JACKKNIFE):
        some = [r for r in wanted if not why[r.name] and r.measure.repeats == (method == BOOTSTRAP)]
        if not some:
            continue
        number, of = (replicates, sentences) if method == BOOTSTRAP else (groups, groups)
        done = _replicates(rows, sentence, some, method, number, run, key, seed)
        interval = Interval(level, method, of)
        for request in some:
            drawn = done[request.name].numpy()
            low, high = spread(values[request.name].numpy(), drawn, interval, bounds=request.measure.bounds)
            resampled[request.name] = Resampled(drawn, low, high, interval)
    return {r.name: resampled[r.name] for r in wanted}


def _why_withheld(request: Request, sentences: int, left: int, width: int) -> str:
    """Why no interval can be given, with so many rows left when the largest group of sentences is left out."""
    if sentences < 2:
        return f"no interval for {request.name}: all rows are of one sentence"
    if request.measure.saturates and left <= width + 1:  # the mean takes a row
        return (
            f"no interval for {request.name}: with some sentences left out, any two layers score 1"
            f" ({left} rows for {width} neurons); add rows"
        )
    return ""


def _replicates(
    rows: LayerRows,
    sentence: Tensor,
    wanted: Sequence[Request],
    method: str,
    number: int,
    run: Run,
    key: Any,
    seed: int,
) -> dict[str, Tensor]:
    """Scores of every resample or of every group left out (first axis), by the request's name."""
    few = weighted.BYTES * rows.layers * count(rows) ** 2 <= LIGHT_BYTES
    light = [r.name for r in wanted if r.name in weighted.NAMES and method == BOOTSTRAP and few]
    heavy = [r.name for r in wanted if r.name not in light]
    shared = {"rows": rows, "sentence": sentence, "seed": seed, "memory": run.memory / run.engine.workers}
    label, replicates = f"{method} over sentences", dict[str, Tensor]()
    if light:
        spans = [(first, min(first + TOGETHER, number)) for first in range(0, number, TOGETHER)]
        items = [{"measures": light, "first": first, "last": last} for first, last in spans]
        sizes = [last - first for first, last in spans]
        parts = run.map(_reweighted, items, name="weights", key=[key, seed], label=label, shared=shared, weights=sizes)
        replicates |= {name: torch.cat([part[name] for part in parts]) for name in light}
    if heavy:
        # A resample is the same however many there are; a group that is left out is not.
        work, of = (_resampled, {}) if method == BOOTSTRAP else (_left_out, {"number": number})
        items = [{"measures": heavy, "replicate": k, **of} for k in range(number)]
        parts = run.map(work, items, name=method, key=[key, seed], label=label, shared=shared)
        replicates |= {name: torch.stack([part[name] for part in parts]) for name in heavy}
    return replicates


def _drawn(shared: Any, replicate: int) -> Tensor:
    """Rows of as many sentences as there are, drawn with repeats."""
    bounds = _bounds(shared["sentence"])
    generator = np.random.default_rng([shared["seed"], replicate])
    drawn = np.sort(generator.integers(len(bounds) - 1, size=len(bounds) - 1))
    return torch.cat([torch.arange(int(bounds[s]), int(bounds[s + 1])) for s in drawn])


def _reweighted(shared: Any, item: Item) -> Tensors:
    """Scores of several resamples from kernels made once; the same as those of `_resampled`, far sooner."""
    made, n = weighted.kernels(shared["rows"]), count(shared["rows"])
    weights = [torch.bincount(_drawn(shared, k), minlength=n) for k in range(item["first"], item["last"])]
    scores = [weighted.weighted_cka(made, w, item["measures"]) for w in weights]
    return {name: torch.stack([s[name] for s in scores]) for name in item["measures"]}


def _resampled(shared: Any, item: Item) -> Tensors:
    """Scores of one resample."""
    return _scores(_drawn(shared, item["replicate"]), shared, item)


def _left_out(shared: Any, item: Item) -> Tensors:
    """Scores without one group of sentences."""
    kept = _without(shared["sentence"], item["replicate"], item["number"], shared["seed"])
    return _scores(kept.nonzero().flatten(), shared, item)


def _scores(index: Tensor, shared: Any, item: Item) -> Tensors:
    """Scores of some of the rows, all of which are read once."""
    rows = shared["rows"]
    layers = range(rows.layers)
    held = MemoryRows([gather(rows, k) for k in layers], [rows.eps(k) for k in layers], [rows.loss(k) for k in layers])
    requested = [parse(name) for name in item["measures"]]
    scoring = score_layers(Subset(held, index), requested, run=Run(memory=shared["memory"]), seed=shared["seed"])
    return {name: s.values for name, s in scoring.scored.items()}


def _bounds(sentence: Tensor) -> Tensor:
    """First row of every sentence, and the end of the last."""
    return torch.cat([torch.tensor([0]), sentence.diff().nonzero().flatten() + 1, torch.tensor([len(sentence)])])


def _without(sentence: Tensor, group: int, groups: int, seed: int) -> Tensor:
    """Which rows stay when a group of sentences, drawn with the seed, is left out."""
    lengths = _bounds(sentence).diff()
    of_sentence = torch.from_numpy(np.random.default_rng(seed).permutation(len(lengths))) % groups
    return torch.repeat_interleave(of_sentence, lengths) != group
