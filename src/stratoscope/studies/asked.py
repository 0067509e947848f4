"""What a run was asked for in the user's own words: the arguments that `run.yaml` repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from stratoscope.core.options import changed, described
from stratoscope.data.corpus import Corpus
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.loading import ModelSpec

OWN = ("source", "name", "random_init", "seed", "dtype")
"""Fields of a model that are its own, or a flag of `compare` alone; the others are flags of every command."""


def models_asked(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    """Flags that say how the models are loaded, those at their default left out."""
    common = [f for f in fields(ModelSpec) if f.name not in OWN]
    return {f.name: getattr(specs[0], f.name) for f in common if getattr(specs[0], f.name) != f.default}


def data_asked(data: object) -> dict[str, Any]:
    """`data` as a path or hub id; a corpus in memory has no words that would bring it back."""
    return {} if isinstance(data, Corpus) else {"data": str(data)}


def task_asked(task: TaskData) -> dict[str, Any]:
    """The flags that read this task again, where it was read from files or the hub."""
    return {k: v for k, v in task.source.items() if v is not None}


def protocol(command: str, *parts: Mapping[str, Any], options: Any) -> dict[str, Any]:
    """What `run.yaml` says."""
    asked = {k: v for part in parts for k, v in part.items()}
    known = described(type(options))
    return {
        "command": command,
        **asked,
        **{k: v for k, v in changed(options).items() if k in known and k != "overwrite"},
    }
