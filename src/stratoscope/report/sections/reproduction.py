"""The page of a reproduction: the pictures of its analyses that the paper shows, and what was run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stratoscope.core.errors import StratoscopeError
from stratoscope.report.labels import printable
from stratoscope.report.outline import Card, Section, Sections, sections_of
from stratoscope.report.pictures import Picture, Table
from stratoscope.results.reproduction import Done, Reproduction
from stratoscope.results.result import load


def sections(result: Reproduction) -> Sections:
    """What the page of a reproduction shows."""
    shown = [part for done in result.done if not done.metric for part in _pictures(result, done)]
    return Sections(
        title=f"{result.paper}, {result.item}: {result.title}",
        cards=(Card("The paper used", printable(result.data)),),
        sections=(*shown, *_scores(result), Section("steps", "What was run", tables=(_steps(result),))),
        warnings=result.warnings,
        facts={"Provenance": result.provenance},
    )


def _pictures(result: Reproduction, done: Done) -> Iterator[Section]:
    """The pictures and tables of one analysis that the protocol names; none where its folder was moved away.

    A picture that is there once per model (`MODEL-NAME`) is shown for each.
    """
    try:
        page = sections_of(load(result.folder / done.folder))
    except StratoscopeError:
        return
    place = done.folder.replace("/", "-")
    own = {id: [p for p in page.pictures if p.id == id] for id in result.pictures}
    chosen: list[Picture] = [
        replace(p, id=f"{place}-{p.id}", file=f"{place}-{p.id}", when={})
        for id, pictures in own.items()
        for p in pictures or (p for p in page.pictures if p.id.endswith(f"-{id}"))
    ]
    tables = [t for s in page.sections for t in s.tables if t.id in result.pictures]
    if chosen or tables:
        yield Section(
            f"of-{place}",
            printable(done.folder),
            tuple(chosen),
            tables=tuple(replace(t, id=f"{place}-{t.id}", file=f"{place}-{t.id}") for t in tables),
            lead=f"More in {done.folder}/report.html.",
        )


def _scores(result: Reproduction) -> Iterator[Section]:
    trained = [d for d in result.done if d.metric]
    if trained:
        rows = tuple((d.folder, d.metric, d.score.value, d.score.low, d.score.high) for d in trained)
        head = ("Model", "Metric", "Score", "Low", "High")
        caption = "The metric on the validation rows, with its 95 % interval over them."
        yield Section(
            "scores", "Scores", tables=(Table(id="scores", title="Scores", caption=caption, head=head, rows=rows),)
        )


def _steps(result: Reproduction) -> Table:
    rows = tuple((d.folder, d.command) for d in result.done)
    caption = "Each folder holds a result and a page of its own; the command does the same."
    return Table(id="steps", title="What was run", caption=caption, head=("Folder", "Command"), rows=rows)
