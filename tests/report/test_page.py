from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from stratoscope.report.page import page

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script><!--", '"><b>&amp;')


class Seen(HTMLParser):
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


def payload(seen: Seen):
    return json.loads(seen.scripts[0])


def test_hostile_names_are_text_everywhere(make_comparison):
    made = make_comparison(HOSTILE)
    made = dataclasses.replace(
        made,
        warnings=(HOSTILE[0],),
        data={HOSTILE[0]: HOSTILE[1], "rows": 9, "dropped": {HOSTILE[1]: HOSTILE[0]}},
        provenance={"options": [HOSTILE[0]], "absent": None},
    )
    text = page(made, descriptions={"ckasim": HOSTILE[1]})
    seen = Seen(text)
    tags = [tag for tag, _ in seen.tags]
    assert "img" not in tags
    assert "b" not in tags
    assert len(seen.scripts) == 3
    assert not [attrs for _, attrs in seen.tags if any(name.startswith("on") for name in attrs)]
    assert "absent" not in seen.text
    assert payload(seen)["models"] == list(HOSTILE)
    assert not set("<>&") & set(seen.scripts[0]), "nothing in the JSON may end its element or begin a comment"
    assert HOSTILE[0] in seen.text
    assert HOSTILE[1] in seen.text


def test_hostile_measure_names_stay_inside_their_attributes(make_matrix, comparison):
    matrix = dataclasses.replace(comparison["ckasim"], measure=HOSTILE[2])
    blocks = {"blocks": {HOSTILE[2]: comparison.findings["blocks"]["ckasim"]}}
    seen = Seen(page(dataclasses.replace(comparison, matrices=(matrix,), findings=blocks)))
    assert "b" not in [tag for tag, _ in seen.tags]
    (option,) = [attrs for tag, attrs in seen.tags if tag == "option"]
    assert option["value"] == HOSTILE[2]
    assert [attrs["data-measure"] for _, attrs in seen.tags if "data-measure" in attrs] == [HOSTILE[2]]


def test_nothing_is_loaded_from_elsewhere(comparison):
    seen = Seen(page(comparison))
    for tag, attrs in seen.tags:
        assert "src" not in attrs, tag
        assert tag != "link" or attrs["href"] == "data:,"


def test_only_our_two_scripts_may_run(comparison):
    seen = Seen(page(comparison))
    (policy,) = [a["content"] for tag, a in seen.tags if tag == "meta" and "http-equiv" in a]
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    got = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in seen.scripts[1:]]
    assert allowed == got
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_values_arrive_with_intervals_and_gaps(comparison):
    sent = payload(Seen(page(comparison)))
    matrix = next(m for m in sent["matrices"] if m["measure"] == "neuronsim")
    i, j = matrix["rows"].index([1, 5]), matrix["columns"].index([0, 3])
    assert matrix["values"][i][j] == pytest.approx(comparison["neuronsim"].at(("tuned", 5), ("base", 3)), abs=1e-6)
    assert matrix["values"][i][j] != matrix["values"][j][i]
    assert matrix["values"][0][0] is None
    assert matrix["low"][i][j] < matrix["values"][i][j] < matrix["high"][i][j]
    assert next(m for m in sent["matrices"] if m["measure"] == "svsim")["low"] is None
    assert next(m for m in sent["matrices"] if m["measure"] == "ckasim-debiased")["range"][0] < 0
    curve = sent["drift"]["ckasim"][0]
    assert (curve["models"], curve["layers"]) == ([0, 1], list(range(13)))
    assert curve["values"][0] is None
    assert curve["values"][1:] == pytest.approx(comparison.findings["drift"]["ckasim"][0]["same_layer"][1:], abs=1e-6)
    assert curve["low"][12] == pytest.approx(comparison["ckasim"].between("base", "tuned").low[12, 12], abs=1e-6)


def test_chosen_layers_keep_their_numbers(some_layers):
    sent = payload(Seen(page(some_layers)))
    assert sent["matrices"][0]["rows"] == [[0, 4], [0, 8], [0, 12], [1, 4], [1, 8], [1, 12]]
    assert sent["drift"]["ckasim"][0]["layers"] == sent["localization"][1]["layers"] == [4, 8, 12]


def test_descriptions_are_shown_and_hold_for_the_best_fraction_too(comparison):
    sent = payload(Seen(page(comparison, descriptions={"neuronsim": "best matching neuron"})))
    told = {m["measure"]: m["description"] for m in sent["matrices"]}
    assert told["neuronsim"] == told["neuronsim@0.1"] == "best matching neuron"
    assert told["svsim"] == ""


def test_the_page_tells_models_data_provenance_warnings_and_what_to_cite(comparison):
    text = Seen(page(comparison)).text
    for m in comparison.models:
        assert m.fingerprint in text
        assert m.source in text
    for fact in (comparison.data["fingerprint"], "1,600 rows", "bootstrap: 200", "2.13.0", comparison.warnings[0]):
        assert fact in text
    for work in ("Wu, Belinkov", "Phang, Liu", "Kornblith, Norouzi", "Raghu, Gilmer"):
        assert work in text
    assert "Kriegeskorte" not in text
    assert f"{comparison.findings['blocks']['svsim']['tuned']['contrast']:.3f}" in text


def test_the_page_is_accessible_at_its_root(comparison):
    seen = Seen(page(comparison))
    assert dict(seen.tags)["html"]["lang"] == "en"
    labels = {attrs["for"] for tag, attrs in seen.tags if tag == "label"}
    assert labels == {attrs["id"] for tag, attrs in seen.tags if tag == "select"} == {"measure", "view"}
    assert "Layers of base, tuned, mini" in seen.text
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["aria-labelledby"] for _, attrs in seen.tags if "aria-labelledby" in attrs} <= set(ids)


def test_the_same_result_gives_the_same_page(make_comparison):
    assert page(make_comparison()) == page(make_comparison())


def test_a_result_without_findings_still_has_a_page(comparison):
    text = Seen(page(dataclasses.replace(comparison, findings={}, provenance={}, warnings=()))).text
    assert "Not computed in this result." in text
    assert "Nothing recorded." in text
    assert "None." in text
