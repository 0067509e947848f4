"""The frame of every page: one self-contained file whose names are text, whose scripts are ours, and nothing else."""

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

from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Values
from stratoscope.report.axes import printable


def document(
    *, title: str, heading: Iterable[str], summary: str, main: str, result: Mapping[str, Any], scripts: Sequence[str]
) -> str:
    """A whole page around `main`, which is HTML already; the drawing scripts, our assets by name, read `result`.

    Names in a result are untrusted: in HTML they are escaped, in the inlined JSON `<`, `>` and `&` are written as
    escapes, and a content policy lets only our two scripts run, by their hashes.
    """
    from plotly.offline.offline import get_plotlyjs

    plotly = str(get_plotlyjs())  # type: ignore[no-untyped-call]
    script = "".join(asset(name) for name in ("plots.js", *scripts))
    return Template(asset("shell.html")).substitute(
        policy=escape(_policy(plotly, script)),
        title=html(title),
        style=asset("page.css"),
        heading=" ".join(f'<span class="model">{html(name)}</span>' for name in heading),
        summary=html(summary),
        main=main,
        result=_json(result),
        plotly=plotly,
        script=script,
    )


def asset(name: str) -> str:
    """The text of a file that stands beside this module."""
    return files("stratoscope.report").joinpath(name).read_text(encoding="utf-8")


def fill(name: str, **parts: str) -> str:
    """An HTML asset with its `$names` replaced by HTML."""
    return Template(asset(name)).substitute(parts)


def html(text: object) -> str:
    """Text as HTML, in an element or in a quoted attribute."""
    return escape(printable(str(text)))


def bullets(texts: Iterable[object]) -> str:
    """List items."""
    return "".join(f"<li>{html(t)}</li>" for t in texts)


def warning_list(warnings: Sequence[str]) -> str:
    """The warnings, or that there are none."""
    return f"<ul>{bullets(warnings)}</ul>" if warnings else "<p>None.</p>"


def options(names: Iterable[str], chosen: object = None) -> str:
    """Choices of a select element."""
    return "".join(
        f'<option value="{escape(name)}"{" selected" if name == chosen else ""}>{html(name)}</option>' for name in names
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int = 0) -> str:
    """A table whose first column names the row and whose last `numbers` columns are numbers."""
    first_number = len(head) - numbers

    def kind(k: int) -> str:
        return ' class="number"' if k >= first_number else ""

    top = "".join(f'<th scope="col"{kind(k)}>{html(h)}</th>' for k, h in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{html(row[0])}</th>'
        + "".join(f"<td{kind(k)}>{html(cell)}</td>" for k, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def model_table(models: Iterable[ModelInfo]) -> str:
    """What a reader needs to run the models again."""
    head = ("Model", "Source", "Family", "Fingerprint", "Layers", "Width")
    return table(head, [(m.name, m.source, m.family, m.fingerprint, m.layers, m.width) for m in models], numbers=2)


def facts(known: Mapping[str, Any]) -> str:
    """A definition list of plain data; a mapping inside becomes a list of `key: value`."""
    if not known:
        return "<p>Nothing recorded.</p>"
    told = {k: v for k, v in sorted(known.items()) if v is not None}
    return f"<dl>{''.join(f'<dt>{html(k)}</dt><dd>{_fact(v)}</dd>' for k, v in told.items())}</dl>"


def rounded(values: Values | None) -> Any:
    """Nested lists of six digits; null where there is no number."""
    if values is None:
        return None
    if values.ndim > 1:
        return [rounded(row) for row in values]
    return [round(float(v), 6) if np.isfinite(v) else None for v in values]


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


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        items = "".join(f"<li>{html(k)}: {_fact(v)}</li>" for k, v in sorted(value.items()))
        return f"<ul>{items}</ul>" if items else "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_fact, value)) or "none"
    return html(f"{value:,}" if type(value) is int and abs(value) >= 1_000 else value)
