"""What the user sees: progress with rate and time left, notes, tables, and where the result is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console as Rich
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from stratoscope.core.result import Comparison
from stratoscope.measures.table import MEASURES
from stratoscope.report.words import sentences
from stratoscope.report.write import PAGE, write_report

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


def draw(console: Console, folder: Path, comparison: Comparison) -> None:
    """Write figures and page into a run folder that the caller holds."""
    with console.step("drawing", 1) as advance:
        write_report(folder, comparison, descriptions={m.name: m.summary for m in MEASURES})
        advance(1)


def tell(folder: Path, comparison: Comparison) -> None:
    """Say in words what the result shows, and name the next step."""
    out = Rich()
    for sentence in sentences(comparison):
        out.print(f"- {escape(sentence)}", highlight=False, soft_wrap=True)
    where = escape(str(folder))
    out.print(f"\nopen {where}/{PAGE} in a browser; the numbers are in {where}/result.json", soft_wrap=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal."""
    drawn = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    Rich().print(drawn)


def say(text: str) -> None:
    """One line of the answer on stdout."""
    Rich().print(escape(text), highlight=False, soft_wrap=True)


def draw_depth(console: Console, folder: Path, depth: Depth) -> None:
    """Write figures and page of a depth result into a run folder that the caller holds."""
    with console.step("drawing", 1) as advance:
        write_depth(folder, depth)
        advance(1)


def draw_study(console: Console, folder: Path, study: Study) -> None:
    """Write figures and page of a study into a folder that the caller holds."""
    with console.step("drawing", 1) as advance:
        write_study(folder, study)
        advance(1)


def tell_all(folder: Path, sentences: Sequence[str], numbers: str) -> None:
    """Say in words what a result shows, and name the next step."""
    for sentence in sentences:
        say(f"- {sentence}")
    say(f"\nopen {folder}/{PAGE} in a browser; the numbers are in {folder}/{numbers}")
