"""What each layer is worth to a task: the model cut at every layer in three ways, and with every span skipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.loading import ModelSpec, check_head, survey
from stratoscope.models.text.examples import text_length
from stratoscope.results.cutting.depth import Depth
from stratoscope.results.finetuned import Finetuned
from stratoscope.runs.run import Draw, Run
from stratoscope.studies.asked import (
    Model,
    chosen,
    models_asked,
    names_asked,
    request_for,
    run_study,
    spec_of,
    task_asked,
)
from stratoscope.studies.depth.judge import Side, Work, judge
from stratoscope.studies.depth.options import DepthOptions

__all__ = ["DepthOptions", "depth"]


def depth(
    tuned: Model,
    task: TaskData,
    *,
    base: Model | None = None,
    out: str | Path,
    options: DepthOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Depth:
    """Judge a fine-tuned model with its head on every layer and with spans of blocks skipped, into `out`.

    With `base`, heads are tuned on its layers too. Finished parts are kept in `out`, so that a killed run resumes.
    Further keywords are the fields of `DepthOptions`.
    """
    options, progress = chosen(DepthOptions, options, keywords), progress or Silent()
    sides = two_sides(tuned, base, task, options.length, progress)
    asked = {name: side.spec.source for name, side in zip(("tuned", "base"), sides, strict=False)}
    return run_study(
        request_for("depth", inputs_of(sides, task), options),
        options,
        out,
        lambda running: _compute(sides, task, options, running),
        asked={
            **asked,
            **task_asked(task),
            **models_asked([sides[0].spec]),
            **names_asked([side.spec for side in sides]),
        },
        progress=progress,
        draw=draw,
    )


def two_sides(
    tuned: Model, base: Model | None, task: TaskData, length: int | None, progress: Progress, *, judged: bool = True
) -> list[Side]:
    """The tuned model, and its base where it is given; what cannot be `judged` is refused here, before any work.

    Texts are truncated alike for both, and by a model whose window is shorter to that.
    """
    specs = [spec_of(m) for m in (tuned, base) if m is not None]
    if judged:
        check_head(specs[0], task)
    surveys = [survey(spec, progress=progress) for spec in specs]
    longest = text_length(surveys[0].encoder, length, otherwise=trained_length(specs[0]))
    sides = [Side(spec, surveyed, longest) for spec, surveyed in zip(specs, surveys, strict=True)]
    if judged and base is not None:
        _check_base(*sides)
    return sides


def inputs_of(sides: Sequence[Side], task: TaskData) -> dict[str, Any]:
    """Identity of the models and of the task's rows."""
    return {
        "models": [[s.spec.label, s.surveyed.fingerprint, s.surveyed.dtype, s.length] for s in sides],
        "task": [task.name, task.fingerprint, task.metric],
    }


def trained_length(spec: ModelSpec) -> int | None:
    """Tokens of a text in fine-tuning, if the folder is one of ours."""
    if not (Path(spec.source) / Finetuned.kind().file).is_file():
        return None
    length: int | None = Finetuned.load(spec.source).recipe["length"]
    return length


def _compute(sides: Sequence[Side], task: TaskData, options: DepthOptions, running: Run) -> Depth:
    work = Work(sides[0], task, options.seed, options.batch_tokens, running)
    tuned, *base = work.store([(side, work.readings(side)) for side in sides])
    return judge(work, tuned, (sides[1], base[0]) if base else None, skip=options.skip)


def _check_base(tuned: Side, base: Side) -> None:
    one, other = (
        f"({s.surveyed.family.name}, {s.surveyed.layers - 1} blocks, width {s.surveyed.width})" for s in (tuned, base)
    )
    if one != other:
        raise StratoscopeError(
            f"'{tuned.spec.label}' {one} was not tuned from '{base.spec.label}' {other}",
            "give the model it was tuned from",
            "leave --base out",
        )
