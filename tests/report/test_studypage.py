from __future__ import annotations

import dataclasses
import re

import pytest
from study_cases import CUT, add_localization, add_other, make_study, quartered
from test_page import HOSTILE, Seen, payload

import stratoscope.report.write as write
from stratoscope.report.studypage import study_page, write_study
from stratoscope.report.studyparts import largest_difference

NOTE = {"figures/.written.json"}
FIGURES = ("panels-cls", "panels-mean", "drift-cls", "drift-mean", "truncation", "skip")


def test_all_files_of_a_study(tmp_path):
    written = write_study(tmp_path, make_study())
    want = {f"figures/{n}.{k}" for n in FIGURES for k in ("png", "svg", "pdf")} | {"report.html"}
    assert {str(p.relative_to(tmp_path)) for p in written} == want
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == want | NOTE
    assert written[-1].name == "report.html"


def test_the_page_holds_the_numbers_of_every_part():
    parts = make_study()
    seen = Seen(study_page(parts))
    cls = payload(seen)["units"][0]
    assert [m["measure"] for m in cls["measures"]] == ["ckasim", "ckasim-debiased"]
    assert [p["title"] for p in cls["measures"][0]["panels"]] == [
        "ORIG–ORIG",
        "FT–ORIG",
        "FT–FT",
        "FT[1]–FT[2]",
        "RANDOM–RANDOM",
    ]
    panel, block = cls["measures"][1]["panels"][1], parts.comparisons["cls"]["ckasim-debiased"].between("ft-1", "base")
    assert (panel["yname"], panel["xname"], panel["y"][9]) == ("ft-1", "base", "9")
    for key in ("values", "low", "high"):
        assert panel[key][9][4] == pytest.approx(getattr(block, key)[9, 4], abs=1e-6)
    assert panel["values"][0] == [None] * 13
    moved = cls["measures"][1]["drift"][0]
    assert moved["values"][9] == pytest.approx(1 - block.values[9, 9], abs=1e-6)
    assert moved["low"][9] == pytest.approx(1 - block.high[9, 9], abs=1e-6)
    assert cls["drift"][1] > max(v for v in moved["high"] if v is not None)
    assert payload(seen)["depth"]["curves"][0]["name"] == "UNTUNED"
    found = parts.comparisons["mean"].findings["blocks"]["ckasim-debiased"]
    gap = largest_difference(parts, parts.comparisons["cls"])
    for fact in (
        f"{found['ft-1']['contrast']:.3f}",
        f"{found['ft-1']['contrast'] - found['base']['contrast']:+.3f}",
        f"differ by up to {gap.size:.3f}",
        "layer 0 is constant on these rows",
        "0.907 [0.886, 0.926]",
        "24,490,000",
        "The head keeps its own pooler",
        "only 300 rows",
        "the validation rows are few",
        "random-init seed 0",
        "Kornblith, Norouzi",
        "Song, Smola",
    ):
        assert fact in seen.text, fact


def test_the_page_holds_the_panel_of_another_model():
    parts = add_other(make_study(), quartered(0.7, 0.6, 0.2))
    seen = Seen(study_page(parts))
    for unit in payload(seen)["units"]:
        for measure in unit["measures"]:
            panel = measure["panels"][4]
            assert (panel["title"], panel["yname"], panel["xname"]) == ("FT–OTHER", "ft-1", "other")
            assert (len(panel["y"]), len(panel["x"])) == (13, 7)
            assert panel["values"][12][3] == 0.2
            assert panel["values"][3][6] == 0.2
            assert panel["values"][3][3] == 0.7
            assert [moved["name"] for moved in measure["drift"]] == ["ft-1", "ft-2"], "layers of others do not drift"
    assert "mean CKA 0.70 of the lower halves" in seen.text
    assert "OTHER: other." in seen.text
    assert "roberta" in seen.text, "the table of models has it"


def test_localization_is_a_curve_a_figure_and_words(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "FORMATS", ("png",))
    parts = add_localization(make_study())
    assert {p.stem for p in write_study(tmp_path, parts)} == {*FIGURES, "localization", "report"}
    seen = Seen(study_page(parts))
    curves = payload(seen)["localization"]
    assert [c["name"] for c in curves] == ["base", "ft-1", "ft-2", "random (own layers)"]
    assert curves[1]["values"][6:8] == [0.6, 0.1]
    assert [c.get("dash") for c in curves] == [None, None, None, "dash"]
    for fact in ("Localization before and after", "localization 20,000 rows", "left out: 3 words", "Raghu, Gilmer"):
        assert fact in seen.text, fact
    assert [m["measure"] for m in payload(seen)["units"][0]["measures"]] == ["ckasim", "ckasim-debiased"]
    bare = Seen(study_page(make_study()))
    assert payload(bare)["localization"] is None
    assert "Localization" not in bare.text


def test_one_scale_for_both_measures_of_a_unit():
    ranges = [u["range"] for u in payload(Seen(study_page(make_study(bias=0.0, sharp=4.0))))["units"]]
    assert len(ranges) == 2
    assert all(low < 0 and high == 1 for low, high in ranges)


def test_hostile_names_are_text_and_nothing_is_loaded_from_elsewhere():
    parts = make_study(("<script>alert(0)</script>", *HOSTILE))
    refused = {"refused": HOSTILE[0]}
    parts = dataclasses.replace(parts, comparisons={HOSTILE[2]: parts.comparisons["cls"]}, cut=refused)
    seen = Seen(study_page(parts))
    tags = [tag for tag, _ in seen.tags]
    assert "img" not in tags
    assert "b" not in tags
    assert len(seen.scripts) == 3
    assert not set("<>&") & set(seen.scripts[0])
    for name in ("<script>alert(0)</script>", *HOSTILE):
        assert name in seen.text
    for tag, attrs in seen.tags:
        assert not [a for a in attrs if a.startswith("on")]
        assert "src" not in attrs, tag
        assert not re.match(r"https?:|//", attrs.get("href") or "")


def test_ids_are_unique_and_every_label_has_its_control():
    seen = Seen(study_page(make_study()))
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["aria-labelledby"] for _, attrs in seen.tags if "aria-labelledby" in attrs} <= set(ids)
    assert {attrs["for"] for tag, attrs in seen.tags if tag == "label"} == {"unit", "measure"}


def test_a_study_without_depth_cut_and_control(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "FORMATS", ("png",))
    parts = dataclasses.replace(make_study(), depth=None, cut=None, control=None, tuned=("ft-1",))
    assert {p.stem for p in write_study(tmp_path, parts)} == {*FIGURES[:4], "report"}
    seen = Seen(study_page(parts))
    assert payload(seen)["depth"] is None
    assert "The cut model" not in seen.text
    assert "Truncated at every layer" not in seen.text


def test_a_refused_cut_gives_its_reason():
    parts = dataclasses.replace(make_study(), cut={**CUT, "refused": "no depth stays within 0.01"})
    text = Seen(study_page(parts)).text
    assert text.count("No depth stays within 0.01.") == 2
    assert "24,490,000" not in text


def test_the_same_study_gives_the_same_page():
    assert study_page(make_study()) == study_page(make_study())
