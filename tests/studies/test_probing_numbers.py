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
from stratoscope.probes.objective import Penalties
from stratoscope.probes.solve import solve
from stratoscope.statistics.rows import MemoryRows
from stratoscope.studies.probing import neurons, work
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
    words = Sentence("a b c d e f g h i j", tuple("abcdefghij"))
    plan = cast(Any, SimpleNamespace(
        models=[(SimpleNamespace(label="m"), SimpleNamespace(width=6))],
        layers=lambda surveyed: (1, 4),
        corpus=SimpleNamespace(tags=("A", "B", "C"), splits={"test": Corpus("t", (words,) * 4, range(4))}),
        rows={"test": SimpleNamespace(sentence=np.repeat(np.arange(4), 10), word=np.tile(np.arange(10), 4))},
        options=SimpleNamespace(share=0.25),
    ))  # fmt: skip
    parts: dict[str, Any] = {name: torch.arange(n) < round(share * n) for name, share in shares.items()}
    parts |= {
        "ranking": ranking, "tag": tag, "mass": torch.arange(12) / 100, "ablated": torch.tensor([0.7, 0.2, 0.4]),
        "words": torch.stack([torch.tensor([0, 13, 39])] * 12), "steps": torch.tensor([0.1, 0.2]),
        "step_accuracy": torch.tensor([0.6, 0.8]), "minimal_size": torch.tensor(3), "gaps": torch.tensor([0.001]),
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
    assert got.counts.tolist() == [[1, 1, 0], [0, 1, 1]]  # of neurons 7, 0, 11 and 1
    assert got.resampled.tolist() == [[0, 4], [1, 3], [2, 2]]
    drawn = resamples.shares([r["bottom"].numpy() for r in reranked])[1]
    assert got.bottom_resampled.tolist() == [drawn[k, k] for k in range(3)]
