"""Write a cut model: checkpoint, model card and the numbers as plain data; verified before it is in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import write_text
from stratoscope.core.value import Value
from stratoscope.data.baselines import bag_of_words_scores, majority_scores
from stratoscope.data.metrics import Floats, interval
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.heads import auto_class
from stratoscope.models.read.head import predict
from stratoscope.models.surgery.latency import ROUNDS, latency_ratio
from stratoscope.models.surgery.reload import check_reload
from stratoscope.results.cut import Cut
from stratoscope.results.cut import Tested as TestedCut
from stratoscope.studies.checkpoint import put_in_place, weights_of, write_checkpoint
from stratoscope.studies.cut.card import model_card
from stratoscope.studies.cut.confirm import Tested
from stratoscope.studies.cut.work import Judged, Work

CARD = "README.md"
RELOADED = 32
"""Validation examples on which the written checkpoint must give the same logits."""
TIMED, BATCH = 32, 8
"""Validation examples on which the models are timed, and how many at once."""
APART = 1e-3
"""How far the scores a cut was judged by may be from those of the model as written, against the largest of them."""


def write_cut(work: Work, judged: Judged, tested: Sequence[Tested], small: nn.Module) -> Cut:
    """Fill the run's folder with the model made of the last confirmed cut, and return what `cut.json` says of it."""
    assert work.run.folder is not None
    chosen = [t for t in tested if t.confirmed][-1]
    scores = judged.confirming(chosen.candidate)
    _check_judged(work, small, scores)
    latency = _latency(work, small)
    rows = np.linspace(0, len(work.task.validation) - 1, min(RELOADED, len(work.task.validation))).astype(np.int64)
    model: Any = small.to("cpu")
    folder = write_checkpoint(work.run.folder, model, work.side.seen.encoder.tokenizer)
    apart = check_reload(
        folder,
        model,
        work.task,
        [work.task.validation[k] for k in rows],
        length=work.side.length,
        trust_remote_code=work.side.spec.trust_remote_code,
    )
    reload = {"rows": len(rows), "apart": apart, "weights": weights_of(folder)}
    result = _result(work, judged, tested, chosen, scores, small, latency, reload)
    write_text(folder / CARD, model_card(result))
    put_in_place(work.run.folder)
    return result


def _check_judged(work: Work, small: nn.Module, scores: Floats) -> None:
    """The model about to be written must be the one that was judged."""
    rows = slice(0, RELOADED)
    got = predict(replace(work.model, module=small), work.inputs["validation"], rows=work.sure[rows])
    apart = float(np.abs(got - scores[rows]).max())
    if not apart <= APART * max(1.0, float(np.abs(got).max())):
        raise StratoscopeError(
            f"the cut model gives scores {apart:.3g} from those it was judged by, so it is not written; this is a"
            f" defect in how '{work.side.seen.family.name}' is cut, please report it"
        )


def _latency(work: Work, small: nn.Module) -> dict[str, Any]:
    inputs = work.inputs["validation"]
    rows = np.linspace(0, len(inputs) - 1, min(TIMED, len(inputs))).astype(np.int64)
    batches = [inputs.batch(rows[k : k + BATCH]) for k in range(0, len(rows), BATCH)]
    ratio, low, high = latency_ratio(work.model.module, small, batches)
    device = work.model.device.type
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


def _result(
    work: Work,
    judged: Judged,
    tested: Sequence[Tested],
    chosen: Tested,
    scores: Floats,
    small: nn.Module,
    latency: dict[str, Any],
    reload: dict[str, Any],
) -> Cut:
    task, kept, options, spec = work.task, chosen.candidate.kept, work.options, work.side.spec
    targets, whole = work.inputs["validation"].targets[work.sure], judged.whole[work.sure]
    head = judged.heads.get(kept)
    converged = head is None or head.converged

    def point(s: Floats) -> Value:
        return Value(work.metric.score(s, targets), *interval(work.metric, s, targets, seed=options.seed))

    before, after = point(whole), point(scores)
    floor = {
        "majority": work.metric.score(majority_scores(task)[work.sure], targets),
        "bag_of_words": work.metric.score(bag_of_words_scores(task)[work.sure], targets),
    }
    return Cut(
        folder=work.run.folder.path if work.run.folder else Path(),
        model={
            "name": spec.label,
            "source": spec.source,
            "hub": not locate(spec.source).local,
            "family": work.side.seen.family.name,
            "fingerprint": work.side.seen.fingerprint,
            "blocks": work.blocks,
        },
        loads_with=auto_class(task).__name__,
        kept=kept,
        dropped=tuple(k for k in range(1, work.blocks + 1) if k not in kept),
        task={"name": task.name, "fingerprint": task.fingerprint, "format": task.format, "note": task.note},
        metric=work.metric.name,
        budget=work.budget,
        confidence=options.confidence,
        rows={"choose": len(work.choose), "confirm": len(work.sure), "seed": options.seed},
        whole_on_choice_rows=work.score(judged.whole[work.choose], work.choose),
        candidates=judged.candidates,
        tested=tuple(TestedCut(t.candidate.kept, _value(t), t.confirmed, t.loss.exact) for t in tested),
        before=before,
        after=after,
        difference=_value(chosen),
        baselines=floor,
        head={"tuned": head is not None, "converged": converged},
        length=work.side.length,
        parameters={"before": _count(work.model.module), "after": _count(small)},
        latency=latency,
        reload=reload,
        warnings=tuple(_warnings(work, before.value, after.value, floor, converged=converged)),
    )


def _value(tested: Tested) -> Value:
    return Value(tested.loss.value, tested.loss.low, tested.loss.high)


def _warnings(work: Work, before: float, after: float, floor: dict[str, float], *, converged: bool) -> list[str]:
    name = max(floor, key=lambda k: floor[k])
    simple = f"the {name.replace('_', ' ')} ({floor[name]:.3f})"
    notes = []
    if before <= floor[name]:
        notes.append(
            f"the whole model ({work.metric.name} {before:.3f}) does not beat {simple}: that its blocks can go says"
            " little about the task"
        )
    elif after <= floor[name]:
        notes.append(f"the cut model ({work.metric.name} {after:.3f}) does not beat {simple}; the whole one does")
    if cut := work.inputs["validation"].truncated:
        notes.append(f"{cut} validation texts are longer than {work.side.length} tokens and were truncated")
    if not converged:
        notes.append("the head had not converged when its tuning was stopped")
    return notes
