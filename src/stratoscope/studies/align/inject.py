"""The last state of one model, mapped into another's space and read by its pooler and head (Ren et al. 2023, §4.5)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.aligners.fit import NETWORK, fit_map
from stratoscope.aligners.scores import score_map, shuffled
from stratoscope.claims import judge_injection
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import Value, Values, spread
from stratoscope.data.baselines import bag_of_words, majority
from stratoscope.data.tasks.data import SPLITS, TaskData
from stratoscope.models.heads.reading import head_parameters
from stratoscope.models.open.loading import check_head, survey
from stratoscope.models.read.head import head_scores
from stratoscope.models.text.examples import Floats, text_length
from stratoscope.results.alignment import IDENTITY, SHUFFLED, Fit, Injected, Injection
from stratoscope.runs.run import Draw, Item, Run, Tensors
from stratoscope.studies.align.options import InjectOptions
from stratoscope.studies.align.work import chosen_methods
from stratoscope.studies.asked import Model, chosen, models_asked, request_for, run_study, spec_of, task_asked
from stratoscope.studies.depth.judge import INTERVAL, Side, Work, described
from stratoscope.studies.depth.study import inputs_of, trained_length

RANDOM_LABELS, RANDOM_HEAD = "random labels", "random head"
REFUSED = "refused"
DRAWS = 10
"""Random heads and labels whose metric is averaged: a single random head may be right by luck."""


def inject(
    first: Model,
    second: Model,
    task: TaskData,
    *,
    out: str | Path,
    options: InjectOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Injection:
    """Map what the head of `first` reads to what the head of `second` reads, and let the latter judge it.

    Maps are fitted on training rows and judged by the task's metric on validation rows. Further keywords are the fields
    of `InjectOptions`.
    """
    options, progress = chosen(InjectOptions, options, keywords), progress or Silent()
    methods = chosen_methods(options.method, paper=options.paper)
    specs = [spec_of(m) for m in (first, second)]
    if specs[0].label == specs[1].label:
        specs = [replace(s, name=f"{s.label}-{k}") for k, s in enumerate(specs, 1)]
    for spec in specs:
        check_head(spec, task)
    sides = []
    for spec in specs:
        surveyed = survey(spec, progress=progress)
        sides.append(
            Side(spec, surveyed, text_length(surveyed.encoder, options.length, otherwise=trained_length(spec)))
        )
    asked = {"first": specs[0].source, "second": specs[1].source, **task_asked(task), **models_asked(specs)}
    return run_study(
        request_for("injection", inputs_of(sides, task), options, method=methods),
        options,
        out,
        lambda running: _compute(sides, task, methods, options, running),
        asked=asked,
        progress=progress,
        draw=draw,
    )


def _compute(
    sides: Sequence[Side], task: TaskData, methods: Sequence[str], options: InjectOptions, running: Run
) -> Injection:
    order = np.random.default_rng(options.seed).permutation(len(task.train))
    choices = len(task.train[0].texts)
    some = np.sort(order[: math.ceil(options.train / choices)])
    fitted = replace(task, train=tuple(task.train[k] for k in some))  # no row is read that no map is fitted on
    works = [Work(side, fitted, options.seed, options.batch_tokens, running) for side in sides]
    stored = [work.store([(work.tuned, work.readings(work.tuned))])[0] for work in works]
    (x, tx), (y, ty) = (
        [s[split].head_input(side.surveyed.layers - 1) for split in SPLITS]
        for s, side in zip(stored, sides, strict=True)
    )
    module, judged = works[1].model.module, partial(_judged, works[1])
    own = [judged(side.spec.label, s["validation"].scores) for side, s in zip(sides, stored, strict=True)]
    key = [inputs_of(sides, task), options.train, options.seed, options.paper]
    injected, fits, notes = [], list[Fit](), list[str]()
    items = [{"method": method} for method in (*methods, SHUFFLED)]
    shared = _States(x, y, tx, ty, choices, options.paper, options.seed)
    parts = running.map(_mapped, items, name="injected", key=key, label="injecting", shared=shared)
    for method, part in zip((*methods, SHUFFLED), parts, strict=True):
        if REFUSED in part:
            notes.append(f"{method} is left out: {bytes(part[REFUSED].tolist()).decode()}")
            continue
        scores = head_scores(module, part["rows"], choices=choices)
        injected.append(judged(method, scores, baseline=method == SHUFFLED))
        fits += [_fit(method, part)]
    if not any(i.name in methods for i in injected):
        raise StratoscopeError(f"no map could be fitted to inject a state with: {notes[0]}")
    if tx.shape[1] == ty.shape[1]:
        injected.append(judged(IDENTITY, head_scores(module, tx, choices=choices), baseline=True))
    injected += _baselines(module, ty, choices, judged, options.seed)
    floor = {"majority": majority(task), "bag_of_words": bag_of_words(task)}
    notes += [
        f"{one.name} ({task.metric} {one.value.value:.3f}) does not beat a bag of words ({floor['bag_of_words']:.3f}):"
        " what its head keeps of a state says little about the task"
        for one in own
        if one.value.value < floor["bag_of_words"]
    ]
    result = Injection(
        models=tuple(side.info for side in sides),
        task={**described(task), **floor, "rows": len(x)},
        own=tuple(own),
        injected=tuple(injected),
        fits=tuple(fits),
        warnings=tuple(notes),
    )
    return replace(result, statements=judge_injection(result))


@dataclass(frozen=True)
class _States:
    """States of both models on training and on validation rows."""

    x: Tensor
    y: Tensor
    tx: Tensor
    ty: Tensor
    choices: int
    """Rows of one example, which are not independent."""
    paper: bool
    seed: int


def _mapped(shared: _States, item: Item) -> Tensors:
    """Validation states of the first model in the second's space, and how far they are off.

    Of a method that these spaces rule out, one of several, only the reason.
    """
    x, y, tx, ty, method, seed = shared.x, shared.y, shared.tx, shared.ty, item["method"], shared.seed
    texts, judged = (np.arange(len(rows)) // shared.choices for rows in (x, tx))
    try:
        if method == SHUFFLED:
            g = fit_map(x, shuffled(y, seed=seed), method="ridge", texts=texts, seed=seed)
        else:
            g = fit_map(x, y, method=method, paper=shared.paper and method in NETWORK, texts=texts, seed=seed)
    except StratoscopeError as e:
        return {REFUSED: torch.tensor(list(str(e).encode()), dtype=torch.uint8)}
    fit = score_map(g, tx, ty, texts=judged, seed=seed)
    assert fit.replicates is not None
    numbers = [getattr(v, end) for v in (fit.mse, fit.error, fit.r2) for end in ("value", "low", "high")]
    return {
        "rows": g(tx),
        "numbers": torch.tensor([*numbers, fit.inversion], dtype=torch.float64),
        "replicates": torch.from_numpy(fit.replicates),
    }


def _fit(method: str, part: Mapping[str, Tensor]) -> Fit:
    n = part["numbers"].tolist()
    return Fit(method, Value(*n[:3]), Value(*n[3:6]), Value(*n[6:9]), n[9], part["replicates"].numpy())


def _judged(work: Work, name: str, *scores: Floats, baseline: bool = False) -> Injected:
    """The metric of scores, averaged over several where there are some."""
    value = float(np.mean([work.metric.score(s, work.targets) for s in scores]))
    drawn: Values = np.mean([work.resampled(s) for s in scores], axis=0)
    low, high = (float(v) for v in spread(np.array(value), drawn, INTERVAL))
    return Injected(name, Value(value, low, high), drawn, baseline)


def _baselines(
    module: nn.Module, ty: Tensor, choices: int, judged: Callable[..., Injected], seed: int
) -> Iterator[Injected]:
    """Random labels, and the second model's own states read by heads with random weights."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    shape = head_scores(module, ty[:choices], choices=choices).shape[1], len(ty) // choices
    yield judged(RANDOM_LABELS, *(rng.normal(size=shape[::-1]) for _ in range(DRAWS)), baseline=True)
    drawn, scores = copy.deepcopy(module), []
    for _ in range(DRAWS):
        for _, p in head_parameters(drawn):
            nn.init.normal_(p.data, std=0.02, generator=generator)
        scores.append(head_scores(drawn, ty, choices=choices))
    yield judged(RANDOM_HEAD, *scores, baseline=True)
