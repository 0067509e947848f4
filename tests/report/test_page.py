from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_cases as cases

from results.result_cases import PROBING
from stratoscope.core.statement import VERDICTS
from stratoscope.core.value import Value
from stratoscope.report.page import notebook, page
from stratoscope.results.result import load

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script><!--", '"><b>&amp;')
GOLDEN = Path(__file__).parent / "golden"


class Parsed(HTMLParser):
    """Elements and the text of scripts, as a browser's parser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.lasttag == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.text += data

    def attributes(self, name):
        return [attrs[name] for _, attrs in self.tags if name in attrs]


@pytest.fixture(scope="module")
def pages():
    return {kind: page(make()) for kind, make in cases.SMALL.items()}


def test_cells_of_a_column_of_short_texts_are_not_broken():
    """A tag such as I-ADVP stands on one line; words in context may take several."""
    first = dataclasses.replace(PROBING.neuron_probes[0].first[0], tag="I-ADVP", words=("a long [context] of words",))
    made = dataclasses.replace(PROBING, neuron_probes=(dataclasses.replace(PROBING.neuron_probes[0], first=(first,)),))
    shown = page(made)
    assert '<th scope="row" class="short">layer 0, 3</th><td class="short">I-ADVP</td>' in shown
    assert "<td>a long [context] of words</td>" in shown


def hostile(make=cases.comparison):
    """A comparison in which every text is hostile."""
    made = make(HOSTILE, depths=(4, 4, 4))
    statement = dataclasses.replace(
        made.statements[1],
        id=HOSTILE[2],
        claim=HOSTILE[0],
        source=HOSTILE[1],
        about={HOSTILE[0]: HOSTILE[1]},
        reason=HOSTILE[2],
        numbers={HOSTILE[0]: 1.0},
        text=HOSTILE[1],
    )
    matrices = tuple(dataclasses.replace(m, measure=f"{HOSTILE[2]}{k}") for k, m in enumerate(made.matrices[:2]))
    return dataclasses.replace(
        made,
        matrices=matrices,
        findings={"blocks": {m.measure: made.findings["blocks"]["ckasim"] for m in matrices}},
        statements=(statement,),
        warnings=(HOSTILE[0],),
        data={HOSTILE[0]: HOSTILE[1], "rows": 9, "dropped": {HOSTILE[1]: HOSTILE[0]}},
        provenance={"options": [HOSTILE[0]], "nothing": None},
    )


def test_hostile_names_are_text_everywhere():
    parsed = Parsed(page(hostile()))
    tags = [tag for tag, _ in parsed.tags]
    assert "img" not in tags
    assert tags.count("b") == 1, "that of D, not one from a name"
    assert len(parsed.scripts) == 3
    assert not [attrs for _, attrs in parsed.tags if any(name.startswith("on") for name in attrs)]
    assert not set("<>&") & set(parsed.scripts[0]), "nothing in the JSON may end its element or begin a comment"
    assert HOSTILE[0] in parsed.text
    assert HOSTILE[1] in parsed.text
    assert "nothing" not in parsed.text
    options = [attrs["value"] for tag, attrs in parsed.tags if tag == "option"]
    assert options == [f"{HOSTILE[2]}0", f"{HOSTILE[2]}1"]
    assert {"measure": f"{HOSTILE[2]}0"} in [json.loads(w) for w in parsed.attributes("data-when")]
    for id in parsed.attributes("id"):
        assert re.fullmatch(r"[\w.-]+", id), id


def test_hostile_names_are_text_in_a_notebook_which_runs_nothing():
    parsed = Parsed(notebook(hostile()))
    tags = [tag for tag, _ in parsed.tags]
    assert not {"script", "style", "link", "iframe"} & set(tags)
    assert tags.count("img") == 1
    (source,) = parsed.attributes("src")
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert HOSTILE[1] in parsed.text


def test_a_notebook_shows_cards_statements_and_the_first_picture():
    result = cases.depth()
    text = Parsed(result._repr_html_()).text
    for fact in ("0.912 [0.908, 0.916]", "3 of 12", "does not hold", result.statements[0].claim, "TUNEDORIG"):
        assert fact in text


@pytest.mark.parametrize("kind", cases.SMALL)
def test_nothing_is_loaded_from_elsewhere_and_only_our_two_scripts_may_run(pages, kind):
    parsed = Parsed(pages[kind])
    assert not parsed.attributes("src")
    assert all(href == "data:," or href.startswith("#") for href in parsed.attributes("href"))
    (policy,) = [a["content"] for tag, a in parsed.tags if tag == "meta" and "http-equiv" in a]
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    got = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in parsed.scripts[1:]]
    assert allowed == got
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


@pytest.mark.parametrize("kind", cases.SMALL)
def test_ids_are_unique_links_lead_somewhere_and_labels_label(pages, kind):
    parsed = Parsed(pages[kind])
    ids = parsed.attributes("id")
    assert len(ids) == len(set(ids))
    assert {href[1:] for href in parsed.attributes("href") if href.startswith("#")} <= set(ids)
    assert {*parsed.attributes("aria-labelledby"), *parsed.attributes("for")} <= set(ids)
    assert dict(parsed.tags)["html"]["lang"] == "en"
    sections = [attrs["id"] for tag, attrs in parsed.tags if tag == "section"]
    assert all(f"#{id}" in parsed.attributes("href") for id in sections)


def test_every_statement_has_a_row_with_an_anchor_and_a_chip(pages):
    parsed = Parsed(pages["comparison"])
    rows = [attrs for tag, attrs in parsed.tags if tag == "tr" and "data-verdict" in attrs]
    assert [r["data-verdict"] for r in rows] == ["holds", "does-not-hold", "cannot-tell", "cannot-tell"]
    assert all(f"#{r['id']}" in parsed.attributes("href") for r in rows)
    for s in cases.comparison().statements:
        for fact in (s.claim, s.reason, s.source, s.text, s.verdict):
            assert fact in parsed.text
    assert "[0.412, 0.472]" in parsed.text
    assert "#work-wu2020" in parsed.attributes("href")
    classes = " ".join(filter(None, parsed.attributes("class")))
    assert all(v.replace(" ", "-") in classes for v in VERDICTS)


@pytest.mark.parametrize("shown", [page, notebook])
def test_a_premise_is_said_once_and_before_the_claims(shown):
    made = cases.cut()
    premise = {"premise": "tuned < base"}
    assumed = tuple(dataclasses.replace(s, about={**s.about, **premise}) for s in cases.statements())
    text = Parsed(shown(dataclasses.replace(made, statements=assumed))).text
    assert text.count("tuned < base") == 1
    assert text.index("Assumed, not checked: tuned < base.") < text.index(assumed[0].claim)
    assert "Assumed" not in Parsed(shown(dataclasses.replace(made, statements=cases.statements()))).text


def test_two_statements_never_share_an_anchor():
    one = cases.statements()[0]
    result = dataclasses.replace(cases.cut(), statements=(one, dataclasses.replace(one, id=one.id.replace(":", "-"))))
    ids = [i for i in Parsed(page(result)).attributes("id") if i.startswith("statement-")]
    assert len(set(ids)) == 2


def test_a_statement_close_to_zero_is_never_shown_as_zero():
    one = dataclasses.replace(cases.statements()[0], value=Value(0.0003, 0.0001, 0.0005))
    text = Parsed(page(dataclasses.replace(cases.cut(), statements=(one,)))).text
    assert "0.00030" in text


def test_the_answer_comes_before_statements_pictures_and_provenance(pages):
    for text in pages.values():
        assert "section-background" in text
    order = [
        pages["study"].index(f'id="{id}"')
        for id in (
            "answer",
            "section-statements",
            "section-layers",
            "section-cut",
            "section-warnings",
            "section-background",
            "section-cite",
        )
    ]
    assert order == sorted(order)


def test_models_data_warnings_and_citations_are_told(pages):
    text = Parsed(pages["comparison"]).text
    made = cases.comparison()
    for m in made.models:
        assert m.fingerprint in text
        assert m.source in text
    for fact in (made.data["fingerprint"], "1,600 rows", "4.2 per neuron", "2.13.0", made.warnings[0]):
        assert fact in text
    for work in ("Wu, Belinkov", "Phang, Liu", "Kornblith, Norouzi", "Raghu, Gilmer", "@inproceedings{wu2020"):
        assert work in text
    assert "Kriegeskorte" not in text


def test_values_arrive_with_intervals_gaps_and_no_resamples():
    made = cases.comparison(depths=(5, 5, 4))
    m = made.matrices[0]
    noisy = dataclasses.replace(m, replicates=None if m.low is None else m.values[None])
    sent = json.loads(Parsed(page(dataclasses.replace(made, matrices=(noisy, *made.matrices[1:])))).scripts[0])
    picture = sent["pictures"]["similarity-neuronsim"]
    i, j = picture["rows"]["names"].index("tuned:3"), picture["columns"]["names"].index("base:2")
    assert picture["values"][i][j] == pytest.approx(made["neuronsim"].at(("tuned", 3), ("base", 2)), abs=1e-6)
    assert picture["low"][i][j] < picture["values"][i][j] < picture["high"][i][j]
    assert picture["values"][0][0] is None
    assert sent["pictures"]["similarity-svsim"]["low"] is None
    assert "replicates" not in json.dumps(sent)


@pytest.mark.parametrize("kind", cases.SMALL)
def test_a_saved_result_gives_the_same_page(pages, kind, tmp_path):
    result = cases.SMALL[kind]()
    result.save(tmp_path)
    assert page(load(tmp_path)) == pages[kind]


def normalised(text):
    """The page without scripts, style and hashes, and what is drawn with three digits."""
    parsed = Parsed(text)
    body = text[text.index("<body>") : text.index('<script type="application/json"')]
    body = re.sub(r">\s*<", ">\n<", body)

    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in ("low", "high", "beside")}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return round(value, 3) if isinstance(value, float) else value

    drawn = plain(json.loads(parsed.scripts[0]))["pictures"]
    return (
        body + "\n".join(f"{id} {json.dumps(p, sort_keys=True, ensure_ascii=False)}" for id, p in drawn.items()) + "\n"
    )


@pytest.mark.parametrize("kind", cases.SMALL)
def test_the_page_is_the_golden_one(pages, kind):
    """After a wanted change: STRATOSCOPE_GOLDEN=write pytest tests/report, then read the diff."""
    path = GOLDEN / f"{kind}.txt"
    got = normalised(pages[kind])
    if os.environ.get("STRATOSCOPE_GOLDEN") == "write":
        path.write_text(got, encoding="utf-8")
    assert got == path.read_text(encoding="utf-8")
