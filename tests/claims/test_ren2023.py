"""Claims of Ren et al. 2023 on made-up results whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stratoscope.claims import judge_alignment, judge_injection, judge_recovery
from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import BOOTSTRAP, Interval, Value
from stratoscope.results.alignment import Alignment, Fit, Injected, Injection, LayerFit, Recovered, Recovery

RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=200)


def fit(method: str, error: float, spread: float = 0.01) -> Fit:
    value = Value(error)
    return Fit(method, value, value, Value(1 - error), float("nan"), error + spread * NOISE)


def alignment(errors: dict[str, list[float]], before: dict[str, list[float]] | None = None, **more: Any) -> Alignment:
    """Errors of layers 0, 1, ... by method, of two pairs a tenth to either side."""
    fits = [
        LayerFit(Layer("a", k), Layer(name, k), group, fit(method, level + shift))
        for group, every in (("models", errors), ("before", before or {}))
        for name, shift in (("b", 0.1), ("c", -0.1))
        for method, levels in every.items()
        for k, level in enumerate(levels)
    ]
    return Alignment((), {"unit": "mean"}, tuple(fits), **more)


def judged(statements: tuple[Statement, ...], id: str) -> Statement:
    return next(s for s in statements if s.id.startswith(f"ren2023-{id}"))


def test_lower_layers_align_better() -> None:
    found = judged(judge_alignment(alignment({"ridge": [0.9, 0.2, 0.3, 0.4, 0.6]})), "lower-align-better")
    assert found.verdict == HOLDS
    assert found.value.value == pytest.approx(0.5 - 0.25)  # the embeddings, layer 0, are in neither half
    assert found.numbers == pytest.approx({"lower": 0.25, "upper": 0.5})
    assert judged(judge_alignment(alignment({"ridge": [0, 0.6, 0.4, 0.3, 0.2]})), "lower-align-better").verdict == FAILS
    odd = judged(judge_alignment(alignment({"ridge": [0, 0.2, 0.2, 0.8, 0.8, 0.8]})), "lower-align-better")
    assert odd.numbers == pytest.approx({"lower": 0.2, "upper": 0.8})  # the middle block is an upper one
    few = judged(judge_alignment(alignment({"ridge": [0.1, 0.2, 0.3]})), "lower-align-better")
    assert (few.verdict, few.reason.partition(":")[0]) == (OPEN, "too few layers")


def test_a_network_worse_than_the_mean_does_not_judge_layers() -> None:
    levels = [0, 0.2, 0.3, 0.4, 0.6]
    for scale, method in ((1.2, "inn"), (4, "ridge")):
        result = alignment({"inn": [scale * v for v in levels], "ridge": levels})
        assert result.judged == judged(judge_alignment(result), "lower-align-better").about["method"] == method


def test_fine_tuning_lowers_alignment_is_a_paired_difference() -> None:
    result = alignment({"ridge": [0, 0.5, 0.6]}, {"ridge": [0, 0.4, 0.4]})
    found = judged(judge_alignment(result), "tuning-lowers-alignment")
    assert found.verdict == HOLDS
    assert found.value.value == pytest.approx(0.15)
    assert found.value.high - found.value.low < 1e-9  # the same rows move both
    assert not [s for s in judge_alignment(alignment({"ridge": [0.1, 0.2]})) if "tuning-lowers" in s.id]


def test_near_layers_align_better_than_far_ones_among_the_blocks_of_one_model() -> None:
    """Neighbours are off by 0.1, blocks two and three apart by 0.2 and 0.6; layer 0 and other models do not count."""
    axis, apart = tuple(Layer("a", k) for k in range(5)), np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    errors = np.array([0, 0.1, 0.2, 0.6, 9])[apart]
    errors[0] = errors[:, 0] = 5
    drawn = errors + 0.01 * NOISE[:, None, None] * (apart > 1)
    own = Matrix("ridge error", axis, axis, errors, replicates=drawn)
    other = replace(own, columns=tuple(Layer("b", k) for k in range(5)))
    every = judge_alignment(Alignment((), {"unit": "mean"}, alignment({"ridge": [0, 1]}).fits, matrices=(other, own)))
    (found,) = (s for s in every if s.id.startswith("ren2023-near"))
    assert (found.verdict, found.about) == (HOLDS, {"model": "a", "unit": "mean"})
    assert found.numbers == pytest.approx({"near": 0.1, "far": (4 * 0.2 + 2 * 0.6) / 6})
    assert found.value.value == pytest.approx(1 / 3 - 0.1)
    assert found.value.high - found.value.low == pytest.approx(0.01 * np.ptp(np.quantile(NOISE, [0.025, 0.975])))

    def verdict(**changed: Any) -> tuple[str, str]:
        result = replace(alignment({"ridge": [0, 1]}), matrices=(replace(own, **changed),))
        found = judged(judge_alignment(result), "near-align-better")
        return found.verdict, found.reason.partition(":")[0]

    flat = np.full_like(errors, 0.3)
    assert verdict(values=flat, replicates=flat + 0 * drawn)[0] == FAILS
    missing = np.where(apart == 1, np.nan, errors)
    assert verdict(values=missing, replicates=None) == (OPEN, "constant layers")
    assert verdict(replicates=None)[0] == OPEN
    few = {"rows": axis[:4], "columns": axis[:4], "values": errors[:4, :4], "replicates": None}
    assert verdict(**few) == (OPEN, "too few layers")


def test_attention_stays_alignable_unless_its_error_grows() -> None:
    for after, verdict in (([0, 0.4, 0.4], HOLDS), ([0, 0.5, 0.6], FAILS)):
        result = replace(alignment({"ridge": after}, {"ridge": [0, 0.4, 0.4]}), data={"unit": "attention"})
        found = judged(judge_alignment(result), "attention-stays-alignable")
        assert found.verdict == verdict
        assert found.value.value == pytest.approx(0.4 - np.mean(after[1:]))


def test_a_network_is_held_against_the_best_exact_linear_map() -> None:
    errors = {"linreg": [0.4, 0.4], "ridge": [0.2, 0.2], "cca": [0.9, 0.9]}
    won = judged(judge_alignment(alignment(errors | {"inn": [0.15, 0.15]})), "inn-beats-linear")
    assert won.verdict == HOLDS
    assert won.value.value == pytest.approx(0.25)
    lost = judged(judge_alignment(alignment(errors | {"inn": [0.3, 0.3]})), "inn-beats-linear")
    assert lost.verdict == FAILS
    assert "no better than ridge here" in lost.text
    start = judged(
        judge_alignment(alignment(errors | {"shrunk": [0.15, 0.15], "inn": [0.15, 0.15]})), "inn-beats-linear"
    )
    assert start.verdict == FAILS  # what the network starts from is a linear map
    assert "no better than shrunk here" in start.text


def test_complexity_drops_in_the_top_third() -> None:
    values = np.array([0.1, 1, 1, 1, 0.9, 0.5, 0.3])
    drawn = values + 0.01 * RNG.normal(size=(30, 7))
    curve = Curve("m", tuple(range(7)), values, interval=Interval(0.95, BOOTSTRAP, 1000), replicates=drawn)
    errors = {"ridge": [0.1] * 5}
    found = judged(judge_alignment(alignment(errors, norms=(curve,))), "complexity-drops")
    assert found.verdict == HOLDS
    assert found.value.value == pytest.approx(3.9 / 4 - 0.4)
    up = replace(curve, values=1.1 - values, replicates=1.1 - drawn)
    assert judged(judge_alignment(alignment(errors, norms=(up,))), "complexity-drops").verdict == FAILS


def test_injection_keeps_accuracy_unless_the_model_is_at_chance() -> None:
    def read(name: str, value: float, *, baseline: bool = False) -> Injected:
        return Injected(name, Value(value, value - 0.02, value + 0.02), value + 0.002 * NOISE, baseline)

    models = tuple(ModelInfo(n, n, "bert", 7, 384, n) for n in ("one", "two"))
    injected = (read("inn", 0.898), read("cca", 0.8), read("shuffled", 0.5, baseline=True))
    result = Injection(models, {"majority": 0.5}, (read("one", 0.95), read("two", 0.9)), injected, ())
    inn, cca = judge_injection(result)  # not the baseline
    assert (inn.verdict, cca.verdict) == (HOLDS, FAILS)
    assert cca.value.value == pytest.approx(-0.1)
    assert cca.value.high - cca.value.low < 1e-9  # the same rows move both
    assert inn.about == {"first": "one", "second": "two", "method": "inn"}
    guarded = judge_injection(replace(result, task={"majority": 0.89}))
    assert {s.verdict for s in guarded} == {OPEN}


def test_recovery_is_judged_at_every_width() -> None:
    every = ((8, "ridge", 0.1), (8, "inn", 0.01), (128, "ridge", 0.1), (128, "inn", 0.2), (128, "linreg", 0.3))
    recovered = tuple(Recovered(d, 1600, 0, fit(m, e, 0.001)) for d, m, e in every)
    found = judge_recovery(Recovery({}, recovered))
    assert [(s.about["features"], s.verdict) for s in found] == [("8", HOLDS), ("128", FAILS)]
    assert found[0].value.value == pytest.approx(0.9)
