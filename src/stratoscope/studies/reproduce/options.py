"""What of a protocol the user replaces."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.core.options import Working, option, overwrite


@dataclass(frozen=True)
class ReproduceOptions(Working):
    """What stands in for the paper's own models and data: flags, YAML keys and keywords are these fields."""

    models: tuple[str, ...] = option((), "Models in place of the paper's: SOURCE ..., or ROLE=SOURCE for one role.")
    data: str | None = option(
        None,
        "Text to compare on; words with tags to probe (or a folder that holds a folder for each property);"
        " for a protocol on tasks only, labelled rows of your own.",
    )
    tasks: tuple[str, ...] = option((), "Task in place of the paper's; may be repeated.", flag="--task")
    task_folder: str | None = option(None, "Folder that holds the tasks' published files; default: the hub.")
    rows: str | None = option(None, "Labelled rows of your own, in place of the tasks' rows.")
    validation: str | None = option(None, "Your own validation rows; by default a fifth of the rows is held out.")
    set: tuple[str, ...] = option(
        (), "Option of the steps in place of the protocol's, e.g. limit=100 or freeze=top:1,bottom:1; may be repeated."
    )
    overwrite: bool = overwrite()
    train_rows: int | None = option(None, "Train on a random sample of N rows of each task.", least=1)
    validation_rows: int | None = option(None, "Judge on a random sample of N validation rows of each task.", least=1)
