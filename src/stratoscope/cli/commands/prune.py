"""`stratoscope prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from stratoscope.cli.answer import Answer
from stratoscope.cli.commands.finetune import tuned_answer
from stratoscope.cli.loading import Base, LoadingOne, Out
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.finetune.options import TrainingOptions

Drop = Annotated[str, typer.Option("--drop", help="Blocks to drop before fine-tuning: top:k or bottom:k.")]


@command
def prune(
    base: Base,
    out: Out,
    drop: Drop,
    source: TaskSource,
    options: TrainingOptions,
    loading: LoadingOne,
    progress: Progress,
) -> Answer:
    """Drop the top or bottom blocks of a model, then fine-tune what is left."""
    from stratoscope.studies.prune import prune as run

    spec = loading.spec(base)
    made = run(spec, source.read(progress), drop=drop, out=out, options=options, progress=progress)
    return tuned_answer(out, made, base=str(out / "base"), source=source, loading=loading)
