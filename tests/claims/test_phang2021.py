"""Claims of Phang et al. 2021 on scores and depth results that must hold, must fail, or cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from claims.claim_cases import Score, comparison, depth_result, kind, model, named, near, scored, two_blocks
from stratoscope.claims import judge_comparison, judge_depth, judge_study
from stratoscope.claims.claim import (
    BY_CHANCE,
    CONSTANT,
    CONTROL,
    FEW_LAYERS,
    INCLUDES_MARGIN,
    MISSING,
    MODEL_AT_CHANCE,
    NO_INTERVAL,
)
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import Value
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.depth import TUNED, TUNEDORIG, UNTUNED, Depth
from stratoscope.results.study import Study

BASE, ONE, TWO, OTHER = (model(name) for name in ("base", "ft1", "ft2", "other"))
FRESH = model("fresh", role="control", base="base")


def blocks(sharpness: dict[str, float]) -> Score:
    """Each model splits into two blocks as sharply as it is said to."""
    return lambda a, x, b, y: two_blocks(x, y, sharpness[a]) if a == b else 0.5


def split(
    sharpness: dict[str, float], *, rows: int = 10**6, models: Sequence[ModelInfo] = (BASE, ONE), noise: float = 0.002
) -> Statement:
    found = judge_comparison(comparison(scored(blocks(sharpness), models, noise=noise), models, rows=rows))
    return named(found, "phang2021-two-blocks")


@pytest.mark.parametrize(
    ("base", "tuned", "verdict"), [(0.1, 0.5, HOLDS), (0.5, 0.1, FAILS), (0.3, 0.3, FAILS), (0.3, 0.32, OPEN)]
)
def test_two_blocks_after_fine_tuning(base: float, tuned: float, verdict: str) -> None:
    got = split({"base": base, "ft1": tuned})
    assert (got.verdict, kind(got)) == (verdict, INCLUDES_MARGIN if verdict == OPEN else "")
    assert got.value.value == pytest.approx(tuned - base)
    assert (got.numbers["contrast_base"], got.numbers["contrast_tuned"]) == (pytest.approx(base), pytest.approx(tuned))


@pytest.mark.parametrize(("fresh", "verdict"), [(0.1, HOLDS), (0.5, OPEN), (0.8, OPEN)])
def test_a_split_no_clearer_than_that_of_a_random_initialisation_is_no_evidence(fresh: float, verdict: str) -> None:
    got = split({"base": 0.1, "ft1": 0.5, "fresh": fresh}, models=[BASE, ONE, FRESH])
    assert (got.verdict, kind(got)) == (verdict, CONTROL if verdict == OPEN else "")
    assert got.numbers["contrast_control"] == pytest.approx(fresh)
    fails = split({"base": 0.5, "ft1": 0.1, "fresh": fresh}, models=[BASE, ONE, FRESH])
    assert fails.verdict == FAILS


def test_a_control_of_another_shape_is_no_control() -> None:
    models = [BASE, ONE, model("fresh", 4, role="control")]
    got = split({"base": 0.1, "ft1": 0.5, "fresh": 0.9}, models=models)
    assert got.verdict == HOLDS
    assert "contrast_control" not in got.numbers


def test_two_blocks_that_chance_may_have_made_cannot_be_told() -> None:
    """With level 0.62 what 0.35 and 0.3 of contrast are worth without chance cannot be told apart."""
    got = split({"base": 0.3, "ft1": 0.35}, rows=11)
    assert (got.verdict, kind(got)) == (OPEN, BY_CHANCE)
    assert split({"base": 0.0, "ft1": 0.9}, rows=30).verdict == HOLDS


def test_two_blocks_need_four_layers() -> None:
    models = [BASE, ONE]
    matrix = scored(blocks({"base": 0.1, "ft1": 0.5}), models, layers=(0, 4, 8))
    got = named(judge_comparison(comparison(matrix, models)), "phang2021-two-blocks")
    assert (got.verdict, kind(got)) == (OPEN, FEW_LAYERS)


def study(score: Score, *, debiased: Score | None = None, rows: int = 10**6, noise: float = 0.002, **further) -> Study:
    models = [BASE, ONE, TWO, OTHER, FRESH]
    matrices = [scored(score, models, noise=noise)]
    matrices += [scored(debiased, models, measure="ckasim-debiased", noise=noise)] if debiased else []
    whole = comparison(matrices, models, rows=rows, sentences=rows, unit="cls")
    roles = {"base": "base", "tuned": ("ft1", "ft2"), "across": ("other",), "control": "fresh"}
    return Study({"cls": whole}, **{**roles, **further})


def with_top(nearest: float) -> Score:
    """The top layer of a tuned model is `nearest` to the middle of the base, and less to all other layers."""

    def score(a: str, x: float, b: str, y: float) -> float:
        if a == b:
            return near(x, y)
        own, other = (x, y) if a != "base" else (y, x)
        return nearest - abs(other - 0.5) / 10 if own == 1 else 0.7

    return score


@pytest.mark.parametrize(("nearest", "verdict"), [(0.3, HOLDS), (0.7, FAILS), (0.5, OPEN)])
def test_the_top_resembles_no_layer_of_the_base(nearest: float, verdict: str) -> None:
    got = named(judge_study(study(with_top(nearest))), "phang2021-top-unlike-base")
    assert (got.verdict, got.margin) == (verdict, 0.5)
    assert got.value.value == pytest.approx(1 - nearest)
    assert got.numbers["similarity_nearest"] == pytest.approx(nearest)
    assert got.id == "phang2021-top-unlike-base:cls:base:ft1"
    assert got.about["unit"] == "cls"


def test_a_low_score_is_told_however_few_the_rows_and_a_high_one_is_not() -> None:
    low, high = (named(judge_study(study(with_top(s), rows=18)), "phang2021-top-unlike-base") for s in (0.3, 0.6))
    assert low.verdict == HOLDS
    assert (high.verdict, kind(high)) == (OPEN, BY_CHANCE), "without chance it may be 0.22"


def test_a_constant_top_layer_cannot_be_told() -> None:
    models = [BASE, ONE]
    whole = comparison(scored(with_top(0.3), models, constant=[("ft1", 8)]), models)
    got = named(judge_study(Study({"cls": whole}, "base", ("ft1",))), "phang2021-top-unlike-base")
    assert (got.verdict, kind(got)) == (OPEN, CONSTANT)


def restarts(each_other: float, with_base: float) -> Score:
    def score(a: str, x: float, b: str, y: float) -> float:
        if a == b:
            return near(x, y)
        return 0.9 if min(x, y) <= 0.5 else with_base if "base" in (a, b) else each_other

    return score


@pytest.mark.parametrize(
    ("each_other", "with_base", "verdict"), [(0.8, 0.4, HOLDS), (0.4, 0.8, FAILS), (0.6, 0.6, FAILS), (0.52, 0.5, OPEN)]
)
def test_restarts_agree_at_the_top(each_other: float, with_base: float, verdict: str) -> None:
    got = named(judge_study(study(restarts(each_other, with_base))), "phang2021-restarts-agree-at-top")
    assert got.verdict == verdict
    assert got.value.value == pytest.approx(each_other - with_base)
    assert got.about["second"] == "ft2"


def test_one_tuned_model_has_no_restart() -> None:
    found = judge_study(study(restarts(0.8, 0.4), tuned=("ft1",)))
    assert not any("restarts" in s.id for s in found)


def across(early: float, late: float, crossed: float, *, control: float = 0.0) -> Score:
    def score(a: str, x: float, b: str, y: float) -> float:
        if a == b:
            return near(x, y)
        if "fresh" in (a, b):
            return control
        return crossed if (x > 0.5) != (y > 0.5) else late if x > 0.5 else early

    return score


@pytest.mark.parametrize(
    ("early", "late", "verdict"),
    [(0.8, 0.6, HOLDS), (0.8, 0.2, FAILS), (0.2, 0.8, FAILS), (0.32, 0.9, OPEN), (0.3, 0.3, FAILS)],
)
def test_early_matches_early_and_late_matches_late(early: float, late: float, verdict: str) -> None:
    """Both must exceed what is crossed: the number is the smaller excess of the two."""
    score = across(early, late, 0.3)
    got = named(judge_study(study(score, debiased=score)), "phang2021-alike-across-models")
    assert got.verdict == verdict
    assert got.value.value == pytest.approx(min(early, late) - 0.3)
    assert got.about["measure"] == "ckasim-debiased"
    assert got.about["premise"]


def test_across_models_only_debiased_cka_decides_and_the_control_must_be_further() -> None:
    score, claim = across(0.8, 0.6, 0.3), "phang2021-alike-across-models"
    alone = named(judge_study(study(score)), claim)
    assert (alone.verdict, kind(alone)) == (OPEN, MISSING)
    near_control = across(0.8, 0.6, 0.3, control=0.6)
    got = named(judge_study(study(near_control, debiased=near_control)), claim)
    assert (got.verdict, kind(got)) == (OPEN, CONTROL)
    assert got.numbers["similarity_upper_control"] == pytest.approx(0.6)
    words = study(score, debiased=score)
    several = replace(words["cls"], data={**words["cls"].data, "sentences": 10})
    unknown = named(judge_study(replace(words, comparisons={"cls": several})), claim)
    assert (unknown.verdict, kind(unknown)) == (OPEN, BY_CHANCE)


def curve(*, dropped: float = 0.0, blocks: int = 12) -> list[float]:
    """The metric by layer: 0.9 with all blocks, less by `dropped` without any of them."""
    return [0.5, *[0.9 - dropped] * (blocks - 1), 0.9]


def droppable(depth: Depth) -> Statement:
    return named(judge_depth(depth), "phang2021-top-third-droppable")


@pytest.mark.parametrize(("loss", "verdict"), [(0.0, HOLDS), (0.006, HOLDS), (0.01, OPEN), (0.05, FAILS)])
def test_the_top_third_can_be_dropped(loss: float, verdict: str) -> None:
    got = droppable(depth_result({UNTUNED: curve(dropped=loss)}))
    assert (got.verdict, got.margin) == (verdict, -0.01)
    assert got.value.value == pytest.approx(-loss)
    assert got.numbers == pytest.approx({"metric_full": 0.9, "metric_cut": 0.9 - loss})
    assert got.about["metric"] == "accuracy"


def test_a_loss_is_paired() -> None:
    """The metric itself is uncertain by ± 4 points, its loss is not."""
    got = droppable(depth_result({UNTUNED: curve(dropped=0.005)}, shared=0.02))
    assert got.verdict == HOLDS
    assert got.value.high - got.value.low < 0.006
    noisy = droppable(depth_result({UNTUNED: curve(dropped=0.005)}, noise=0.02))
    assert (noisy.verdict, kind(noisy)) == (OPEN, INCLUDES_MARGIN)


def test_a_third_of_the_blocks_is_counted_from_the_top() -> None:
    values = [0.5] * 8 + [0.9] * 5
    assert droppable(depth_result({UNTUNED: values})).verdict == HOLDS
    assert droppable(depth_result({UNTUNED: [0.5] * 9 + [0.9] * 4})).verdict == FAILS


def test_depth_without_resamples_or_blocks_cannot_be_told() -> None:
    alone = droppable(depth_result({UNTUNED: curve()}, resamples=False))
    assert (alone.verdict, kind(alone), alone.value.value) == (OPEN, NO_INTERVAL, 0)
    short = droppable(depth_result({UNTUNED: curve(blocks=3)}))
    assert (short.verdict, kind(short)) == (OPEN, FEW_LAYERS)


@pytest.mark.parametrize(
    ("full", "majority", "reason"),
    [
        (Value(0.9, 0.87, 0.93), 0.5, ""),
        (Value(0.9, 0.49, 0.93), 0.5, MODEL_AT_CHANCE),
        (Value(0.5, 0.45, 0.55), 0.5, MODEL_AT_CHANCE),
        (Value(0.9), 0.5, ""),
        (Value(0.9), float("nan"), ""),
    ],
)
def test_a_model_at_chance_is_not_judged(full: Value, majority: float, reason: str) -> None:
    depth = replace(depth_result({UNTUNED: curve()}), full=full, majority=majority)
    found = judge_depth(depth)
    assert [kind(s) for s in found] == [reason] * len(found)
    whole = judge_study(replace(study(restarts(0.8, 0.4)), depth=depth))
    assert {kind(s) == MODEL_AT_CHANCE for s in whole} == {bool(reason)}, "the guard is for all statements of a study"
    assert named(whole, "phang2021-restarts-agree-at-top").value.value == pytest.approx(0.4), "numbers stay"


def heads(gaps: Sequence[float], **further) -> Statement:
    tuned = np.array([0.5, *[0.85] * len(gaps)])
    base = tuned - [0, *gaps]
    depth = depth_result({UNTUNED: tuned, TUNED: tuned, TUNEDORIG: base}, **further)
    return named(judge_depth(depth), "phang2021-untuned-encoder-worse")


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([0.1, 0.2, 0.3, 0.3], HOLDS),
        ([0.005, 0.2, 0.3, 0.3], FAILS),
        ([0.3, 0.3, -0.1, 0.3], FAILS),
        ([0.3, 0.3, 0.011, 0.3], OPEN),
    ],
)
def test_heads_on_the_untuned_encoder_are_worse_at_all_layers(gaps: list[float], verdict: str) -> None:
    got = heads(gaps)
    assert got.verdict == verdict
    assert got.value.value == pytest.approx(min(gaps))
    assert got.numbers["largest_difference"] == pytest.approx(max(gaps))
    assert got.numbers["layers_within_margin"] == sum(g <= 0.01 for g in gaps)


def test_the_interval_of_a_minimum_is_from_the_same_resamples() -> None:
    """Twelve equal gaps: on most resamples some layer falls below each one's own interval."""
    one, many = (heads([gap, *[0.05] * 11], noise=0.01) for gap in (0.0, 0.05))
    own = 2 * 0.01 * np.sqrt(2)
    assert many.value.low < 0.05 - own
    assert many.value.high > 0.05 + own, "what one layer of twelve lost by bad luck may have been lost by any"
    assert one.value.low < 0 < one.value.high
    assert (one.verdict, many.verdict) == (OPEN, HOLDS)


