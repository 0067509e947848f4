"""The page of any result, one file that needs no network: the answer, statements, pictures, what is behind them."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from stratoscope.core.model import ModelInfo
from stratoscope.core.record import to_plain
from stratoscope.core.statement import VERDICTS, Statement
from stratoscope.report import draw
from stratoscope.report.cite import Work, short, works_of
from stratoscope.report.labels import estimate, interval, number, printable, shown, slugs
from stratoscope.report.outline import (
    MARKS,
    Card,
    Section,
    Sections,
    Switch,
    about,
    about_text,
    answer,
    premises,
    sections_of,
    tally,
)
from stratoscope.report.pictures import PALETTE, SCALE, Heads, Heatmap, Panels, Patterns, Picture, Table
from stratoscope.results.result import Result

ASK = "Point at a cell to read its numbers."
SHORT = 16
"""Letters of the longest cell of a column up to which none of it is broken at a blank or hyphen."""
LONG = 22
"""Letters of a card's value beyond which it is written smaller."""
STATEMENT = ("Verdict", "Claim", "About", "D", "Source")
DIGITS = 7
"""Significant digits of the numbers that the browser gets."""


def page(result: Result) -> str:
    """The whole page as text.

    Names in a result are untrusted: in HTML they are escaped, in the inlined JSON `<`, `>` and `&` are written as
    escapes, and a content policy lets only our two scripts run, by their hashes.
    """
    from plotly.offline.offline import get_plotlyjs

    sections = sections_of(result)
    works = works_of(sections.measures, result.statements, sections.works)
    parts = list(_parts(result, sections, works))
    plotly, script = str(get_plotlyjs()), _asset("page.js")  # type: ignore[no-untyped-call]
    return Template(_asset("frame.html")).substitute(
        policy=escape(_policy(plotly, script)),
        style=_asset("page.css"),
        title=html(sections.title),
        models="".join(f'<li class="model">{html(m)}</li>' for m in dict.fromkeys(m.name for m in sections.models)),
        summary=html(" · ".join(sections.summary)),
        links="".join(f'<a href="#section-{id}">{html(title)}</a>' for id, title, _ in parts if title),
        cards=_cards(answer(result, sections)),
        main="".join(content for _, _, content in parts),
        result=_json(_payload(sections)),
        plotly=plotly,
        script=script,
    )


def notebook(result: Result) -> str:
    """A result in a notebook: cards, statements and the first picture, without any script."""
    sections = sections_of(result)
    first = sections.first
    picture = ""
    if first is not None:
        png = base64.b64encode(draw.render(draw.figure(first), "png")).decode()
        picture = (
            f'<p><img alt="{html(first.title)}" style="max-width:100%;background:#fff" '
            f'src="data:image/png;base64,{png}"></p><p><small>{html(first.caption)}</small></p>'
        )
    border = "border:1px solid #8884;border-radius:6px;padding:4px 10px"
    cards = "".join(
        f'<div style="{border}"><small>{html(c.label)}</small><br><b>{html(c.value)}</b><br>'
        f"<small>{html(c.note)}</small></div>"
        for c in answer(result, sections)
    )
    table = statement_table(result.statements) if result.statements else ""
    return (
        f'<div class="stratoscope"><h3>{html(sections.title)}</h3>'
        f'<div style="display:flex;flex-wrap:wrap;gap:8px">{cards}</div>{table}{picture}</div>'
    )


def statement_table(statements: Sequence[Statement]) -> str:
    """Statements in a notebook: what they take for granted, how many hold, a row for each."""
    rows = [(s.verdict, s.claim, about_text(s), shown(s.value), s.source) for s in statements]
    return (
        f"<p>{html(premises(statements))}</p><details open><summary>{html(tally(statements))}</summary>"
        f"{_rows(STATEMENT, rows, [False] * 5)}</details>"
    )


def html(text: object) -> str:
    """Text as HTML, in an element or in a quoted attribute."""
    return escape(printable(text))


def _parts(result: Result, sections: Sections, works: Sequence[Work]) -> Iterator[tuple[str, str, str]]:
    """Every part of the page: its id, what a link to it says (nothing where there is none), its content."""
    if result.statements:
        yield "statements", "Published claims", _statements(result.statements, works)
    if sections.switches:
        yield "", "", f'<div id="switches" class="bar" hidden>{"".join(map(_switch, sections.switches))}</div>'
    for section in sections.sections:
        yield section.id, section.title, _section(section, sections.switches)
    if sections.warnings:
        items = "".join(f"<li>{html(w)}</li>" for w in sections.warnings)
        yield "warnings", f"Warnings ({len(sections.warnings)})", _box("warnings", "Warnings", f"<ul>{items}</ul>")
    folded = _fold("models", "Models", _model_table(sections.models)) if sections.models else ""
    folded += "".join(_fold(_id(title), title, _facts(facts)) for title, facts in sections.facts.items())
    yield "background", "Models and data", _box("background", "Models, data and provenance", folded)
    if works:
        yield "cite", "Cite", _box("cite", "What to cite", _citations(works))


