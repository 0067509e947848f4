"""Compare every layer of any set of models under any set of measures, in one pass over the text."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stratoscope.core.codekey import code_key, versions
from stratoscope.core.errors import ForeignResultError, StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.result import RESULT, Comparison, Interval, Matrix
from stratoscope.core.runfolder import RunFolder
from stratoscope.data.corpus import Corpus
from stratoscope.engine.local import local_engine
from stratoscope.measures.bootstrap import bootstrap, check_memory
from stratoscope.measures.score import Scoring, Setting, score_layers
from stratoscope.measures.structure import findings
from stratoscope.models.open.loading import ModelSpec, open_model
from stratoscope.models.read.store import Reading, store_layers, together
from stratoscope.statistics.rows import StoredRows
from stratoscope.studies.compare.activations import FolderRun, made_by_this_code
from stratoscope.studies.compare.options import Options
from stratoscope.studies.compare.plan import Plan, make_plan

__all__ = ["Options", "compare"]

Then = Callable[[Path, Comparison], Any]
"""What to do with a finished result while its folder is still held, such as writing a report into it."""


def compare(
    models: Sequence[str | Path | ModelSpec],
    *,
    data: str | Path | Corpus,
    out: str | Path | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    then: Then | None = None,
) -> Comparison:
    """Compare all layers of all models; with `out`, finished parts are kept there and reused."""
    options, progress = options or Options(), progress or Silent()
    plan = make_plan(models, data, options, progress)
    with ExitStack() as stack:
        out = out or stack.enter_context(tempfile.TemporaryDirectory(prefix="stratoscope-"))
        folder = stack.enter_context(RunFolder.open(out, makes=RESULT))
        comparison = _finished(folder, plan.request, overwrite=options.overwrite, progress=progress)
        if comparison is None:
            comparison = _run(plan, folder, progress)
            comparison.save(folder.path)
        folder.drop_parts(keep=lambda part: options.keep and made_by_this_code(part))
        if then is not None:
            then(folder.path, comparison)
    return comparison


def _run(plan: Plan, folder: RunFolder, progress: Progress) -> Comparison:
    options, rows = plan.options, plan.rows
    width = max(seen.width for seen in plan.surveys)
    work = len(rows) * float(len(plan.layers) * width) ** 2 * max(1, options.bootstrap)
    with closing(local_engine(options.workers, work)) as engine:
        memory = options.memory or _physical_memory() / 2
        if options.bootstrap:
            widths = sum(seen.width for _, seen in plan.layers)
            check_memory(len(rows), widths, workers=engine.workers, memory=memory)
            many = options.bootstrap
            progress.note(f"{many} bootstrap replicates: about {many} times the scoring (linear CKA on few rows: less)")
        stored = _stored(plan, folder, progress)
        setting = Setting(engine, folder, plan.key, memory, options.seed, progress)
        scoring = score_layers(stored, plan.wanted, setting)
        values = {name: s.values for name, s in scoring.scored.items()}
        intervals = {}
        if options.bootstrap:
            sentence = torch.from_numpy(rows.sentence)
            intervals = bootstrap(stored, sentence, plan.wanted, values, replicates=options.bootstrap, setting=setting)
    axes = tuple(layer for layer, _ in plan.layers)
    matrices = []
    for name, value in values.items():
        matrix = Matrix(name, axes, axes, value.numpy())
        found = intervals.get(name)
        if found is not None and found.method is not None:
            interval = Interval(found.level, found.method)
            matrix = replace(matrix, low=found.low.numpy(), high=found.high.numpy(), interval=interval)
        matrices.append(matrix)
    comparison = Comparison(
        matrices=tuple(matrices),
        models=plan.model_infos,
        data=plan.data,
        warnings=(
            *plan.notes,
            *(i.note for i in intervals.values() if i.note),
            *_constant_notes(plan, scoring),
            *_lost_notes(plan, scoring),
            *_undefined_notes(plan, scoring),
        ),
        provenance=plan.provenance,
        arrays={k: v.numpy() for s in scoring.scored.values() for k, v in s.arrays.items()},
    )
    return replace(comparison, findings=findings(comparison, standardise=options.standardise))


def _stored(plan: Plan, folder: RunFolder, progress: Progress) -> StoredRows:
    """Every layer's rows, read with each model once."""
    options = plan.options
    reading = Reading(
        plan.corpus,
        {options.unit: plan.rows},
        subword=options.subword,
        layers=options.layers,
        batch_tokens=options.batch_tokens,
    )
    run = FolderRun(folder, progress)
    return together(
        [
            store_layers(partial(open_model, spec, seen=seen, progress=progress), seen, reading, run).rows[options.unit]
            for spec, seen in plan.models
        ]
    )


