"""`stratoscope findings`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratoscope.cli.answer import Answer, Table
from stratoscope.cli.options import command
from stratoscope.core.errors import unknown_name

if TYPE_CHECKING:
    from stratoscope.core.statement import Statement

Folder = Annotated[Path, typer.Argument(help="Folder of an earlier run of any kind.", metavar="FOLDER")]
Verdict = Annotated[
    list[str],
    typer.Option("--verdict", help="Only statements that holds, does-not-hold or cannot-tell; may be repeated."),
]
HEADER = ("verdict", "claim", "about", "D (margin)", "reason")


@command
def findings(folder: Folder, verdict: Verdict = []) -> Answer:  # noqa: B006
    """List the published claims judged on a run's models: which hold, which do not, and why."""
    from stratoscope.core.record import to_plain
    from stratoscope.core.statement import FAILS, HOLDS, OPEN, VERDICTS
    from stratoscope.results.result import load

    wanted = [v.replace("-", " ") for v in verdict]
    for given, meant in zip(verdict, wanted, strict=True):
        if meant not in VERDICTS:
            raise unknown_name("verdict", given, (v.replace(" ", "-") for v in VERDICTS))
    result = load(folder)
    chosen = [s for s in result.statements if not wanted or s.verdict in wanted]
    lines = [] if chosen else [_none(folder, result.kind().what, len(result.statements))]
    plain = {
        "kind": result.kind().name,
        "folder": str(folder),
        "answer": lines,
        "statements": [to_plain(s) for s in chosen],
    }
    table = Table(HEADER, _rows(chosen), {HOLDS: "green", FAILS: "red", OPEN: "yellow"})
    return Answer(plain, lines, table if chosen else None)


def _rows(statements: Sequence[Statement]) -> list[tuple[str, ...]]:
    return [
        (s.verdict, s.claim, ", ".join(f"{k} {v}" for k, v in s.about.items()), _number(s), s.reason)
        for s in statements
    ]


def _number(statement: Statement) -> str:
    return f"{statement.value} ({statement.margin:.3g})" if statement.value.known else "–"


def _none(folder: Path, what: str, others: int) -> str:
    if others:
        return f"none of the {others} statements in {folder} has that verdict"
    return f"{folder} holds {what}, on which no published claim was judged"
