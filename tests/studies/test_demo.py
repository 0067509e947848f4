"""The demo from end to end, on a tiny model and toy reviews in place of what it fetches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toys import Reads, Told, distinct, plain

import stratoscope.demo.run as demo
from stratoscope.demo.assets import MINILM, REVIEWS, Asset
from stratoscope.results.cutting.cut import Cut
from stratoscope.results.study import Study

SMALL = demo.Size(train=64, validation=80, compared=16, bootstrap=20, budget=0.9)


@pytest.fixture
def assets(calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = distinct(120, 80)
    path = tmp_path / "reviews.jsonl"
    rows = [{"text": e.texts[0][0], "label": task.labels[int(e.label)]} for e in (*task.train, *task.validation)]  # type: ignore[index]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {MINILM: calm, REVIEWS: path}

    def fetch(asset: Asset, *, progress: object) -> Path:
        return found[asset]

    monkeypatch.setattr(demo, "fetch", fetch)


@pytest.mark.usefixtures("assets")
def test_the_demo_tunes_cuts_and_studies_and_is_recognised_when_run_again(
    reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "QUICK", SMALL)
    drawn: list[Path] = []
    out = tmp_path / "demo"

    def run(told: Told) -> Study:
        return demo.run_demo(out, hub=False, quick=True, progress=told, draw=lambda folder, study: drawn.append(folder))

    study = run(Told())
    assert (study.base, study.tuned, study.control) == (MINILM.name, ("seed-0", "seed-1"), f"{MINILM.name}-random")
    assert set(study.comparisons) == {"cls", "mean"}
    assert study["cls"].data["rows"] == SMALL.compared
    assert study["cls"]["ckasim"].low is not None
    assert study.depth is not None
    assert study.depth.task["n_validation"] == SMALL.compared
    assert study.cut is not None
    assert plain(study.cut) == plain(Cut.load(out / "cut"))
    assert study.cut.head["tuned"]
    assert plain(Study.load(out)) == plain(study)
    assert {p.name for p in out.iterdir()} == {
        ".lock", "cut", "finetuned", "run.yaml", "study.json", "study.arrays.safetensors",
    }  # fmt: skip
    assert drawn == [out]
    reads.texts.clear()
    told = Told()
    assert plain(run(told)) == plain(study)
    assert sum("nothing to do" in note for note in told.notes) == 4  # two seeds, the cut, the study
    assert not len(reads)


@pytest.mark.usefixtures("assets")
def test_a_demo_without_a_cut_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **how: object) -> None:
        raise demo.NothingToCutError("nothing can be cut", "give a larger --budget")

    monkeypatch.setattr(demo, "FULL", SMALL)
    monkeypatch.setattr(demo, "cut", refuse)
    study = demo.run_demo(tmp_path / "demo", hub=False, quick=False, progress=Told())
    assert (study.cut, study.refused) == (None, "nothing can be cut")
