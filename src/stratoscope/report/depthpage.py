"""The report of a depth result: two figures in three formats, and a page that shows every number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stratoscope.core.files import write_text
from stratoscope.report.axes import printable
from stratoscope.report.depthplots import (
    little_loss,
    skip_caption,
    skip_range,
    skipping,
    truncation,
    truncation_caption,
)
from stratoscope.report.depthwords import depth_observations, metric_name, shown
from stratoscope.report.references import to_cite
from stratoscope.report.shell import bullets, document, facts, fill, html, model_table, rounded, table, warning_list
from stratoscope.report.write import PAGE, write_figures
from stratoscope.results.depth import Depth


def write_depth(folder: str | Path, depth: Depth) -> list[Path]:
    """Write `figures/truncation.*`, `figures/skip.*` and `report.html`; return their paths, the page last."""
    folder = Path(folder)
    written = write_figures(folder, depth_figures(depth))
    write_text(folder / PAGE, depth_page(depth))
    return [*written, folder / PAGE]


def depth_figures(depth: Depth) -> Iterator[tuple[str, Figure]]:
    """The figures there is something to draw in, with their file names."""
    if depth.curves:
        yield "truncation", truncation(depth)
    if depth.skip is not None:
        yield "skip", skipping(depth)


def depth_page(depth: Depth) -> str:
    """The whole page as text."""
    task = str(depth.task.get("name") or "task")
    rows = depth.task.get("n_validation")
    told = [task, metric_name(depth), *([f"{rows:,} validation rows"] if isinstance(rows, int) else [])]
    return document(
        title=f"Depth of {depth.model.name} on {task}",
        heading=[depth.model.name],
        summary=" · ".join(told),
        main=fill(
            "depth.html",
            words=bullets(depth_observations(depth)),
            depth=depth_part(depth),
            warnings=warning_list(depth.warnings),
            models=model_table([m for m in (depth.model, depth.base) if m]),
            task=facts(depth.task),
            provenance=facts(depth.provenance),
            references=bullets(r for r in to_cite(()) if r.startswith("Phang")),
        ),
        result={"depth": depth_payload(depth)},
        scripts=("depth.js",),
    )


def depth_part(depth: Depth) -> str:
    """The two sections with the pictures, for this page or a study's."""
    return fill(
        "depthpart.html",
        metric=html(metric_name(depth)),
        truncation_caption=html(truncation_caption(depth) if depth.curves else "No truncation curves in this result."),
        curves=_curve_table(depth),
        skips=_skip_table(depth),
        skip_caption=html(skip_caption(depth) if depth.skip is not None else "No skip matrix in this result."),
    )


def depth_payload(depth: Depth) -> dict[str, Any]:
    """What `depth.js` draws."""
    lines = (
        ("whole model", depth.full.value, "solid", "--ink"),
        ("bag of words", depth.bag_of_words, "dash", "--muted"),
        ("majority", depth.majority, "dot", "--muted"),
    )
    curves = []
    for c in depth.curves:
        values, low, high = np.array([(p.value, p.low, p.high) for p in c.points]).T
        edges = {"low": rounded(low), "high": rounded(high)}
        curves.append(
            {"name": c.name.upper(), "layers": list(range(len(c.points))), "values": rounded(values), **edges}
        )
    skip = None
    if depth.skip is not None:
        skip = {
            "values": rounded(depth.skip),
            "agreement": rounded(depth.skip_agreement),
            "range": skip_range(depth),
            "little": np.argwhere(little_loss(depth)).tolist(),
        }
    return {
        "metric": printable(metric_name(depth)),
        "full": depth.full.value,
        "lines": [
            {"name": name, "value": value, "dash": dash, "tint": tint}
            for name, value, dash, tint in lines
            if not math.isnan(value)
        ],
        "curves": curves,
        "skip": skip,
    }


def _curve_table(depth: Depth) -> str:
    deepest = max((len(c.points) for c in depth.curves), default=0)
    rows: list[list[object]] = []
    for layer in range(deepest):
        points = [c.points[layer] if layer < len(c.points) else None for c in depth.curves]
        rows.append([layer, *("–" if p is None or math.isnan(p.value) else shown(p) for p in points)])
    rows.append(["whole model", *(shown(depth.full) for _ in depth.curves)])
    return table(("Layer", *(c.name.upper() for c in depth.curves)), rows, numbers=len(depth.curves))


def _skip_table(depth: Depth) -> str:
    skip = np.zeros((0, 0)) if depth.skip is None else depth.skip
    rows = [(k, *("" if math.isnan(v) else f"{v:.3f}" for v in row)) for k, row in enumerate(skip, start=1)]
    return table(("First × last", *map(str, range(1, len(skip) + 1))), rows, numbers=len(skip))
