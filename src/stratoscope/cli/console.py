"""What the user sees: progress with rate and time left, notes, and the answer."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console as Rich
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from stratoscope.cli.answer import Answer, Table, clean, shell_line

SECONDS_BETWEEN_LINES = 30.0
"""Between two lines about one step in a log."""


class Console:
    """Progress and notes on stderr, so that stdout has the answer alone: bars in a terminal, lines in a log.

    `quiet` shows neither; `verbose` adds what libraries warn of and how long every step took.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, quiet: bool = False, verbose: bool = False
    ) -> None:
        self._rich = Rich(stderr=True)
        self._clock = clock
        self._quiet, self._verbose = quiet, verbose
        self._began = clock()
        self._noted: set[str] = set()
        self._stack = ExitStack()
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
        self._stack.enter_context(_libraries(self.note if self._verbose else None))
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._stack.close()
        if self._bars.live.is_started:
            self._bars.stop()
        if self._verbose and kind is None:
            self.note(f"everything: done in {_span(self._clock() - self._began)}")

    @contextmanager
    def step(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        if self._quiet:
            yield lambda n: None
            return
        with self._bar(label, total) if self._rich.is_terminal else self._lines(label, total) as advance:
            yield advance

    def note(self, message: str) -> None:
        """Shown once, however often it comes."""
        if not self._quiet and message not in self._noted:
            self._noted.add(message)
            self._line(message)

    def _line(self, message: str) -> None:
        self._rich.print(escape(clean(message)), highlight=False, soft_wrap=True)

    @contextmanager
    def _bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        began = self._clock()
        self._bars.start()
        task = self._bars.add_task(escape(clean(label)), total=total, rate="")

        def advance(n: int) -> None:
            self._bars.advance(task, n)
            speed = next(t.speed for t in self._bars.tasks if t.id == task)
            self._bars.update(task, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance
        self._bars.refresh()
        self._bars.remove_task(task)  # what is done makes room: a command with many steps fits the screen
        if self._verbose:
            self._line(f"{label}: done in {_span(self._clock() - began)}")

    @contextmanager
    def _lines(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """A line when the step begins, one when it ends, and now and then one with the rate since the last."""
        began = self._clock()
        done, reported, reported_at = 0, 0, began
        self._line(f"{label}: {total:,} to do")

        def advance(n: int) -> None:
            nonlocal done, reported, reported_at
            done += n
            now = self._clock()
            if now - reported_at >= SECONDS_BETWEEN_LINES and done < total:
                rate = (done - reported) / (now - reported_at)
                left = f", about {_span((total - done) / rate)} left" if rate else ""
                self._line(f"{label}: {done:,} of {total:,}, {rate:,.1f}/s{left}")
                reported, reported_at = done, now

        yield advance
        self._line(f"{label}: done in {_span(self._clock() - began)}")


def _span(seconds: float) -> str:
    """A length of time a person can read: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class _Notes(logging.Handler):
    """What libraries log, as notes."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(f"{record.name}: {record.getMessage()}")


@contextmanager
def _libraries(note: Callable[[str], None] | None) -> Iterator[None]:
    """Warnings and logs of libraries become notes, or nothing; what was set before is set again afterwards."""
    root = logging.getLogger()
    handler = logging.NullHandler() if note is None else _Notes(note)
    root.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if note is None else "default")
            if note is not None:

                def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
                    note(f"{category.__name__}: {message}")

                warnings.showwarning = show
            yield
    finally:
        root.removeHandler(handler)


def show(answer: Answer, *, as_json: bool, quiet: bool) -> None:
    """The answer on stdout: one JSON document, or lines and a table for a person."""
    if as_json:
        write_json(answer.plain)
        return
    rich = Rich()
    for line in answer.lines:
        _print(rich, line)
    if answer.table is not None:
        rich.print(_drawn(answer.table))
    if quiet:
        return
    last = [line for line in (answer.where, f"next: {shell_line(answer.then)}" if answer.then else "") if line]
    if last and (answer.lines or answer.table):
        rich.print()
    for line in last:
        _print(rich, line)


def write_json(plain: Any) -> None:
    """One JSON document on stdout, in ASCII: no name in it can harm whoever reads it."""
    sys.stdout.write(json.dumps(plain, indent=1, allow_nan=False) + "\n")


def _print(rich: Rich, line: str) -> None:
    rich.print(escape(clean(line)), highlight=False, soft_wrap=True)


def _drawn(table: Table) -> RichTable:
    """A table that fits the terminal."""
    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    for name in table.header:
        drawn.add_column(name, no_wrap=table.one_line and name != table.header[-1])
    how: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"} if table.one_line else {}
    for row in table.rows:
        drawn.add_row(*(Text(clean(cell), style=table.styles.get(cell, ""), **how) for cell in row))
    return drawn
