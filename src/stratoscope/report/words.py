"""A result on the console: the answer and the statements in a dozen lines."""

from __future__ import annotations

from stratoscope.report.labels import number, printable, shown
from stratoscope.report.outline import ORDER, about_text, premises, sections_of, tally
from stratoscope.results.result import Result

MOST_LINES = 12


def console_lines(result: Result, *, most: int = MOST_LINES) -> list[str]:
    """The cards, then the statements as far as there is room, then the first warning; clean of control characters."""
    sections = sections_of(result)
    lines = [f"{card.label}: {card.value}{f' ({card.note})' if card.note else ''}" for card in sections.cards]
    if sections.lines:
        return list(sections.lines)  # of printable words; their blanks make columns
    warned = [f"warning: {sections.warnings[0]}"] if sections.warnings else []
    if len(sections.warnings) > 1:
        warned = [f"{warned[0]} (and {len(sections.warnings) - 1} more in the report)"]
    if result.statements:
        lines += filter(None, [premises(result.statements)])
        lines.append(f"published claims: {tally(result.statements)}")
        room = most - len(lines) - len(warned)
        ordered = sorted(result.statements, key=lambda s: ORDER.index(s.verdict))
        cut = ordered if len(ordered) <= room else ordered[: max(room - 1, 0)]
        for s in cut:
            tested = f": D {shown(s.value)}" if s.value.known else ""
            against = s.reason.partition(":")[0] if s.reason else f"margin {number(s.margin)}"
            lines.append(f"  {s.verdict} – {s.claim} ({about_text(s)}){tested}; {against}")
        if len(cut) < len(ordered):
            lines.append(f"  … and {len(ordered) - len(cut)} more: 'stratoscope findings'")
    return [_one_line(line) for line in (*lines, *warned)]


def _one_line(text: str) -> str:
    """Printable, with the indentation that a list has."""
    return " " * (len(text) - len(text.lstrip(" "))) + printable(text)
