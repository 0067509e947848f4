"""One self-contained HTML page: opens from disk, needs no network, shows every number of a result."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from stratoscope.core.result import Comparison, Layer, Matrix, Values
from stratoscope.report.axes import color_range, printable
from stratoscope.report.references import to_cite
from stratoscope.report.series import Series, drift_series, in_order, localization_series
from stratoscope.report.words import headline, observations


def page(comparison: Comparison, *, descriptions: Mapping[str, str] | None = None) -> str:
    """The whole page as text; `descriptions` says in one line what each measure is.

    Names in a result are untrusted: in HTML they are escaped, in the inlined JSON `<`, `>` and `&` are written as
    escapes, and a content policy lets only our two scripts run, by their hashes.
    """
    from plotly.offline.offline import get_plotlyjs

    plotly, script = str(get_plotlyjs()), _asset("page.js")  # type: ignore[no-untyped-call]
    names = [printable(m.name) for m in comparison.models]
    return Template(_asset("page.html")).substitute(
        policy=escape(_policy(plotly, script)),
        title=_html("Layers of " + ", ".join(names)),
        style=_asset("page.css"),
        summary=_html(_summary(comparison)),
        models_title=" ".join(f'<span class="model">{_html(name)}</span>' for name in names),
        measures=_options(comparison, comparison.matrices and headline(comparison).measure),
        words="".join(f"<li>{_html(s)}</li>" for s in observations(comparison)),
        warnings=_warnings(comparison.warnings),
        blocks=_blocks(comparison),
        models=_models(comparison),
        data=_facts(comparison.data),
        provenance=_facts(comparison.provenance),
        references="".join(f"<li>{_html(r)}</li>" for r in to_cite(comparison)),
        result=_json(_payload(comparison, descriptions or {})),
        plotly=plotly,
        script=script,
    )


def _asset(name: str) -> str:
    return files("stratoscope.report").joinpath(name).read_text(encoding="utf-8")


def _html(text: object) -> str:
    return escape(printable(str(text)))


def _json(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can close the element or open a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


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
            **{k: _rounded(getattr(m, k)) for k in ("values", "low", "high")},
        }

    def series(s: Series) -> dict[str, Any]:
        return {"layers": s.layers, **{k: _rounded(getattr(s, k)) for k in ("values", "low", "high")}}

    drift = in_order(comparison.findings.get("drift", {}), comparison)
    return {
        "models": [printable(name) for name in names],
        "matrices": [matrix(m) for m in comparison.matrices],
        "drift": {
            m: [
                {"models": [place[p["first"]], place[p["second"]]], **series(drift_series(comparison[m], p))}
                for p in pairs
            ]
            for m, pairs in drift.items()
        },
        "localization": [{"models": [place[name]], **series(s)} for name, s in localization_series(comparison).items()],
    }


def _rounded(values: Values | None) -> Any:
    """Nested lists of six digits; null where there is no number."""
    if values is None:
        return None
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    return [round(float(v), 6) if np.isfinite(v) else None for v in values]


def _summary(comparison: Comparison) -> str:
    data = comparison.data
    rows = f"{data['rows']:,} rows" if isinstance(data.get("rows"), int) else ""
    unit = f"unit {data['unit']}" if data.get("unit") else ""
    measures = f"{len(comparison)} measure{'' if len(comparison) == 1 else 's'}"
    return " · ".join(part for part in (str(data.get("name") or ""), unit, rows, measures) if part)


def _options(names: Iterable[str], chosen: object) -> str:
    return "".join(
        f'<option value="{escape(name)}"{" selected" if name == chosen else ""}>{_html(name)}</option>'
        for name in names
    )


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return "<p>None.</p>"
    return f"<ul>{''.join(f'<li>{_html(w)}</li>' for w in warnings)}</ul>"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int = 0) -> str:
    """A table whose first column names the row and whose last `numbers` columns are numbers."""
    first_number = len(head) - numbers

    def kind(k: int) -> str:
        return ' class="number"' if k >= first_number else ""

    top = "".join(f'<th scope="col"{kind(k)}>{_html(h)}</th>' for k, h in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{_html(row[0])}</th>'
        + "".join(f"<td{kind(k)}>{_html(cell)}</td>" for k, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _blocks(comparison: Comparison) -> str:
    """One table a measure; the script shows the chosen one."""
    head = ("Model", "Contrast", "Within", "Between", "Second block")
    tables = []
    names = [m.name for m in comparison.models]
    for measure, found in in_order(comparison.findings.get("blocks", {}), comparison).items():
        rows = [
            (name, *(f"{b[k]:.3f}" for k in ("contrast", "within", "between")), f"from {b['start']}")
            for name, b in in_order(found, names).items()
        ]
        tables.append(f'<div data-measure="{escape(measure)}">{_table(head, rows, numbers=4)}</div>')
    return "".join(tables) or "<p>Not computed in this result.</p>"


def _models(comparison: Comparison) -> str:
    head = ("Model", "Source", "Family", "Fingerprint", "Layers", "Width")
    rows = [(m.name, m.source, m.family, m.fingerprint, m.layers, m.width) for m in comparison.models]
    return _table(head, rows, numbers=2)


def _facts(facts: Mapping[str, Any]) -> str:
    """A definition list of plain data; a mapping inside becomes a list of `key: value`."""
    if not facts:
        return "<p>Nothing recorded.</p>"
    known = {k: v for k, v in sorted(facts.items()) if v is not None}
    return f"<dl>{''.join(f'<dt>{_html(k)}</dt><dd>{_fact(v)}</dd>' for k, v in known.items())}</dl>"


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        items = "".join(f"<li>{_html(k)}: {_fact(v)}</li>" for k, v in sorted(value.items()))
        return f"<ul>{items}</ul>" if items else "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_fact, value)) or "none"
    return _html(f"{value:,}" if type(value) is int and abs(value) >= 1_000 else value)
