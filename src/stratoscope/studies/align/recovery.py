"""Does a method recover a bijection that is known to exist? Y is a random invertible network of X."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stratoscope.aligners.recovery import principal_components, random_bijection
from stratoscope.aligners.scores import scores
from stratoscope.claims import judge_recovery
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.corpus import Corpus
from stratoscope.results.alignment import IDENTITY, SHUFFLED, Recovered, Recovery
from stratoscope.runs.run import Draw, Item, Run, Tensors
from stratoscope.statistics.rows import gather
from stratoscope.studies.align.options import FEWEST_TRAIN_ROWS, RecoveryOptions
from stratoscope.studies.align.work import check_fitted, chosen_methods, fit_items, fit_rows, missing
from stratoscope.studies.asked import Model, chosen, data_asked, models_asked, request_for, run_study, spec_of
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.compare.plan import Plan, make_plan
from stratoscope.studies.compare.study import read_plan


def recovery(
    model: Model | None = None,
    data: str | Path | Corpus | None = None,
    *,
    out: str | Path | None = None,
    options: RecoveryOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Recovery:
    """Fit every method to X and f(X), f a random bijection: X are principal components of a layer, or normal rows.

    Further keywords are the fields of `RecoveryOptions`.
    """
    options, progress = chosen(RecoveryOptions, options, keywords), progress or Silent()
    if (model is None) != (data is None):
        raise StratoscopeError("expected both --model and --data for rows of a model, or neither for random rows")
    for flag, numbers, least in (("--dim", options.dim, 2), ("--train", options.train, FEWEST_TRAIN_ROWS)):
        if not numbers or min(numbers) < least:
            raise StratoscopeError(f"expected {flag} of at least {least}, got {min(numbers, default='none')}")
    methods = chosen_methods(options.method, paper=options.paper)
    plan, inputs, asked = None, dict[str, Any](), dict[str, Any]()
    if model is not None and data is not None:
        spec = spec_of(model)
        rows = max(options.train) + options.test
        how = CompareOptions(unit="mean", limit=rows, seed=options.seed, text=options.text)
        plan = make_plan([spec], data, how, progress)
        widest, number = plan.surveys[0].width, len(plan.rows)
        if max(options.dim) > widest:
            raise StratoscopeError(
                f"expected --dim of at most {widest}, the width of '{spec.label}', got {max(options.dim)}"
            )
        if number < rows:
            raise StratoscopeError(f"expected {rows} texts (--train and --test), got {number}; ask for fewer rows")
        inputs, asked = plan.inputs, {"model": spec.source, **data_asked(data), **models_asked([spec])}
    return run_study(
        request_for("recovery", inputs, options, method=methods),
        options,
        out,
        lambda running: _compute(plan, methods, options, running),
        asked=asked,
        work=math.inf,
        progress=progress,
        draw=draw,
    )


def _compute(plan: Plan | None, methods: tuple[str, ...], options: RecoveryOptions, running: Run) -> Recovery:
    n = max(options.train) + options.test
    name = "normal rows"
    if plan is None:
        rows = torch.randn(n, max(options.dim), generator=torch.Generator().manual_seed(options.seed)).double()
    else:
        last = plan.surveys[0].layers - 1
        layer = last if options.layer is None else options.layer
        if layer > last:
            raise StratoscopeError(f"'{plan.specs[0].label}' has layers 0 to {last}, got --layer {layer}")
        rows, name = gather(read_plan(plan, running), layer)[:n].double(), f"{plan.specs[0].label}:{layer}"
    items = [
        {**item, "features": d, "truth": truth, "train": train}
        for d in options.dim
        for train in options.train
        for truth in range(options.truths)
        for item in fit_items(0, 1, (*methods, SHUFFLED, IDENTITY), seed=options.seed, paper=options.paper)
    ]
    key = [plan.key if plan else "normal", max(options.train), options.test, options.layer, options.seed]
    shared = {"rows": principal_components(rows, max(options.dim)), "test": options.test}
    parts = running.map(_recover, items, name="recovery", key=key, label="recovering", shared=shared)
    check_fitted(options.method, parts)
    recovered = [
        Recovered(item["features"], item["train"], item["truth"], _scored(method, part, item, options.seed))
        for item, part in zip(items, parts, strict=True)
        for method in item["methods"]
        if f"squares.{method}" in part
    ]
    data, notes = {"rows": name, "train": max(options.train), "test": options.test}, missing(methods, parts)
    result = Recovery(data, tuple(recovered), warnings=tuple(notes))
    return replace(result, statements=judge_recovery(result))


def _scored(method: str, part: Mapping[str, Tensor], item: Item, seed: int) -> Any:
    squares, around = (part[name].numpy() for name in (f"squares.{method}", "around"))
    return scores(method, squares, around, item["features"], inversion=float(part[f"inversion.{method}"]), seed=seed)


def _recover(shared: Mapping[str, Any], item: Item) -> Tensors:
    """Squared errors of all methods for one truth; the rows judged on are the same for any number fitted on."""
    x = shared["rows"][:, : item["features"]]
    y = random_bijection(item["features"], seed=item["truth"])(x)
    n, last = item["train"], len(x) - shared["test"]
    return fit_rows(x[:n], y[:n], x[last:], y[last:], item)
