"""From a protocol and what the user replaces to the analyses to run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.options import Option, described, read_options, typed
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.reproduce.options import ReproduceOptions
from stratoscope.studies.reproduce.protocol import ANALYSES, TASK, Analysis, Protocol, Step


@dataclass(frozen=True)
class Model:
    """A model of a job: a source, or what an earlier job made."""

    source: str
    random: bool = False


@dataclass(frozen=True)
class Job:
    """One analysis to run."""

    name: str
    """Folder inside the run's, such as `tune/bert-base-cased/sst2`."""
    step: str
    run: str
    bound: Mapping[str, Any]
    """What it is for: base, task, and what is varied."""
    models: tuple[Model, ...]
    across: tuple[Model, ...]
    before: tuple[Model, ...]
    task: TaskSource | None
    data: str | None
    options: Mapping[str, Any]

    @property
    def analysis(self) -> Analysis:
        """The row of what it runs."""
        return ANALYSES[self.run]

    @property
    def extra(self) -> dict[str, Any]:
        """Arguments besides models, task and options."""
        return {k: self.options[k] for k in self.analysis.needs}

    def chosen(self) -> Any:
        """Its options as the analysis takes them."""
        given = {k: v for k, v in self.options.items() if k not in self.analysis.needs}
        return read_options(self.analysis.options_class(), given)

    def command(self, out: Path) -> str:
        """The command that does the same."""
        sources = [m.source for m in self.models if not m.random]
        words = ["stratoscope", *self.run.split()]
        if self.analysis.on == "rows":
            sources = [w for source in sources for w in ("--model", source)]
        words += [sources[0], "--base", *sources[1:2]] if self.run == "depth" and len(sources) > 1 else sources
        words += [w for m in self.across for w in ("--across", m.source)]
        words += [w for m in self.before for w in ("--before", m.source)]
        words += ["--corpus" if self.analysis.on == "tags" else "--data", self.data] if self.data else []
        words += self.task.typed() if self.task and self.analysis.on == "task" else []
        words += [w for k, v in self.extra.items() for w in (f"--{k}", str(v))]
        words += [*typed(self.chosen()), "--out", str(out / self.name)]
        said = shlex.join(words)
        return f"{said}  # and random weights of each" if any(m.random for m in self.models) else said


def jobs_of(protocol: Protocol, options: ReproduceOptions, out: Path) -> list[Job]:
    """Every job in order; a step that makes models which the user gave (`--models tune=...`) is left out."""
    sources, made = _sources(protocol, options)
    tasks = _tasks(protocol, options)
    changes = _changes(protocol, options)
    vary = {k: changes.pop(k, list(v)) for k, v in protocol.vary.items()}
    values = {**sources, TASK: list(tasks), **vary}
    on = {a.on for a in protocol.analyses()}
    if options.data is None and (on & {"text", "tags"} or ("rows" in on and options.models)):
        does = "probes words with tags" if "tags" in on else "compares models on text"
        raise StratoscopeError(f"{protocol.item} of {protocol.paper} {does} ({protocol.data}); give yours with --data")
    jobs: list[Job] = []
    for step in (s for s in protocol.steps if s.name not in made):
        analysis = ANALYSES[step.run]
        random_rows = analysis.on == "rows" and options.data is None
        each = () if random_rows else step.each
        for combination in product(*(values[name] for name in each)):
            bound = dict(zip(each, combination, strict=True))
            roles = {role: [bound[role]] if role in bound else of for role, of in sources.items()}
            models = [m for name in step.models or each[:1] for m in _models(name, roles, made, jobs, bound, out)]
            across = [] if not step.across else _made(jobs, step.across, bound, out, other=step.each[0])
            job = Job(
                name="/".join([step.name, *(_folder(v) for v in combination)]),
                step=step.name,
                run=step.run,
                bound=bound,
                models=tuple(models),
                across=tuple(across),
                before=tuple(Model(source) for source in (roles[step.before] if step.before else ())),
                task=tasks[bound[TASK]] if TASK in bound else None,
                data=None if analysis.on == "task" or options.data is None else _data(options.data, bound),
                options=_options(protocol, step, bound, changes, overwrite=options.overwrite),
            )
            jobs += _pairs(job) if analysis.pairwise else [job]
    folders = [job.name for job in jobs]
    if twice := next((name for name in folders if folders.count(name) > 1), None):
        raise StratoscopeError(f"two models would share the folder {twice}; give models whose folders are named apart")
    return jobs


def _pairs(job: Job) -> list[Job]:
    """The same for every pair of its models, numbered from 1."""
    if len(job.models) < 2:
        raise StratoscopeError(f"{job.run} takes pairs of models, got {len(job.models)}; give more with --models")
    every = combinations(enumerate(job.models, 1), 2)
    return [replace(job, name=f"{job.name}/{i}-{j}", models=(a, b)) for (i, a), (j, b) in every]


def _data(data: str, bound: Mapping[str, Any]) -> str:
    """The text or corpus of a job: where a folder has one named after the property, that."""
    own = Path(data) / str(bound.get("property"))
    return str(own) if own.is_dir() else data


