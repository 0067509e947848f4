"""`stratoscope study finetuned` and `study similarity`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, beside, drawing, judge_next, look_closer
from stratoscope.cli.commands.compare import Data, Models
from stratoscope.cli.commands.cut import cut_next
from stratoscope.cli.loading import Base, Loading, LoadingSeveral, Out
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.compare.options import SimilarityOptions
from stratoscope.studies.finetuned.options import StudyOptions

Several = Annotated[list[str], typer.Argument(help="Checkpoints fine-tuned from it, one or more.", metavar="TUNED...")]
Across = Annotated[
    list[str],
    typer.Option("--across", help="Another model, of any family, to compare the first TUNED with; may be repeated."),
]


@command
def finetuned(
    base: Base,
    tuned: Several,
    out: Out,
    source: TaskSource,
    options: StudyOptions,
    loading: Loading,
    progress: Progress,
    across: Across = [],  # noqa: B006
) -> Answer:
    """Before and after fine-tuning: similarity of all layers, other models, block structure, drift, depth: one page."""
    from stratoscope.studies.finetuned.study import study_finetuned as run

    before, *others = loading.specs([base, *tuned, *across])
    after, others = [replace(spec, base=base) for spec in others[: len(tuned)]], others[len(tuned) :]
    task, draw = source.read(progress), drawing(progress)
    result = run(before, after, task, out=out, options=options, across=others, progress=progress, draw=draw)
    how = [*source.typed(), *loading.again(after[0])]
    cut = cut_next(tuned[0], how, beside(out, "cut"), rows=len(task.validation))
    return answer_of(out, result, then=(result.depth and cut) or look_closer(out, result))


@command
def similarity(
    models: Models, data: Data, out: Out, options: SimilarityOptions, loading: LoadingSeveral, progress: Progress
) -> Answer:
    """Layers of any models as Wu et al. 2020 compare them: five measures, localization and controls on one page."""
    from stratoscope.studies.compare.study import study_similarity as run

    result = run(loading.specs(models), data=data, out=out, options=options, progress=progress, draw=drawing(progress))
    return answer_of(out, result, then=judge_next(out, result, "study similarity"))
