"""Commands that fine-tune. Heavy imports are inside them."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from stratoscope.cli.options import Base, Loading, Out, Revision, TaskOptions, Training, shares_options


@shares_options
def finetune(
    base: Base,
    out: Out,
    rows: TaskOptions,
    training: Training,
    loading: Loading,
    freeze: Annotated[
        str | None, typer.Option(help="Blocks that stay as they are: top:k, or bottom:k with the embeddings.")
    ] = None,
    revision: Revision = None,
) -> None:
    """Fine-tune a model on a task, once per seed, into standard checkpoints."""
    from stratoscope.cli.show import Console
    from stratoscope.studies.finetune.study import finetune as run

    spec = loading.spec(base, revision)
    with Console() as console:
        made = run(spec, rows.read(console), out=out, options=training.options(freeze), progress=console)
    _tell(made, base, rows)


@shares_options
def prune(
    base: Base,
    out: Out,
    drop: Annotated[str, typer.Option(help="Blocks to drop before fine-tuning: top:k or bottom:k.")],
    rows: TaskOptions,
    training: Training,
    loading: Loading,
    revision: Revision = None,
) -> None:
    """Drop the top or bottom blocks of a model, then fine-tune what is left."""
    from stratoscope.cli.show import Console
    from stratoscope.studies.prune import prune as run

    spec = loading.spec(base, revision)
    with Console() as console:
        made = run(spec, rows.read(console), drop=drop, out=out, options=training.options(), progress=console)
    _tell(made, str(out / "base"), rows)


def tasks() -> None:
    """List the tasks, with one line, the metric and the reference each."""
    from stratoscope.cli.show import table
    from stratoscope.data.tasks.read import TASKS

    table(("task", "metric", "what it is", "reference"), [(t.name, t.metric, t.summary, t.reference) for t in TASKS])


def _tell(made: Any, base: str, rows: TaskOptions) -> None:
    """What came out, and the next command with the same rows."""
    from stratoscope.cli.show import say

    for run in made:
        low, high = run.interval
        floor = run.record["baselines"]
        say(
            f"- {run.folder}: {run.metric} {run.score:.3f} [{low:.3f}, {high:.3f}] on the validation rows; bag of words"
            f" {floor['bag_of_words']:.3f}, majority {floor['majority']:.3f}"
        )
    parts = [base, *(str(run.folder) for run in made), *rows.typed(), "--out", f"{made[0].folder.parent}-study"]
    say(f"\nnext: stratoscope study finetuned {shlex.join(parts)}")
