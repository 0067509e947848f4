"""The demo from end to end, on a tiny model and toy reviews in place of what it fetches."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
from toys import Reads, Told, distinct, plain

import stratoscope.demo.run as demo
from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tagged import Tagged
from stratoscope.demo.assets import LEXICON_FILE, MINILM, REVIEWS, Asset
from stratoscope.demo.polarity import polarity_corpus
from stratoscope.results.cutting.cut import Cut
from stratoscope.results.study import Study

SMALL = demo.Size(train=64, validation=80, compared=16, probed=80, bootstrap=20, budget=0.9)


@pytest.fixture
def assets(calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = distinct(120, 80)
    path = tmp_path / "reviews.jsonl"
    rows = [{"text": e.texts[0][0], "label": task.labels[int(e.label)]} for e in (*task.train, *task.validation)]  # type: ignore[index]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = sorted({w for row in rows for w in row["text"].split()})
    lexicon = "".join(f"{w}\t{1 if len(w) % 2 else -1}.5\t0\t[]\n" for w in words)
    path.with_name(LEXICON_FILE).write_text(lexicon)
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


def test_a_word_and_a_text_have_a_polarity_in_one_split_only() -> None:
    lexicon = {f"w{k}": "positive" if k % 2 else "negative" for k in range(60)}
    texts = [f"W{k} was w{(7 * k) % 60}, w{(11 * k) % 60} {k}!" for k in range(300)]
    corpus = polarity_corpus("texts", [*texts, texts[0]], lexicon)
    found: dict[str, set[str]] = {}
    for split, of in corpus.splits.items():
        for sentence in of.sentences:
            assert sentence.words is not None
            assert sentence.tags is not None
            for word, tag in zip(sentence.words, sentence.tags["polarity"], strict=True):
                assert tag in (lexicon.get(word.lower(), "_"), "_")
                if tag != "_":
                    found.setdefault(split, set()).add(word.lower())
    assert [bool(a & b) for a, b in combinations(found.values(), 2)] == [False] * 3
    assert set().union(*found.values()) <= set(lexicon)
    inside = [s.text for of in corpus.splits.values() for s in of.sentences]
    assert len(inside) == len(set(inside))
    assert (
        sum(tag != "_" for of in corpus.splits.values() for s in of.sentences for tag in (s.tags or {})["polarity"])
        > 200
    )
    with pytest.raises(StratoscopeError, match=r"words of the lexicon in .*, got none"):
        polarity_corpus("few", texts[:1], lexicon)


@pytest.mark.usefixtures("assets")
def test_the_demo_probes_the_model_before_and_after_tuning(
    calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def probe(models: list[object], **how: object) -> str:
        asked.update(how, models=[str(getattr(m, "source", m)) for m in models])
        return "probed"

    monkeypatch.setattr(demo, "QUICK", SMALL)
    monkeypatch.setattr(demo, "probe", probe)
    assert demo.probe_demo(tmp_path, hub=False, quick=True, progress=Told()) == "probed"
    assert asked["models"] == [str(calm), str(tmp_path / "finetuned" / "seed-0")]
    assert (asked["property"], asked["out"]) == ("polarity", tmp_path / "polarity")
    corpus = asked["corpus"]
    assert isinstance(corpus, Tagged)
    assert corpus.tags == ("negative", "positive")
