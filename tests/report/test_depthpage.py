from __future__ import annotations

import math
import re

import pytest
from study_cases import info, make_depth
from test_page import HOSTILE, Seen, payload

import stratoscope.report.write as write
from stratoscope.results.depth import Depth
from stratoscope.report.depthpage import depth_page, write_depth

NOTE = {"figures/.written.json"}


def test_all_files_of_a_report(tmp_path):
    written = write_depth(tmp_path, make_depth())
    want = {f"figures/{n}.{k}" for n in ("truncation", "skip") for k in ("png", "svg", "pdf")} | {"report.html"}
    assert {str(p.relative_to(tmp_path)) for p in written} == want
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == want | NOTE
    assert written[-1].name == "report.html"


def test_figures_of_a_former_report_go_and_a_users_own_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "FORMATS", ("png",))
    write_depth(tmp_path, make_depth())
    (tmp_path / "figures" / "mine.png").write_bytes(b"mine")
    write_depth(tmp_path, make_depth(skip=None, skip_agreement=None))
    assert {p.name for p in (tmp_path / "figures").glob("*.png")} == {"truncation.png", "mine.png"}


def test_a_saved_result_gives_the_same_report(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "FORMATS", ("png",))
    make_depth().save(tmp_path / "run")
    first = write_depth(tmp_path / "a", make_depth())
    second = write_depth(tmp_path / "b", Depth.load(tmp_path / "run"))
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name


def test_the_page_holds_every_number():
    depth = make_depth()
    seen = Seen(depth_page(depth))
    sent = payload(seen)["depth"]
    assert [c["name"] for c in sent["curves"]] == ["UNTUNED", "TUNED", "TUNEDORIG"]
    assert sent["curves"][0]["values"][0] is None
    assert sent["curves"][1]["values"][7] == pytest.approx(depth.curves[1].points[7].value, abs=1e-6)
    assert sent["curves"][1]["low"][7] == pytest.approx(depth.curves[1].points[7].low, abs=1e-6)
    assert [(line["name"], line["value"]) for line in sent["lines"]] == [
        ("whole model", 0.912),
        ("bag of words", 0.804),
        ("majority", 0.509),
    ]
    assert sent["skip"]["values"][2][4] == pytest.approx(depth.skip[2, 4], abs=1e-6)
    assert sent["skip"]["values"][4][2] is None
    assert sent["skip"]["agreement"][2][4] == pytest.approx(depth.skip_agreement[2, 4], abs=1e-6)
    point = depth.curves[2].points[12]
    for fact in (
        f"{depth.skip[2, 4]:.3f}",
        f"{point.value:.3f} [{point.low:.3f}, {point.high:.3f}]",
        "The head keeps its own pooler",
        "sha256:tuned",
        "the validation rows are few",
        "Phang, Liu",
        "the top 3 of 12 blocks can go within one point",
    ):
        assert fact in seen.text


def test_hostile_names_are_text_and_nothing_is_loaded_from_elsewhere():
    task = {"name": HOSTILE[1], "metric": HOSTILE[0], "labels": [HOSTILE[2]], "n_validation": 5}
    depth = make_depth(model=info(HOSTILE[0]), base=info(HOSTILE[1]), task=task, warnings=(HOSTILE[2],))
    seen = Seen(depth_page(depth))
    tags = [tag for tag, _ in seen.tags]
    assert "img" not in tags
    assert "b" not in tags
    assert len(seen.scripts) == 3
    assert not set("<>&") & set(seen.scripts[0])
    assert HOSTILE[0] in seen.text
    assert HOSTILE[1] in seen.text
    for tag, attrs in seen.tags:
        assert not [a for a in attrs if a.startswith("on")]
        assert "src" not in attrs, tag
        assert not re.match(r"https?:|//", attrs.get("href") or "")
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_plotly_is_inlined_once():
    assert depth_page(make_depth()).count("plotly.js v") == 1


def test_a_result_without_pictures_still_has_a_page(tmp_path):
    bare = make_depth(curves=(), skip=None, skip_agreement=None, majority=math.nan, warnings=(), provenance={})
    assert [p.name for p in write_depth(tmp_path, bare)] == ["report.html"]
    seen = Seen(depth_page(bare))
    assert "No skip matrix in this result." in seen.text
    assert "No truncation curves in this result." in seen.text
    sent = payload(seen)["depth"]
    assert sent["skip"] is None
    assert [line["name"] for line in sent["lines"]] == ["whole model", "bag of words"]
