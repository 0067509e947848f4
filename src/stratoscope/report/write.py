"""Put a report into a run folder: figures in three formats and the page, each file whole or absent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from stratoscope.core.result import Comparison
from stratoscope.core.runfolder import atomic, write_text
from stratoscope.report.curves import drift, localization
from stratoscope.report.heatmap import heatmap
from stratoscope.report.page import page
from stratoscope.report.render import FORMATS, render

FIGURES = "figures"
PAGE = "report.html"


def write_report(
    folder: str | Path, comparison: Comparison, *, descriptions: Mapping[str, str] | None = None
) -> list[Path]:
    """Write `figures/*.png|svg|pdf` and `report.html`, and return their paths; the page comes last."""
    folder = Path(folder)
    written = []
    for name, figure in _figures(comparison):
        for kind in FORMATS:
            path = folder / FIGURES / f"{name}.{kind}"
            with atomic(path) as f:
                f.write(render(figure, kind))
            written.append(path)
    write_text(folder / PAGE, page(comparison, descriptions=descriptions))
    return [*written, folder / PAGE]


def file_names(measures: Iterable[str]) -> dict[str, str]:
    """A name for each measure that every file system takes, `neuronsim@0.1` as `neuronsim-at-0.1`; all different."""
    taken = {"localization", "drift"}
    names = {}
    for measure in measures:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", measure.replace("@", "-at-")).strip(".-") or "measure"
        name, again = safe, 2
        while name.lower() in taken:
            name, again = f"{safe}-{again}", again + 1
        taken.add(name.lower())
        names[measure] = name
    return names


def _figures(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    for measure, name in file_names(comparison).items():
        yield name, heatmap(comparison[measure])
    if comparison.findings.get("localization"):
        yield "localization", localization(comparison)
    if any(comparison.findings.get("drift", {}).values()):
        yield "drift", drift(comparison)
