"""`stratoscope finetune` and `prune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, beside
from stratoscope.cli.loading import Base, LoadingOne, Out
from stratoscope.cli.options import command
from stratoscope.core.options import typed
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.finetune.options import FinetuneOptions, TrainingOptions

if TYPE_CHECKING:
    from stratoscope.results.finetuned import Finetuned

Drop = Annotated[str, typer.Option("--drop", help="Blocks to drop before fine-tuning: top:k or bottom:k.")]


@command
def finetune(
    base: Base, out: Out, source: TaskSource, options: FinetuneOptions, loading: LoadingOne, progress: Progress
) -> Answer:
    """Fine-tune a model on a task, once per seed, into standard checkpoints."""
    from stratoscope.studies.finetune.study import finetune as run

    spec = loading.spec(base)
    made = run(spec, source.read(progress), out=out, options=options, progress=progress)
    return _answer(out, made, base=base, source=source, loading=loading)


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
    return _answer(out, made, base=str(out / "base"), source=source, loading=loading)


def _answer(out: Path, made: Sequence[Finetuned], *, base: str, source: TaskSource, loading: LoadingOne) -> Answer:
    """How well each run does its task, and the command that studies what changed, on the same rows."""
    lines = [
        f"{run.folder}: {run.metric} {run.score} on the validation rows; bag of words"
        f" {run.baselines['bag_of_words']:.3f}, majority {run.baselines['majority']:.3f}"
        for run in made
    ]
    # A study takes no revision: its models are several.
    how = [*source.typed(), *typed(loading.shared())]
    models = [base, *(str(run.folder) for run in made)]
    then = ["stratoscope", "study", "finetuned", *models, *how, "--out", beside(out, "study")]
    return answer_of(out, made, lines=lines, then=then)
