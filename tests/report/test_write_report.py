from __future__ import annotations

import pytest

import stratoscope.report.write as write
from stratoscope.core.result import Comparison
from stratoscope.report.write import file_names, write_report

KINDS = ("png", "svg", "pdf")


def test_all_files_of_a_report(tmp_path, comparison):
    written = write_report(tmp_path, comparison)
    measures = ("ckasim", "ckasim-debiased", "svsim", "neuronsim", "neuronsim-at-0.1")
    want = {f"figures/{name}.{kind}" for name in (*measures, "localization", "drift") for kind in KINDS} | {
        "report.html"
    }
    assert {str(p.relative_to(tmp_path)) for p in written} == want
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == want
    head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for path in written[:-1]:
        assert path.read_bytes().startswith(head[path.suffix[1:]])
    assert written[-1].read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_saved_result_gives_the_same_report(tmp_path, comparison):
    comparison.save(tmp_path / "run")
    first = write_report(tmp_path / "a", comparison)
    second = write_report(tmp_path / "b", Comparison.load(tmp_path / "run"))
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name


def test_curves_are_left_out_when_there_is_nothing_to_draw(tmp_path, make_findings):
    made = make_findings({"drift": {"ckasim": []}})
    names = {p.name for p in write_report(tmp_path, made)}
    assert names == {"ckasim.png", "ckasim.svg", "ckasim.pdf", "report.html"}


def test_an_interrupted_write_leaves_the_old_page(tmp_path, make_findings, monkeypatch):
    (tmp_path / "report.html").write_text("old", encoding="utf-8")

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "page", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path, make_findings({}))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "old"
    assert not list(tmp_path.rglob("*.tmp"))


def test_file_names_are_safe_and_different():
    got = file_names(["a@0.1", "a-at-0.1", "../../etc/passwd", "A-AT-0.1", "drift", "...", "x y/z"])
    assert list(got.values()) == ["a-at-0.1", "a-at-0.1-2", "etc-passwd", "A-AT-0.1-3", "drift-2", "measure", "x-y-z"]
