"""What the user sees: progress with rate and time left, notes, tables, and where the result is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console as Rich
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from stratoscope.core.errors import StratoscopeError
from stratoscope.measures.table import MEASURES
from stratoscope.report.depthpage import write_depth
from stratoscope.report.depthwords import depth_sentences
from stratoscope.report.studypage import write_study
from stratoscope.report.studywords import study_sentences
from stratoscope.report.words import sentences
from stratoscope.report.write import PAGE, write_report
from stratoscope.results.comparison import Comparison
from stratoscope.results.depth import Depth
from stratoscope.results.study import Study
from stratoscope.runs import kinds
from stratoscope.runs.kinds import Kind, kind_in

EVERY = 30.0
"""Seconds between two lines about one step in a log."""


class Console:
    """Progress on stderr, so that stdout stays clean: bars in a terminal, lines in a log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rich = Rich(stderr=True)
        self._clock = clock
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._rich,
        )

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bars.tasks:
            self._bars.stop()

    @contextmanager
    def step(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        with self._bar(label, total) if self._rich.is_terminal else self._lines(label, total) as advance:
            yield advance

    def note(self, message: str) -> None:
        self._rich.print(escape(message), highlight=False, soft_wrap=True)

    @contextmanager
    def _bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        self._bars.start()
        task = self._bars.add_task(escape(label), total=total, rate="")

        def advance(n: int) -> None:
            self._bars.advance(task, n)
            speed = self._bars.tasks[task].speed
            self._bars.update(task, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance
        self._bars.stop_task(task)

    @contextmanager
    def _lines(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """A line when the step begins, one when it ends, and one every `EVERY` seconds with the rate since the last."""
        began = self._clock()
        done, said, said_at = 0, 0, began
        self.note(f"{label}: {total:,} to do")

        def advance(n: int) -> None:
            nonlocal done, said, said_at
            done += n
            now = self._clock()
            if now - said_at >= EVERY and done < total:
                rate = (done - said) / (now - said_at)
                left = f", about {_span((total - done) / rate)} left" if rate else ""
                self.note(f"{label}: {done:,} of {total:,}, {rate:,.1f}/s{left}")
                said, said_at = done, now

        yield advance
        self.note(f"{label}: done in {_span(self._clock() - began)}")


def _span(seconds: float) -> str:
    """A length of time a person can read: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@dataclass(frozen=True)
class Page:
    """How a kind of result is read, drawn, and put into words."""

    kind: Kind
    load: Callable[[Path], Any]
    write: Callable[[Path, Any], Any]
    words: Callable[[Any], Sequence[str]]


def _write_comparison(folder: Path, comparison: Comparison) -> None:
    write_report(folder, comparison, descriptions={m.name: m.summary for m in MEASURES})


PAGES: Mapping[type, Page] = {
    Study: Page(kinds.STUDY, Study.load, write_study, study_sentences),
    Depth: Page(kinds.DEPTH, Depth.load, write_depth, depth_sentences),
    Comparison: Page(kinds.COMPARISON, Comparison.load, _write_comparison, sentences),
}
"""Of the kinds a folder may hold, those that have a page."""


def page_of(folder: Path) -> Page:
    """The page of what a folder holds; without one, an error says what the folder is and which have one."""
    pages = {page.kind: page for page in PAGES.values()}
    held = kind_in(folder)
    if held in pages:
        return pages[held]
    commands = [f"'stratoscope {kind.command}'" for kind in pages]
    wanted = f"a folder that {', '.join(commands[:-1])} or {commands[-1]} wrote"
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing of that name"
        raise StratoscopeError(f"{folder}: expected {wanted}, got {got}; check the path")
    inside = {folder: held} if held else {f: kind for f in sorted(folder.iterdir()) if (kind := kind_in(f))}
    if drawn := next((f for f, kind in inside.items() if kind in pages), None):
        raise StratoscopeError(f"{folder} holds no result itself; give a folder inside it that does, such as {drawn}")
    if inside:
        where, kind = next(iter(inside.items()))
        raise StratoscopeError(
            f"{folder} holds {kind.what} ({(where / kind.file).relative_to(folder)}), for which there is no page; "
            f"give {wanted}"
        )
    raise StratoscopeError(f"{folder} holds no result; give {wanted}")


def draw(console: Console, folder: Path, result: Study | Depth | Comparison) -> None:
    """Write figures and page into a run folder that the caller holds."""
    with console.step("drawing", 1) as advance:
        PAGES[type(result)].write(folder, result)
        advance(1)


def tell(folder: Path, result: Study | Depth | Comparison) -> None:
    """Say in words what the result shows, and name the next step."""
    page = PAGES[type(result)]
    for sentence in page.words(result):
        say(f"- {sentence}")
    say(f"\nopen {folder}/{PAGE} in a browser; the numbers are in {folder}/{page.kind.file}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal."""
    drawn = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    Rich().print(drawn)


def say(text: str) -> None:
    """One line of the answer on stdout."""
    Rich().print(escape(text), highlight=False, soft_wrap=True)
