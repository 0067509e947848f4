from __future__ import annotations

import dataclasses
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
import report_cases as cases

from stratoscope.core.errors import StratoscopeError, UnknownNameError
from stratoscope.report import write
from stratoscope.report.draw import FORMATS
from stratoscope.report.write import WRITTEN, write_report

FORMATS_OF = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture
def quick(monkeypatch):
    """No rendering: what is written where does not depend on the pixels."""
    monkeypatch.setattr(write, "render", lambda figure, kind: FORMATS_OF[kind])
    monkeypatch.setattr(write, "page", lambda result: "<!doctype html>page")


def few(*measures):
    """A result with these measures only, so that other figures are written for others."""
    return dataclasses.replace(
        cases.pair([1.0, 0.5, 0.4]),
        matrices=tuple(dataclasses.replace(cases.pair([1.0, 0.5, 0.4]).matrices[0], measure=m) for m in measures),
    )


def there(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")}


def test_all_files_of_a_report(tmp_path, quick):
    written = write_report(tmp_path, cases.SMALL["study"]())
    figures = ("panels-cls", "panels-mean", "drift-cls", "drift-mean", "localization", "truncation", "skip", "cut")
    want = {f"figures/{name}.{kind}" for name in figures for kind in FORMATS}
    want |= {f"tables/{name}.csv" for name in (*figures, "blocks", "droppable", "before-after", "tried")}
    want |= {"figures/captions.md", "citations.bib", "report.html"}
    assert {str(p.relative_to(tmp_path)) for p in written} == there(tmp_path) == want
    assert written[-1].name == "report.html"
    captions = (tmp_path / "figures/captions.md").read_text(encoding="utf-8")
    assert all(f"**{name}.**" in captions for name in figures)
    assert (tmp_path / "citations.bib").read_text(encoding="utf-8").startswith("@inproceedings{wu2020,")


@pytest.mark.parametrize("style", ["screen", "paper"])
def test_captions_name_every_model_and_measure_once_a_figure(tmp_path, quick, style):
    for name, result in (("study", cases.study(layers=5, other=4)), ("few", few("ckasim", "cca"))):
        write_report(tmp_path / name, result, style=style)
    captions = (tmp_path / "study/figures/captions.md").read_text(encoding="utf-8").split("\n\n")
    panels = next(c for c in captions if c.startswith("**panels-cls.** "))
    assert [len(re.findall(rf"(?<![\w-]){name}(?![\w-])", panels)) for name in ("base", "ft-1", "ft-2", "other")] == [
        1
    ] * 4
    drift = next(c for c in captions if c.startswith("**drift-cls.** "))
    assert drift.count("base") == drift.count("Bands: ") == 1
    cka, _, drift = (tmp_path / "few/figures/captions.md").read_text(encoding="utf-8").split("\n\n")
    assert cka.startswith("**ckasim.** centred kernel alignment")
    assert cka.count("ckasim") == drift.count("base") == 1


def test_tables_are_tidy_and_hold_what_is_drawn(tmp_path, quick):
    study = cases.study(layers=5, other=4)
    write_report(tmp_path, study)
    cells = pd.read_csv(tmp_path / "tables/panels-cls.csv")
    assert set(cells["measure"]) == {"ckasim", "ckasim-debiased"}
    one = cells.query("measure == 'ckasim' and panel == 'FT–OTHER' and row_layer == 3 and column_layer == 2").iloc[0]
    block = study["cls"]["ckasim"].between("ft-1", "other")
    assert (one["value"], one["low"], one["high"]) == (block.values[3, 2], block.low[3, 2], block.high[3, 2])
    drift = pd.read_csv(tmp_path / "tables/drift-mean.csv").query("measure == 'ckasim' and curve == 'ft-2'")
    np.testing.assert_allclose(drift["value"], 1 - np.diag(study["mean"]["ckasim"].between("base", "ft-2").values))
    skip = pd.read_csv(tmp_path / "tables/skip.csv")
    assert len(skip) == 10
    assert {"value", "change in points", "predicted as by the whole model"} <= set(skip)


def test_a_saved_result_gives_the_same_report(tmp_path, quick, monkeypatch):
    result = cases.SMALL["comparison"]()
    result.save(tmp_path / "run")
    first = write_report(tmp_path / "a", result)
    second = write_report(tmp_path / "b", type(result).load(tmp_path / "run"))
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name


def test_writing_again_replaces_its_own_and_removes_what_is_no_longer_drawn(tmp_path, quick):
    write_report(tmp_path, few("cca", "svsim"))
    (tmp_path / "figures/mine.png").touch()
    (tmp_path / "cca.png").touch()
    changed = tmp_path / "figures/svsim.svg"
    changed.write_text("<svg>drawn over by hand</svg>", encoding="utf-8")
    write_report(tmp_path, few("ckasim"))
    left = there(tmp_path)
    assert "figures/cca.png" not in left
    assert "tables/cca.csv" not in left
    assert {"figures/mine.png", "cca.png", "figures/svsim.svg", "figures/ckasim.png"} <= left
    assert changed.read_text(encoding="utf-8") == "<svg>drawn over by hand</svg>"


@pytest.mark.parametrize(
    "name", ["report.html", "citations.bib", "figures/ckasim.png", "tables/drift.csv", "figures/captions.md"]
)
def test_a_file_of_the_users_is_never_replaced_and_nothing_is_written_beside_it(tmp_path, quick, name):
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine", encoding="utf-8")
    with pytest.raises(StratoscopeError, match=f"{name}.*not written by stratoscope"):
        write_report(tmp_path, few("ckasim"))
    assert mine.read_text(encoding="utf-8") == "mine"
    assert there(tmp_path) == {name}


def test_a_file_that_was_changed_since_is_not_replaced(tmp_path, quick):
    write_report(tmp_path, few("ckasim"))
    page = tmp_path / "report.html"
    page.write_text(page.read_text(encoding="utf-8") + "my notes", encoding="utf-8")
    with pytest.raises(StratoscopeError, match=r"report\.html was changed"):
        write_report(tmp_path, few("ckasim"))
    assert page.read_text(encoding="utf-8").endswith("my notes")


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path, quick):
    target = tmp_path / "target.txt"
    target.write_text("kept", encoding="utf-8")
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").symlink_to(target)
    with pytest.raises(StratoscopeError, match=r"report\.html"):
        write_report(run, few("ckasim"))
    assert target.read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize(
    "note", ["{", "[]", '{"../kept.txt": ["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]}']
)
def test_a_note_that_is_not_ours_removes_nothing(tmp_path, quick, note):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "kept.txt").touch()
    (run / WRITTEN).write_text(note, encoding="utf-8")
    write_report(run, few("ckasim"))
    assert (tmp_path / "kept.txt").exists()


