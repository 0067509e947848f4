"""`stratoscope reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, Table, answer_of, drawing
from stratoscope.cli.loading import Out
from stratoscope.cli.options import command
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress
from stratoscope.studies.reproduce.options import ReproduceOptions

Paper = Annotated[str | None, typer.Argument(help="Paper, such as wu2020.")]
Item = Annotated[str | None, typer.Argument(help="Figure or table, such as fig1.")]
More = Annotated[list[str], typer.Argument(help="Further --models.", metavar="MODEL...")]
Listed = Annotated[bool, typer.Option("--list", help="List the protocols.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what would run and its estimated cost, and run nothing.")]


@command
def reproduce(
    out: Out,
    options: ReproduceOptions,
    progress: Progress,
    paper: Paper = None,
    item: Item = None,
    more: More = [],  # noqa: B006
    listed: Listed = False,
    dry_run: Dry = False,
) -> Answer:
    """Reproduce a figure or a table of a paper, with its models or yours: `reproduce wu2020 fig1 --models A B C`."""
    from dataclasses import replace

    if listed:
        return _list(paper)
    if paper is None or item is None:
        raise StratoscopeError("expected a paper and an item, such as wu2020 fig1; see 'stratoscope reproduce --list'")
    options = replace(options, models=(*options.models, *more))
    if dry_run:
        return _planned(paper, item, options, out)
    from stratoscope.studies.reproduce.study import reproduce as run

    result = run(paper, item, out=out, options=options, progress=progress, draw=drawing(progress))
    return answer_of(out, result, then=["stratoscope", "findings", str(out)])


def _list(paper: str | None) -> Answer:
    from stratoscope.studies.reproduce.protocol import protocols, read_protocol

    protocols_listed = [read_protocol(p, i) for p, i in protocols() if paper in (None, p)]
    if not protocols_listed:
        read_protocol(str(paper), "")
    rows = [
        (p.paper, p.item, p.title, ", ".join(dict.fromkeys(s.run for s in p.steps)), p.data) for p in protocols_listed
    ]
    header = ("paper", "item", "what it shows", "analyses", "data")
    plain = {"kind": "protocols", "protocols": [dict(zip(header, row, strict=True)) for row in rows]}
    if paper is not None:
        return Answer(plain, table=Table(header, rows))
    more = f"{len(rows)} items; 'stratoscope reproduce PAPER --list' has their analyses and data"
    return Answer(plain, table=Table(header[:3], [row[:3] for row in rows], one_line=True), where=more)


def _planned(paper: str, item: str, options: ReproduceOptions, out: Path) -> Answer:
    from stratoscope.studies.reproduce.cost import estimate, shown
    from stratoscope.studies.reproduce.jobs import jobs_of
    from stratoscope.studies.reproduce.protocol import read_protocol

    protocol = read_protocol(paper, item)
    shapes: dict[str, tuple[int, int]] = {}
    rows = [(job.command(out), shown(*estimate(job, shapes))) for job in jobs_of(protocol, options, out)]
    plain = {"kind": "dry run", "paper": paper, "item": item, "jobs": [{"command": c, "cost": s} for c, s in rows]}
    lines = [f"{protocol.title} (the paper: {protocol.data}); nothing was run"]
    return Answer(plain, [*lines, *(line for c, s in rows for line in (c, f"  {s}"))])