def test_curves_that_were_not_asked_for_are_not_judged() -> None:
    assert [s.id.split(":")[0] for s in judge_depth(depth_result({UNTUNED: curve()}))] == [
        "phang2021-top-third-droppable"
    ]


def skipped(upper: float, lower: float = 0.2, *, first: float | None = None, blocks: int = 8) -> np.ndarray:
    """Losses of spans inside the upper half, and of all others."""
    half = blocks // 2
    loss = np.full((blocks, blocks), lower)
    loss[half:, half:] = upper
    if first is not None:
        loss[0, 0] = first
    loss[np.tril_indices(blocks, -1)] = np.nan
    return 0.9 - loss


def later(skip: np.ndarray, **further) -> Statement:
    return named(judge_depth(depth_result(skip=skip, **further)), "phang2021-later-blocks-skippable")


def test_later_blocks_can_be_skipped() -> None:
    assert (later(skipped(0.0)).verdict, later(skipped(0.0)).value.value) == (HOLDS, 1)
    assert (later(skipped(0.1)).verdict, later(skipped(0.1)).value.value) == (FAILS, 0)
    some = skipped(0.01)
    got = later(some, noise=0.005)
    assert (got.verdict, kind(got)) == (OPEN, INCLUDES_MARGIN)
    assert got.numbers["mean_loss_lower"] == pytest.approx(0.2)
    assert got.numbers["spans"] == 10
    alone = later(skipped(0.0), resamples=False)
    assert (alone.verdict, kind(alone)) == (OPEN, NO_INTERVAL)


