"""Options that several commands share, each spelled once: a command takes a whole group as one argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from stratoscope.core.progress import Progress
    from stratoscope.data.tasks.data import TaskData
    from stratoscope.models.open.loading import ModelSpec
    from stratoscope.studies.finetune.recipes import FinetuneOptions

Base = Annotated[str, typer.Argument(help="Checkpoint folder or hub id of the model before tuning.", metavar="BASE")]
Tuned = Annotated[str, typer.Argument(help="Checkpoint fine-tuned on the task.", metavar="TUNED")]
Out = Annotated[Path, typer.Option("--out", help="Folder for what this makes.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of every random choice.")]
Length = Annotated[int | None, typer.Option("--length", help="Tokens kept of a text.")]
BatchTokens = Annotated[int | None, typer.Option("--batch-tokens", help="Most tokens a model reads at once.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace another result in the folder.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Revision of the model on the hub.")]


@dataclass(frozen=True)
class TaskOptions:
    """Which rows of which task."""

    task: Annotated[
        str | None,
        typer.Option("--task", help="One of 'stratoscope tasks', or a name for the task of your own --data."),
    ] = None
    task_folder: Annotated[
        str | None, typer.Option("--task-folder", help="The task's published files (GLUE-style); otherwise the hub's.")
    ] = None
    data: Annotated[str | None, typer.Option("--data", help="Your own rows: a JSONL, CSV, TSV or Parquet file.")] = None
    validation: Annotated[
        str | None, typer.Option("--validation", help="Your own rows to judge on; otherwise a fifth of --data.")
    ] = None
    text: Annotated[str | None, typer.Option("--text", help="Column of your data that holds the text.")] = None
    pair: Annotated[str | None, typer.Option("--pair", help="Column that holds the second text.")] = None
    label: Annotated[str | None, typer.Option("--label", help="Column that holds the label.")] = None
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="Names of all columns of a CSV or TSV without a header, e.g. 'label text'."),
    ] = None
    train_rows: Annotated[
        int | None, typer.Option("--train-rows", help="Use so many training rows, drawn with seed 0.")
    ] = None
    validation_rows: Annotated[int | None, typer.Option("--validation-rows", help="Use so many validation rows.")] = (
        None
    )

    def read(self, progress: Progress) -> TaskData:
        """The task's rows; how they were read is told."""
        from stratoscope.core.errors import StratoscopeError
        from stratoscope.data.tasks.read import read_task

        if self.task is None and self.data is None:
            raise StratoscopeError("expected --task (see 'stratoscope tasks') or your own --data, got neither")
        read = read_task(
            self.task or Path(str(self.data)).stem,
            folder=self.task_folder,
            data=self.data,
            validation=self.validation,
            text=self.text,
            pair=self.pair,
            label=self.label,
            columns=self.columns,
        )
        if read.note:
            progress.note(f"{read.name}: {read.note}")
        return read.sample(train=self.train_rows, validation=self.validation_rows, seed=0)

    def typed(self) -> list[str]:
        """The words that ask for the same rows again."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(frozen=True)
class Loading:
    """How models are loaded."""

    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")] = "auto"
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Load pickle weights, which may run code.")] = (
        False
    )
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a model.")
    ] = False

    def spec(self, source: str, revision: str | None = None) -> ModelSpec:
        """The model as the user named it."""
        from stratoscope.models.open.loading import ModelSpec

        return ModelSpec(source, revision=revision, **asdict(self))


@dataclass(frozen=True)
class Training:
    """How to fine-tune."""

    recipe: Annotated[str, typer.Option("--recipe", help="phang2021, wu2020, ren2023 or quick.")] = "wu2020"
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate in place of the recipe's.")] = None
    batch: Annotated[int | None, typer.Option("--batch", help="Batch size in place of the recipe's.")] = None
    epochs: Annotated[float | None, typer.Option("--epochs", help="Epochs in place of the recipe's length.")] = None
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Steps in place of the recipe's length.")] = None
    warmup: Annotated[float | None, typer.Option("--warmup", help="Warm-up steps; below 1, a share of the run.")] = None
    length: Length = None
    seeds: Annotated[int, typer.Option("--seeds", help="How many runs, of seeds 0, 1, ...")] = 1
    first_seed: Annotated[int, typer.Option("--first-seed", help="Seed of the first run.")] = 0
    overwrite: Overwrite = False

    def options(self, freeze: str | None = None) -> FinetuneOptions:
        """What the study takes."""
        from stratoscope.studies.finetune.recipes import FinetuneOptions

        return FinetuneOptions(freeze=freeze, **asdict(self))


def shares_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer takes it: every argument that is a group stands for the options of the group."""
    parameters, groups = [], {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(kind, include_extras=True)
        groups[parameter.name] = kind
        parameters += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
            for f in fields(kind)
        ]

    @wraps(command)
    def call(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call
