"""Write a cut model into a folder: checkpoint, model card and the numbers as plain data; verified before it is done."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stratoscope.core import kinds
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.runfolder import canonical_json, digest, disk_errors, write_text
from stratoscope.data.baselines import bag_of_words_scores, majority_scores
from stratoscope.data.metrics import Floats, interval
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.guard import quiet
from stratoscope.models.open.heads import auto_class
from stratoscope.models.read.head import predict
from stratoscope.models.surgery.latency import ROUNDS, latency_ratio
from stratoscope.models.surgery.reload import check_reload
from stratoscope.studies.cut.card import model_card
from stratoscope.studies.cut.confirm import Tested
from stratoscope.studies.cut.work import Judged, Work

CUT, CARD = kinds.CUT.file, "README.md"
KIND, FORMAT = "cut", 1
LIBRARIES = ("stratoscope", "torch", "transformers", "numpy", "scipy", "scikit-learn")
RELOADED = 32
"""Validation examples on which the written checkpoint must give the same logits."""
TIMED, BATCH = 32, 8
"""Validation examples on which the models are timed, and how many at once."""
APART = 1e-3
"""How far the scores a cut was judged by may be from those of the model as written, against the largest of them."""


def write_cut(folder: Path, work: Work, judged: Judged, tested: Sequence[Tested], small: nn.Module) -> dict[str, Any]:
    """Fill `folder` with the model made of the last confirmed cut, and return what `cut.json` says of it."""
    chosen = [t for t in tested if t.confirmed][-1]
    scores = judged.confirming(chosen.candidate)
    _check_judged(work, small, scores)
    record = _record(work, judged, tested, chosen, scores)
    record["latency"] = _latency(work, small)
    record["parameters"] = {"before": _count(work.module), "after": _count(small)}
    rows = np.linspace(0, len(work.task.validation) - 1, min(RELOADED, len(work.task.validation))).astype(np.int64)
    with disk_errors(folder), quiet():
        if folder.exists():
            shutil.rmtree(folder)
        model: Any = small.to("cpu")
        model.save_pretrained(folder)
        work.seen.encoder.tokenizer.save_pretrained(folder)
    apart = check_reload(
        folder,
        model,
        work.task,
        [work.task.validation[k] for k in rows],
        length=work.length,
        trust_remote_code=work.spec.trust_remote_code,
    )
    record["reload"] = {"rows": len(rows), "apart": apart}
    write_text(folder / CARD, model_card(record))
    write_text(folder / CUT, canonical_json(record | {"sha256": digest(record, length=64)}) + "\n")
    return record


def _check_judged(work: Work, small: nn.Module, scores: Floats) -> None:
    """The model about to be written must be the one that was judged."""
    rows = slice(0, RELOADED)
    got = predict(replace(work.model, module=small), work.inputs["validation"], rows=work.sure[rows])
    apart = float(np.abs(got - scores[rows]).max())
    if not apart <= APART * max(1.0, float(np.abs(got).max())):
        raise StratoscopeError(
            f"the cut model gives scores {apart:.3g} from those it was judged by, so it is not written; this is a"
            f" defect in how '{work.seen.family.name}' is cut, please report it"
        )


def _latency(work: Work, small: nn.Module) -> dict[str, Any]:
    inputs = work.inputs["validation"]
    rows = np.linspace(0, len(inputs) - 1, min(TIMED, len(inputs))).astype(np.int64)
    batches = [inputs.batch(rows[k : k + BATCH]) for k in range(0, len(rows), BATCH)]
    ratio, low, high = latency_ratio(work.module, small, batches)
    device = next(work.module.parameters()).device.type
    return {
        "ratio": ratio,
        "low": low,
        "high": high,
        "rounds": ROUNDS,
        "batch": BATCH,
        "device": device,
        "threads": torch.get_num_threads(),
    }


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _record(work: Work, judged: Judged, tested: Sequence[Tested], chosen: Tested, scores: Floats) -> dict[str, Any]:
    task, kept, options = work.task, chosen.candidate.kept, work.options
    targets, whole = work.inputs["validation"].targets[work.sure], judged.whole[work.sure]
    head = judged.heads.get(kept)

    def point(s: Floats) -> dict[str, float]:
        low, high = interval(work.metric, s, targets, seed=options.seed)
        return {"value": work.metric.score(s, targets), "low": low, "high": high}

    before, after = point(whole), point(scores)
    floor = {
        "majority": work.metric.score(majority_scores(task)[work.sure], targets),
        "bag_of_words": work.metric.score(bag_of_words_scores(task)[work.sure], targets),
    }
    return {
        "kind": KIND,
        "format": FORMAT,
        "model": {
            "name": work.spec.label,
            "source": work.spec.source,
            "hub": not locate(work.spec.source).local,
            "family": work.seen.family.name,
            "fingerprint": work.seen.fingerprint,
            "blocks": work.blocks,
        },
        "class": auto_class(task).__name__,
        "kept": list(kept),
        "dropped": [k for k in range(1, work.blocks + 1) if k not in kept],
        "task": {"name": task.name, "fingerprint": task.fingerprint, "format": task.format, "note": task.note},
        "metric": work.metric.name,
        "budget": work.budget,
        "confidence": options.confidence,
        "rows": {"choose": len(work.choose), "confirm": len(work.sure), "seed": options.seed},
        "whole_on_choice_rows": work.score(judged.whole[work.choose], work.choose),
        "candidates": [{"kept": list(c.kept), "value": c.value} for c in judged.candidates],
        "tested": [{"kept": list(t.candidate.kept), "confirmed": t.confirmed} | asdict(t.loss) for t in tested],
        "before": before,
        "after": after,
        "difference": asdict(chosen.loss),
        "baselines": floor,
        "head": {"tuned": head is not None, "converged": head is None or head.converged},
        "length": work.length,
        "warnings": _warnings(work, before["value"], after["value"], floor, converged=head is None or head.converged),
        "versions": {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
    }


def _warnings(work: Work, before: float, after: float, floor: dict[str, float], *, converged: bool) -> list[str]:
    name = max(floor, key=lambda k: floor[k])
    simple = f"the {name.replace('_', ' ')} ({floor[name]:.3f})"
    found = []
    if before <= floor[name]:
        found.append(
            f"the whole model ({work.metric.name} {before:.3f}) does not beat {simple}: that its blocks can go says"
            " little about the task"
        )
    elif after <= floor[name]:
        found.append(f"the cut model ({work.metric.name} {after:.3f}) does not beat {simple}; the whole one does")
    if cut := work.inputs["validation"].truncated:
        found.append(f"{cut} validation texts are longer than {work.length} tokens and were cut to that")
    if not converged:
        found.append("the head had not converged when its tuning was stopped")
    return found