def _box(id: str, title: str, content: str, kind: str = "") -> str:
    anchor = f'<a class="anchor" href="#section-{id}" aria-label="Link to this section">#</a>'
    style = f' class="{kind}"' if kind else ""
    return (
        f'<section id="section-{id}"{style} aria-labelledby="h-{id}"><h2 id="h-{id}">{html(title)} {anchor}</h2>'
        f"{content}</section>\n"
    )


def _cards(cards: Iterable[Card]) -> str:
    return "".join(
        f'<li class="card{" caution" if c.caution else ""}"><span class="label">{html(c.label)}</span>'
        f"<strong{' class=long' if len(c.value) > LONG else ''}>{html(c.value)}</strong>"
        f'<span class="note">{html(c.note)}</span></li>'
        for c in cards
    )


def _statements(statements: Sequence[Statement], works: Sequence[Work]) -> str:
    ids, known = slugs(s.id for s in statements), {w.short: w for w in works}
    counts = {v: sum(s.verdict == v for s in statements) for v in VERDICTS}
    buttons = "".join(
        f'<button type="button" aria-pressed="false" data-verdict="{_id(v)}">{_chip(v)} {n}</button>'
        for v, n in counts.items()
        if n
    )
    head = "".join(f'<th scope="col">{h}</th>' for h in STATEMENT)
    rows = "".join(_statement(s, ids[s.id], known.get(short(s.source))) for s in statements)
    return _box(
        "statements",
        "Do published claims hold here?",
        (f'<p class="premise">{assumed}</p>' if (assumed := html(premises(statements))) else "")
        + f'<div id="filter" class="bar" hidden><span role="group" aria-label="Verdicts">{buttons}</span>'
        '<label for="find">Find <input id="find" type="search" placeholder="model, measure, paper …"></label>'
        '<span id="matches" class="note" aria-live="polite"></span></div>'
        f'<table class="statements"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        '<p class="note">D is the tested difference; a claim holds where D and its interval lie above the margin, and '
        "does not hold where they lie below. Intervals: of D itself, over resampled data.</p>",
    )


def _statement(s: Statement, id: str, work: Work | None) -> str:
    numbers = " · ".join(f"{printable(k)} {number(v)}" for k, v in sorted(s.numbers.items()))
    more = f"<p>{html(s.text)}</p>" if s.text else ""
    more += f'<p class="note">{html(numbers)}</p>' if numbers else ""
    claim = f"<details><summary>{html(s.claim)}</summary>{more}</details>" if more else html(s.claim)
    reason = f'<p class="note reason">{html(s.reason)}</p>' if s.reason else ""
    tags = "".join(f'<span class="tag"><i>{html(k)}</i> {html(v)}</span> ' for k, v in about(s).items())
    tested = f"<b>{estimate(s.value)}</b> <span>{interval(s.value)}</span>" if s.value.known else "–"
    margin = f'<span class="note">margin {f"{s.margin:g}".replace("-", "−")}</span>' if s.value.known else ""
    source = f'<a href="#work-{work.key}">{html(s.source)}</a>' if work else html(s.source)
    anchor = f'<a class="anchor" href="#statement-{id}" aria-label="Link to this statement">#</a>'
    return (
        f'<tr id="statement-{id}" data-verdict="{_id(s.verdict)}"><td>{_chip(s.verdict)}{anchor}</td>'
        f"<td>{claim}{reason}</td><td>{tags}</td>"
        f'<td class="tested">{tested} {margin}</td><td>{source}</td></tr>'
    )


def _chip(verdict: str) -> str:
    return f'<span class="chip {_id(verdict)}"><span aria-hidden="true">{MARKS[verdict]}</span> {html(verdict)}</span>'


def _switch(switch: Switch) -> str:
    options = "".join(
        f'<option value="{escape(o)}"{" selected" if o == switch.chosen else ""}>{html(o)}</option>'
        for o in switch.options
    )
    id = f"switch-{switch.name}"
    select = f'<select id="{id}" data-switch="{switch.name}">{options}</select>'
    return f'<label for="{id}">{html(switch.label)} {select}</label>'


def _section(section: Section, switches: Sequence[Switch]) -> str:
    chosen = {s.name: s.chosen for s in switches}
    content = f"<p>{html(section.lead)}</p>" if section.lead else ""
    content += "".join(_picture(p, chosen) for p in section.pictures) + "".join(
        _table(t, chosen) for t in section.tables
    )
    return _box(section.id, section.title, content, section.width)


