"""The page of a comparison: every matrix, curve and number of a result in one file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from stratoscope.core.matrix import Layer, Matrix
from stratoscope.report.axes import color_range, printable
from stratoscope.report.references import to_cite
from stratoscope.report.series import ALONE, Series, alone_series, drift_series, in_order, localization_series
from stratoscope.report.shell import (
    bullets,
    document,
    facts,
    fill,
    model_table,
    options,
    rounded,
    table,
    warning_list,
)
from stratoscope.report.words import headline, observations
from stratoscope.results.comparison import Comparison


def page(comparison: Comparison, *, descriptions: Mapping[str, str] | None = None) -> str:
    """The whole page as text; `descriptions` says in one line what each measure is."""
    names = [m.name for m in comparison.models]
    return document(
        title="Layers of " + ", ".join(names),
        heading=names,
        summary=_summary(comparison),
        main=fill(
            "page.html",
            measures=options(comparison, comparison.matrices and headline(comparison).measure),
            words=bullets(observations(comparison)),
            warnings=warning_list(comparison.warnings),
            blocks=_blocks(comparison),
            models=model_table(comparison.models),
            data=facts(comparison.data),
            provenance=facts(comparison.provenance),
            references=bullets(to_cite(comparison)),
        ),
        result=_payload(comparison, descriptions or {}),
        scripts=("page.js",),
    )


def _blocks(comparison: Comparison) -> str:
    """The best split of each model, one table a measure; the script shows the chosen one."""
    head = ("Model", "Contrast", "Within", "Between", "Second block")
    tables = []
    names = [m.name for m in comparison.models]
    for measure, found in in_order(comparison.findings.get("blocks", {}), comparison).items():
        rows = [
            (name, *(f"{b[k]:.3f}" for k in ("contrast", "within", "between")), f"from {b['start']}")
            for name, b in in_order(found, names).items()
        ]
        tables.append(f'<div data-measure="{escape(measure)}">{table(head, rows, numbers=4)}</div>')
    return "".join(tables) or "<p>Not computed in this result.</p>"


def _payload(comparison: Comparison, descriptions: Mapping[str, str]) -> dict[str, Any]:
    names = list(dict.fromkeys(layer.model for m in comparison.matrices for layer in (*m.rows, *m.columns)))
    place = {name: k for k, name in enumerate(names)}

    def axis(layers: Sequence[Layer]) -> list[list[int]]:
        return [[place[layer.model], layer.index] for layer in layers]

    def matrix(m: Matrix) -> dict[str, Any]:
        return {
            "measure": m.measure,
            "description": printable(descriptions.get(m.measure, descriptions.get(m.measure.partition("@")[0], ""))),
            "range": color_range([m]),
            "rows": axis(m.rows),
            "columns": axis(m.columns),
            **{k: rounded(getattr(m, k)) for k in ("values", "low", "high")},
        }

    drift = in_order(comparison.findings.get("drift", {}), comparison)
    return {
        "models": [printable(name) for name in names],
        "matrices": [matrix(m) for m in comparison.matrices],
        "drift": {
            m: [
                {"models": [place[p["first"]], place[p["second"]]], **_series(drift_series(comparison[m], p))}
                for p in pairs
            ]
            for m, pairs in drift.items()
        },
        "localization": localization_payload(comparison),
    }


def localization_payload(comparison: Comparison) -> list[dict[str, Any]]:
    """The curves of localization by name, those of controls dashed."""
    models = [{"name": printable(name), **_series(s)} for name, s in localization_series(comparison).items()]
    controls = [
        {"name": f"{printable(name)}{ALONE}", "dash": "dash", **_series(s)}
        for name, s in alone_series(comparison).items()
    ]
    return [*models, *controls]


def _series(s: Series) -> dict[str, Any]:
    return {"layers": s.layers, **{k: rounded(getattr(s, k)) for k in ("values", "low", "high")}}


def _summary(comparison: Comparison) -> str:
    data = comparison.data
    rows = f"{data['rows']:,} rows" if isinstance(data.get("rows"), int) else ""
    unit = f"unit {data['unit']}" if data.get("unit") else ""
    measures = f"{len(comparison)} measure{'' if len(comparison) == 1 else 's'}"
    return " · ".join(part for part in (str(data.get("name") or ""), unit, rows, measures) if part)
