"""What a kind of result puts on its page: cards, sections of pictures and tables, and what stands behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, PREMISE, VERDICTS, Statement
from stratoscope.report.labels import printable
from stratoscope.report.pictures import Picture, Table
from stratoscope.results.result import Result

TALLY = {HOLDS: ("holds", "hold"), FAILS: ("does not hold", "do not hold"), OPEN: ("cannot tell", "cannot tell")}
"""One statement, several statements."""
ORDER = (FAILS, HOLDS, OPEN)
"""What contradicts a paper first."""
MARKS = dict(zip(VERDICTS, "✓✗?", strict=True))


@dataclass(frozen=True)
class Card:
    """One part of the answer."""

    label: str
    value: str
    note: str = ""
    caution: bool = False
    """Whether it says that other numbers are not to be trusted."""


@dataclass(frozen=True)
class Switch:
    """A choice of the reader's; pictures and tables say under which choices they are shown (`Picture.when`)."""

    name: str
    label: str
    options: tuple[str, ...]
    chosen: str


@dataclass(frozen=True)
class Section:
    """A heading with pictures and tables."""

    id: str
    title: str
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    lead: str = ""
    """A sentence that no picture can say."""
    width: str = "full"
    """On a wide page: `full`; `half`, with room for another beside it; `tall`, with room for two."""


@dataclass(frozen=True)
class Sections:
    """Everything a kind contributes to its page."""

    title: str
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    models: tuple[ModelInfo, ...] = ()
    summary: tuple[str, ...] = ()
    """Data, rows, measures: a few words each."""
    switches: tuple[Switch, ...] = ()
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is folded away, by heading: data, provenance."""
    measures: tuple[str, ...] = ()
    """Whose sources are cited."""
    lines: tuple[str, ...] = ()
    """What the console says in place of the cards and the claims, where that is said more shortly."""
    works: tuple[str, ...] = ()
    """Other works to cite, by their short form."""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in the order of their sections."""
        return tuple(p for section in self.sections for p in section.pictures)

    @property
    def first(self) -> Picture | None:
        """The first picture as the page opens."""
        chosen = {s.name: s.chosen for s in self.switches}
        return next((p for p in self.pictures if all(chosen.get(k) == v for k, v in p.when.items())), None)


def sections_of(result: Result) -> Sections:
    """The sections of a result of any kind that has a page."""
    kind = result.kind()
    if not kind.sections:
        raise StratoscopeError(f"there is no page for {kind.what} ({kind.file})")
    made: Sections = kind.load_sections()(result)
    return made


def tally(statements: Sequence[Statement]) -> str:
    """`7 hold · 2 do not hold · 3 cannot tell`, without those that are none."""
    counts = {v: sum(s.verdict == v for s in statements) for v in VERDICTS}
    return " · ".join(f"{n} {TALLY[v][n > 1]}" for v, n in counts.items() if n)


def answer(result: Result, sections: Sections) -> tuple[Card, ...]:
    """The cards of a page: those of the kind, then how many published claims hold."""
    if not result.statements:
        return sections.cards
    counted = tally(result.statements)
    return (*sections.cards, Card("Published claims on these models", counted, f"{len(result.statements)} judged"))


def decisive(cases: Iterable[Statement]) -> Statement:
    """Of the weightiest verdict on a claim, the case that is nearest to the margin."""
    return min(cases, key=lambda s: (ORDER.index(s.verdict), not s.value.known, abs(s.value.value - s.margin)))


def premises(statements: Iterable[Statement]) -> str:
    """What the claims take for granted, in one line; empty where nothing is."""
    assumed = dict.fromkeys(printable(s.about[PREMISE]) for s in statements if PREMISE in s.about)
    return f"Assumed, not checked: {'; '.join(assumed)}." if assumed else ""


def about(statement: Statement) -> dict[str, str]:
    """What a statement is about, sorted as a saved result has it; premises are said once for all."""
    return {printable(k): printable(v) for k, v in sorted(statement.about.items()) if k != PREMISE}


def about_text(statement: Statement) -> str:
    """What a statement is about, in one line."""
    return " · ".join(f"{k} {v}" for k, v in about(statement).items())
