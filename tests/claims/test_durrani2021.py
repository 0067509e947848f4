"""Claims of Durrani et al. 2021 on planted curves and neurons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from stratoscope.claims import judge_pruning
from stratoscope.claims.durrani2021 import judge_probing
from stratoscope.core.curve import Curve
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import PERCENTILES, Interval, Value
from stratoscope.results.finetuned import Finetuned
from stratoscope.results.probing import LayerProbes, Layers, NeuronProbes, Probing

LAYERS = tuple(range(9))
NOISE = np.random.default_rng(0).normal(scale=0.002, size=(200, 1))


def probes(model: str, accuracy: np.ndarray, solver: str = "solved") -> LayerProbes:
    accuracy = np.asarray(accuracy, dtype=float)
    drawn = accuracy + NOISE * np.linspace(0.5, 1, len(accuracy))
    interval = Interval(0.95, PERCENTILES)
    curve = Curve(model, LAYERS[: len(accuracy)], accuracy, accuracy - 0.004, accuracy + 0.004, interval, drawn)
    return LayerProbes(model, solver, curve, curve, curve, *(np.zeros(len(accuracy)) for _ in range(8)))


def neurons(
    model: str, by_layer: list[int], bottom: float, *, moved: float = 2.0, trained: float = 0.002
) -> NeuronProbes:
    """Salient neurons by layer; on resamples about `moved` of them change places with other layers, and the bottom
    neurons' accuracy moves by about `trained`."""
    value = Value(bottom, bottom - 0.01, bottom + 0.01)
    counts = np.array(by_layer, dtype=float)[:, None]
    top = Value(0.9)
    generator = np.random.default_rng(len(model))
    resampled = np.clip(counts[:, 0] + generator.normal(scale=moved, size=(20, 9)), 0, None)
    drawn = bottom + generator.normal(scale=trained, size=20)
    return NeuronProbes(model, 4, LAYERS, np.arange(36.0), np.zeros((36, 1)), np.zeros(36), (), 0, 0,
                        top, top, 0.05, top, value, top, 0, 0, 0,
                        np.array([0.01]), np.array([0.9]), 0.9, 0.01, 10, top, top, counts,
                        resampled, drawn, np.zeros(25))  # fmt: skip


def judged(tuned: np.ndarray, *extra: LayerProbes, ranked: tuple[NeuronProbes, ...] = ()) -> dict[str, Statement]:
    infos = tuple(ModelInfo(name, f"/{name}", "bert", 9, 4, "f") for name in ("base", "tuned"))
    layers = Layers((probes("base", np.full(len(tuned), 0.9)), probes("tuned", tuned), *extra))
    data = {"property": "upos", "sentences": {"train": 200, "test": 100}}
    result = Probing(infos, data, ("a", "b"), (1, 1), Value(0.5), Value(0.6), layers, ranked)
    return {s.id.split(":")[0].removeprefix("durrani2021-"): s for s in judge_probing(result)}


def test_forgotten_above_and_kept_below() -> None:
    found = judged(np.array([0.9] * 5 + [0.88, 0.85, 0.8, 0.7]))
    above, below = found["forgotten-above"], found["kept-below"]
    assert (above.verdict, below.verdict) == (HOLDS, HOLDS)
    assert above.value.value == pytest.approx(np.mean([0.02, 0.05, 0.1, 0.2]))
    assert above.numbers["loss_largest"] == pytest.approx(0.2)
    assert "over test sentences" in above.text
    assert below.value.value == pytest.approx(0.0, abs=1e-9)


def test_kept_above_and_forgotten_below() -> None:
    found = judged(np.array([0.9, 0.8, *[0.9] * 7]))
    assert found["forgotten-above"].verdict == FAILS
    assert found["kept-below"].verdict == FAILS
    assert found["kept-below"].value.value == pytest.approx(-0.1)


def test_too_few_layers_cannot_tell() -> None:
    assert judged(np.array([0.9, 0.8]))["forgotten-above"].verdict == OPEN


def test_a_base_at_chance_is_not_judged() -> None:
    infos = tuple(ModelInfo(name, f"/{name}", "bert", 9, 4, "f") for name in ("base", "tuned"))
    layers = Layers((probes("base", np.full(9, 0.5)), probes("tuned", np.full(9, 0.3))))
    result = Probing(infos, {}, ("a", "b"), (1, 1), Value(0.5), Value(0.6), layers)
    assert {s.verdict for s in judge_probing(result)} == {OPEN}
    assert all("chance" in s.reason for s in judge_probing(result))


def test_a_handful_of_sentences_or_probes_below_the_words_own_tags_decide_nothing() -> None:
    infos = tuple(ModelInfo(name, f"/{name}", "bert", 9, 4, "f") for name in ("base", "tuned"))
    layers = Layers((probes("base", np.full(9, 0.9)), probes("tuned", np.full(9, 0.3))))
    for sentences, by_word, reason in ((9, 0.6, "9 test sentences"), (10, 0.95, "0.950")):
        data = {"sentences": {"test": sentences}}
        result = Probing(infos, data, ("a", "b"), (1, 1), Value(0.5), Value(by_word), layers)
        assert {s.verdict for s in judge_probing(result)} == {OPEN}
        assert all(reason in s.reason for s in judge_probing(result))
    result = Probing(infos, {"sentences": {"test": 10}}, ("a", "b"), (1, 1), Value(0.5), Value(0.6), layers)
    assert OPEN not in {s.verdict for s in judge_probing(result)}


