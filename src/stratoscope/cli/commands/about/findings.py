"""`stratoscope findings`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, Table, shell_line
from stratoscope.cli.options import command
from stratoscope.core.errors import unknown_name

Folder = Annotated[Path, typer.Argument(help="Folder of an earlier run of any kind.", metavar="FOLDER")]
One = Annotated[str, typer.Argument(help="One claim in detail, by its number in the list or its id.", metavar="CLAIM")]
Verdict = Annotated[
    list[str],
    typer.Option("--verdict", help="Only this verdict: holds, does-not-hold or cannot-tell; may be repeated."),
]
COLORS = {"does not hold": "red", "holds": "green", "cannot tell": "yellow"}


@command
def findings(folder: Folder, verbose: bool, claim: One = "", verdict: Verdict = []) -> Answer:  # noqa: B006
    """List the published claims judged on a run's models: which hold, which do not; with --verbose, every case."""
    from stratoscope.core.record import to_plain
    from stratoscope.core.statement import VERDICTS
    from stratoscope.report.labels import shown
    from stratoscope.report.outline import MARKS, ORDER, about_text, decisive, premises, tally
    from stratoscope.results.result import load

    verdicts = [v.replace("-", " ") for v in verdict]
    for given, meant in zip(verdict, verdicts, strict=True):
        if meant not in VERDICTS:
            raise unknown_name("verdict", given, (v.replace(" ", "-") for v in VERDICTS))
    result = load(folder)
    claims = {str(k): id for k, id in enumerate(dict.fromkeys(s.claim_id for s in result.statements), start=1)}
    only = claims.get(claim, claim.partition(":")[0])
    if only and only not in claims.values():
        raise unknown_name("claim", claim, claims.values())
    chosen = [s for s in result.statements if (not verdicts or s.verdict in verdicts) and only in ("", s.claim_id)]
    groups = {k: cases for k, id in claims.items() if (cases := [s for s in chosen if s.claim_id == id])}
    lines = [line for line in (premises(chosen), tally(chosen)) if line]
    lines = lines or [_none(folder, result.kind().what, len(result.statements))]
    each = [f"{tally(cases)}: {cases[0].claim} D {shown(decisive(cases).value)}" for cases in groups.values()]
    statements = [to_plain(s) for s in chosen]
    plain = {"kind": result.kind().name, "folder": str(folder), "answer": [*lines, *each], "statements": statements}
    if not chosen:
        return Answer(plain, lines)
    if only:
        detailed = [
            (s.verdict, about_text(s), f"{shown(s.value)} ({s.margin:.3g})", s.reason or s.text) for s in chosen
        ]
        said = [f"{chosen[0].claim} ({chosen[0].source})", *lines]
        return Answer(plain, said, Table(("verdict", "about", "D (margin)", "why"), detailed, COLORS))
    if verbose:
        cells = [(s.verdict, s.claim, about_text(s), f"{shown(s.value)} ({s.margin:.3g})", s.reason) for s in chosen]
        return Answer(plain, lines, Table(("verdict", "claim", "about", "D (margin)", "reason"), cells, COLORS))
    rows, styles = [], {}
    for k, cases in groups.items():
        counts = " ".join(f"{mark}{n}" for v, mark in MARKS.items() if (n := sum(s.verdict == v for s in cases)))
        rows.append((k, counts, shown(decisive(cases).value), cases[0].claim))
        styles[counts] = COLORS[decisive(cases).verdict]
    then = ["stratoscope", "findings", str(folder), min(groups, key=lambda k: ORDER.index(decisive(groups[k]).verdict))]
    table = Table(("no.", "verdicts", "decisive D", "claim"), rows, styles, one_line=True)
    return Answer({**plain, "next": shell_line(then)}, lines, table, then=then)


def _none(folder: Path, what: str, others: int) -> str:
    if others:
        return f"none of the {others} statements in {folder} has that verdict"
    return f"{folder} holds {what}, on which no published claim was judged"
