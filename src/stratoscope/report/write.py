"""Put a report into a run folder: figures, tables, citations and the page; nothing of the user's is ever replaced."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.files import ANOTHER, atomic, canonical_json, file_sha256, write_text
from stratoscope.report.cite import works_of
from stratoscope.report.draw import FORMATS, LOOKS, figure, render
from stratoscope.report.labels import printable
from stratoscope.report.outline import Sections, sections_of
from stratoscope.report.page import page
from stratoscope.report.pictures import Picture, Table
from stratoscope.results.result import Result

PAGE = "report.html"
FIGURES, TABLES = "figures", "tables"
CAPTIONS, CITATIONS = f"{FIGURES}/captions.md", "citations.bib"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How what a spreadsheet would run begins."""
SENTENCES = re.compile(r"(?<=\.) ")
WRITTEN = ".written.json"
"""Checksums of what a report wrote, by path in the folder: only that is ever replaced or removed, while unchanged."""


def write_report(folder: str | Path, result: Result, *, style: str = "screen") -> list[Path]:
    """Write figures, their captions, tidy tables and citations, then `report.html`; return the paths, the page last.

    A file of such a name that no report of ours wrote, or that was changed since, is an error before anything is
    written. Each file appears whole or not at all.
    """
    if style not in LOOKS:
        raise unknown_name("style of figures", style, LOOKS)
    folder = Path(folder)
    files = dict(_files(result, sections_of(result), style))
    earlier = _written(folder)
    for name in files:
        path = folder / name
        if (path.exists() or path.is_symlink()) and not _is_ours(path, earlier.get(name, [])):
            how = "was changed since a report wrote it" if name in earlier else "was not written by stratoscope"
            raise StratoscopeError(f"{path} {how}, so it is not replaced", "move it away", ANOTHER)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    # First what may be there if this is killed, so that the next report knows its own; then what is there.
    gone = {name: there for name, there in earlier.items() if name not in sums}
    may_be = {name: [*earlier.get(name, []), sha256] for name, sha256 in sums.items()} | gone
    write_text(folder / WRITTEN, canonical_json(may_be))
    for name, content in files.items():
        with atomic(folder / name) as f:
            f.write(content)
    for name, there in gone.items():
        if _is_ours(folder / name, there):
            (folder / name).unlink()
    write_text(folder / WRITTEN, canonical_json({name: [sha256] for name, sha256 in sums.items()}))
    return [folder / name for name in files]


def _files(result: Result, sections: Sections, style: str) -> Iterator[tuple[str, bytes]]:
    """Every file by its path in the folder, the page last."""
    captions = []
    for stem, pictures in _by_file(sections.pictures).items():
        drawn = figure(*pictures, style=style)
        for kind in FORMATS:
            yield f"{FIGURES}/{stem}.{kind}", render(drawn, kind)
            drawn.set_layout_engine("none")  # laid out once, it holds for the other formats
        title = pictures[0].title
        said = [s for p in pictures for s in SENTENCES.split(p.caption.removeprefix(f"{title}: "))]
        said = [*([] if title == stem else [f"{title}."]), *dict.fromkeys(said)]
        captions.append(printable(f"**{stem}.** {' '.join(said)}"))
        yield f"{TABLES}/{stem}.csv", _csv(pictures)
    for stem, tables in _by_file(t for s in sections.sections for t in s.tables).items():
        place = "" if all(isinstance(t, Table) and t.top for t in tables) else f"{TABLES}/"
        yield f"{place}{stem}.csv", _csv(tables)
    if captions:
        yield CAPTIONS, ("\n\n".join(captions) + "\n").encode()
    works = works_of(sections.measures, result.statements, sections.works)
    if works:
        yield CITATIONS, ("\n\n".join(w.bibtex for w in works) + "\n").encode()
    yield PAGE, page(result).encode()


def _by_file(pictures: Iterable[Picture]) -> dict[str, list[Picture]]:
    by_file: dict[str, list[Picture]] = {}
    for picture in pictures:
        by_file.setdefault(picture.stem, []).append(picture)
    return by_file


def _csv(pictures: list[Picture]) -> bytes:
    """The data of one figure in long format, with the choices under which each part is shown."""
    frames = []
    for p in pictures:
        frame = p.tidy()
        for place, (name, value) in enumerate(p.when.items()):
            frame.insert(place, name, value)
        frames.append(frame)
    joined = pd.concat(frames, ignore_index=True).map(_cell)
    return joined.to_csv(index=False, lineterminator="\n").encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: a text that begins like one gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _is_ours(path: Path, sums: list[str]) -> bool:
    return path.is_file() and not path.is_symlink() and file_sha256(path) in sums


def _written(folder: Path) -> dict[str, list[str]]:
    """Paths and checksums of an earlier report; none where the note is missing or damaged. Never a path outside."""
    try:
        plain = json.loads((folder / WRITTEN).read_text(encoding="utf-8"))
        checksums = {str(name): [str(s) for s in sums] for name, sums in plain.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    inside = {PAGE, CITATIONS}
    return {
        name: sums
        for name, sums in checksums.items()
        if name in inside
        or re.fullmatch(r"[a-z]+\.csv", name)
        or (name.count("/") == 1 and name.split("/")[0] in (FIGURES, TABLES) and ".." not in name)
    }
