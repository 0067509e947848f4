"""Take out of a fine-tuned model the blocks it can do without, and write what is left as a standard checkpoint."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import digest, disk_errors
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.metrics import metric_named
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.loading import ModelSpec
from stratoscope.models.surgery.blocks import exported
from stratoscope.runs import kinds
from stratoscope.runs.folder import RunFolder
from stratoscope.studies.cut.card import spelled
from stratoscope.studies.cut.confirm import Candidate, Loss, Tested, check_rows, confirm, loss_of, rows_needed, sequence
from stratoscope.studies.cut.files import CUT, FORMAT, KIND, write_cut
from stratoscope.studies.cut.work import TOP, CutOptions, Judged, Work, check, judge, prepare, wearing

__all__ = ["Cut", "CutOptions", "NothingToCutError", "cut", "parse_budget"]

MADE = "checkpoint"


class NothingToCutError(StratoscopeError):
    """No cut was confirmed to stay within the budget."""


@dataclass(frozen=True)
class Cut:
    """A cut model, as its folder holds it."""

    folder: Path
    """A standard checkpoint with a model card."""
    record: Mapping[str, Any]
    """Content of `cut.json`."""

    @property
    def kept(self) -> tuple[int, ...]:
        """Blocks of the model that stayed, from 1."""
        return tuple(self.record["kept"])

    @classmethod
    def load(cls, folder: str | Path) -> Cut:
        """Read the record of a cut model; needs no model."""
        path = Path(folder) / CUT
        if not path.is_file():
            raise kinds.CUT.missing(folder)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if (record["kind"], record["format"]) != (KIND, FORMAT):
                raise ValueError(f"expected '{KIND}' of format {FORMAT}")
            if record.pop("sha256") != digest(record, length=64):
                raise ValueError("its checksum does not match")
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise StratoscopeError(f"{path} is damaged ({e}); cut the model again into another folder") from e
        return cls(Path(folder), record)


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
    tuned: str | Path | ModelSpec,
    task: TaskData,
    *,
    budget: float | str,
    out: str | Path,
    options: CutOptions | None = None,
    progress: Progress | None = None,
) -> Cut:
    """Write to `out` the model with the fewest blocks whose metric is within `budget` of the whole model's.

    The cut is chosen on one half of the validation rows and confirmed on the other with the stated confidence; see
    `studies.confirm`. When none is, an error says by how much the best was off. `out` appears whole and verified, or
    not at all: until then all files are in a hidden folder beside it, which a killed run leaves and the next one uses.
    """
    options, progress = options or CutOptions(), progress or Silent()
    spec = tuned if isinstance(tuned, ModelSpec) else ModelSpec(str(tuned))
    allowed, target = parse_budget(budget), Path(out).expanduser().absolute()
    check(options)
    check_rows(len(task.validation), metric_named(task.metric), budget=allowed, confidence=options.confidence)
    _check_free(target)
    with RunFolder.open(target.with_name(f".{target.name}.cut")) as folder:
        try:
            work = prepare(spec, task, options, budget=allowed, folder=folder, progress=progress)
            judged = judge(work)
            tested = _choose(work, judged)
            kept = [t for t in tested if t.confirmed][-1].candidate.kept
            progress.note(f"{len(kept)} of {work.blocks} blocks do: {spelled(_gone(work, kept))} can go")
            with wearing(work.module, judged.heads[kept].parameters if kept in judged.heads else {}):
                small = exported(work.module, kept)
            record = write_cut(folder.path / MADE, work, judged, tested, small)
            with disk_errors(target):
                os.replace(folder.path / MADE, target)
        finally:
            shutil.rmtree(folder.path, ignore_errors=True)
    for warning in record["warnings"]:
        progress.note(warning)
    return Cut(target, record)


def _check_free(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise StratoscopeError(f"--out {target} is a file; give a folder")
    if target.is_dir() and any(target.iterdir()):
        raise StratoscopeError(f"{target} is not empty; choose another --out")


def _choose(work: Work, judged: Judged) -> list[Tested]:
    """The cuts that were tested, at least one of them confirmed; else the reason why there is none."""
    whole = work.score(judged.whole[work.choose], work.choose)
    order = sequence(judged.candidates, whole=whole, budget=work.budget)
    if not order:
        raise _none_within(work, judged)
    order = sequence(_exportable(work, judged.candidates, whole), whole=whole, budget=work.budget)
    targets = work.inputs["validation"].targets[work.sure]

    def measure(candidate: Candidate) -> Loss:
        return loss_of(
            work.metric,
            judged.confirming(candidate),
            judged.whole[work.sure],
            targets,
            confidence=work.options.confidence,
            seed=work.options.seed,
        )

    tested = confirm(order, measure, budget=work.budget)
    if not tested[0].confirmed:
        raise _not_confirmed(work, tested[0])
    return tested


def _exportable(work: Work, candidates: Sequence[Candidate], whole: float) -> list[Candidate]:
    """Of the cuts within the budget those that a configuration of the architecture describes."""
    found, refusal = [], None
    for candidate in candidates:
        if sequence([candidate], whole=whole, budget=work.budget):
            try:
                exported(work.module, candidate.kept)
            except StratoscopeError as e:
                refusal = e
            else:
                found.append(candidate)
    if not found:
        assert refusal is not None
        raise refusal
    return found


def _none_within(work: Work, judged: Judged) -> NothingToCutError:
    best = max(judged.candidates, key=lambda c: (c.value, -len(c.kept)))
    loss = loss_of(
        work.metric,
        judged.confirming(best),
        judged.whole[work.sure],
        work.inputs["validation"].targets[work.sure],
        confidence=work.options.confidence,
        seed=work.options.seed,
    )
    whole = work.score(judged.whole[work.choose], work.choose)
    return NothingToCutError(
        f"nothing can be cut from '{work.spec.label}' within a budget of {work.budget:g}: the best cut without"
        f" {spelled(_gone(work, best.kept))} takes {work.metric.name} from {whole:.4f} to {best.value:.4f} on the"
        f" {len(work.choose)} rows for the choice, and changes it by {_shown(loss)} on the {len(work.sure)} others",
        *_ways(work),
    )


def _not_confirmed(work: Work, failed: Tested) -> NothingToCutError:
    loss, rows = failed.loss, len(work.sure)
    needed = rows_needed(loss, rows, budget=work.budget)
    more = [] if needed is None else [f"give about {2 * needed} validation rows instead of {len(work.task.validation)}"]
    return NothingToCutError(
        f"nothing can be cut from '{work.spec.label}' within a budget of {work.budget:g}: without"
        f" {spelled(_gone(work, failed.candidate.kept))}, the safest cut by the rows for the choice, the change of"
        f" {work.metric.name} on {rows} other rows is {_shown(loss)}, and {work.options.confidence:.0%} confidence"
        f" needs a lower end of {-work.budget:g}",
        *more,
        *_ways(work),
    )


def _ways(work: Work) -> tuple[str, ...]:
    if work.options.head or work.options.blocks != TOP:
        return ("give a larger --budget",)
    return "give a larger --budget", "tune the head (--head)", "let any blocks go (--blocks any)"


def _shown(loss: Loss) -> str:
    return f"{loss.value:+.4f} (between {loss.low:+.4f} and {loss.high:+.4f})"


def _gone(work: Work, kept: Sequence[int]) -> list[int]:
    return [k for k in range(1, work.blocks + 1) if k not in kept]
