"""Probing end to end on tiny models: what is planted is found, a killed run resumes, layers are on their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import stratoscope as ss
import tiny
from stratoscope.core.errors import StratoscopeError
from stratoscope.probes.objective import Penalties
from stratoscope.results.probing import Probing
from stratoscope.studies.probing import study, work
from stratoscope.studies.probing.options import ProbeOptions

SMALL = ProbeOptions(workers=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words tagged by their length; a tag that the embeddings know."""
    path = tmp_path_factory.mktemp("tagged") / "words.jsonl"
    generator = np.random.default_rng(0)
    words = sorted({w for s in tiny.SENTENCES for w in s.lower().split() if w.isalpha()})
    with path.open("w") as f:
        for _ in range(160):
            drawn = [words[k] for k in generator.integers(len(words), size=6)]
            f.write(json.dumps({"words": drawn, "size": ["long" if len(w) > 3 else "short" for w in drawn]}) + "\n")
    return path


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """A grid of four pairs instead of 64."""
    patch = pytest.MonkeyPatch()
    patch.setattr(Penalties.grid.__func__, "__defaults__", ((0.0, 1e-3),))  # type: ignore[attr-defined]
    yield
    patch.undo()


@pytest.fixture(scope="module")
def result(checkpoints: Path, corpus: Path, few: None) -> Probing:
    models = [str(checkpoints / name) for name in ("base", "tuned")]
    options = replace(SMALL, neurons=True, solver="published", share=0.1)
    return study.probe(models, corpus=corpus, property="size", options=options)


def test_every_layer_has_its_numbers(result: Probing) -> None:
    frame = result.layers.to_frame()
    layers = result.models[0].layers
    assert len(frame) == 2 * 2 * layers  # two models, two solvers
    solved = frame[frame.solver == "solved"]
    assert (solved.accuracy > result.majority.value).all()
    assert (solved.low <= solved.accuracy).all()
    assert (solved.accuracy <= solved.high).all()
    assert np.allclose(solved.accuracy - solved.control, solved.selectivity)
    assert (solved.gap <= 1e-2).all()
    assert (frame[frame.solver == "published"].deviation >= 0).all()
    assert result.by_word.value == 1.0  # a word's length is the word's


def test_neurons_are_ranked_counted_and_shown_with_words(result: Probing) -> None:
    probes = result.neurons("base").probes
    layers, width = result.models[0].layers, result.models[0].width
    assert sorted(probes.ranking.astype(int).tolist()) == list(range(layers * width))
    assert probes.salient == (probes.minimal or round(0.1 * layers * width))
    top = result.neurons("base").top(20)
    assert len(top) == 20
    assert (top["index"] < width).all()
    assert top.words.map(lambda w: all("[" in one for one in w)).all()
    assert probes.oracle.low <= probes.oracle.value <= probes.oracle.high
    first = int(probes.ranking[0])
    assert (first // width, first % width) == (top.layer[0], top["index"][0])


def test_claims_are_judged_on_data(result: Probing) -> None:
    ids = {s.id.partition(":")[0] for s in result.statements}
    assert ids == {
        f"durrani2021-{name}"
        for name in ("forgotten-above", "kept-below", "neurons-move-down", "less-distributed", "schedule-suffices")
    }


def test_a_saved_result_is_the_same_and_draws(result: Probing, tmp_path: Path) -> None:
    result.save(tmp_path)
    again = ss.load(tmp_path)
    assert again.layers.to_frame().equals(result.layers.to_frame())
    from stratoscope.report.write import write_report

    write_report(tmp_path, again)
    page = (tmp_path / "report.html").read_text()
    assert "Salient neurons per layer" in page
    assert "Best penalties" in page


def test_a_layer_alone_has_the_same_numbers(result: Probing, checkpoints: Path, corpus: Path) -> None:
    model = str(checkpoints / "base")
    alone = study.probe([model], corpus=corpus, property="size", options=replace(SMALL, layers=(1,)))
    want = result.layers.of("base").accuracy
    assert alone.layers.of("base").accuracy.values[0] == want.values[1]
    assert alone.layers.of("base").accuracy.low[0] == pytest.approx(want.low[1])  # type: ignore[index]


def test_a_killed_run_resumes_layer_by_layer(
    checkpoints: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    died: list[int] = []

    def dies(models: list[work.Shared], item: dict[str, int]) -> dict[str, torch.Tensor]:
        if item["layer"] == 2 and not died:
            died.append(2)
            raise RuntimeError("killed")
        done.append(item["layer"])
        return work.solved_layer(models, item)

    monkeypatch.setattr(study, "solved_layer", dies)
    ask = {"corpus": corpus, "property": "size", "out": tmp_path / "run", "options": SMALL}
    with pytest.raises(RuntimeError):
        study.probe([str(checkpoints / "base")], **ask)  # type: ignore[arg-type]
    assert done == [0, 1]
    got = study.probe([str(checkpoints / "base")], **ask)  # type: ignore[arg-type]
    assert sorted(done) == list(range(got.models[0].layers))


@pytest.mark.parametrize(
    ("change", "fact"),
    [({"solver": "sgd"}, "solver"), ({"ranking": "x"}, "ranking"), ({"share": 0.6}, "0.6"), ({"gap": 0.0}, "--gap")],
)
def test_bad_options_are_one_sentence(checkpoints: Path, corpus: Path, change: dict[str, object], fact: str) -> None:
    with pytest.raises(StratoscopeError, match=fact):
        study.probe([str(checkpoints / "base")], corpus=corpus, property="size", options=replace(SMALL, **change))  # type: ignore[arg-type]


def test_farthest_words_are_those_of_a_sort() -> None:
    from stratoscope.probes.features import Features
    from stratoscope.statistics.rows import MemoryRows

    x = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0))
    got = work.farthest_rows(Features(MemoryRows([x]), (0,), torch.zeros(5000, dtype=torch.long), 2))
    want = (x - x.mean(0)).abs().T.argsort(dim=1, descending=True)[:, : work.CONTEXTS]
    assert torch.equal(got, want)


def test_intervals_are_over_sentences() -> None:
    """Words of one sentence that are right or wrong together: the interval is wider than that of single words."""
    sentence = np.repeat(np.arange(50), 10)
    together = np.repeat(np.arange(50) % 2 == 0, 10)
    apart = np.arange(500) % 2 == 0
    resamples = study.Resamples(sentence, seed=0)
    one, two = resamples.value(together), resamples.value(apart)
    assert one.value == two.value == 0.5
    assert one.high - one.low == pytest.approx(2 * 1.96 * 0.5 / 50**0.5, rel=0.15)
    assert two.high - two.low < 1e-9
