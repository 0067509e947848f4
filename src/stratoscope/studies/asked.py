"""What every study does around its own work: its options, its models, its request, and what `run.yaml` repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.model import ModelInfo
from stratoscope.core.options import answering, changed, check_options, described, read_options, said
from stratoscope.data.tasks.data import TaskData
from stratoscope.engine.local import InProcess, local_engine
from stratoscope.models.open.loading import ModelSpec, Survey
from stratoscope.models.open.states import Loaded
from stratoscope.runs.kinds import kind_named
from stratoscope.runs.run import Request, Run, run

Model: TypeAlias = str | Path | ModelSpec | tuple[Any, Any]
"""A model as a caller may have it: a path or hub id, how it is loaded, or a model in memory and its tokenizer."""
Chosen = TypeVar("Chosen")
R = TypeVar("R")

OWN = ("source", "name", "random_init", "seed", "dtype", "base", "loaded")
"""Fields of a model that are its own, or a flag of some commands only; the others are flags of every command."""


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
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, tuple) and len(model) == 2:
        loaded = Loaded.of(model)
        return ModelSpec(loaded.source, loaded=loaded)
    if not isinstance(model, str | Path):
        raise StratoscopeError(
            f"expected a model as a path, a hub id or a pair (model, tokenizer), got {type(model).__name__}"
        )
    return ModelSpec(str(model))


def several(models: Model | Sequence[Model]) -> Sequence[Model]:
    """Models given as a list, or one alone."""
    alone = isinstance(models, str | Path | ModelSpec) or _is_pair(models) or not isinstance(models, Sequence)
    return cast(Sequence[Model], [models] if alone else models)


def _is_pair(models: object) -> bool:
    """Whether this is one model with its tokenizer rather than two models."""
    return isinstance(models, tuple) and len(models) == 2 and hasattr(models[0], "config")


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


def names_asked(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    """The labels that the user gave, of all models or of none."""
    return {"name": [spec.name for spec in specs]} if all(spec.name for spec in specs) else {}


def data_asked(data: object) -> dict[str, Any]:
    """`data` as a path or hub id; what is in memory has no words that would bring it back."""
    return {"data": str(data)} if isinstance(data, str | Path) else {}


def task_asked(task: TaskData) -> dict[str, Any]:
    """The flags that read this task again, where it was read from files or the hub."""
    return {k: v for k, v in task.source.items() if v is not None}


def protocol(command: str, *parts: Mapping[str, Any], options: Any) -> dict[str, Any]:
    """What `run.yaml` says."""
    asked = {k: v for part in parts for k, v in part.items()}
    known = described(type(options))
    given = {k: v for k, v in changed(options).items() if k in known and k != "overwrite"}
    return {"command": command, **asked, **given}
