"""Reproduce a figure or a table of a paper: a protocol expands into the analyses there are, run one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratoscope.claims import judge_freezing, judge_pruning
from stratoscope.core.options import LOCAL, RAY, WHERE, changed
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.statement import Statement
from stratoscope.models.open.loading import ModelSpec
from stratoscope.results.finetuned import Finetuned
from stratoscope.results.reproduction import Done, Reproduction
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.kinds import kind_named
from stratoscope.runs.run import Draw
from stratoscope.studies.asked import chosen, engine_of, request_for, run_study, shard_of
from stratoscope.studies.prune import left_over
from stratoscope.studies.reproduce.jobs import Job, Model, jobs_of
from stratoscope.studies.reproduce.options import ReproduceOptions
from stratoscope.studies.reproduce.protocol import Protocol, read_protocol


def reproduce(
    paper: str,
    item: str,
    *,
    out: str | Path,
    options: ReproduceOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Reproduction:
    """Run everything that a figure or table needs into folders inside `out`; what is finished there is not run again.

    Each analysis is a run of its own, with its own page and the `run.yaml` that repeats it. Further keywords are the
    fields of `ReproduceOptions`.
    """
    options, progress, out = chosen(ReproduceOptions, options, keywords), progress or Silent(), Path(out)
    protocol = read_protocol(paper, item)
    jobs = jobs_of(protocol, options, out)
    shared = shard_of(options) is not None
    with RunFolder.open(out, makes=kind_named(Reproduction.KIND).file, shared=shared):  # refused before any work
        pass
    for job in (j for j in jobs if "drop" in j.extra):  # before the jobs ahead of it have trained for hours
        left_over(_spec(job.models[0]), job.extra["drop"], progress)
    if protocol.note and not options.models:
        progress.note(protocol.note)
    with closing(engine_of(options)) if options.engine == RAY else nullcontext():  # one session for all jobs
        results = [(job, run_job(job, out, progress, draw, where_asked(options))) for job in jobs]
    digests = [[job.name, [r.provenance.get("digest") for r in of]] for job, of in results]
    made = _reproduction(protocol, results, out)
    asked = {"paper": paper, "item": item}
    always = replace(options, overwrite=True, engine=LOCAL, workers=None)  # it holds nothing that its steps do not
    return run_study(
        request_for(Reproduction.KIND, {**asked, "steps": digests}, options),
        always,
        out,
        lambda running: made,
        asked=asked,
        progress=progress,
        draw=draw,
    )


def where_asked(options: ReproduceOptions) -> dict[str, Any]:
    """Where every job is to be done, as far as that was said."""
    return {name: value for name, value in changed(options).items() if name in WHERE}


def run_job(job: Job, out: Path, progress: Progress, draw: Draw | None, where: Mapping[str, Any]) -> list[Any]:
    """The results of one analysis, through its public function: one, or one per seed."""
    import stratoscope

    function = getattr(stratoscope, job.analysis.function)
    shared: dict[str, Any] = {"out": out / job.name, "options": replace(job.chosen(), **where), "progress": progress}
    shared |= {} if job.analysis.trains else {"draw": draw}
    models = [_spec(m) for m in job.models]
    if job.run == "study alignment":
        return [function(*models, data=job.data, before=[_spec(m) for m in job.before], **shared)]
    if job.analysis.on == "rows":
        return [function(*models, data=job.data, **shared)]
    if job.task is None:
        data = {"corpus" if job.analysis.on == "tags" else "data": job.data}
        return [function(models, **data, **job.extra, **shared)]
    task = job.task.read(progress)
    if job.analysis.trains:
        trained: list[Any] = function(models[0], task, **job.extra, **shared)
        return trained
    if job.run == "study finetuned":
        return [function(models[0], models[1:], task, across=[_spec(m) for m in job.across], **shared)]
    if job.analysis.pairwise:
        return [function(*models, task, **shared)]
    base = {"base": models[1]} if job.run == "depth" and len(models) > 1 else {}
    return [function(models[0], task, **base, **job.extra, **shared)]


def _spec(model: Model) -> ModelSpec:
    return ModelSpec(model.source, random_init=model.random)


def _reproduction(protocol: Protocol, results: Sequence[tuple[Job, Sequence[Any]]], out: Path) -> Reproduction:
    done, statements = list[Done](), list[Statement]()
    for job, made in results:
        command = job.command(out)
        for result in made:
            if isinstance(result, Finetuned):
                folder = str(result.folder.relative_to(out))
                done.append(Done(folder, command, result.metric, result.score))
            else:
                done.append(Done(job.name, command))
            statements += [replace(s, about={**s.about, "analysis": job.name}) for s in result.statements]
    tuned = [r for _, made in results for r in made if isinstance(r, Finetuned)]
    statements += [*judge_freezing(tuned), *judge_pruning(tuned)]
    return Reproduction(
        protocol.paper,
        protocol.item,
        protocol.title,
        protocol.data,
        protocol.pictures,
        tuple(done),
        folder=out,
        statements=tuple(s for s in statements if s.id.partition(":")[0] in protocol.claims),
        warnings=tuple(dict.fromkeys(w for _, made in results for r in made for w in r.warnings)),
    )