def _sources(protocol: Protocol, options: ReproduceOptions) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Models by role, the user's in place of the paper's; and models that a step would have made."""
    first, steps = next(iter(protocol.models)), [s.name for s in protocol.steps if ANALYSES[s.run].trains]
    given: dict[str, list[str]] = {}
    for word in options.models:
        role, _, source = word.rpartition("=")
        if role and role not in (*protocol.models, *steps):
            raise unknown_name(f"role in {protocol.item} of {protocol.paper}", role, (*protocol.models, *steps))
        given.setdefault(role or first, []).append(source)
    sources = {role: given.get(role, list(paper)) for role, paper in protocol.models.items()}
    return sources, {name: given[name] for name in steps if name in given}


def _tasks(protocol: Protocol, options: ReproduceOptions) -> dict[str, TaskSource]:
    """Where the rows of each task come from."""
    only_tasks = all(a.on == "task" for a in protocol.analyses())
    rows = options.rows or (options.data if only_tasks else None)
    if rows and len(options.tasks) > 1:
        raise StratoscopeError(f"expected one task for your own rows {rows}, got {', '.join(options.tasks)}")
    names = options.tasks or ((Path(rows).stem,) if rows else protocol.tasks)
    same = {k: getattr(options, k) for k in ("task_folder", "validation", "train_rows", "validation_rows")}
    return {name: TaskSource(task=name, data=rows, **same) for name in names}


def _changes(protocol: Protocol, options: ReproduceOptions) -> dict[str, Any]:
    """What `--set` says, by the name of the option."""
    known: dict[str, Option | None] = dict.fromkeys(protocol.vary)
    several = set(protocol.vary)
    for analysis in protocol.analyses():
        known |= dict.fromkeys(analysis.needs) | {k: o for k, (_, o) in described(analysis.options_class()).items()}
        several |= {f.name for f in fields(analysis.options_class()) if isinstance(f.default, tuple)}
    changes: dict[str, Any] = {}
    for word in options.set:
        name, equals, text = word.partition("=")
        if not equals:
            raise StratoscopeError(f"expected --set OPTION=VALUE, got '{word}'")
        name = name.replace("-", "_")  # as its flag has it
        if name not in known:
            raise unknown_name(f"option of {protocol.item} of {protocol.paper}", name, sorted(known))
        how = known[name]
        if how and how.parse and name not in protocol.vary:  # it reads lists itself
            changes[name] = text
            continue
        values = [text] if how and how.parse else [_plain(part) for part in text.split(",")]
        changes[name] = values if name in several else values[0]
        if len(values) > 1 and name not in several:
            raise StratoscopeError(f"expected one value for {name}, got '{text}'")
    return changes


def _plain(text: str) -> Any:
    """A value as YAML reads it, but that `top:4` is no number to the base of 60 and 5e-5 is one without a dot."""
    import yaml

    if re.fullmatch(r"[-+]?\d+e[-+]?\d+", text.strip(), re.IGNORECASE):
        return float(text)
    return text if ":" in text else yaml.safe_load(text)


def _options(
    protocol: Protocol, step: Step, bound: Mapping[str, Any], changes: Mapping[str, Any], *, overwrite: bool
) -> dict[str, Any]:
    """The options of a step: the protocol's unit and measures, its own, what is varied, what the user sets."""
    taken = [f.name for f in fields(ANALYSES[step.run].options_class())] + list(ANALYSES[step.run].needs)
    common = {"unit": protocol.unit, "units": protocol.unit and [protocol.unit], "measures": list(protocol.measures)}
    options = {k: v for k, v in common.items() if k in taken and v}
    options |= dict(step.options) | {k: bound[k] for k in step.each if k in protocol.vary}
    options |= {k: v for k, v in changes.items() if k in taken}
    return {**options, "overwrite": overwrite}


def _models(
    name: str,
    roles: Mapping[str, Sequence[str]],
    given: Mapping[str, Sequence[str]],
    jobs: Sequence[Job],
    bound: Mapping[str, Any],
    out: Path,
) -> list[Model]:
    role = name.removeprefix("random ")
    if role in roles:
        return [Model(source, random=name != role) for source in roles[role]]
    return [Model(source) for source in given[role]] if role in given else _made(jobs, role, bound, out)


def _made(jobs: Sequence[Job], step: str, bound: Mapping[str, Any], out: Path, other: str = "") -> list[Model]:
    """What the jobs of an earlier step make that agree with this one, but in `other`, in which they differ."""
    made = []
    for job in (j for j in jobs if j.step == step):
        shared = [k for k in bound if k in job.bound]
        if all((job.bound[k] == bound[k]) != (k == other) for k in shared):
            chosen = job.chosen()
            seeds = range(chosen.first_seed, chosen.first_seed + (1 if other else chosen.seeds))
            made += [Model(str(out / job.name / f"seed-{seed}")) for seed in seeds]
    return made


def _folder(value: Any) -> str:
    """A source, a task or an option as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", Path(str(value)).name if value is not None else "none")
