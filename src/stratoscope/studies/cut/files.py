"""Write a cut model: checkpoint, model card and the numbers as plain data; verified before it is in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import write_text
from stratoscope.core.value import Value
from stratoscope.data.baselines import bag_of_words_scores
from stratoscope.data.metrics import Floats, interval
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.heads import auto_class
from stratoscope.models.read.head import predict
from stratoscope.models.surgery.latency import ROUNDS, latency_ratio, time_shares
from stratoscope.models.surgery.reload import check_reload
from stratoscope.models.text.encoder import IntArray
from stratoscope.results.cutting.cut import Cut, Tested
from stratoscope.studies.checkpoint import put_in_place, weights_of, write_checkpoint
from stratoscope.studies.cut.card import model_card
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
    task, options, side, model = work.task, work.options, work.tuned, work.model
    chosen = [t for t in tested if t.confirmed][-1]
    scores, whole, targets = judged.confirming(chosen.kept), judged.whole[work.sure], work.targets[work.sure]
    _check_judged(work, small, scores)
    latency = {**_latency(work, small), "by_blocks": time_by_blocks(work, judged)}
    rows = _spread(len(task.validation), RELOADED)
    written: Any = small.to("cpu")
    folder = write_checkpoint(work.run.folder, written, side.surveyed.encoder.tokenizer)
    trust = side.spec.trust_remote_code
    apart = check_reload(
        folder, written, task, [task.validation[k] for k in rows], length=side.length, trust_remote_code=trust
    )
    metric = work.metric
    before, after = (
        Value(metric.score(s, targets), *interval(metric, s, targets, seed=work.seed)) for s in (whole, scores)
    )
    floor = {"majority": work.majority, "bag_of_words": metric.score(bag_of_words_scores(task)[work.sure], targets)}
    head = judged.heads.get(chosen.kept)
    converged = head is None or head.converged
    result = Cut(
        folder=work.run.folder.path,
        model={
            "name": side.spec.label,
            "source": side.spec.source,
            "hub": side.spec.loaded is None and not locate(side.spec.source).local,
            "family": side.surveyed.family.name,
            "fingerprint": side.surveyed.fingerprint,
            "blocks": work.blocks,
        },
        loads_with=auto_class(task).__name__,
        kept=chosen.kept,
        dropped=work.gone(chosen.kept),
        task={"name": task.name, "fingerprint": task.fingerprint, "format": task.format, "note": task.note},
        metric=metric.name,
        budget=work.budget,
        confidence=options.confidence,
        rows={"choose": len(work.choose), "confirm": len(work.sure), "seed": options.seed},
        whole_on_choice_rows=work.score(judged.whole[work.choose], work.choose),
        candidates=judged.candidates,
        tested=tuple(tested),
        before=before,
        after=after,
        difference=chosen.loss,
        baselines=floor,
        head={"tuned": head is not None, "converged": converged},
        length=side.length,
        parameters={
            name: sum(p.numel() for p in module.parameters())
            for name, module in (("before", model.module), ("after", small))
        },
        latency=latency,
        reload={"rows": len(rows), "apart": apart, "weights": weights_of(folder)},
        warnings=tuple(_warnings(work, before.value, after.value, floor, converged=converged)),
    )
    write_text(folder / CARD, model_card(result))
    put_in_place(work.run.folder)
    return result


def _spread(rows: int, most: int) -> IntArray:
    """At most so many of the rows, evenly spread."""
    return np.linspace(0, rows - 1, min(most, rows)).astype(np.int64)


def _check_judged(work: Work, small: nn.Module, scores: Floats) -> None:
    """The model about to be written must be the one that was judged."""
    got = predict(replace(work.model, module=small), work.inputs, rows=work.sure[:RELOADED])
    apart = float(np.abs(got - scores[:RELOADED]).max())
    if not apart <= APART * max(1.0, float(np.abs(got).max())):
        raise StratoscopeError(
            f"the cut model gives scores {apart:.3g} from those it was judged by, so it is not written; this is a"
            f" defect in how '{work.tuned.surveyed.family.name}' is cut, please report it"
        )


def _batches(work: Work) -> list[dict[str, Tensor]]:
    """The rows that models are timed on."""
    rows = _spread(len(work.inputs), TIMED)
    return [work.inputs.batch(rows[k : k + BATCH]) for k in range(0, len(rows), BATCH)]


def time_by_blocks(work: Work, judged: Judged) -> dict[str, float]:
    """Time of the cuts that were tried over the whole model's, by number of blocks; measured once."""
    kept = {len(c.kept): c.kept for c in judged.candidates}

    def measured() -> dict[str, Tensor]:
        shares = time_shares(work.model.module, kept.values(), _batches(work)[0])
        return {str(number): torch.tensor(share, dtype=torch.float64) for number, share in shares.items()}

    part = work.run.part("time", [*work.key, sorted(kept)], measured)
    return {str(number): float(part[str(number)]) for number in sorted(kept)}


def _latency(work: Work, small: nn.Module) -> dict[str, Any]:
    batches = _batches(work)
    ratio, low, high = latency_ratio(work.model.module, small, batches)
    how = {"rounds": ROUNDS, "batch": BATCH, "device": work.model.device.type, "threads": torch.get_num_threads()}
    return {"ratio": ratio, "low": low, "high": high, **how}


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
    if cut := work.inputs.truncated:
        notes.append(f"{cut} validation texts are longer than {work.tuned.length} tokens and were truncated")
    if not converged:
        notes.append("the head had not converged when its tuning was stopped")
    return notes
