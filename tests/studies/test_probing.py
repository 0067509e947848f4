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
from stratoscope.core.statement import HOLDS, OPEN
from stratoscope.models.open.loading import ModelSpec, Survey
from stratoscope.probes import streamed
from stratoscope.probes.objective import Penalties
from stratoscope.results.probing import Probing
from stratoscope.runs.run import Run
from stratoscope.statistics.rows import MemoryRows, Repeated, chunks
from stratoscope.studies.probing import study, work
from stratoscope.studies.probing.neurons import words_by_sentence
from stratoscope.studies.probing.options import ProbeOptions
from stratoscope.studies.probing.plan import Plan

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
    assert (solved.bits < 1.5).all()  # of two tags, per word
    assert (frame[frame.solver == "published"].deviation >= 0).all()
    assert result.by_word.value == 1.0  # a word's length is the word's
    assert sum(result.tag_words) == result.data["words"]["train"] > sum(result.data["words"].values()) / 2
    assert result.data["splits"]["dev"] == "10% of words.jsonl, drawn with seed 0"


def test_neurons_are_ranked_counted_and_shown_with_words(result: Probing) -> None:
    probes = result.neurons("base").probes
    layers, width = result.models[0].layers, result.models[0].width
    assert sorted(probes.ranking.astype(int).tolist()) == list(range(layers * width))
    assert probes.salient == (probes.minimal or round(0.2 * layers * width))
    top = result.neurons("base").top(20)
    assert len(top) == 20
    assert (top["index"] < width).all()
    assert top.words.map(lambda w: all("[" in one for one in w)).all()
    assert probes.oracle.low <= probes.oracle.value <= probes.oracle.high
    assert probes.resampled.shape == (20, layers)
    assert (probes.resampled.sum(axis=1) == probes.salient).all()
    assert probes.bottom_resampled.shape == (20,)
    assert len({(p.l1, p.l2) for p in result.neuron_probes}) == 1  # the base's
    assert len(probes.gaps) == len(probes.steps) + 4
    assert probes.oracle_selectivity.value < probes.oracle.value  # the control task is not always wrong
    assert probes.minimal_selectivity.value < probes.minimal_accuracy.value
    first = int(probes.ranking[0])
    assert (first // width, first % width) == (top.layer[0], top["index"][0])
    assert probes.steps[-1] == pytest.approx(0.2)
    assert probes.delta == 0.01
    near = probes.step_accuracy >= probes.dev_oracle - probes.delta
    assert probes.minimal == (round(probes.steps[near.argmax()] * layers * width) if near.any() else 0)
    frame = result.neurons("base").by_layer()
    assert frame.to_numpy().tolist() == probes.counts.tolist()
    assert (list(frame.index), list(frame.columns)) == (list(range(layers)), ["long", "short"])
    with pytest.raises(StratoscopeError, match=r"'nobody'.*base"):
        result.neurons("nobody")


def test_every_neuron_has_its_tag_and_weight_and_one_tag_its_own_order(result: Probing) -> None:
    ranked = result.neurons("base")
    p, width = ranked.probes, result.models[0].width
    every = ranked.top(len(p.ranking))
    numbers = every.layer * width + every["index"]
    assert numbers.tolist() == p.ranking.astype(int).tolist()
    for n in range(0, len(every), 7):
        column = np.abs(p.weights[:, result.tags.index(every.tag[n])])
        assert abs(every.weight[n]) == column[numbers[n]]
        assert every.share[n] == pytest.approx(column[numbers[n]] / column.sum(), rel=1e-5)
    counted = every[: p.salient].groupby(["layer", "tag"]).size().unstack(fill_value=0)
    table = ranked.by_layer()
    assert counted.reindex(index=table.index, columns=table.columns, fill_value=0).equals(table)
    assert [(n.layer, n.index, n.tag, n.words) for n in p.first] == [
        tuple(row) for row in every[["layer", "index", "tag", "words"]][:20].to_numpy()
    ]
    assert every.share[:20].tolist() == pytest.approx([n.share for n in p.first], rel=1e-5)
    assert every.words[20] == ()
    long = ranked.top(len(every), tag="long")
    assert (long.tag == "long").all()
    size = long.weight.abs().to_numpy()
    assert (size > 0).all()
    assert (np.diff(size) <= 0).all()
    assert len(long) == (p.weights[:, 0] != 0).sum()
    assert long.share.sum() == pytest.approx(1.0)
    with pytest.raises(StratoscopeError, match=r"'middling'.*long, short"):
        ranked.top(3, tag="middling")


def test_what_a_notebook_shows(result: Probing) -> None:
    assert repr(result) == "Probing(size: layers and neurons of base, tuned)"
    assert "tuned (published)" in repr(result.layers)
    assert "neurons of base" in repr(result.neurons("base"))
    assert "base" in result._repr_html_()
    for part, what in ((result.layers, "selectivity"), (result.neurons("base"), "share")):
        assert "<table" in part._repr_html_()
        assert what in part._repr_html_()


def test_claims_are_judged_on_data(result: Probing) -> None:
    ids = {s.id.partition(":")[0] for s in result.statements}
    assert ids == {
        f"durrani2021-{name}"
        for name in ("forgotten-above", "kept-below", "neurons-move-down", "less-distributed", "schedule-suffices")
    }


@pytest.fixture(scope="module")
def few_to_train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tags that no word tells, of few training sentences and many test sentences."""
    path, generator = tmp_path_factory.mktemp("few"), np.random.default_rng(0)
    words = sorted({w for s in tiny.SENTENCES for w in s.lower().split() if w.isalpha()})
    for split, n in (("train", 24), ("dev", 60), ("test", 1000)):
        rows = [
            {"words": [words[k] for k in generator.integers(len(words), size=6)],
             "tag": [("a", "b")[k] for k in generator.integers(2, size=6)]}
            for _ in range(n)
        ]  # fmt: skip
        (path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.mark.parametrize(("known", "verdict"), [(0.2, HOLDS), (1.0, OPEN)])
def test_bottom_neurons_are_judged_over_training_sentences_too(
    checkpoints: Path, few_to_train: Path, monkeypatch: pytest.MonkeyPatch, known: float, verdict: str
) -> None:
    """All neurons of the base hold the tag; after tuning a fifth of them, or all as before.

    Then only chance tells the models apart, though their intervals over 1000 test sentences do not meet.
    """

    def planted(plan: Plan, spec: ModelSpec, surveyed: Survey, running: Run) -> dict[str, MemoryRows]:
        tuned = spec.label == "tuned"
        generator = torch.Generator().manual_seed(4 + tuned)
        shape = len(plan.layers(surveyed)), 1, surveyed.width
        strength = 0.4 * (torch.rand(shape, generator=generator) < (known if tuned else 1.0))
        return {
            split: MemoryRows(
                list(torch.randn(shape[0], len(y), shape[2], generator=generator) + strength * (2 * y[:, None] - 1))
            )
            for split, y in plan.tags.items()
        }

    monkeypatch.setattr(study, "read_models", lambda plan, run: [planted(plan, *m, run) for m in plan.models])
    monkeypatch.setattr(streamed, "FEWEST_STEPS", 60)
    models = [str(checkpoints / name) for name in ("base", "tuned")]
    options = replace(SMALL, neurons=True, layers=(0, 1, 2, 3))
    got = study.probe(models, corpus=few_to_train, property="tag", options=options)
    found = next(s for s in got.statements if "less-distributed" in s.id)
    before, after = (p.bottom for p in got.neuron_probes)
    assert before.low > after.high or after.low > before.high
    assert found.verdict == verdict


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


@pytest.mark.parametrize(
    ("split", "facts"),
    [("train", ("at least two tags", "in train", "'b' only")), ("test", ("a tag", "in test", "got none"))],
)
def test_tags_of_words_that_no_model_reads_are_no_tags(
    checkpoints: Path, tmp_path: Path, split: str, facts: tuple[str, ...]
) -> None:
    """A word that a tokenizer turns into nothing has no row."""
    for name in ("train", "dev", "test"):
        first = "\u200b" if name == split else "the"
        other = "b" if name == "train" else None
        rows = [{"words": [first, "dog", "cat"], "t": ["a", other, other]}] * 5
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(StratoscopeError) as e:
        study.probe([str(checkpoints / "base")], corpus=tmp_path, property="t", options=SMALL)
    assert all(fact in str(e.value) for fact in facts), str(e.value)


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


def test_saved_activations_of_the_splits_are_probed_like_the_model(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(1)
    words = sorted({w for s in tiny.SENTENCES for w in s.lower().split() if w.isalpha()})
    for split, n in (("train", 60), ("dev", 20), ("test", 20)):
        drawn = [[words[k] for k in generator.integers(len(words), size=5)] for _ in range(n)]
        rows = [{"words": d, "size": ["long" if len(w) > 3 else "short" for w in d]} for d in drawn]
        (tmp_path / "tags").mkdir(exist_ok=True)
        (tmp_path / "tags" / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        (tmp_path / f"{split}.txt").write_text("".join(" ".join(d) + "\n" for d in drawn))
        models = [checkpoints / name for name in ("base", "tuned")]
        ss.compare(models, data=tmp_path / f"{split}.txt", save_activations=str(tmp_path / f"kept-{split}.hdf5"))
    ask = {"corpus": tmp_path / "tags", "property": "size", "options": SMALL}
    both = study.probe([str(checkpoints / "base"), str(tmp_path / "kept-base.hdf5")], **ask)  # type: ignore[arg-type]
    of = {m.name: both.layers.of(m.name) for m in both.models}
    np.testing.assert_allclose(of["kept-base.hdf5"].accuracy.values, of["base"].accuracy.values, atol=0.011)
    assert any("first layer that was saved" in w for w in both.warnings)
    (tmp_path / "kept-base-test.hdf5").unlink()
    with pytest.raises(StratoscopeError, match="80 sentences, but not"):
        study.probe([str(tmp_path / "kept-base.hdf5")], **ask)  # type: ignore[arg-type]


def test_probes_that_stop_at_their_cap_are_reported(
    checkpoints: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = work.solve
    monkeypatch.setattr(work, "solve", lambda *given, **how: replace(fit := real(*given, **how), gap=fit.gap + 0.5))
    options = replace(SMALL, layers=(1, 3), neurons=True)
    got = study.probe([str(checkpoints / "base")], corpus=corpus, property="size", options=options)
    probes, width = got.neurons("base").probes, got.models[0].width
    counted = np.bincount(probes.ranking[: probes.salient].astype(int) // width, minlength=2)
    assert probes.counts.sum(axis=1).tolist() == counted.tolist()
    assert set(got.neurons("base").top(2 * width).layer) == {1, 3}
    depth = (counted * np.array([1, 3])).sum() / counted.sum() / (got.models[0].layers - 1)
    assert got.mean_depth("base").value == pytest.approx(depth)
    assert got.layers.of("base").stopped.tolist() == [5, 5]  # four penalties and the control task
    assert any("10 probes of layers 1, 3 stopped" in w for w in got.warnings)
    assert any("24 of 24 probes of subsets" in w for w in got.warnings)


def test_a_resample_draws_whole_sentences() -> None:
    words = torch.from_numpy(words_by_sentence(np.array([0, 0, 0, 2, 5, 5])))
    assert words.tolist() == [3, 1, 2]
    drawn = [work.resampled_rows(words, [0, k]).tolist() for k in range(50)]
    for times in drawn:
        assert times[0] == times[1] == times[2]
        assert times[4] == times[5]
        assert times[0] + times[3] + times[4] == 3
    assert {t[0] for t in drawn} == {0, 1, 2, 3}
    assert drawn[7] == work.resampled_rows(words, [0, 7]).tolist()


def test_rows_that_repeat_are_those_of_an_index() -> None:
    """Chunk by chunk, one of them empty, with their tags."""
    generator = torch.Generator().manual_seed(0)
    times = torch.randint(4, (7000,), generator=generator).short()
    times[2048:4096] = 0
    rows = MemoryRows([torch.randn(7000, 3, generator=generator) for _ in range(2)])
    index, got = torch.arange(7000).repeat_interleave(times.long()), Repeated(rows, times)
    for layer in range(2):
        assert torch.equal(torch.cat(list(chunks(got, layer))), rows.matrices[layer][index])
    assert (got.layers, got.sizes, got.eps(1)) == (2, [len(x) for x in chunks(got, 0)], rows.eps(1))
    assert torch.equal(work.repeated(rows.matrices[0][:, 0], times), rows.matrices[0][index, 0])


def test_a_neurons_tag_is_the_one_it_enters_for_first() -> None:
    weight = torch.tensor([[3.0, 0.5], [1.0, 0.5], [0.0, 0.0]])
    near = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.1, 0.2]])
    found = work.tags_of(weight, near)
    assert found["tag"].tolist() == [0, 1, 1]  # the first enters both at 0: the larger share; the last by its pull
    assert found["mass"].tolist() == pytest.approx([0.75, 0.5, 0.0])


PLANTED = {"model": 0, "layers": [0, 1], "ranking": "weights", "pair": 3}


def planted_shared() -> work.Shared:
    """Two layers of 20 neurons; a third of them hold one of three tags, some better than others."""
    generator = torch.Generator().manual_seed(0)
    strength = torch.zeros(40, 3)
    strength[torch.arange(13), torch.arange(13) % 3] = torch.linspace(2.0, 0.3, 13)
    rows, tags = {}, {}
    for split in ("train", "dev", "test"):
        y = torch.randint(3, (500,), generator=generator)
        x = torch.randn(500, 40, generator=generator) + strength.T[y]
        rows[split], tags[split] = MemoryRows([x[:, :20], x[:, 20:]]), y
    control = {split: (y + 1) % 3 for split, y in tags.items()}
    return work.Shared(rows, tags, control, 3, 1e-2, 0)  # type: ignore[arg-type]


def rate(shared: work.Shared, split: str, weight: torch.Tensor, bias: torch.Tensor, kept: torch.Tensor) -> float:
    """Accuracy of weights (d, K) with those of all other neurons at 0."""
    x, inside = torch.cat(list(shared.rows[split].matrices), 1), torch.zeros(40, 1)  # type: ignore[attr-defined]
    inside[kept] = 1
    return float(((x @ (weight * inside) + bias).argmax(1) == shared.tags[split]).double().mean())


def test_ablations_and_the_minimal_set_are_what_their_names_say() -> None:
    shared = planted_shared()
    ranked = work.ranked_neurons([shared], PLANTED)
    order, weight, bias = ranked["ranking"], ranked["weight"][..., 0], ranked["bias"][:, 0]
    got = work.probed_neurons(([shared], [ranked]), {**PLANTED, "share": 0.1, "delta": 0.1})
    kept = (order[:4], order[-4:], order[4:])
    want = [rate(shared, "test", weight, bias, which) for which in kept]
    assert len(set(want)) == 3
    assert got["ablated"].tolist() == pytest.approx(want)
    oracle = rate(shared, "dev", weight, bias, order)
    enough = [a >= oracle - 0.1 for a in got["step_accuracy"].tolist()]
    first = enough.index(True)
    assert 0 < first < len(enough) - 1
    assert int(got["minimal_size"]) == round(0.01 * (first + 1) * 40)
    assert not (got["step_accuracy"] >= oracle + 0.1).any()


def test_penalties_for_neurons_are_scored_by_top_bottom_and_what_they_cost() -> None:
    shared, grid = planted_shared(), Penalties.grid()
    words = torch.tensor([1, 7, 2] * 50)  # of each sentence
    got = work.scored_pairs(([shared], words), {**PLANTED, "resamples": 2})["scores"]
    weight, bias = streamed.stream(shared.features("train", (0, 1)), grid, seed=0)
    drawn = [np.ones(150), *(work.times_drawn(150, [shared.seed, k, 1]) for k in range(2))]
    x, y = torch.cat(list(shared.rows["dev"].matrices), 1), shared.tags["dev"]  # type: ignore[attr-defined]

    def score(p: int, kept: torch.Tensor, times: np.ndarray) -> float:
        """Accuracy with these neurons alone, every sentence so many times."""
        inside = torch.zeros(40, 1)
        inside[kept] = 1
        right = ((x @ (weight[..., p] * inside) + bias[:, p]).argmax(1) == y).tolist()
        each = [right[end - n : end] for n, end in zip(words.tolist(), words.cumsum(0).tolist(), strict=True)]
        sample = [r for k, sentence in enumerate(each) for _ in range(int(times[k])) for r in sentence]
        return sum(sample) / len(sample)

    assert got.shape == (3, len(grid))
    for k, times in enumerate(drawn):
        bare = score(0, torch.arange(40), times)
        for p in range(len(grid)):
            order = work.rank_by_weight(weight[..., p])
            every, top, bottom = (score(p, which, times) for which in (order, order[:8], order[-8:]))
            assert float(got[k, p]) == pytest.approx(top - bottom - (bare - every))


def test_of_equal_pairs_the_strongest_l1_then_l2_is_chosen() -> None:
    grid = Penalties.grid()  # (0, 0), (0, 1e-3), (1e-3, 0), (1e-3, 1e-3)
    assert work.choose(torch.tensor([0.9, 0.9, 0.9, 0.1]), grid) == 2
    assert work.choose(torch.tensor([0.9, 0.9, 0.1, 0.1]), grid) == 1
    assert work.choose(torch.tensor([0.1, 0.9, 0.2, 0.1]), grid) == 1