def test_neurons_move_down_and_information_is_less_distributed() -> None:
    flat = [40] * 9
    down = [100, 80, 60, 40, 30, 20, 15, 10, 5]
    ranked = (neurons("base", flat, 0.8), neurons("tuned", down, 0.6))
    found = judged(np.full(9, 0.9), ranked=ranked)
    assert found["neurons-move-down"].verdict == HOLDS
    assert found["neurons-move-down"].numbers["depth_base"] == pytest.approx(0.5)
    assert found["less-distributed"].verdict == HOLDS
    assert found["less-distributed"].value.value == pytest.approx(0.2)
    swapped = judged(np.full(9, 0.9), ranked=(neurons("base", down, 0.6), neurons("tuned", flat, 0.8)))
    assert swapped["neurons-move-down"].verdict == FAILS
    assert swapped["less-distributed"].verdict == FAILS


def test_the_schedule_against_the_solved_probe() -> None:
    short = probes("base", np.array([0.9] * 8 + [0.75]), "published")
    found = judged(np.full(9, 0.9), short)["schedule-suffices"]
    assert found.verdict == FAILS
    assert found.value.value == pytest.approx(-0.15)
    same = judged(np.full(9, 0.9), probes("base", np.full(9, 0.9), "published"))
    assert same["schedule-suffices"].verdict == HOLDS


def error(estimate: float, drawn: np.ndarray) -> float:
    """Half of an interval: Student's t of 20 resamples of 100 test sentences."""
    squares = np.var(drawn, ddof=1) * 100 / 99 + (drawn.mean() - estimate) ** 2
    return float(scipy.stats.t.ppf(0.975, 19) * np.sqrt(squares))


def test_the_interval_of_the_neurons_depth_is_over_resampled_rankings() -> None:
    """Estimate +- the error of the paired difference."""
    down = [50, 48, 46, 44, 40, 36, 34, 32, 30]
    ranked = (neurons("base", [40] * 9, 0.8), neurons("tuned", down, 0.6))
    value = judged(np.full(9, 0.9), ranked=ranked)["neurons-move-down"].value
    depth = np.arange(9) / 8
    means = [p.resampled @ depth / p.resampled.sum(axis=1) for p in ranked]
    want = 0.5 - np.array(down) @ depth / sum(down)
    half = error(want, means[0] - means[1])
    assert (value.value, value.low, value.high) == pytest.approx((want, want - half, want + half))
    loose = tuple(neurons(p.model, p.counts[:, 0].astype(int).tolist(), 0.8, moved=40.0) for p in ranked)
    assert judged(np.full(9, 0.9), ranked=loose)["neurons-move-down"].verdict == OPEN


def test_the_bottom_neurons_are_judged_over_resampled_rankings() -> None:
    """Test sentences may be many and certain: if another training sample moves D as far, nothing can be told."""
    for trained, verdict in ((0.01, HOLDS), (0.1, OPEN)):
        ranked = tuple(neurons(m, [40] * 9, b, trained=trained) for m, b in (("base", 0.8), ("tuned", 0.7)))
        found = judged(np.full(9, 0.9), ranked=ranked)["less-distributed"]
        drawn = ranked[0].bottom_resampled - ranked[1].bottom_resampled
        half = error(0.1, drawn)
        assert (found.value.value, found.value.low, found.value.high) == pytest.approx((0.1, 0.1 - half, 0.1 + half))
        assert found.verdict == verdict
    away = (ranked[0], replace(ranked[1], bottom_resampled=ranked[0].bottom_resampled))  # as certain, but elsewhere
    assert judged(np.full(9, 0.9), ranked=away)["less-distributed"].verdict == OPEN


def pruned(how: str, score: float, *, half: float = 0.005, majority: float = 0.5) -> Finetuned:
    return Finetuned(
        base={"name": "base"}, task={"name": "sst2"}, recipe={}, seed=0, metric="accuracy", parts={}, freeze=None,
        parameters={}, head="fresh", loss=(), early={}, seconds=0.0, weights="",
        score=Value(score, score - half, score + half), baselines={"majority": majority}, pruned={"drop": how},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("top", "bottom", "verdict"),
    [(0.92, 0.87, HOLDS), (0.87, 0.92, FAILS), (0.92, 0.915, FAILS), (0.92, 0.909, OPEN), (0.92, 0.92, FAILS)],
)
def test_pruning_the_bottom_hurts_more_by_at_least_a_point(top: float, bottom: float, verdict: str) -> None:
    [found] = judge_pruning([pruned("top:6", top, half=0.003), pruned("bottom:6", bottom, half=0.003)])
    assert found.value.value == pytest.approx(top - bottom)
    assert found.verdict == verdict
    assert (found.numbers["score_top"], found.numbers["score_bottom"]) == (top, bottom)


def test_pruned_models_at_chance_or_without_their_counterpart_decide_nothing() -> None:
    [found] = judge_pruning([pruned("top:6", 0.9, majority=0.9), pruned("bottom:6", 0.8, majority=0.9)])
    assert found.verdict == OPEN
    assert "chance" in found.reason
    assert judge_pruning([pruned("top:6", 0.9), pruned("bottom:4", 0.8)]) == ()