def _finished(folder: RunFolder, request: str, *, overwrite: bool, progress: Progress) -> Comparison | None:
    """The folder's result if it answers this very request; another one is not overwritten unasked.

    One that other code made is still an answer: it is reused, and the user told, unless asked to overwrite it.
    """
    if not (folder.path / RESULT).is_file():
        return None
    try:
        found = Comparison.load(folder.path)
    except ForeignResultError as e:
        if overwrite:
            return None
        raise StratoscopeError(f"{e}, in another folder or with --overwrite") from e
    except StratoscopeError:
        return None  # damaged: made again
    if found.provenance.get("request") != request:
        if overwrite:
            return None
        raise StratoscopeError(
            f"{folder.path} holds another comparison",
            "choose another --out",
            "give --overwrite",
            "give --overwrite and --keep, after which further measures do not read the text again",
        )
    if found.provenance.get("code") == code_key():
        progress.note(f"{folder.path} already holds this result; nothing to do")
        return found
    if overwrite:
        return None
    before, now = found.provenance.get("versions", {}), versions()
    other = ", ".join(f"{name} {v}" for name, v in before.items() if now.get(name, v) != v)
    made = other or "other source files of stratoscope"
    progress.note(f"{folder.path} already holds this result, made with {made}; give --overwrite to make it again")
    return found


def _constant_notes(plan: Plan, scoring: Scoring) -> list[str]:
    absent = [str(a) for (a, seen), c in zip(plan.layers, scoring.constant, strict=True) if c == seen.width]
    partly = sum(c for (_, seen), c in zip(plan.layers, scoring.constant, strict=True) if c < seen.width)
    notes = [f"{', '.join(absent)} do not vary over these rows and are shown as absent"] if absent else []
    return notes + (
        [f"{partly} neurons do not vary over these rows and score 0 in neuronsim and mixedsim"] if partly else []
    )


def _lost_notes(plan: Plan, scoring: Scoring) -> list[str]:
    """Which layers have fewer directions than they could; the one that LayerNorm takes is not worth a word."""
    counted = zip(plan.layers, scoring.lost, scoring.constant, strict=True)
    most = len(plan.rows) - 1
    lost = [f"{k} of {min(seen.width - constant, most)} in {a}" for (a, seen), k, constant in counted if k > 1]
    if not lost:
        return []
    return [
        f"directions that vary by no more than rounding are left out of measures that invert a covariance:"
        f" {', '.join(lost)} (neurons that depend on each other, repeated rows, or signal too faint for the dtype)"
    ]


def _undefined_notes(plan: Plan, scoring: Scoring) -> list[str]:
    """Which layers vary and yet have no score under a measure, and why."""
    notes = []
    for request in plan.wanted:
        own = scoring.scored[request.name].values.diagonal().tolist()
        counted = zip(plan.layers, own, scoring.constant, strict=True)
        absent = [str(a) for (a, seen), value, c in counted if math.isnan(value) and c < seen.width]
        if absent:
            notes.append(f"{request.name} is absent for {', '.join(absent)}: {request.measure.undefined}")
    return notes


def _physical_memory() -> float:
    """Bytes of memory this machine has; its size rather than what is free, so that a run repeats itself."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