def _when(picture: Picture, chosen: Mapping[str, str]) -> str:
    """Attributes that say under which choices a picture is shown."""
    if not picture.when:
        return ""
    hidden = "" if all(chosen.get(k) == v for k, v in picture.when.items()) else " hidden"
    return f' data-when="{escape(json.dumps(dict(picture.when)))}"{hidden}'


def _picture(p: Picture, chosen: Mapping[str, str]) -> str:
    ask = ASK if isinstance(p, Heatmap | Panels | Heads | Patterns) else ""
    return (
        f'<figure data-picture="{p.id}"{_when(p, chosen)}><div class="controls"></div>'
        f'<div id="picture-{p.id}" class="plot" role="img" aria-label="{html(p.title)}"></div>'
        f'<p class="readout" aria-live="polite">{ask}</p><figcaption>{html(p.caption)}</figcaption>'
        '<details class="values"><summary>Values as a table</summary><div class="scroll" tabindex="0"></div></details>'
        "</figure>"
    )


def _table(t: Table, chosen: Mapping[str, str]) -> str:
    rows = _rows(t.head, t.texts(), [t.is_number(k) for k in range(len(t.head))])
    find = (
        f'<div class="bar" hidden><label>Find <input type="search" data-search placeholder="{html(t.search)}"></label>'
        '<span class="note" aria-live="polite"></span></div>'
    )
    return (
        f'<figure class="table"{_when(t, chosen)}><h3>{html(t.title)}</h3>{find if t.search else ""}{rows}'
        f"<figcaption>{html(t.caption)}</figcaption></figure>"
    )


def _rows(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[bool]) -> str:
    rows = list(rows)
    columns = [[str(row[k]) for row in rows] for k in range(len(head))]
    short = [any(set(" -") & set(c) for c in cells) and max(map(len, cells)) <= SHORT for cells in columns]
    kind = [' class="number"' if n else ' class="short"' if s else "" for n, s in zip(numbers, short, strict=True)]
    top = "".join(f'<th scope="col"{k}>{html(h)}</th>' for h, k in zip(head, kind, strict=True))
    body = "".join(
        f'<tr><th scope="row"{kind[0]}>{html(row[0])}</th>'
        + "".join(f"<td{k}>{html(cell)}</td>" for cell, k in zip(row[1:], kind[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _fold(id: str, title: str, content: str) -> str:
    return f'<details id="section-{id}" class="fold"><summary>{html(title)}</summary>{content}</details>'


def _model_table(models: Iterable[ModelInfo]) -> str:
    """What a reader needs to run the models again."""
    head = ("Model", "Source", "Family", "Role", "Made from", "Fingerprint", "Layers", "Width")
    rows = [(m.name, m.source, m.family, m.role, m.base or "–", m.fingerprint, m.layers, m.width) for m in models]
    return _rows(head, rows, [False] * 6 + [True] * 2)


def _facts(known: Mapping[str, Any]) -> str:
    """A definition list of plain data; a mapping inside becomes a list of its own."""
    present = {k: v for k, v in sorted(known.items()) if v is not None}
    if not present:
        return "<p>Nothing recorded.</p>"
    return f"<dl>{''.join(f'<dt>{html(k)}</dt><dd>{_fact(v)}</dd>' for k, v in present.items())}</dl>"


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return _facts(value) if value else "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_fact, value)) or "none"
    return html(f"{value:,}" if type(value) is int and abs(value) >= 10_000 else value)


def _citations(works: Sequence[Work]) -> str:
    items = "".join(f'<li id="work-{w.key}">{html(w.text)}</li>' for w in works)
    entries = "\n\n".join(escape(w.bibtex) for w in works)
    return f'<ul>{items}</ul><details class="fold bibtex"><summary>BibTeX</summary><pre>{entries}</pre></details>'


def _id(text: str) -> str:
    return printable(text).lower().replace(" ", "-")


def _payload(sections: Sections) -> dict[str, Any]:
    """What the script draws."""
    pictures = {p.id: {"type": type(p).__name__, **_rounded(to_plain(p))} for p in sections.pictures}
    return {"palette": PALETTE, "scale": SCALE, "pictures": pictures}


def _rounded(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {k: _rounded(v) for k, v in plain.items()}
    if isinstance(plain, list):
        return [_rounded(v) for v in plain]
    if isinstance(plain, float) and plain:
        return round(plain, DIGITS - 1 - math.floor(math.log10(abs(plain))))
    return plain


def _asset(name: str) -> str:
    return files("stratoscope.report").joinpath("web", name).read_text(encoding="utf-8")


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
