"""Intervals: how much would a score move had other sentences been drawn?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.measures.kernels import weighted
from stratoscope.measures.linear.heldout import Subset
from stratoscope.measures.measure import Item
from stratoscope.measures.score import Setting, run_parts, score_layers
from stratoscope.measures.table import Request, parse
from stratoscope.statistics.rows import LayerRows, MemoryRows, count, gather

FEWEST_REPLICATES = 20
"""Fewer do not tell a standard deviation."""
TOGETHER = 25
"""Resamples that share their kernels."""
BYTES = 4 + 4
"""Of each value of a replicate: the rows, and their coordinates."""


@dataclass(frozen=True)
class Interval:
    """Where a score is expected to stay had other sentences been drawn; NaN where that cannot be said."""

    low: Tensor
    high: Tensor
    level: float
    method: str | None
    """`bootstrap` or `jackknife`; None where no interval is given for any pair."""
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
    setting: Setting,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Intervals over sentences by the request's name: score ± t · standard error, within the measure's bounds.

    The standard error is the bootstrap's: the deviation over resamples of as many sentences, drawn with repeats and
    each with all its rows. For measures whose rows may not repeat it is the jackknife's, sqrt((g-1)/g Σ (θₖ - mean)²)
    over g groups of sentences left out in turn (Efron & Stein 1981): of a resample 63 % of the rows are distinct, which
    makes their bootstrap 0 or five times too wide. On simulated layers the half-width is 0.8 to 1.5 times the true one;
    for measures that whiten it errs on the wide side, 0.9 to 2 times from 5 rows a neuron, up to 3.3 times below.
    """
    check_replicates(replicates)
    widths = [rows.chunk(k, 0).shape[1] for k in range(rows.layers)]
    check_memory(count(rows), sum(widths), workers=setting.engine.workers, memory=setting.memory)
    sentences = len(_bounds(sentence)) - 1
    groups = min(replicates, sentences)
    left = min(int(_without(sentence, k, groups, setting.seed).sum()) for k in range(groups))
    why = {r.name: _why_withheld(r, sentences, left, max(widths)) for r in wanted}
    found: dict[str, Interval] = {}
    for method in ("bootstrap", "jackknife"):
        some = [r for r in wanted if not why[r.name] and r.measure.repeats == (method == "bootstrap")]
        if not some:
            continue
        done = _replicates(rows, sentence, some, method, groups if method == "jackknife" else replicates, setting)
        for request in some:
            half = _quantile(level, groups) * _error(done[request.name], method)
            if method == "bootstrap":
                half *= math.sqrt(sentences / (sentences - 1))  # a resample's spread is about the sample's own mean
            score, bounds = values[request.name], request.measure.bounds
            low, high = ((score + side * half).clamp(*bounds) for side in (-1, 1))
            found[request.name] = Interval(low, high, level, method)
    absent = {name: torch.full_like(values[name], math.nan) for name, text in why.items() if text}
    found |= {name: Interval(nan, nan.clone(), level, None, why[name]) for name, nan in absent.items()}
    return {r.name: found[r.name] for r in wanted}


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
    rows: LayerRows, sentence: Tensor, wanted: Sequence[Request], method: str, number: int, setting: Setting
) -> dict[str, Tensor]:
    """Scores of every resample or of every group left out (first axis), by the request's name."""
    same = {"rows": rows, "sentence": sentence, "seed": setting.seed}
    share = setting.memory / setting.engine.workers
    light = [r.name for r in wanted if r.name in weighted.NAMES and method == "bootstrap"]
    if weighted.BYTES * rows.layers * count(rows) ** 2 > share:
        light = []
    label = f"{method} over sentences"
    found: dict[str, Tensor] = {}
    if light:
        spans = [(first, min(first + TOGETHER, number)) for first in range(0, number, TOGETHER)]
        items = [same | {"measures": light, "first": first, "last": last} for first, last in spans]
        sizes = [last - first for first, last in spans]
        parts = run_parts(_reweighted, items, "weights", setting, label, weights=sizes)
        found |= {name: torch.cat([part[name] for part in parts]) for name in light}
    if heavy := [r.name for r in wanted if r.name not in light]:
        items = [same | {"measures": heavy, "replicate": k, "number": number} for k in range(number)]
        # The memory is not part of an item: it does not change the numbers, so it must not change the names of parts.
        work = partial(_resampled if method == "bootstrap" else _left_out, share)
        parts = run_parts(work, items, method, setting, label)
        found |= {name: torch.stack([part[name] for part in parts]) for name in heavy}
    return found


def _drawn(item: Item, replicate: int) -> Tensor:
    """Rows of as many sentences as there are, drawn with repeats."""
    bounds = _bounds(item["sentence"])
    generator = np.random.default_rng([item["seed"], replicate])
    drawn = np.sort(generator.integers(len(bounds) - 1, size=len(bounds) - 1))
    return torch.cat([torch.arange(int(bounds[s]), int(bounds[s + 1])) for s in drawn])


def _reweighted(item: Item) -> dict[str, Tensor]:
    """Scores of several resamples from kernels made once; the same as those of `_resampled`, far sooner."""
    made, n = weighted.kernels(item["rows"]), count(item["rows"])
    weights = [torch.bincount(_drawn(item, k), minlength=n) for k in range(item["first"], item["last"])]
    scores = [weighted.weighted_cka(made, w, item["measures"]) for w in weights]
    return {name: torch.stack([s[name] for s in scores]) for name in item["measures"]}


def _resampled(memory: float, item: Item) -> dict[str, Tensor]:
    """Scores of one resample."""
    return _scores(_drawn(item, item["replicate"]), memory, item)


def _left_out(memory: float, item: Item) -> dict[str, Tensor]:
    """Scores without one group of sentences."""
    kept = _without(item["sentence"], item["replicate"], item["number"], item["seed"])
    return _scores(kept.nonzero().flatten(), memory, item)


def _scores(index: Tensor, memory: float, item: Item) -> dict[str, Tensor]:
    """Scores of some of the rows, all of which are read once."""
    rows = item["rows"]
    held = MemoryRows([gather(rows, k) for k in range(rows.layers)], [rows.eps(k) for k in range(rows.layers)])
    wanted = [parse(name) for name in item["measures"]]
    scoring = score_layers(Subset(held, index), wanted, Setting(seed=item["seed"], memory=memory))
    return {name: s.values for name, s in scoring.scored.items()}


def _bounds(sentence: Tensor) -> Tensor:
    """First row of every sentence, and the end of the last."""
    return torch.cat([torch.tensor([0]), sentence.diff().nonzero().flatten() + 1, torch.tensor([len(sentence)])])


def _without(sentence: Tensor, group: int, groups: int, seed: int) -> Tensor:
    """Which rows stay when a group of sentences, drawn with the seed, is left out."""
    lengths = _bounds(sentence).diff()
    of_sentence = torch.from_numpy(np.random.default_rng(seed).permutation(len(lengths))) % groups
    return torch.repeat_interleave(of_sentence, lengths) != group


def _error(scores: Tensor, method: str) -> Tensor:
    """Standard error from the scores of the replicates (first axis)."""
    if method == "bootstrap":
        return scores.std(0)
    g = len(scores)
    return ((g - 1) / g * (scores - scores.mean(0)).square().sum(0)).sqrt()


def _quantile(level: float, number: int) -> float:
    """Student's t of so many replicates."""
    from scipy.special import stdtrit

    return float(stdtrit(number - 1, (1 + level) / 2))
