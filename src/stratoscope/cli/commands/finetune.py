"""`stratoscope finetune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stratoscope.cli.answer import Answer, answer_of, beside
from stratoscope.cli.loading import Base, Loading, LoadingOne, Out
from stratoscope.cli.options import command
from stratoscope.core.options import typed
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.finetune.options import FinetuneOptions

if TYPE_CHECKING:
    from stratoscope.results.finetuned import Finetuned


@command
def finetune(
    base: Base, out: Out, source: TaskSource, options: FinetuneOptions, loading: LoadingOne, progress: Progress
) -> Answer:
    """Fine-tune a model on a task, once per seed, into standard checkpoints."""
    from stratoscope.studies.finetune.study import finetune as run

    spec = loading.spec(base)
    made = run(spec, source.read(progress), out=out, options=options, progress=progress)
    return tuned_answer(out, made, base=base, source=source, loading=loading)


def tuned_answer(out: Path, made: Sequence[Finetuned], *, base: str, source: TaskSource, loading: LoadingOne) -> Answer:
    """How well each run does its task, and the command that studies what changed, on the same rows."""
    lines = []
    for run in made:
        floor = run.baselines
        lines.append(
            f"{run.folder}: {run.metric} {run.score} on the validation rows; bag of words"
            f" {floor['bag_of_words']:.3f}, majority {floor['majority']:.3f}"
        )
    # A study takes no revision: its models are several.
    how = [*source.typed(), *typed(Loading(loading.device, loading.allow_pickle, loading.trust_remote_code))]
    models = [base, *(str(run.folder) for run in made)]
    then = ["stratoscope", "study", "finetuned", *models, *how, "--out", beside(out, "study")]
    return answer_of(out, made, lines=lines, then=then)
