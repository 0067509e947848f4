"""Claims of Durrani et al. 2021 on planted curves and neurons."""

from __future__ import annotations

import numpy as np
import pytest

from stratoscope.claims.durrani2021 import judge_probing
from stratoscope.core.curve import Curve
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import PERCENTILES, Interval, Value
from stratoscope.results.probing import LayerProbes, Layers, NeuronProbes, Probing

LAYERS = tuple(range(9))
NOISE = np.random.default_rng(0).normal(scale=0.002, size=(200, 1))


def probes(model: str, accuracy: np.ndarray, solver: str = "solved") -> LayerProbes:
    accuracy = np.asarray(accuracy, dtype=float)
    drawn = accuracy + NOISE * np.linspace(0.5, 1, len(accuracy))
    interval = Interval(0.95, PERCENTILES)
    curve = Curve(model, LAYERS[: len(accuracy)], accuracy, accuracy - 0.004, accuracy + 0.004, interval, drawn)
    return LayerProbes(model, solver, curve, curve, curve, *(np.zeros(len(accuracy)) for _ in range(7)))


def neurons(model: str, by_layer: list[int], bottom: float) -> NeuronProbes:
    value = Value(bottom, bottom - 0.01, bottom + 0.01)
    counts = np.array(by_layer, dtype=float)[:, None]
    drawn = np.full((200, 4), bottom) + NOISE
    top = Value(0.9)
    return NeuronProbes(model, 4, LAYERS, np.arange(36.0), (), 0, 0, top, top, 0.05, top, value, top, 0, 0, 0,
                        np.array([0.01]), np.array([0.9]), 10, top, top, counts, drawn)  # fmt: skip


def judged(tuned: np.ndarray, *extra: LayerProbes, ranked: tuple[NeuronProbes, ...] = ()) -> dict[str, Statement]:
    infos = tuple(ModelInfo(name, f"/{name}", "bert", 9, 4, "f") for name in ("base", "tuned"))
    layers = Layers((probes("base", np.full(len(tuned), 0.9)), probes("tuned", tuned), *extra))
    result = Probing(infos, {"property": "upos"}, ("a", "b"), (1, 1), Value(0.5), Value(0.6), layers, ranked)
    return {s.id.split(":")[0].removeprefix("durrani2021-"): s for s in judge_probing(result)}


def test_forgotten_above_and_kept_below() -> None:
    found = judged(np.array([0.9] * 5 + [0.88, 0.85, 0.8, 0.7]))
    above, below = found["forgotten-above"], found["kept-below"]
    assert (above.verdict, below.verdict) == (HOLDS, HOLDS)
    assert above.value.value == pytest.approx(np.mean([0.02, 0.05, 0.1, 0.2]))
    assert above.numbers["loss_largest"] == pytest.approx(0.2)
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
