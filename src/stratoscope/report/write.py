"""Put a report into a run folder: figures in three formats and the page, each file whole or absent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from stratoscope.core.files import atomic, canonical_json, file_sha256, write_text
from stratoscope.report.curves import drift, localization
from stratoscope.report.heatmap import heatmap
from stratoscope.report.page import page
from stratoscope.report.render import FORMATS, render
from stratoscope.results.comparison import Comparison
from stratoscope.runs.folder import FIGURES

PAGE = "report.html"
WRITTEN = ".written.json"
"""In the folder of figures: checksums of those written here, so that only they are ever removed."""


def write_report(
    folder: str | Path, comparison: Comparison, *, descriptions: Mapping[str, str] | None = None
) -> list[Path]:
    """Write `figures/*.png|svg|pdf` and `report.html`, and return their paths; the page comes last."""
    folder = Path(folder)
    written = write_figures(folder, _figures(comparison))
    write_text(folder / PAGE, page(comparison, descriptions=descriptions))
    return [*written, folder / PAGE]


def write_figures(folder: Path, figures: Iterable[tuple[str, Figure]]) -> list[Path]:
    """Write each figure in every format, whole or not at all; those of a former report go, a user's own stay."""
    written = []
    for name, figure in figures:
        for kind in FORMATS:
            path = folder / FIGURES / f"{name}.{kind}"
            with atomic(path) as f:
                f.write(render(figure, kind))
            figure.set_layout_engine("none")  # found once, it holds for the other formats
            written.append(path)
    _remove_stale(folder / FIGURES, written)
    return written


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


def _remove_stale(figures: Path, written: list[Path]) -> None:
    """Remove what an earlier report wrote, unchanged since, and is not written now; then note what is."""
    now = {path.name: file_sha256(path) for path in written}
    for name, sha256 in _written(figures).items():
        path = figures / Path(name).name
        if name not in now and path.is_file() and file_sha256(path) == sha256:
            path.unlink()
    write_text(figures / WRITTEN, canonical_json(now))


def _written(figures: Path) -> dict[str, str]:
    """Names and checksums of an earlier report's figures; none where the note is missing or damaged."""
    try:
        plain = json.loads((figures / WRITTEN).read_text(encoding="utf-8"))
        return {str(name): str(sha256) for name, sha256 in plain.items()}
    except (OSError, ValueError, AttributeError):
        return {}
