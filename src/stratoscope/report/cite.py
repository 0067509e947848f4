"""What to cite for a result: the sources of its measures and of the claims that were judged, also as BibTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stratoscope.core.statement import Statement
from stratoscope.report.labels import printable

FULL = re.compile(r"(?P<authors>.+?) \((?P<year>\d{4})\)\. (?P<title>.+?)(?P<end>[.?]) (?P<venue>[^.]+)\.")
"""`Authors (year). Title. Venue.`"""
JOURNALS = ("JMLR", "Psychometrika", "Frontiers in Systems Neuroscience", "Computational Linguistics", "TACL",
            "ACM Computing Surveys")  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One work in full."""

    short: str
    text: str

    @property
    def key(self) -> str:
        """The key of its BibTeX entry, such as `wu2020`, `schonemann1966`."""
        plain = self.short.replace("ö", "o").lower()
        return "".join(re.findall(r"^[a-z]+|\d{4}", plain)) or "work"

    @property
    def bibtex(self) -> str:
        """The work as a BibTeX entry."""
        match = FULL.fullmatch(self.text)
        if match is None:
            return f"@misc{{{self.key},\n  note = {{{self.text}}}\n}}"
        where = "journal" if match["venue"] in JOURNALS else "booktitle"
        fields = {
            "author": match["authors"].replace(", ", " and "),
            "title": match["title"] + match["end"].strip("."),
            where: match["venue"],
            "year": match["year"],
        }
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@{'article' if where == 'journal' else 'inproceedings'}{{{self.key},\n{body}\n}}"


def works_of(measures: Iterable[str], statements: Iterable[Statement], others: Iterable[str] = ()) -> list[Work]:
    """The works behind measures, judged claims and others by their short form, in the order of the table."""
    from stratoscope.claims.works import WORKS  # with torch, which drawing alone has no use for
    from stratoscope.measures.table import MEASURES

    plain = {measure.partition("@")[0] for measure in measures}
    sources = [m.reference for m in MEASURES if m.name in plain]
    sources += [s.source for s in statements]
    cited = {*others, *(short(work) for source in sources for work in source.split(";"))}
    return [Work(name, text) for name, text in WORKS.items() if name in cited]


def short(source: str) -> str:
    """The short form of a work in a source such as `Wu et al. 2020, section 6`."""
    return printable(source.split(",")[0])
