"""What a command hands back, before it is known whether a person or a program reads it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratoscope.core.progress import Progress
    from stratoscope.results.result import Result

FIGURES = "figures"
STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, colour the terminal or turn the writing direction, and bytes that are no text."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    styles: Mapping[str, str] = field(default_factory=dict)
    """Style of a cell, by what it says."""
    one_line: bool = False
    """Whether every row is one line, its last cell as long as there is room."""


@dataclass(frozen=True)
class Answer:
    """The answer of a command: the same facts for a person and for a program."""

    plain: Mapping[str, Any]
    """What `--json` prints, whole."""
    lines: Sequence[str] = ()
    table: Table | None = None
    where: str = ""
    """One line about where to look."""
    then: Sequence[str] = ()
    """Words of the command to run next."""


def answer_of(
    folder: Path, results: Result | Sequence[Result], *, lines: Sequence[str] | None = None, then: Sequence[str] = ()
) -> Answer:
    """The answer of a run: what its results (of one kind, one or more) say, where the page is, what to run next."""
    from stratoscope.core.record import to_plain
    from stratoscope.results.result import Result
    from stratoscope.runs.folder import PAGE

    results = [results] if isinstance(results, Result) else list(results)
    kind = results[0].kind()
    if lines is None:
        from stratoscope.report.words import console_lines

        lines = [line for result in results for line in console_lines(result)]
    where = f"open {folder / PAGE} in a browser; the numbers are in {folder / kind.file}"
    plain = {
        "kind": kind.name,
        "folder": str(folder),
        "answer": lines,
        "statements": [to_plain(statement) for result in results for statement in result.statements],
        "warnings": [warning for result in results for warning in result.warnings],
        "files": files_in(folder),
        "next": shell_line(then) if then else None,
    }
    return Answer(plain, lines, where=where if (folder / PAGE).is_file() else "", then=then)


def files_in(folder: Path) -> list[str]:
    """Files of a run folder and of its figures, by their names in it."""
    there = [p for place in (folder, folder / FIGURES) if place.is_dir() for p in place.iterdir()]
    return sorted(str(p.relative_to(folder)) for p in there if p.is_file() and not p.name.startswith("."))


def look_closer(folder: Path, result: Result) -> list[str]:
    """The next command after a run that no other follows: its statements, or figures for a paper where it has none."""
    return [
        "stratoscope",
        *(["findings", str(folder)] if result.statements else ["report", str(folder), "--style", "paper"]),
    ]


def judge_next(folder: Path, result: Result, command: str) -> list[str]:
    """The same run with intervals, where no statement was judged for want of them; else as `look_closer`."""
    from stratoscope.claims.judge import UNRESAMPLED
    from stratoscope.measures.bootstrap import FEWEST_REPLICATES
    from stratoscope.runs.protocol import FILE

    if not result.statements or any(UNRESAMPLED not in s.reason for s in result.statements):
        return look_closer(folder, result)
    again = ["--config", str(folder / FILE), "--bootstrap", str(FEWEST_REPLICATES)]
    return ["stratoscope", *command.split(), *again, "--out", beside(folder, "intervals")]


def beside(folder: Path, suffix: str) -> str:
    """A folder beside this one for what comes next: `runs/a-study` beside `runs/a`."""
    return f"{folder if folder.name not in ('', '..') else folder.resolve()}-{suffix}"


def drawing(progress: Progress, *, style: str = "screen") -> Callable[[Path, Any], None]:
    """What writes figures and page of a result into its run folder, which the caller holds."""

    def draw(folder: Path, result: Any) -> None:
        from stratoscope.report.write import write_report

        with progress.step("drawing", 1) as advance:
            write_report(folder, result, style=style)
            advance(1)

    return draw


def shell_line(words: Sequence[str]) -> str:
    """A command as a shell takes it; what would steer the terminal is written as an escape, not printed."""
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if not STEERING.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{STEERING.sub(lambda m: _escape(m[0]), escaped)}'"


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def clean(text: str) -> str:
    """Text without what would steer the terminal: names come from files that anyone may have written."""
    return STEERING.sub(lambda m: " " if m[0] in "\n\t" else "", text)
