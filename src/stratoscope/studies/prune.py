"""Drop blocks of a base model, then fine-tune what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import LOCAL
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.loading import ModelSpec, Survey, open_model, survey
from stratoscope.models.surgery.blocks import exported, parse_drop
from stratoscope.results.cutting.pruned import Pruned
from stratoscope.results.finetuned import Finetuned
from stratoscope.runs.run import Request, Run
from stratoscope.studies.asked import (
    Model,
    chosen,
    in_turn,
    models_asked,
    names_asked,
    run_study,
    shard_of,
    spec_of,
    task_asked,
)
from stratoscope.studies.checkpoint import is_whole, put_in_place, write_checkpoint
from stratoscope.studies.finetune.options import TrainingOptions
from stratoscope.studies.finetune.recipes import resolve
from stratoscope.studies.finetune.study import tune

BASE = "base"


def prune(
    base: Model,
    task: TaskData,
    *,
    drop: str,
    out: str | Path,
    options: TrainingOptions | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> list[Finetuned]:
    """Write `base` without `drop` (`top:k` or `bottom:k`; embeddings stay) to `out`/base, and fine-tune that.

    Runs, resumes and results are those of `finetune`; each record says under `pruned` what was dropped. A head that
    `base` already has for the task is kept, as `finetune` keeps it. Further keywords are the fields of
    `TrainingOptions`.
    """
    options, progress = chosen(TrainingOptions, options, keywords), progress or Silent()
    if not str(out).strip():
        raise StratoscopeError("expected a folder for --out, got an empty name")
    spec, folder = spec_of(base), Path(out)
    resolve(options, task.name)  # what cannot be trained is not cut either
    surveyed, kept = left_over(spec, drop, progress)
    what: dict[str, Any] = {
        "source": spec.source,
        "fingerprint": surveyed.fingerprint,
        "drop": drop.strip(),
        "blocks": surveyed.layers - 1,
        "kept": list(kept),
    }
    asked = {"command": "prune", "base": spec.source, "drop": drop.strip(), **names_asked([spec])}
    alone = replace(options, engine=LOCAL, workers=None, shard=None, merge=False)
    cut = partial(
        run_study,
        Request("pruned", {"base": surveyed.fingerprint, "task": task.fingerprint}, {"drop": drop.strip()}),
        alone,
        folder / BASE,
        lambda running: _compute(spec, task, what, running),
        asked={**asked, **task_asked(task), **models_asked([spec])},
        progress=progress,
        whole=lambda place, made: is_whole(place, made.weights),
        alone=True,
    )
    in_turn([cut], shard_of(options))
    left = replace(spec, source=str(folder / BASE), name=spec.label, revision=None, allow_pickle=False)
    return tune(left, task, folder, options, progress, asked=asked, pruned=what)


def left_over(spec: ModelSpec, drop: str, progress: Progress) -> tuple[Survey, tuple[int, ...]]:
    """The model without its weights, and the blocks that stay; none is an error."""
    surveyed = survey(spec, progress=progress)
    kept = parse_drop(drop, surveyed.layers - 1)
    if not kept:
        raise StratoscopeError(
            f"dropping all {surveyed.layers - 1} blocks of '{spec.label}' leaves nothing to fine-tune, got '{drop}'",
            "drop fewer",
        )
    return surveyed, kept


def _compute(spec: ModelSpec, task: TaskData, what: Mapping[str, Any], running: Run) -> Pruned:
    assert running.folder is not None
    whole = replace(spec, dtype="float32", device="cpu")
    model = open_model(whole, task, seed=0)
    # A head or pooler drawn here would be the same for every seed: only a head that was stored goes along.
    module: Any = exported(model.module if model.head == "kept" else open_model(whole).module, what["kept"])
    write_checkpoint(running.folder, module, model.encoder.tokenizer)
    return Pruned(what=what, weights=put_in_place(running.folder))
