"""`stratoscope depth`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, beside, drawing, look_closer
from stratoscope.cli.commands.cut import cut_next
from stratoscope.cli.loading import LoadingOne, Out, Tuned
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.depth.options import DepthOptions

Before = Annotated[
    str | None, typer.Option("--base", help="The model before fine-tuning: heads are tuned on its layers too.")
]


@command
def depth(
    tuned: Tuned,
    out: Out,
    source: TaskSource,
    options: DepthOptions,
    loading: LoadingOne,
    progress: Progress,
    base: Before = None,
) -> Answer:
    """Judge a fine-tuned model cut at every layer, three ways, and with every span of blocks skipped."""
    from stratoscope.studies.depth.study import depth as run

    spec, *others = loading.specs([tuned] if base is None else [tuned, base], base=base)
    before = replace(others[0], revision=None) if others else None
    task = source.read(progress)
    result = run(spec, task, base=before, out=out, options=options, progress=progress, draw=drawing(progress))
    then = cut_next(tuned, [*source.typed(), *loading.again(spec)], beside(out, "cut"), rows=len(task.validation))
    return answer_of(out, result, then=then or look_closer(out, result))
