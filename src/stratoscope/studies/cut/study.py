"""Take out of a fine-tuned model the blocks it can do without, and write what is left as a standard checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratoscope.claims.scores import spans
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import Value
from stratoscope.data.metrics import metric_named
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.surgery.blocks import exported, wearing
from stratoscope.results.cutting.cut import Candidate, Cut, Tested
from stratoscope.runs.run import Draw
from stratoscope.studies.asked import Model, chosen, models_asked, names_asked, request_for, run_study, task_asked
from stratoscope.studies.checkpoint import is_whole
from stratoscope.studies.cut.card import spelled
from stratoscope.studies.cut.confirm import Loss, check_rows, confirm, loss_of, rows_needed, sequence
from stratoscope.studies.cut.files import time_by_blocks, write_cut
from stratoscope.studies.cut.options import TOP, CutOptions
from stratoscope.studies.cut.work import Judged, Work, check, judge
from stratoscope.studies.depth.study import inputs_of, two_sides

__all__ = ["Cut", "CutOptions", "NothingToCutError", "cut", "parse_budget"]


CHOSEN, CONFIRMED, NOT_CONFIRMED = "chosen", "confirmed", "not confirmed"
OVER_BUDGET, NOT_TESTED = "over budget", "not tested: a milder cut was not confirmed"
DOMINATED, NO_CONFIG = "dominated by another cut", "no configuration describes it"
AT_MAJORITY = "not above the majority"
"""What becomes of a cut that is tried."""


class NothingToCutError(StratoscopeError):
    """No cut was confirmed to stay within the budget; `tables` has everything that was tried."""


def parse_budget(text: str | float) -> float:
    """A loss in units of the metric: above 0 and below 1."""
    try:
        budget = math.nan if isinstance(text, bool) else float(text)
    except (TypeError, ValueError):
        budget = math.nan
    if math.isnan(budget):
        raise StratoscopeError(f"expected --budget as a number, got '{text}'; 0.01 stands for one point of the metric")
    if not 0 < budget < 1:
        raise StratoscopeError(
            f"expected a --budget above 0 and below 1, got {budget:g}; 0.01 stands for one point of the metric"
        )
    return budget


def cut(
    tuned: Model,
    task: TaskData,
    *,
    budget: float | str,
    out: str | Path,
    options: CutOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Cut:
    """Write to `out` the model with the fewest blocks whose metric is within `budget` of the whole model's.

    The cut is chosen on one half of the validation rows and confirmed on the other with the stated confidence; see
    `studies.cut.confirm`. When none is, an error says by how much the best was off. The checkpoint is verified among
    the run's parts before it is moved into place, and `cut.json`, written last, says that it is whole; what was
    computed is kept when nothing can be cut, so that another budget costs little. Further keywords are the fields of
    `CutOptions`.
    """
    options, progress = chosen(CutOptions, options, keywords), progress or Silent()
    allowed, asked = parse_budget(budget), options
    options = replace(options, blocks=options.blocks or TOP)
    check(options)
    check_rows(len(task.validation), metric_named(task.metric), budget=allowed, confidence=options.confidence)
    [side] = two_sides(tuned, None, task, options.length, progress)
    if side.surveyed.layers - 1 <= options.keep:
        raise StratoscopeError(
            f"'{side.spec.label}' has {side.surveyed.layers - 1} blocks and {options.keep} must stay: there is nothing"
            " to cut; give a deeper model or a lower --keep"
        )
    made = run_study(
        request_for("cut", inputs_of([side], task), options, budget=allowed),
        asked,
        out,
        lambda running: _compute(Work(side, task, options.seed, options.batch_tokens, running, options, allowed)),
        asked={
            "tuned": side.spec.source,
            "budget": allowed,
            **task_asked(task),
            **models_asked([side.spec]),
            **names_asked([side.spec]),
            "base": side.spec.base,
        },
        progress=progress,
        draw=draw,
        whole=lambda folder, made: is_whole(folder, made.reload["weights"]),
        alone=True,
    )
    for warning in made.warnings:
        progress.note(warning)
    return replace(made, folder=Path(out))


def _compute(work: Work) -> Cut:
    judged = judge(work)
    tested, judged = _choose(work, judged)
    kept = [t for t in tested if t.confirmed][-1].kept
    work.run.progress.note(f"{len(kept)} of {work.blocks} blocks do: {spelled(work.gone(kept))} can go")
    work.run.finish()
    module = work.model.module
    with wearing(module, judged.heads[kept].parameters if kept in judged.heads else {}):
        small = exported(module, kept)
    return write_cut(work, judged, tested, small)


def _choose(work: Work, judged: Judged) -> tuple[list[Tested], Judged]:
    """The cuts that were tested, at least one of them confirmed, and the verdict on all; else why there is none."""
    whole = work.score(judged.whole[work.choose], work.choose)

    def measure(candidate: Candidate) -> Loss:
        cut, full = judged.confirming(candidate.kept), judged.whole[work.sure]
        confidence, seed = work.options.confidence, work.seed
        return loss_of(work.metric, cut, full, work.targets[work.sure], confidence=confidence, seed=seed)

    within = [c for c in judged.candidates if sequence([c], whole=whole, budget=work.budget)]
    if not within:
        best = max(judged.candidates, key=lambda c: (c.value, -len(c.kept)))
        raise _nothing(
            work,
            _with_verdicts(work, judged, [], []),
            f"the best cut without {spelled(work.gone(best.kept))} takes {work.metric.name} from {whole:.4f} to"
            f" {best.value:.4f} on the {len(work.choose)} rows for the choice, and changes it by"
            f" {_shown(measure(best))} on the {len(work.sure)} others",
        )
    exportable = _exportable(work, within)
    order = sequence(exportable, whole=whole, budget=work.budget)
    tested = confirm(order, measure, budget=work.budget, refused=lambda c: _at_majority(work, judged, c.kept))
    verdicts = _with_verdicts(work, judged, exportable, tested)
    if not tested[0].confirmed and tested[0].at_majority:
        raise _nothing(
            work,
            verdicts,
            f"without {spelled(work.gone(tested[0].kept))}, the safest cut by the rows for the choice, its"
            f" {work.metric.name} on {len(work.sure)} other rows is not above that of the majority label"
            f" ({work.majority:.4f})",
            "write it all the same (--force)",
        )
    if not tested[0].confirmed:
        loss, rows = tested[0].loss, len(work.sure)
        needed = rows_needed(loss, rows, budget=work.budget, exact=tested[0].exact)
        raise _nothing(
            work,
            verdicts,
            f"without {spelled(work.gone(tested[0].kept))}, the safest cut by the rows for the choice, the change of"
            f" {work.metric.name} on {rows} other rows is {_shown(loss)}, and {work.options.confidence:.0%} confidence"
            f" needs a lower end of {-work.budget:g}",
            *([f"give about {2 * needed} validation rows instead of {len(work.task.validation)}"] if needed else []),
        )
    return tested, verdicts


def _at_majority(work: Work, judged: Judged, kept: tuple[int, ...]) -> bool:
    """Whether a cut is no better than the majority label on the rows for the confirmation, and that counts."""
    return not work.options.force and work.score(judged.confirming(kept), work.sure) <= work.majority


def _with_verdicts(work: Work, judged: Judged, exportable: Sequence[Candidate], tested: Sequence[Tested]) -> Judged:
    """Every candidate with what became of it."""
    known = {t.kept: CONFIRMED if t.confirmed else AT_MAJORITY if t.at_majority else NOT_CONFIRMED for t in tested}
    known |= {t.kept: CHOSEN for t in [t for t in tested if t.confirmed][-1:]}
    whole, possible = work.score(judged.whole[work.choose], work.choose), {c.kept for c in exportable}
    waiting = {c.kept for c in sequence(exportable, whole=whole, budget=work.budget)}

    def verdict(candidate: Candidate) -> str:
        if not sequence([candidate], whole=whole, budget=work.budget):
            return OVER_BUDGET
        if candidate.kept not in possible:
            return NO_CONFIG
        return known.get(candidate.kept, NOT_TESTED if candidate.kept in waiting else DOMINATED)

    return replace(judged, candidates=tuple(replace(c, verdict=verdict(c)) for c in judged.candidates))


def _exportable(work: Work, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The cuts that a configuration of the architecture describes; where none is, the reason is raised."""
    exportable, refusal = [], None
    for candidate in candidates:
        try:
            exported(work.model.module, candidate.kept)
        except StratoscopeError as e:
            refusal = e
        else:
            exportable.append(candidate)
    if refusal is not None and not exportable:
        raise refusal
    return exportable


def _nothing(work: Work, judged: Judged, why: str, *more: str) -> NothingToCutError:
    what = f"nothing can be cut from '{work.tuned.spec.label}' within a budget of {work.budget:g}: {why}"
    further = ("tune the head (--head)", "let any blocks go (--blocks any)")
    untried = not work.options.head and work.options.blocks == TOP
    error = NothingToCutError(what, *more, "give a larger --budget", *(further if untried else ()))
    time = time_by_blocks(work, judged)
    rows = [
        {
            "blocks kept": spans(c.kept),
            work.metric.name: round(c.value, 4),
            "change": f"{c.change.value:+.3f} [{c.change.low:+.3f}, {c.change.high:+.3f}]",
            "parameters": c.parameters,
            "time": round(time[str(len(c.kept))], 2),
            "verdict": c.verdict,
        }
        for c in judged.candidates
    ]
    error.tables = {f"everything tried, on {len(work.choose)} validation rows": rows}
    return error


def _shown(loss: Value) -> str:
    return f"{loss.value:+.4f} (between {loss.low:+.4f} and {loss.high:+.4f})"
