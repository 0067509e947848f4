"""What every study does around its own work: its options, its models, its request, and what `run.yaml` repeats."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from stratoscope.core.errors import InUseError, StratoscopeError, unknown_name
from stratoscope.core.model import ModelInfo
from stratoscope.core.options import (
    ENGINES,
    RAY,
    answering,
    changed,
    check_options,
    described,
    read_options,
    said,
)
from stratoscope.data.tasks.data import TaskData
from stratoscope.engine.base import Engine
from stratoscope.engine.local import local_engine
from stratoscope.models.open.loading import ModelSpec, Survey
from stratoscope.models.open.states import Loaded
from stratoscope.runs.folder import WAIT
from stratoscope.runs.kinds import kind_named
from stratoscope.runs.run import Request, Run, Shard, run

Model: TypeAlias = str | Path | ModelSpec | tuple[Any, Any]
"""A model as a caller may have it: a path or hub id, how it is loaded, or a model in memory and its tokenizer."""
ONCE = ("overwrite", "shard", "merge")
"""Options of one call of a command, which `run.yaml` does not repeat."""
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


def model_info(spec: ModelSpec, surveyed: Survey, **role: Any) -> ModelInfo:
    """A model as a result records it."""
    return ModelInfo(
        spec.label, spec.source, surveyed.family.name, surveyed.layers, surveyed.width, surveyed.fingerprint, **role
    )


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
    work: float = 0.0,
    **further: Any,
) -> R:
    """Run a study: what it may replace and use, and what `run.yaml` says, follow from its options.

    `asked` are its other arguments, in the user's own words; `work` is about how many operations (FLOP) its workers
    share, if it has any: unless the user says how many, there are several for much work only. `further` is as in `run`.
    """
    known = vars(options)
    return run(
        request,
        out,
        compute,
        overwrite=options.overwrite,
        protocol=protocol(kind_named(request.kind).command, asked, options=options),
        engine=partial(engine_of, options, work),
        memory=known.get("memory"),
        shard=shard_of(options),
        **further,
    )


def engine_of(options: Any, work: float = 0.0) -> Engine:
    """The engine that the options ask for."""
    if getattr(options, "engine", ENGINES[0]) not in ENGINES:
        raise unknown_name("engine", options.engine, ENGINES)
    workers = getattr(options, "workers", None)
    if getattr(options, "engine", None) == RAY:
        from stratoscope.engine.ray import RayTasks

        return RayTasks(workers)
    return local_engine(workers, work)


def shard_of(options: Any) -> Shard | None:
    """Which of several processes this is; one that merges has no share of its own and makes what is left."""
    text, merge = getattr(options, "shard", None), getattr(options, "merge", False)
    if text is not None and merge:
        raise StratoscopeError("expected --shard or --merge, got both")
    return Shard.parse(text) if text is not None else Shard(1, 1) if merge else None


def in_turn(runs: Sequence[Callable[[], R]], shard: Shard | None) -> list[R]:
    """The results of runs with a folder each: a shard begins with its own, and waits for what others are at."""
    results: dict[int, R] = {}
    while missing := [k for k in range(len(runs)) if k not in results]:
        before = len(results)
        for k in missing if shard is None else shard.order(missing):
            try:
                results[k] = runs[k]()
            except InUseError:
                if shard is None:
                    raise
        if len(results) == before:
            time.sleep(WAIT)
    return [results[k] for k in range(len(runs))]


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
    given = {k: v for k, v in changed(options).items() if k in known and k not in ONCE}
    return {"command": command, **asked, **given}
