"""`stratoscope align`, `inject`, `study alignment` and `study recovery`."""

from __future__ import annotations

from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.commands.compare import Data
from stratoscope.cli.loading import Loading, LoadingSeveral, Out
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.align.options import AlignOptions, InjectOptions, RecoveryOptions

Several = Annotated[list[str], typer.Argument(help="Models to align, two or more.", metavar="MODEL...")]
Before = Annotated[
    list[str], typer.Option("--before", help="A model before fine-tuning, to align with the others; may be repeated.")
]
Ceiling = Annotated[
    list[str],
    typer.Option("--ceiling", help="Another seed of the last model: no map should do better; may be repeated."),
]
First = Annotated[str, typer.Argument(help="Fine-tuned model whose last state is mapped.", metavar="FIRST")]
Second = Annotated[str, typer.Argument(help="Fine-tuned model whose head reads it.", metavar="SECOND")]
Source = Annotated[str | None, typer.Option("--model", help="Model whose rows are mapped; by default normal rows.")]
Texts = Annotated[str | None, typer.Option("--data", help="Texts for --model.")]


@command
def align(
    models: Several,
    data: Data,
    out: Out,
    options: AlignOptions,
    loading: LoadingSeveral,
    progress: Progress,
    before: Before = [],  # noqa: B006
    ceiling: Ceiling = [],  # noqa: B006
) -> Answer:
    """Fit maps between the same layers of models, pair by pair, and judge them on rows they have not seen."""
    from stratoscope.studies.align.study import align as run

    specs, (old, seeds) = loading.specs(models), (loading.specs(m, name=None) for m in (before, ceiling))
    result = run(
        *specs,
        data=data,
        before=old,
        ceiling=seeds,
        out=out,
        options=options,
        progress=progress,
        draw=drawing(progress),
    )
    return answer_of(out, result, then=look_closer(out, result))


@command
def inject(
    first: First,
    second: Second,
    out: Out,
    source: TaskSource,
    options: InjectOptions,
    loading: Loading,
    progress: Progress,
) -> Answer:
    """Let the head of one fine-tuned model read the mapped last state of another."""
    from stratoscope.studies.align.inject import inject as run

    (one, other), task = loading.specs([first, second]), source.read(progress)
    result = run(one, other, task, out=out, options=options, progress=progress, draw=drawing(progress))
    return answer_of(out, result, then=look_closer(out, result))


@command
def recovery(
    out: Out, options: RecoveryOptions, loading: Loading, progress: Progress, model: Source = None, data: Texts = None
) -> Answer:
    """Test every method on a bijection that is known: a random invertible network."""
    from stratoscope.studies.align.recovery import recovery as run

    spec = None if model is None else loading.spec(model)
    result = run(spec, data, out=out, options=options, progress=progress, draw=drawing(progress))
    return answer_of(out, result, then=look_closer(out, result))