def test_the_share_of_spans_is_paired_with_the_whole_model() -> None:
    """Resamples move all spans and the whole model by 2 points together; each loss stays half a point."""
    assert later(skipped(0.005), shared=0.02).verdict == HOLDS


def test_fewer_resamples_of_spans_are_the_first_of_the_whole_models() -> None:
    depth = depth_result(skip=skipped(0.005), shared=0.05)
    assert depth.skip_replicates is not None
    fewer = replace(depth, skip_replicates=depth.skip_replicates[:30])
    assert named(judge_depth(fewer), "phang2021-later-blocks-skippable").verdict == HOLDS


def first(skip: np.ndarray, **further) -> Statement:
    return named(judge_depth(depth_result(skip=skip, **further)), "phang2021-first-block-costly")


def test_the_first_block_is_costly() -> None:
    costly = first(skipped(0.0, 0.05, first=0.3))
    assert (costly.verdict, costly.value.value) == (HOLDS, pytest.approx(0.25))
    assert first(skipped(0.0, 0.05, first=0.0)).verdict == FAILS
    level = first(skipped(0.0, 0.05, first=0.062))
    assert (level.verdict, kind(level)) == (OPEN, INCLUDES_MARGIN)


def test_ids_of_a_study_are_unique_and_name_the_unit() -> None:
    score = restarts(0.8, 0.4)
    parts = study(score, debiased=score)
    whole = parts["cls"]
    both = replace(
        parts,
        comparisons={"cls": whole, "mean": replace(whole, data={**whole.data, "unit": "mean"})},
        depth=depth_result({UNTUNED: curve()}, skip=skipped(0.0, blocks=12)),
        localization=localizing(),
    )
    found = judge_study(both)
    ids = [s.id for s in found]
    assert len(set(ids)) == len(ids)
    assert {s.about["unit"] for s in found if ":mean:" in s.id} == {"mean"}
    claims = {i.partition(":")[0] for i in ids}
    assert claims == {
        "wu2020-top-changes-more",
        "wu2020-localization-rises",
        "wu2020-less-localized-at-top",
        "phang2021-two-blocks",
        "phang2021-top-unlike-base",
        "phang2021-restarts-agree-at-top",
        "phang2021-alike-across-models",
        "phang2021-top-third-droppable",
        "phang2021-later-blocks-skippable",
        "phang2021-first-block-costly",
    }
    assert not any("premise" in s.about for s in found if "alike-across" not in s.id), "a study knows what was tuned"
    assert all(s.text for s in found if s.value.known)


def localizing() -> Comparison:
    models = [BASE, ONE, TWO, FRESH]
    matrices = [scored(lambda a, x, b, y: near(x, y), models, measure=m) for m in ("neuronsim", "svsim")]
    return comparison(matrices, models, unit="word")


def test_two_tuned_models_have_a_statement_each() -> None:
    found = judge_study(study(restarts(0.8, 0.4)))
    assert [s.about["tuned"] for s in found if s.id.startswith("wu2020-top-changes-more")] == ["ft1", "ft2"]
