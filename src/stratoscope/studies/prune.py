"""Drop blocks of a base model, then fine-tune what is left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratoscope.core import kinds
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.runfolder import LOCK, RunFolder, canonical_json, digest, disk_errors, write_text
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.checkpoints import Checkpoint, fingerprint
from stratoscope.models.open.guard import quiet
from stratoscope.models.open.loading import ModelSpec, open_model, survey
from stratoscope.models.surgery.blocks import exported, parse_drop
from stratoscope.studies.finetune.recipes import resolve
from stratoscope.studies.finetune.study import RECORD, Finetuned, FinetuneOptions, finetune

BASE, PRUNED = "base", kinds.PRUNED.file


def prune(
    base: str | Path | ModelSpec,
    task: TaskData,
    *,
    drop: str,
    out: str | Path,
    options: FinetuneOptions | None = None,
    progress: Progress | None = None,
) -> list[Finetuned]:
    """Write `base` without `drop` (`top:k` or `bottom:k`; embeddings stay) to `out`/base, and fine-tune that.

    Runs, resumes and results are those of `finetune`; each record says under `pruned` what was dropped. A head that
    `base` already has for the task is kept, as `finetune` keeps it.
    """
    options, progress, folder = options or FinetuneOptions(), progress or Silent(), Path(out)
    spec = base if isinstance(base, ModelSpec) else ModelSpec(str(base))
    resolve(options, task.name)  # what cannot be trained is not cut either
    if folder.is_dir() and any(folder.iterdir()) and not (folder / LOCK).exists():
        raise StratoscopeError(f"{folder} is not empty and no run made it; choose another --out")
    seen = survey(spec, progress=progress)
    kept = parse_drop(drop, seen.layers - 1)
    if not kept:
        raise StratoscopeError(
            f"dropping all {seen.layers - 1} blocks of '{spec.label}' leaves nothing to fine-tune; drop fewer ({drop})"
        )
    what: dict[str, Any] = {
        "source": spec.source,
        "fingerprint": seen.fingerprint,
        "drop": drop.strip(),
        "blocks": seen.layers - 1,
        "kept": list(kept),
    }
    with RunFolder.open(folder):
        _make_base(folder / BASE, spec, task, what, overwrite=options.overwrite)
    cut = ModelSpec(
        str(folder / BASE), spec.label, dtype=spec.dtype, device=spec.device, trust_remote_code=spec.trust_remote_code
    )
    found = finetune(cut, task, out=folder, options=options, progress=progress)
    return [_noted(one, what) for one in found]


def _make_base(folder: Path, spec: ModelSpec, task: TaskData, what: Mapping[str, Any], *, overwrite: bool) -> None:
    """Write the cut base, unless it is there; `prune.json`, written last, says that it is whole."""
    try:
        found = json.loads((folder / PRUNED).read_text(encoding="utf-8"))
        made, weights = found["pruned"], found["weights"]
    except (OSError, ValueError, KeyError, TypeError):
        made = weights = None  # none, or left by a killed run
    if made is not None and made != what and not overwrite:
        raise StratoscopeError(
            f"{folder} holds a model pruned otherwise ({made['drop']} of {made['source']})",
            "choose another --out",
            "give --overwrite",
        )
    if made == what and weights == fingerprint(Checkpoint(str(folder), local=True)):
        return
    whole = replace(spec, dtype="float32", device="cpu")
    model = open_model(whole, task, seed=0)
    # A head or pooler drawn here would be the same for every seed: only a head that was stored goes along.
    module: Any = exported(model.module if model.head == "kept" else open_model(whole).module, what["kept"])
    with disk_errors(folder), quiet():
        if folder.exists():
            shutil.rmtree(folder)
        module.save_pretrained(folder)
        model.encoder.tokenizer.save_pretrained(folder)
    weights = fingerprint(Checkpoint(str(folder), local=True))
    write_text(folder / PRUNED, canonical_json({"pruned": what, "weights": weights}) + "\n")


def _noted(found: Finetuned, what: Mapping[str, Any]) -> Finetuned:
    """Say in the record what was dropped; a run killed before this is given the note by the next."""
    record = {**found.record, "pruned": dict(what)}
    if record != found.record:
        write_text(found.folder / RECORD, canonical_json(record | {"sha256": digest(record, length=64)}) + "\n")
    return Finetuned(found.folder, record)
