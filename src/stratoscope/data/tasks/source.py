"""Where the rows of a task come from, as flags and YAML name it. Free of heavy imports: `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import option, typed

if TYPE_CHECKING:
    from stratoscope.core.progress import Progress
    from stratoscope.data.tasks.data import TaskData

SAMPLING_SEED = 0
"""Seed of `--train-rows` and `--validation-rows`: the rows of one task do not change with the seed of an analysis."""


@dataclass(frozen=True)
class TaskSource:
    """Which rows of which task."""

    task: str | None = option(None, "One of 'stratoscope tasks', or a name for the task of your own --data.")
    task_folder: str | None = option(None, "Folder with the task's published files (GLUE-style); default: the hub.")
    data: str | None = option(None, "Your own data: JSONL, CSV, TSV or Parquet; plain text where no labels are needed.")
    validation: str | None = option(None, "Your own validation rows; by default a fifth of --data is held out.")
    text: str | None = option(None, "Column that holds the text; payload.text names a nested JSON field.")
    pair: str | None = option(None, "Column that holds the second text.")
    label: str | None = option(None, "Column that holds the label.")
    columns: str | None = option(None, "Names of the columns of a CSV or TSV without a header, e.g. 'label text'.")
    train_rows: int | None = option(None, "Use a random sample of N training rows.")
    validation_rows: int | None = option(None, "Use a random sample of N validation rows.")

    def read(self, progress: Progress) -> TaskData:
        """The task's rows, which remember where they came from; how they were read is reported."""
        from stratoscope.data.tasks.read import read_task

        if self.task is None and self.data is None:
            raise StratoscopeError("expected --task (see 'stratoscope tasks') or your own --data, got neither")
        rows = read_task(
            self.task or (Path(self.data).stem if isinstance(self.data, str | Path) else "data"),
            folder=self.task_folder,
            data=self.data,
            validation=self.validation,
            text=self.text,
            pair=self.pair,
            label=self.label,
            columns=self.columns,
        )
        if rows.note:
            progress.note(f"{rows.name}: {rows.note}")
        return rows.sample(train=self.train_rows, validation=self.validation_rows, seed=SAMPLING_SEED)

    def typed(self) -> list[str]:
        """The words that ask for the same rows again."""
        return typed(self)
