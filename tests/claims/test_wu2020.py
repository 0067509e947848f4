"""Claims of Wu et al. 2020 on scores made so that they must hold, must fail, or cannot be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from claims.claim_cases import BOOTSTRAP, Score, comparison, kind, model, named, near, scored
from results.result_cases import FINETUNED
from stratoscope.claims import judge_comparison, judge_freezing
from stratoscope.claims.claim import (
    BY_CHANCE,
    CONSTANT,
    EMPTY_HALF,
    FEW_LAYERS,
    INCLUDES_MARGIN,
    MODEL_AT_CHANCE,
    NO_INTERVAL,
    OTHER_LAYERS,
)
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import Interval, Value
from stratoscope.measures.structure import findings
from stratoscope.results.comparison import Comparison
from stratoscope.results.finetuned import Finetuned

BASE, TUNED = model("base"), model("tuned")


def drifting(low: float, high: float):
    """Models whose lower halves drift by `low` and whose upper halves by `high`."""

    def score(a: str, x: float, b: str, y: float) -> float:
        return near(x, y) - (0 if a == b else high if max(x, y) > 0.5 else low)

    return score


def top(given: Comparison) -> Statement:
    return named(judge_comparison(given), "wu2020-top-changes-more")


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.05, 0.3, HOLDS), (0.3, 0.05, FAILS), (0.1, 0.1, FAILS), (0.1, 0.12, OPEN)]
)
def test_top_layers_change_more(low: float, high: float, verdict: str) -> None:
    got = top(comparison(scored(drifting(low, high), [BASE, TUNED]), [BASE, TUNED]))
    assert got.verdict == verdict
    assert got.value.value == pytest.approx(high - low)
    assert (got.numbers["drift_lower"], got.numbers["drift_upper"]) == (pytest.approx(low), pytest.approx(high))
    assert got.about["base"] == "base"
    assert got.about["measure"] == "ckasim"
    assert kind(got) == (INCLUDES_MARGIN if verdict == OPEN else "")
    assert got.id == "wu2020-top-changes-more:base:tuned"


def test_the_interval_is_that_of_the_difference() -> None:
    """Resamples move both halves together by 0.1: each half alone is uncertain, their difference is not."""
    matrix = scored(drifting(0.1, 0.2), [BASE, TUNED], shared=0.1, noise=0.002)
    block = matrix.between("base", "tuned")
    drawn = 1 - np.diagonal(block.replicates, axis1=1, axis2=2)
    low, high = (np.quantile(drawn[:, k].mean(-1), [0.025, 0.975]) for k in (slice(1, 5), slice(5, 9)))
    assert low[1] > high[0], "the halves' own intervals overlap"
    got = top(comparison(matrix, [BASE, TUNED]))
    assert got.verdict == HOLDS
    assert got.value.high - got.value.low < 0.02


def test_depth_is_a_fraction_of_the_models_depth_whatever_layers_were_chosen() -> None:
    """Layer 6 of 30 is in the lower half: with layers 1-6 there is no upper one (once 4-6 were)."""
    deep = [model("base", 30), model("tuned", 30)]

    def score(a: str, x: float, b: str, y: float) -> float:
        return near(x, y) - (0 if a == b else 0.3 if max(x, y) > 0.1 else 0.0)

    shallow = top(comparison(scored(score, deep, layers=range(7)), deep))
    assert (shallow.verdict, kind(shallow)) == (OPEN, EMPTY_HALF)
    few = top(comparison(scored(score, deep, layers=(0, 1, 6)), deep))
    assert (few.verdict, kind(few)) == (OPEN, FEW_LAYERS)
    got = top(comparison(scored(score, deep, layers=(0, 1, 2, 3, 15, 16)), deep))
    assert got.verdict == HOLDS
    assert got.numbers["drift_upper"] == pytest.approx(0.3)
    assert got.numbers["drift_lower"] == pytest.approx(0.3 / 4), "layer 15 of 30 is not above half"


def test_layer_0_is_no_block() -> None:
    def score(a: str, x: float, b: str, y: float) -> float:
        return near(x, y) - (0 if a == b else 0.9 if x == 0 else 0.1)

    got = top(comparison(scored(score, [BASE, TUNED]), [BASE, TUNED]))
    assert got.numbers["drift_lower"] == pytest.approx(0.1)


def test_constant_layers_do_not_count_and_a_constant_half_cannot_be_told() -> None:
    one = scored(drifting(0.1, 0.3), [BASE, TUNED], constant=[("base", 0), ("tuned", 2)])
    assert top(comparison(one, [BASE, TUNED])).verdict == HOLDS
    gone = [("tuned", k) for k in (5, 6, 7, 8)]
    got = top(comparison(scored(drifting(0.1, 0.3), [BASE, TUNED], constant=gone), [BASE, TUNED]))
    assert (got.verdict, kind(got), got.value.known) == (OPEN, CONSTANT, False)


def test_without_bootstrap_there_are_numbers_but_no_verdict() -> None:
    got = top(comparison(scored(drifting(0.1, 0.3), [BASE, TUNED], bootstrap=False), [BASE, TUNED]))
    assert (got.verdict, kind(got), got.value.has_interval) == (OPEN, NO_INTERVAL, False)
    assert got.value.value == pytest.approx(0.2)
    assert got.numbers["drift_upper"] == pytest.approx(0.3)


def test_practically_unchanged_is_said_with_digits_that_show_it() -> None:
    got = top(comparison(scored(drifting(0.0001, 0.0004), [BASE, TUNED], noise=1e-5), [BASE, TUNED]))
    assert got.verdict == FAILS
    assert got.numbers["drift_largest"] == pytest.approx(0.0004)
    assert "practically unchanged" in got.text
    assert "0.0001" in got.text
    assert "0.0004" in got.text
    moved = top(comparison(scored(drifting(0.0001, 0.01), [BASE, TUNED], noise=1e-5), [BASE, TUNED]))
    assert "unchanged" not in moved.text


@pytest.mark.parametrize(
    ("low", "high", "rows", "verdict"),
    [
        (0.05, 0.5, 40, HOLDS),  # level 0.29: even what remains without chance is a clear difference
        (0.6, 0.63, 40, OPEN),  # 0.03 apart, but chance could have made or hidden it
        (0.8, 0.9, 40, OPEN),  # all within chance
        (0.6, 0.63, 10**6, HOLDS),
    ],
)
def test_what_chance_may_decide_is_not_told(low: float, high: float, rows: int, verdict: str) -> None:
    matrix = scored(drifting(low, high), [BASE, TUNED], noise=0.001)
    got = top(comparison(matrix, [BASE, TUNED], rows=rows))
    assert got.verdict == verdict
    assert kind(got) == (BY_CHANCE if verdict == OPEN else "")


def test_debiased_cka_decides_where_chance_could() -> None:
    matrices = [
        scored(drifting(0.6, 0.63), [BASE, TUNED], noise=0.001),
        scored(drifting(0.9, 0.97), [BASE, TUNED], measure="ckasim-debiased", noise=0.001),
    ]
    got = top(comparison(matrices, [BASE, TUNED], rows=40, sentences=40))
    assert (got.verdict, got.about["measure"]) == (HOLDS, "ckasim-debiased")
    assert got.value.value == pytest.approx(0.07)
    enough = top(comparison(matrices, [BASE, TUNED]))
    assert enough.about["measure"] == "ckasim", "where chance cannot decide, ckasim does"


def test_debiased_cka_has_a_chance_level_where_sentences_hold_several_rows() -> None:
    matrices = [
        scored(drifting(0.6, 0.63), [BASE, TUNED], noise=0.001),
        scored(drifting(0.9, 0.97), [BASE, TUNED], measure="ckasim-debiased", noise=0.001),
    ]
    words = comparison(matrices, [BASE, TUNED], rows=40, sentences=4)
    assert (top(words).verdict, kind(top(words))) == (OPEN, BY_CHANCE)
    permuted = replace(words, findings={"chance": {"ckasim": 0.5, "ckasim-debiased": 0.01}})
    assert (top(permuted).verdict, top(permuted).about["measure"]) == (HOLDS, "ckasim-debiased")
    lifted = replace(words, findings={"chance": {"ckasim": 0.5, "ckasim-debiased": 0.2}})
    assert top(lifted).verdict == OPEN, "a level found by permuting counts"


def test_other_measures_are_counted() -> None:
    matrices = [
        scored(drifting(0.1, 0.3), [BASE, TUNED]),
        scored(drifting(0.1, 0.2), [BASE, TUNED], measure="procrustes"),
        scored(drifting(0.2, 0.1), [BASE, TUNED], measure="rsa"),
        scored(drifting(0.2, 0.1), [BASE, TUNED], measure="svsim", bootstrap=False),
    ]
    got = top(comparison(matrices, [BASE, TUNED]))
    assert (got.numbers["other_measures"], got.numbers["other_measures_agreeing"]) == (2, 1)


def test_the_first_measure_is_judged_without_ckasim() -> None:
    got = top(comparison(scored(drifting(0.1, 0.3), [BASE, TUNED], measure="rsa"), [BASE, TUNED]))
    assert (got.verdict, got.about["measure"]) == (HOLDS, "rsa")


def test_whether_one_was_tuned_from_the_other_is_a_premise_unless_it_is_known() -> None:
    known = model("tuned", base="base")
    matrix = scored(drifting(0.1, 0.3), [BASE, TUNED])
    assert top(comparison(matrix, [BASE, TUNED])).about["premise"]
    assert "premise" not in top(comparison(matrix, [BASE, known])).about
    back = top(comparison(matrix, [model("base", base="tuned"), TUNED]))
    assert (back.about["base"], back.about["tuned"]) == ("tuned", "base")


def test_only_models_that_may_be_tuned_from_each_other_are_judged_so() -> None:
    models = [BASE, model("one", base="base"), model("two", base="base"), model("noise", role="control")]
    found = judge_comparison(comparison(scored(drifting(0.1, 0.3), models), models))
    pairs = {(s.about["base"], s.about["tuned"]) for s in found if s.id.startswith("wu2020-top")}
    assert pairs == {("base", "one"), ("base", "two")}
    other = [BASE, model("wide", family="gpt2")]
    found = judge_comparison(comparison(scored(drifting(0.1, 0.3), other), other))
    adjacent = ["wu2020-adjacent-more-alike:base", "wu2020-adjacent-more-alike:wide"]
    assert [s.id for s in found] == ["wu2020-lower-more-alike:base:wide", *adjacent]


def test_different_layers_have_no_drift() -> None:
    axis = tuple(Layer(m, k) for m, ks in (("base", range(1, 6)), ("tuned", range(2, 7))) for k in ks)
    matrix = Matrix("ckasim", axis, axis, np.ones((10, 10)), None, None, BOOTSTRAP, np.ones((20, 10, 10)))
    assert kind(top(comparison(matrix, [BASE, TUNED]))) == OTHER_LAYERS


ACROSS = [model("a", 8), model("b", 12, family="gpt2")]


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.8, 0.3, HOLDS), (0.3, 0.8, FAILS), (0.5, 0.5, FAILS), (0.52, 0.5, OPEN)]
)
def test_lower_layers_are_more_alike_across_architectures(low: float, high: float, verdict: str) -> None:
    """Depths differ, so halves are matched, not layers."""

    def score(a: str, x: float, b: str, y: float) -> float:
        return near(x, y) if a == b else 0.4 if (x > 0.5) != (y > 0.5) else high if x > 0.5 else low

    got = named(judge_comparison(comparison(scored(score, ACROSS), ACROSS)), "wu2020-lower-more-alike")
    assert got.verdict == verdict
    assert (got.numbers["similarity_lower"], got.numbers["similarity_upper"]) == (
        pytest.approx(low),
        pytest.approx(high),
    )
    assert got.value.value == pytest.approx(low - high)
    assert kind(got) == (INCLUDES_MARGIN if verdict == OPEN else "")


def test_a_model_of_few_blocks_has_no_halves() -> None:
    elmo = [model("a", 8), model("elmo", 2, family="activations")]
    got = named(judge_comparison(comparison(scored(drifting(0.1, 0.3), elmo), elmo)), "wu2020-lower-more-alike")
    assert (got.verdict, kind(got)) == (OPEN, FEW_LAYERS)


def localized(rows: int = 10**9, *, noise: float = 0.001, bootstrap: bool = True, **series: list[float]) -> Comparison:
    """Models with these localization scores: neuronsim of a layer is its score, svsim 0, whatever the other layer."""
    models = [model(name, len(values) - 1) for name, values in series.items()]

    def score(a: str, x: float, b: str, y: float) -> float:
        return series[a][round(x * (len(series[a]) - 1))]

    matrices = [
        scored(score, models, measure="neuronsim", noise=noise, bootstrap=bootstrap),
        scored(lambda *_: 0.0, models, measure="svsim", noise=noise, bootstrap=bootstrap),
    ]
    found = comparison(matrices, models, rows=rows)
    return replace(found, findings=findings(found))


RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


@pytest.mark.parametrize(
    ("series", "share", "verdict"),
    [
        (RISING, 1, HOLDS),
        (RISING[::-1], 0, FAILS),
        ([0.1, 0.4, 0.2, 0.6, 0.3, 0.5], 11 / 15, HOLDS),
        ([0.3, 0.1, 0.5, 0.2, 0.6, 0.4], 10 / 15, FAILS),
    ],
)
def test_localization_rises_with_depth(series: list[float], share: float, verdict: str) -> None:
    got = named(judge_comparison(localized(base=series)), "wu2020-localization-rises")
    assert (got.value.value, got.verdict) == (pytest.approx(share), verdict)
    assert (got.numbers["lowest_layer"], got.numbers["highest_layer"]) == (
        pytest.approx(series[0], abs=1e-9),
        pytest.approx(series[-1], abs=1e-9),
    )
    assert got.id == "wu2020-localization-rises:base"


def test_localization_that_is_noise_chance_or_without_resamples_cannot_be_told() -> None:
    claim = "wu2020-localization-rises"
    noisy = named(judge_comparison(localized(base=[0.3, 0.1, 0.5, 0.2, 0.6, 0.7], noise=0.3)), claim)
    assert (noisy.verdict, kind(noisy)) == (OPEN, INCLUDES_MARGIN)
    chance = named(judge_comparison(localized(20, base=RISING)), claim)
    assert (chance.verdict, kind(chance)) == (OPEN, BY_CHANCE)
    alone = named(judge_comparison(localized(base=RISING, bootstrap=False)), claim)
    assert (alone.verdict, kind(alone), alone.value.value) == (OPEN, NO_INTERVAL, 1)
    short = named(judge_comparison(localized(base=RISING[:3])), claim)
    assert (short.verdict, kind(short)) == (OPEN, FEW_LAYERS)


def test_localization_needs_resamples_of_both_measures_to_be_the_same() -> None:
    whole = localized(base=RISING)
    other = replace(whole.matrices[1], interval=Interval(0.95, "jackknife", 80))
    got = named(judge_comparison(replace(whole, matrices=(whole.matrices[0], other))), "wu2020-localization-rises")
    assert kind(got) == NO_INTERVAL


@pytest.mark.parametrize(("after", "verdict"), [(0.2, HOLDS), (0.6, FAILS), (0.4, FAILS)])
def test_fine_tuned_models_are_less_localized_at_the_top(after: float, verdict: str) -> None:
    base, tuned = [0.1] * 5 + [0.4] * 4, [0.1] * 5 + [after] * 4
    got = named(judge_comparison(localized(base=base, tuned=tuned)), "wu2020-less-localized-at-top")
    assert got.verdict == verdict
    assert got.value.value == pytest.approx(0.4 - after, abs=1e-9)
    assert got.about["premise"]


def test_less_localized_within_chance_or_noise_cannot_be_told() -> None:
    base, tuned = [0.1] * 5 + [0.4] * 4, [0.1] * 5 + [0.35] * 4
    claim = "wu2020-less-localized-at-top"
    assert named(judge_comparison(localized(base=base, tuned=tuned)), claim).verdict == HOLDS
    chance = named(judge_comparison(localized(200, base=base, tuned=tuned)), claim)
    assert (chance.verdict, kind(chance)) == (OPEN, BY_CHANCE)
    noisy = named(judge_comparison(localized(base=base, tuned=tuned, noise=0.5)), claim)
    assert (noisy.verdict, kind(noisy)) == (OPEN, INCLUDES_MARGIN)


def test_standardised_findings_are_judged_standardised() -> None:
    whole = localized(base=RISING)
    z = replace(whole, findings=findings(whole, standardise=True))
    got = named(judge_comparison(z), "wu2020-localization-rises")
    assert got.numbers["highest_layer"] == pytest.approx(z.findings["localization"]["base"][-1])


def test_a_result_without_matrices_has_no_statements() -> None:
    assert judge_comparison(Comparison((), (), {})) == ()


# --- families, neighbours, freezing -----------------------------------------------------------------------------------


def kin(within: float, across: float) -> Score:
    """Models are called by their family and a number."""

    def score(a: str, x: float, b: str, y: float) -> float:
        return near(x, y) if a == b else within if a[:4] == b[:4] else across

    return score


KIN = [model("bert1"), model("bert2", 6), model("gpt21", family="gpt2")]


@pytest.mark.parametrize(("within", "across", "verdict"), [(0.7, 0.4, HOLDS), (0.4, 0.7, FAILS), (0.5, 0.48, OPEN)])
def test_models_of_one_family_are_more_alike(within: float, across: float, verdict: str) -> None:
    got = named(judge_comparison(comparison(scored(kin(within, across), KIN), KIN)), "wu2020-family-more-alike")
    assert got.verdict == verdict
    assert got.value.value == pytest.approx(within - across)
    assert (got.numbers["similarity_within"], got.numbers["similarity_across"]) == (
        pytest.approx(within),
        pytest.approx(across),
    )
    assert (got.about["first"], got.about["second"]) == ("bert1", "bert2")
    assert "gpt21" in got.text


def test_a_family_needs_others_to_differ_from_and_is_none_where_it_is_not_known() -> None:
    """A model beside its fine-tuned self, two of one family alone, and saved activations say nothing of families."""
    saved = [model("bert1"), model("s1", 6, family="saved"), model("s2", 7, family="saved")]
    tuned = [model("bert1"), model("bert2"), model("gpt21", family="gpt2")]
    for models in (saved, tuned, KIN[:2], [*KIN[:2], model("s1", 6, family="saved")]):
        found = judge_comparison(comparison(scored(kin(0.7, 0.4), models), models))
        assert not [s for s in found if s.id.startswith("wu2020-family")]
    control = [*KIN, model("gpt22", 5, role="control", family="gpt2")]
    found = judge_comparison(comparison(scored(kin(0.7, 0.4), control), control))
    assert named(found, "wu2020-family-more-alike").about["second"] == "bert2"


def test_architectures_of_saved_activations_are_not_known() -> None:
    models = [model("bert1"), model("s1", 6, family="saved"), model("gpt21", family="gpt2")]
    found = judge_comparison(comparison(scored(kin(0.7, 0.4), models), models))
    across = {(s.about["first"], s.about["second"]): s for s in found if s.id.startswith("wu2020-lower-more-alike")}
    for pair in (("bert1", "s1"), ("s1", "gpt21")):
        assert across[pair].verdict == OPEN
        assert "s1" in across[pair].reason
    assert across["bert1", "gpt21"].reason != across["bert1", "s1"].reason


def neighbours(models: list[ModelInfo], step: float, far: float, **how: Any) -> Comparison:
    def score(a: str, x: float, b: str, y: float) -> float:
        return step if abs(x - y) <= 1 / 8 + 1e-9 else far

    return comparison(scored(score, models, **how), models)


@pytest.mark.parametrize(("step", "far", "verdict"), [(0.9, 0.6, HOLDS), (0.6, 0.9, FAILS), (0.6, 0.58, OPEN)])
def test_adjacent_layers_are_more_alike(step: float, far: float, verdict: str) -> None:
    got = named(judge_comparison(neighbours([BASE], step, far)), "wu2020-adjacent-more-alike")
    assert (got.verdict, got.about["model"]) == (verdict, "base")
    assert got.value.value == pytest.approx(step - far)
    assert got.numbers == pytest.approx({"similarity_adjacent": step, "similarity_others": far})


def test_adjacent_layers_must_have_been_compared() -> None:
    def reason(**how: Any) -> str:
        return kind(named(judge_comparison(neighbours([BASE], 0.9, 0.6, **how)), "wu2020-adjacent-more-alike"))

    assert reason(layers=[0, 2, 4, 6]) == OTHER_LAYERS
    assert reason(layers=[0, 1, 2]) == FEW_LAYERS
    assert reason(layers=[0, 1, 2, 3]) == ""


def frozen(scores: dict[str, list[float]], half: float = 0.005, majority: float = 0.5) -> list[Finetuned]:
    """Runs by what was frozen, one per seed."""
    made = []
    for how, values in scores.items():
        for seed, v in enumerate(values):
            known = {"freeze": None if how == "nothing" else how, "score": Value(v, v - half, v + half), "seed": seed}
            known |= {"base": {"name": "bert"}, "task": {"name": "sst2"}}
            made.append(replace(FINETUNED, **known, baselines={"majority": majority, "bag_of_words": 0.6}))
    return made


@pytest.mark.parametrize(
    ("top", "bottom", "half", "verdict"),
    [(0.90, 0.92, 0.005, HOLDS), (0.92, 0.915, 0.003, HOLDS), (0.95, 0.90, 0.005, FAILS), (0.92, 0.91, 0.01, OPEN)],
)
def test_freezing_the_bottom_costs_no_more(top: float, bottom: float, half: float, verdict: str) -> None:
    runs = frozen({"nothing": [0.93], "top:4": [top], "bottom:4": [bottom], "bottom:6": [0.1]}, half)
    (got,) = judge_freezing(runs)
    assert (got.verdict, got.about["top"], got.about["bottom"]) == (verdict, "top:4", "bottom:4")
    assert got.value.value == pytest.approx(bottom - top)
    wide = half * 2**0.5
    assert (got.value.low, got.value.high) == (
        pytest.approx(bottom - top - wide, rel=0.02, abs=1e-3),
        pytest.approx(bottom - top + wide, rel=0.02, abs=1e-3),
    )


def test_seeds_are_averaged_and_a_model_at_chance_says_nothing() -> None:
    (one,) = judge_freezing(frozen({"top:1": [0.90], "bottom:1": [0.92]}))
    (two,) = judge_freezing(frozen({"top:1": [0.89, 0.91], "bottom:1": [0.90, 0.94]}))
    assert two.value.value == pytest.approx(one.value.value)
    assert two.value.high - two.value.low == pytest.approx((one.value.high - one.value.low) / 2**0.5, rel=1e-6)
    (lost,) = judge_freezing(frozen({"top:1": [0.90], "bottom:1": [0.92]}, majority=0.95))
    assert kind(lost) == MODEL_AT_CHANCE
    assert judge_freezing(frozen({"top:1": [0.9], "bottom:2": [0.9]})) == ()
