"""What every study does around its own work: its options, its models, its request, and what `run.yaml` repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.model import ModelInfo
from stratoscope.core.options import answering, changed, check_options, described, read_options, said
from stratoscope.data.corpus import Corpus
from stratoscope.data.tasks.data import TaskData
from stratoscope.engine.local import InProcess, local_engine
from stratoscope.models.open.loading import ModelSpec, Survey
from stratoscope.runs.kinds import kind_named
from stratoscope.runs.run import Request, Run, run

Model: TypeAlias = str | Path | ModelSpec
Chosen = TypeVar("Chosen")
R = TypeVar("R")

OWN = ("source", "name", "random_init", "seed", "dtype")
"""Fields of a model that are its own, or a flag of `compare` alone; the others are flags of every command."""


def chosen(cls: type[Chosen], options: Chosen | None, keywords: Mapping[str, Any]) -> Chosen:
    """The options of a study: keywords, a dataclass, or a dataclass with keywords in place of some fields."""
    if options is not None and not isinstance(options, cls):
        raise StratoscopeError(f"expected options as {cls.__name__}, got {type(options).__name__}")
    given = cls() if options is None else options
    made = read_options(type(given), {**vars(given), **keywords})
    check_options(made)
    return made


def spec_of(model: Model) -> ModelSpec:
    """A model as it is loaded."""
    return model if isinstance(model, ModelSpec) else ModelSpec(str(model))


def several(models: Model | Sequence[Model]) -> Sequence[Model]:
    """Models given as a list, or one alone."""
    return [models] if isinstance(models, str | Path | ModelSpec) else models


def model_info(spec: ModelSpec, seen: Survey, **role: Any) -> ModelInfo:
    """A model as a result records it."""
    return ModelInfo(spec.label, spec.source, seen.family.name, seen.layers, seen.width, seen.fingerprint, **role)


def request_for(kind: str, inputs: Mapping[str, Any], options: Any, **further: Any) -> Request:
    """What is asked for: the inputs by their fingerprints, the options, and `further` values the answer depends on."""
    return Request(kind, inputs, answering(options) | further, said=said(options))


def run_study(
    request: Request,
    options: Any,
    out: str | Path | None,
    compute: Callable[[Run], R],
    *,
    asked: Mapping[str, Any],
    work: float = math.inf,
    **further: Any,
) -> R:
    """Run a study: what it may replace and use, and what `run.yaml` says, follow from its options.

    `asked` are its other arguments, in the user's own words; `work` is about how many operations (FLOP) its workers
    share, if it has any; `further` is as in `run`.
    """
    known = vars(options)
    return run(
        request,
        out,
        compute,
        overwrite=options.overwrite,
        protocol=protocol(kind_named(request.kind).command, asked, options=options),
        engine=partial(local_engine, known["workers"], work) if "workers" in known else InProcess,
        memory=known.get("memory"),
        **further,
    )


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
    given = {k: v for k, v in changed(options).items() if k in known and k != "overwrite"}
    return {"command": command, **asked, **given}
