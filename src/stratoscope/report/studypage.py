"""The report of a study: one page from the four panels to the cut model, and its figures in three formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stratoscope.core.files import write_text
from stratoscope.core.matrix import Layer
from stratoscope.report.axes import color_range, printable
from stratoscope.report.curves import localization
from stratoscope.report.depthpage import depth_figures, depth_part, depth_payload
from stratoscope.report.depthwords import shown
from stratoscope.report.page import localization_payload
from stratoscope.report.references import to_cite
from stratoscope.report.series import in_order
from stratoscope.report.shell import bullets, document, facts, fill, html, model_table, rounded, table, warning_list
from stratoscope.report.studyparts import Panel, drift, matrices, panels
from stratoscope.report.studyplots import drift_figure, panel_caption, panel_figure
from stratoscope.report.studywords import cut_sentence, study_groups
from stratoscope.report.write import PAGE, file_names, write_figures
from stratoscope.results.comparison import Comparison
from stratoscope.results.study import Study
from stratoscope.TODO.depth import Point


def write_study(folder: str | Path, parts: Study) -> list[Path]:
    """Write figures of the panels, the drift and the depth, and `report.html`; return their paths, the page last."""
    folder = Path(folder)
    written = write_figures(folder, _figures(parts))
    write_text(folder / PAGE, study_page(parts))
    return [*written, folder / PAGE]


def study_page(parts: Study) -> str:
    """The whole page as text."""
    measures = list(dict.fromkeys(m.measure for c in parts.comparisons.values() for m in matrices(c)))
    cited = [*measures, *(parts.localization or ())]
    depth = parts.depth
    task = [str(depth.task.get("name"))] if depth else []
    rows = [f"{u} {c.data['rows']:,} rows" for u, c in parts.compared.items() if isinstance(c.data.get("rows"), int)]
    warnings = [w for c in parts.compared.values() for w in c.warnings]
    warnings += depth.warnings if depth else ()
    return document(
        title=f"{parts.base} before and after fine-tuning",
        heading=[m for m in (parts.base, *parts.tuned, *parts.across, parts.control) if m],
        summary=" · ".join([*task, *rows]),
        main=fill(
            "study.html",
            units="".join(f'<option value="{k}">{html(unit)}</option>' for k, unit in enumerate(parts.comparisons)),
            measures="".join(f'<option value="{escape(m)}">{html(m)}</option>' for m in measures),
            base=html(parts.base),
            captions="".join(
                f'<p class="note" data-unit="{k}">{html(panel_caption(parts, u))}</p>'
                for k, u in enumerate(parts.comparisons)
            ),
            blocks=_blocks(parts),
            words="".join(
                f'<div><h3>{html(head)}</h3><ul class="words">{bullets(said)}</ul></div>' for head, said in _said(parts)
            ),
            localization=fill("localizationpart.html") if parts.localization else "",
            depth=depth_part(depth) if depth else "",
            cut=_cut(parts.cut) if parts.cut is not None else "",
            warnings=warning_list(list(dict.fromkeys(warnings))),
            models=model_table(parts.models),
            data=facts({u: c.data for u, c in parts.compared.items()} | ({"task": depth.task} if depth else {})),
            provenance=facts(
                {u: c.provenance for u, c in parts.compared.items()} | ({"depth": depth.provenance} if depth else {})
            ),
            references=bullets(to_cite(cited)),
        ),
        result={
            "units": [_unit_payload(parts, c) for c in parts.comparisons.values()],
            "localization": localization_payload(parts.localization) if parts.localization else None,
            "depth": depth_payload(depth) if depth else None,
        },
        scripts=("depth.js", "study.js"),
    )


def _figures(parts: Study) -> Iterator[tuple[str, Figure]]:
    for unit, name in file_names(parts.comparisons).items():
        yield f"panels-{name}", panel_figure(parts, unit)
        moved = drift_figure(parts, unit)
        if moved is not None:
            yield f"drift-{name}", moved
    if parts.localization is not None:
        yield "localization", localization(parts.localization)
    if parts.depth is not None:
        yield from depth_figures(parts.depth)


def _said(parts: Study) -> Iterator[tuple[str, list[str]]]:
    """The words without warnings, which have a section of their own."""
    for head, said in study_groups(parts):
        yield head, [s for s in said if not s.startswith("Warning: ")]


def _unit_payload(parts: Study, comparison: Comparison) -> dict[str, Any]:
    found = matrices(comparison)
    shown_panels = {m.measure: panels(parts, m) for m in found}
    moved = {m.measure: [(name, drift(m, parts.base, name)) for name in parts.tuned] for m in found}
    tops = [s.values if s.high is None else s.high for line in moved.values() for _, s in line if s is not None]
    known = np.concatenate(tops) if tops else np.zeros(0)
    most = float(np.nanmax(known)) if np.isfinite(known).any() else 1.0
    return {
        "range": color_range([p.matrix for line in shown_panels.values() for p in line]),
        "drift": [min(0.0, -0.03 * most), 1.05 * most if most > 0 else 1.0],
        "measures": [
            {
                "measure": measure,
                "panels": [_panel_payload(p) for p in line],
                "drift": [
                    {
                        "name": printable(name),
                        "layers": s.layers,
                        **{k: rounded(getattr(s, k)) for k in ("values", "low", "high")},
                    }
                    for name, s in moved[measure]
                    if s is not None
                ],
            }
            for measure, line in shown_panels.items()
        ],
    }


def _panel_payload(panel: Panel) -> dict[str, Any]:
    def layers(axis: tuple[Layer, ...]) -> list[str]:
        return [str(layer.index) for layer in axis]

    matrix = panel.matrix
    return {
        "title": panel.title,
        "x": layers(matrix.columns),
        "y": layers(matrix.rows),
        "xname": printable(matrix.columns[0].model),
        "yname": printable(matrix.rows[0].model),
        **{k: rounded(getattr(matrix, k)) for k in ("values", "low", "high")},
    }


def _blocks(parts: Study) -> str:
    """One table a unit and measure, the untuned model first; the script shows the chosen one."""
    head = ("Model", "Contrast", "Minus untuned's", "Within", "Between", "Second block")
    order = [m for m in (parts.base, *parts.tuned, *parts.across, parts.control) if m]
    tables = []
    for k, comparison in enumerate(parts.comparisons.values()):
        for measure, found in in_order(
            comparison.findings.get("blocks", {}), [m.measure for m in matrices(comparison)]
        ).items():
            own = found.get(parts.base, {}).get("contrast")
            rows = [
                (
                    name,
                    f"{b['contrast']:.3f}",
                    "–" if own is None or name in (parts.base, *parts.across) else f"{b['contrast'] - own:+.3f}",
                    f"{b['within']:.3f}",
                    f"{b['between']:.3f}",
                    f"from {b['start']}",
                )
                for name, b in in_order(found, order).items()
            ]
            tables.append(f'<div data-unit="{k}" data-measure="{escape(measure)}">{table(head, rows, numbers=5)}</div>')
    return "".join(tables) or "<p>Not computed in this study.</p>"


def _cut(cut: Mapping[str, Any]) -> str:
    head = '<section aria-labelledby="h-cut"><h2 id="h-cut">The cut model</h2>'
    text = f"{head}<p>{html(cut_sentence(cut))}</p>"
    if not cut.get("refused"):
        rows = [
            ("Blocks", cut["model"]["blocks"], len(cut["kept"])),
            (cut["metric"], *(shown(Point(**cut[when])) for when in ("before", "after"))),
            ("Parameters", *(f"{cut['parameters'][when]:,}" for when in ("before", "after"))),
            ("Time for the same rows", "1.00", f"{cut['latency']['ratio']:.2f}"),
        ]
        text += table(("", "Before", "After"), rows, numbers=2)
    return f"{text}</section>"
