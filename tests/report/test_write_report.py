from __future__ import annotations

import pytest

import stratoscope.report.write as write
from stratoscope.results.comparison import Comparison
from stratoscope.report.write import file_names, write_report

KINDS = ("png", "svg", "pdf")


def test_all_files_of_a_report(tmp_path, comparison):
    written = write_report(tmp_path, comparison)
    measures = ("ckasim", "ckasim-debiased", "svsim", "neuronsim", "neuronsim-at-0.1")
    want = {f"figures/{name}.{kind}" for name in (*measures, "localization", "drift") for kind in KINDS} | {
        "report.html"
    }
    assert {str(p.relative_to(tmp_path)) for p in written} == want
    there = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert there == want | {"figures/.written.json"}
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


def shown(folder):
    return {p.name for p in (folder / "figures").iterdir() if not p.name.startswith(".")}


def test_figures_of_a_former_result_go_and_the_users_own_stay(tmp_path, make_findings):
    write_report(tmp_path, make_findings({}, measures=("cca", "svsim")))
    figures = tmp_path / "figures"
    (figures / "svsim.svg").write_text("<svg>drawn over by hand</svg>", encoding="utf-8")
    (figures / "cca-of-mine.png").write_bytes((figures / "cca.png").read_bytes())
    (tmp_path / "cca.png").touch()
    write_report(tmp_path, make_findings({}, measures=("ckasim",)))
    assert shown(tmp_path) == {"ckasim.png", "ckasim.svg", "ckasim.pdf", "svsim.svg", "cca-of-mine.png"}
    assert (tmp_path / "cca.png").exists()


@pytest.mark.parametrize("note", [None, "{", "[]", '{"../../kept.txt": "e3b0c442"}'])
def test_without_a_sound_note_of_what_was_written_nothing_is_removed(tmp_path, make_findings, note):
    figures = tmp_path / "run" / "figures"
    write_report(tmp_path / "run", make_findings({}, measures=("cca",)))
    (tmp_path / "kept.txt").touch()
    (figures / ".written.json").unlink() if note is None else (figures / ".written.json").write_text(note)
    write_report(tmp_path / "run", make_findings({}, measures=("ckasim",)))
    assert {"cca.png", "ckasim.png"} <= shown(tmp_path / "run")
    assert (tmp_path / "kept.txt").exists()


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
