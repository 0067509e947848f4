"""What the terminal shows: progress with rate and time left, notes, tables, and where the result is."""

from __future__ import annotations

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
from stratoscope.report.write import write_report


class Console:
    """Progress drawn on stderr, so that stdout stays clean."""

    def __init__(self) -> None:
        self._rich = Rich(stderr=True)
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

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None and not self._rich.is_terminal:
            self._bars.live.transient = True  # in a log, a failure is its one sentence and nothing besides
            self._bars.live.stop()
        elif self._bars.tasks:
            self._bars.stop()

    @contextmanager
    def step(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        self._bars.start()
        task = self._bars.add_task(escape(label), total=total, rate="")

        def advance(n: int) -> None:
            self._bars.advance(task, n)
            speed = self._bars.tasks[task].speed
            self._bars.update(task, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance
        self._bars.stop_task(task)

    def note(self, message: str) -> None:
        self._rich.print(escape(message), highlight=False, soft_wrap=True)


def tell(console: Console, folder: Path, comparison: Comparison) -> None:
    """Write the report, say in words what it shows, and name the next step."""
    with console.step("drawing", 1) as advance:
        paths = write_report(folder, comparison, descriptions={m.name: m.summary for m in MEASURES})
        advance(1)
    out = Rich()
    for sentence in sentences(comparison):
        out.print(f"- {escape(sentence)}", highlight=False, soft_wrap=True)
    page = next(p for p in paths if p.suffix == ".html")
    out.print(
        f"\nopen {escape(str(page))} in a browser; the numbers are in {escape(str(folder))}/result.json", soft_wrap=True
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal."""
    drawn = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    Rich().print(drawn)