@pytest.mark.parametrize("stop", [0, 3, 7])
def test_a_killed_report_leaves_whole_files_and_the_next_one_knows_its_own(tmp_path, quick, monkeypatch, stop):
    write_report(tmp_path, few("ckasim"))
    real, left = write.atomic, [stop]

    def killed(path, *args):
        if path.name != WRITTEN:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return real(path, *args)

    monkeypatch.setattr(write, "atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path, few("cca", "ckasim"))
    monkeypatch.setattr(write, "atomic", real)
    assert not list(tmp_path.rglob("*.tmp"))
    write_report(tmp_path, few("ckasim"))
    assert "figures/cca.png" not in there(tmp_path)
    assert set(json.loads((tmp_path / WRITTEN).read_text(encoding="utf-8"))) == there(tmp_path)


def test_figures_for_papers_are_other_figures_of_the_same_name(tmp_path):
    result = cases.SMALL["perplexity"]()
    sizes = {}
    for style in ("screen", "paper"):
        for path in write_report(tmp_path / style, result, style=style):
            if path.suffix[1:] in FORMATS_OF:
                assert path.read_bytes().startswith(FORMATS_OF[path.suffix[1:]])
        from matplotlib.image import imread

        sizes[style] = imread(io.BytesIO((tmp_path / style / "figures/perplexity.png").read_bytes())).shape[1]
    assert sizes == {"screen": 1240, "paper": 670}
    with pytest.raises(UnknownNameError, match="paper"):
        write_report(tmp_path / "x", result, style="papre")
    assert not (tmp_path / "x").exists()
