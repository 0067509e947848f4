"""What is computed for a layer and said of neurons, against slow readings of the definitions on planted rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.probes.codelength import PASSES, SHARES
from stratoscope.probes.features import Features
from stratoscope.probes.neurons import rank_by_weight
from stratoscope.probes.objective import Penalties
from stratoscope.probes.solve import solve
from stratoscope.probes.streamed import pull, stream
from stratoscope.probes.tasks import control_tags
from stratoscope.results.probing import Ranked
from stratoscope.statistics.rows import MemoryRows
from stratoscope.studies.probing import neurons, study, work
from stratoscope.studies.probing.resamples import Resamples

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Planted:
    """Three layers of 8 neurons; only layer 1 holds the tag, and only layer 2 the control task's."""

    rows: dict[str, MemoryRows]
    shared: work.Shared


@pytest.fixture(scope="module", autouse=True)
def few() -> Any:
    patch = pytest.MonkeyPatch()
    patch.setattr(Penalties.grid.__func__, "__defaults__", ((0.0, 1e-2),))  # type: ignore[attr-defined]
    yield
    patch.undo()


@pytest.fixture(scope="module")
def planted() -> Planted:
    generator = torch.Generator().manual_seed(0)
    rows, tags, control = {}, {}, {}
    for split, n in zip(SPLITS, (640, 200, 300), strict=True):
        tags[split], control[split] = (torch.randint(3, (n,), generator=generator) for _ in range(2))
        layers = [torch.randn(n, 8, generator=generator) for _ in range(3)]
        layers[1][torch.arange(n), tags[split]] += 2.0
        layers[2][torch.arange(n), control[split]] += 2.0
        rows[split] = MemoryRows(layers)
    return Planted(rows, work.Shared(rows, tags, control, 3, 1e-3, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_layer_is_scored_on_its_own_rows_with_the_pair_best_on_dev(planted: Planted, layer: int) -> None:
    shared, grid = planted.shared, Penalties.grid()
    x = {split: planted.rows[split].matrices[layer] for split in SPLITS}
    fit = solve(Features(MemoryRows([x["train"]]), (0,), shared.tags["train"], 3), grid, gap=1e-3)

    def right(split: str, weight: torch.Tensor, bias: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        return (x[split] @ weight + bias).argmax(1) == tags

    dev = [right("dev", fit.weight[..., p], fit.bias[:, p], shared.tags["dev"]).double().mean() for p in range(4)]
    best = work.choose(torch.stack(dev), grid)
    got = work.solved_layer([shared], {"model": 0, "layer": layer})
    want = right("test", fit.weight[..., best], fit.bias[:, best], shared.tags["test"])
    assert torch.equal(got["right"][0], want)
    assert float(got["dev_accuracy"]) == pytest.approx(float(dev[best]))
    assert (float(got["l1"]), float(got["l2"])) == (float(grid.l1[best]), float(grid.l2[best]))
    control = solve(Features(MemoryRows([x["train"]]), (0,), shared.control["train"], 3), grid[[best]], gap=1e-3)
    want = right("test", control.weight[..., 0], control.bias[:, 0], shared.control["test"])
    assert torch.equal(got["control"][0], want)
    task, other = float(got["right"].double().mean()), float(got["control"].double().mean())
    assert (task > 0.7) == (layer == 1)
    assert (other > 0.7) == (layer == 2)


def test_bits_are_those_of_every_block_under_the_probe_of_the_rows_before_it(planted: Planted) -> None:
    shared, one = planted.shared, Penalties.one(1e-2, 1e-2)
    x, y = planted.rows["train"].matrices[1], shared.tags["train"]
    ends = [round(640 * share) for share in SHARES]
    bits = ends[0] * math.log2(3)
    for known, end in pairwise(ends):
        fit = solve(Features(MemoryRows([x[:known]]), (0,), y[:known], 3), one, gap=1e-3, passes=PASSES)
        for k in range(known, end):
            scores = (x[k] @ fit.weight[..., 0] + fit.bias[:, 0]).double()
            p = float(torch.softmax(scores, 0)[y[k]])
            bits -= math.log2((known * p + 1 / 3) / (known + 1))
    got = work.online_code(shared.features("train", (1,)), one, gap=1e-3)
    assert got == pytest.approx(bits, rel=1e-4)


def test_the_neuron_that_is_the_tag_comes_first_wherever_it_is(planted: Planted) -> None:
    """And swapping neurons and layers swaps the ranking with them, from training to order."""
    item = {"model": 0, "layers": [0, 1, 2], "ranking": "weights", "pair": 3}
    rows = {s: [m.clone() for m in planted.rows[s].matrices] for s in SPLITS}
    for split in SPLITS:
        rows[split][2][:, 5] = 4.0 * (planted.shared.tags[split] == 1)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3))
    permuted = {s: torch.cat(rows[s], 1)[:, order] for s in SPLITS}
    plain, other = (
        work.ranked_neurons([replace(planted.shared, rows=cast(Any, {s: MemoryRows(of[s]) for s in SPLITS}))], item)
        for of in (rows, {s: list(torch.split(x, 8, dim=1)) for s, x in permuted.items()})
    )
    assert int(plain["ranking"][0]) == 2 * 8 + 5
    assert int(plain["tag"][2 * 8 + 5]) == 1
    known = int((plain["weight"].abs().amax((1, 2)) > 1e-4).sum())  # the rest is all but 0
    assert known >= 4
    assert order[other["ranking"]][:known].tolist() == plain["ranking"][:known].tolist()


def test_what_is_said_of_neurons_is_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven subsets with a score each, twelve neurons of two chosen layers."""
    names = ("oracle", "top", "bottom", "random", "minimal", "oracle_control", "minimal_control")
    shares = dict(zip(names, (0.9, 0.8, 0.3, 0.5, 0.85, 0.25, 0.15), strict=True))
    n = 40
    ranking = torch.tensor([7, 0, 11, 1, 2, 3, 4, 5, 6, 8, 9, 10])
    tag = torch.arange(12) % 3
    weight = torch.arange(36.0).reshape(12, 3) - 20
    words = Sentence("a b c d e f g h i j", tuple("abcdefghij"))
    plan = cast(Any, SimpleNamespace(
        models=[(SimpleNamespace(label="m"), SimpleNamespace(width=6))],
        layers=lambda surveyed: (1, 4),
        corpus=SimpleNamespace(tags=("A", "B", "C"), splits={"test": Corpus("t", (words,) * 4, range(4))}),
        rows={"test": SimpleNamespace(sentence=np.repeat(np.arange(4), 10), word=np.tile(np.arange(10), 4))},
        options=SimpleNamespace(share=0.25, delta=0.02),
    ))  # fmt: skip
    parts: dict[str, Any] = {name: torch.arange(n) < round(share * n) for name, share in shares.items()}
    parts |= {
        "ranking": ranking, "tag": tag, "mass": torch.arange(12) / 100, "ablated": torch.tensor([0.7, 0.2, 0.4]),
        "words": torch.stack([torch.tensor([0, 13, 39])] * 12), "steps": torch.tensor([0.1, 0.2]),
        "step_accuracy": torch.tensor([0.6, 0.8]), "minimal_size": torch.tensor(3), "gaps": torch.tensor([0.001]),
        "weight": weight[..., None], "dev_oracle": torch.tensor(0.91, dtype=torch.float64),
    }  # fmt: skip
    reranked = [{"by_layer": torch.tensor([k, 4 - k]), "bottom": torch.arange(n) < 10 + k} for k in range(3)]
    resamples = Resamples(np.repeat(np.arange(4), 10), 0)
    got = neurons._probes(plan, {"model": 0, "pair": 1}, parts, reranked, 4, resamples)
    for name in ("oracle", "top", "bottom", "random"):
        assert getattr(got, name).value == pytest.approx(shares[name]), name
    assert got.minimal_accuracy.value == pytest.approx(0.85)
    assert got.oracle_selectivity.value == pytest.approx(0.65)
    assert got.minimal_selectivity.value == pytest.approx(0.70)
    assert (got.keep_top, got.keep_bottom, got.zero_top) == pytest.approx((0.7, 0.2, 0.4))
    assert (got.l1, got.l2) == pytest.approx((0.0, 1e-2))
    assert [(f.layer, f.index, f.tag, round(f.share, 2)) for f in got.first[:3]] == [
        (4, 1, "B", 0.07), (1, 0, "A", 0.0), (4, 5, "C", 0.11)
    ]  # fmt: skip
    assert got.first[0].words == ("[a] b c d e", "a b c [d] e f g h", "f g h i [j]")
    assert (got.dev_oracle, got.delta) == (0.91, 0.02)
    shown = Ranked(got, ("A", "B", "C"))
    assert shown.top(3)[["layer", "index", "tag", "weight"]].to_numpy().tolist() == [
        [4, 1, "B", 2.0], [1, 0, "A", -20.0], [4, 5, "C", 15.0]
    ]  # fmt: skip
    assert shown.top(2, tag="B")[["layer", "index", "tag", "weight"]].to_numpy().tolist() == [
        [1, 0, "B", -19.0], [1, 1, "B", -16.0]
    ]  # fmt: skip
    assert got.counts.tolist() == [[1, 1, 0], [0, 1, 1]]  # of neurons 7, 0, 11 and 1
    assert got.resampled.tolist() == [[0, 4], [1, 3], [2, 2]]
    drawn = resamples.shares([r["bottom"].numpy() for r in reranked])[1]
    assert got.bottom_resampled.tolist() == [drawn[k, k] for k in range(3)]


def test_the_schedule_is_run_with_three_seeds_and_their_mean_chooses(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes whose weights tell seed and pair: on dev seed 0 likes another pair than the mean does."""
    shared, grid, asked = planted.shared, Penalties.grid(), list[tuple[int, int, bool]]()
    good = solve(shared.features("train", (1,)), Penalties.one(1e-2, 1e-2))
    worse = {0: (0.0, 0.1, 1.0, 1.0), 1: (1.0, 0.1, 1.0, 1.0), 2: (1.0, 0.1, 1.0, 1.0)}

    def train(features: Features, penalties: Penalties, *, seed: int) -> Any:
        of_control = features.tags is shared.control["train"]
        asked.append((seed, len(penalties), of_control))
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(8, 3, 1, generator=generator) * torch.tensor(worse[seed - shared.seed])[: len(penalties)]
        bits = torch.arange(4.0)[: len(penalties)] * 64 * (1 + seed)
        return SimpleNamespace(weight=good.weight + 2 * noise, bias=good.bias.expand(3, len(penalties)), bits=bits)

    monkeypatch.setattr(work, "train", train)
    got = work.published_layer([shared], {"model": 0, "layer": 1})
    seeds = range(work.SEEDS)
    assert work.SEEDS == 3
    assert asked == [(s, 4, False) for s in seeds] + [(s, 1, True) for s in seeds]
    assert (float(got["l1"]), float(got["l2"])) == (float(grid.l1[1]), float(grid.l2[1]))
    assert len({tuple(r.tolist()) for r in got["right"]}) == 3
    assert got["control"].shape == (3, 300)
    assert float(got["bits"]) == pytest.approx(64 * (1 + 2 + 3) / 3 / 640)


def test_numbers_of_curves_are_means_over_seeds_and_differences_on_the_same_resamples() -> None:
    """Sentences of one to five words: a resample with more long ones has more words."""
    words = np.array([1, 5, 2, 4, 3])
    resamples = Resamples(np.repeat(np.arange(5), words), 0)
    generator = torch.Generator().manual_seed(0)
    parts = [
        {"right": torch.rand(3, 15, generator=generator) < 0.8, "control": torch.rand(3, 15, generator=generator) < 0.3}
        | {name: torch.tensor(0.5) for name in study.NUMBERS}
        for _ in range(2)
    ]
    got = study.layer_probes("m", "published", (0, 4), parts, resamples)
    right, control = (np.array([p[name].double().mean(0).numpy() for p in parts]) for name in ("right", "control"))
    np.testing.assert_allclose(got.accuracy.values, right.mean(1))
    np.testing.assert_allclose(got.control.values, control.mean(1))
    np.testing.assert_allclose(got.deviation, [p["right"].double().mean(1).std() for p in parts])
    generator_, drawn = np.random.default_rng(0), []
    for _ in range(20):
        weights = generator_.multinomial(5, np.full(5, 0.2), size=50)
        drawn += [np.repeat(w, words) for w in weights]
    of = {k: np.array([(v * w).sum(1) / w.sum() for w in drawn]) for k, v in (("right", right), ("control", control))}
    np.testing.assert_allclose(got.accuracy.replicates, of["right"])
    np.testing.assert_allclose(got.selectivity.replicates, of["right"] - of["control"])
    low, high = np.percentile(of["right"] - of["control"], [2.5, 97.5], axis=0)
    np.testing.assert_allclose(got.selectivity.low, low, atol=0.02)
    np.testing.assert_allclose(got.selectivity.high, high, atol=0.02)


def test_the_minimal_set_is_chosen_on_dev_and_its_control_task_is_the_control_task(planted: Planted) -> None:
    """On dev the tags are another task's: no neurons know them, and test words cannot help."""
    shared = replace(planted.shared, tags={**planted.shared.tags, "dev": planted.shared.control["dev"]})
    item = {"model": 0, "layers": [0, 1, 2], "ranking": "weights", "pair": 3, "share": 0.2, "delta": 0.15}
    ranked = work.ranked_neurons([shared], item)
    got = work.probed_neurons(([shared], [ranked]), item)
    assert float(got["oracle"].double().mean()) > 0.7
    assert float(got["step_accuracy"].max()) < 0.5
    assert int(got["minimal_size"]) == 1  # one neuron knows as little of dev as all
    assert float(got["oracle_control"].double().mean()) > 0.7
    first = ranked["ranking"][: int(got["minimal_size"])]
    known = solve(shared.features("train", (0, 1, 2), control=True).select(first), Penalties.grid()[[3]], gap=1e-3)
    test = shared.features("test", (0, 1, 2), control=True).select(first)
    assert torch.equal(got["minimal_control"], work.right(test, known.weight, known.bias))


def test_neurons_of_a_resample_are_counted_by_layer_and_its_bottom_ones_probed(planted: Planted) -> None:
    """Alike for equal models: differences between models are paired."""
    item = {"layers": [0, 1, 2], "ranking": "weights", "pair": 3, "share": 0.25, "salient": 5, "resample": 7}
    words = torch.full((64,), 10)
    one, two = (work.resampled_neurons(([planted.shared] * 2, words), {**item, "model": model}) for model in (0, 1))
    other = work.resampled_neurons(([planted.shared], words), {**item, "model": 0, "resample": 8})
    times = np.random.default_rng([0, 7]).multinomial(64, np.full(64, 1 / 64)).repeat(10)
    rows = torch.arange(640).repeat_interleave(torch.from_numpy(times))
    x, y = torch.cat(list(planted.rows["train"].matrices), 1)[rows], planted.shared.tags["train"][rows]
    data = Features(MemoryRows(list(torch.split(x, 8, dim=1))), (0, 1, 2), y, 3)
    weight, bias = stream(data, Penalties.grid()[[3]], seed=0)
    order = rank_by_weight(weight[..., 0], pull(data, weight, bias))
    assert one["by_layer"].tolist() == [int((order[:5] // 8 == k).sum()) for k in range(3)]
    fit = solve(data.select(order[-6:]), Penalties.grid()[[3]], gap=1e-3)
    test = planted.shared.features("test", (0, 1, 2)).select(order[-6:])
    agree = (one["bottom"] == work.right(test, fit.weight, fit.bias)).double().mean()
    assert float(agree) > 0.97  # rows in other chunks: other batches
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["bottom"], other["bottom"])


def test_every_model_has_the_bases_penalties_and_number_of_neurons(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every resample the pair that is best on its own resample of dev."""
    asked: dict[str, list[dict[str, Any]]] = {}
    scores = torch.zeros(1 + neurons.RERANKED, 4)
    scores[torch.arange(1 + neurons.RERANKED), torch.arange(1 + neurons.RERANKED) % 3] = 1.0
    sizes = {0: (0, 9), 1: (4, 9)}  # none of the base's steps is enough

    def part(name: str, item: dict[str, Any]) -> dict[str, Any]:
        size, most = sizes[item["model"]]
        numbers = {"minimal_size": torch.tensor(size), "most": torch.tensor(most)}
        return {"pairs": {"scores": scores}, "neurons": numbers}.get(name, {"model": item["model"]})

    def run_map(work_: Any, items: list[dict[str, Any]], *, name: str, **how: Any) -> list[dict[str, Any]]:
        asked[name] = items
        return [part(name, item) for item in items]

    plan = cast(Any, SimpleNamespace(
        models=[("a", 1), ("b", 2)],
        layers=lambda surveyed: (0, 3, 5),
        rows={s: SimpleNamespace(sentence=np.repeat([0, 2, 3], [2, 1, 4])) for s in SPLITS},
        options=SimpleNamespace(ranking="iou", seed=5, share=0.1, delta=0.02),
    ))  # fmt: skip
    monkeypatch.setattr(neurons, "_probes", lambda plan, item, parts, drawn, salient, resamples: (item, drawn, salient))
    got = cast(Any, neurons.neuron_probes(plan, [], cast(Any, None), cast(Any, SimpleNamespace(map=run_map)), "key"))
    assert [item["model"] for item in asked["pairs"]] == [0]
    assert [(i["model"], i["pair"], i["layers"], i["ranking"]) for i in asked["ranking"]] == [
        (0, 0, [0, 1, 2], "iou"), (1, 0, [0, 1, 2], "iou")
    ]  # fmt: skip
    assert [(i["share"], i["delta"]) for i in asked["neurons"]] == [(0.1, 0.02)] * 2
    assert [(i["model"], i["resample"], i["pair"], i["salient"]) for i in asked["reranked"]] == [
        (m, k, (k + 1) % 3, 9) for m in range(2) for k in range(neurons.RERANKED)
    ]
    assert [(item["model"], {d["model"] for d in drawn}, salient) for item, drawn, salient in got] == [
        (0, {0}, 9), (1, {1}, 9)
    ]  # fmt: skip


def test_the_control_task_has_the_shares_of_training_and_the_seed_of_the_run() -> None:
    """Training has tag a mostly, test b only."""
    words = {"train": [f"w{k}" for k in range(2000)], "dev": ["w1", "new"], "test": ["new", "w7", "other"]}
    tags = {"train": torch.tensor([0] * 1800 + [1] * 200), "dev": torch.tensor([0, 1]), "test": torch.tensor([1, 1, 1])}

    def plan(seed: int) -> Any:
        return SimpleNamespace(
            corpus=SimpleNamespace(at=lambda split, sentence, word: ((w, "") for w in words[split])),
            rows={s: Sized(len(w)) for s, w in words.items()},
            tags=tags,
            options=SimpleNamespace(seed=seed),
        )

    shares = np.array([1800.0, 200.0])
    control, floors = study._beside(plan(3), shares, Resamples(np.arange(3), 0))
    want = {s: control_tags(w, shares, 3).tolist() for s, w in words.items()}
    assert {s: t.tolist() for s, t in control.items()} == want
    assert control["train"].double().mean() == pytest.approx(0.1, abs=0.03)
    assert study._beside(plan(4), shares, Resamples(np.arange(3), 0))[0]["train"].tolist() != want["train"]
    assert [f.value for f in floors] == [0.0, 0.0]


class Sized:
    """Rows of so many words."""

    def __init__(self, size: int) -> None:
        self.size, self.sentence, self.word = size, np.arange(size), np.zeros(size, np.int64)

    def __len__(self) -> int:
        return self.size
