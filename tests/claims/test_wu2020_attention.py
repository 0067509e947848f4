"""Claims of Wu et al. 2020 about attention, on results whose scores are made up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from claim_cases import Score, kind, model, named, scored

from stratoscope.claims import judge_attention
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.results.attention import Attention

BASE, TUNED, OTHER = model("base"), model("tuned", base="base"), model("other", 6, family="gpt2")


def judged(scores: dict[str, Score], *models: ModelInfo, bootstrap: bool = True) -> tuple[Statement, ...]:
    layers = range(1, min(m.layers for m in models))
    matrices = tuple(
        scored(score, models, measure=name, layers=layers, bootstrap=bootstrap) for name, score in scores.items()
    )
    arrays = {name: np.eye(2) for name in scores if name in ("js", "pearson")}
    return judge_attention(Attention(matrices, models, {}, arrays=arrays))


def flat(a: str, x: float, b: str, y: float) -> float:
    return 0.8


def drifting(by: float) -> Score:
    """Equal layers of base and tuned are the less alike the higher they are."""
    return lambda a, x, b, y: 0.95 - by * x if a != b and x == y else 0.6


@pytest.mark.parametrize(("by", "verdict"), [(0.3, HOLDS), (0.0, FAILS)])
def test_the_top_changes_more(by: float, verdict: str) -> None:
    found = named(judged({"js": drifting(by)}, BASE, TUNED), "wu2020-attention-top-changes-more")
    assert found.verdict == verdict
    assert found.value.value == pytest.approx(by * 4 / 8)  # halves of 8 layers are 4/8 of the depth apart
    assert found.about == {"base": "base", "tuned": "tuned", "measure": "js"}


def test_two_tuned_models_are_not_tuned_from_each_other() -> None:
    found = judged({"js": drifting(0.3)}, BASE, TUNED, model("also"), OTHER)
    tuned = [s.about["tuned"] for s in found if s.id.startswith("wu2020-attention-top-changes-more")]
    assert tuned == ["tuned", "also"]
    assert {s.about["base"] for s in found if "base" in s.about} == {"base"}


def test_the_first_layer_recurs() -> None:
    def band(a: str, x: float, b: str, y: float) -> float:
        return 0.9 if y == 1 / 8 else 0.7

    found = named(judged({"js": band}, BASE), "wu2020-first-layer-recurs")
    assert found.verdict == HOLDS
    assert found.value.value == pytest.approx(0.2)  # columns, not rows
    assert found.numbers["first_layer"] == pytest.approx(0.9)
    assert (
        named(judged({"js": lambda a, x, b, y: band(b, y, a, x)}, BASE), "wu2020-first-layer-recurs").verdict == FAILS
    )


def test_models_of_one_family_are_more_alike() -> None:
    def families(a: str, x: float, b: str, y: float) -> float:
        return 0.6 if "other" in (a, b) else 0.99 if {a, b} == {"base", "tuned"} else 0.8

    claim, large = "wu2020-attention-families-alike", model("large", 12)
    found = named(judged({"js": families}, BASE, TUNED, large, OTHER), claim)
    assert (found.verdict, found.value.value) == (HOLDS, pytest.approx(0.2))  # a tuned copy is no other model
    assert named(judged({"js": flat}, BASE, large, OTHER), claim).verdict == FAILS
    alone = named(judged({"js": flat}, BASE, TUNED, OTHER), claim)
    assert (alone.verdict, kind(alone)) == (OPEN, "not measured")


def test_heads_match_more_than_layers_on_scales_from_0_to_1() -> None:
    """A JS similarity of 0.8 sounds like more than a ckasim of 0.75, but is 0.71 of what it can be."""
    found = named(judged({"js": flat, "ckasim": lambda *_: 0.5}, BASE, OTHER), "wu2020-heads-match-more")
    share = 1 - 0.2 / math.log(2)
    assert (found.verdict, found.value.value) == (HOLDS, pytest.approx(share - 0.5))
    assert found.numbers["js"] == pytest.approx(0.8)
    less = named(judged({"js": flat, "ckasim": lambda *_: 0.75}, BASE, OTHER), "wu2020-heads-match-more")
    assert less.verdict == FAILS
    assert not [s for s in judged({"js": flat}, BASE, OTHER) if s.id.startswith("wu2020-heads-match-more")]


def test_heads_that_match_a_random_model_as_well_say_nothing() -> None:
    control = model("random", role="control")

    def js(random: float) -> Score:
        return lambda a, x, b, y: random if "random" in (a, b) else 0.8

    scores = {"ckasim": lambda *_: 0.5}
    same = named(judged({"js": js(0.8), **scores}, BASE, OTHER, control), "wu2020-heads-match-more")
    assert (same.verdict, kind(same)) == (OPEN, "random initialisation")
    less = named(judged({"js": js(0.6), **scores}, BASE, OTHER, control), "wu2020-heads-match-more")
    assert less.verdict == HOLDS


def test_what_cannot_be_told() -> None:
    short = model("short", 3)
    found = named(judged({"js": flat}, short), "wu2020-first-layer-recurs")
    assert (found.verdict, kind(found)) == (OPEN, "too few layers")
    without = named(judged({"js": drifting(0.3)}, BASE, TUNED, bootstrap=False), "wu2020-attention-top-changes-more")
    assert (without.verdict, kind(without)) == (OPEN, "no interval")
    assert judged({"ckasim": flat}, BASE, TUNED) == ()  # no measure of heads


def test_without_js_the_first_measure_of_heads_decides_and_controls_are_left_out() -> None:
    control = model("random", role="control")
    found = judged({"pearson": drifting(0.3)}, BASE, TUNED, control)
    assert named(found, "wu2020-attention-top-changes-more").about["measure"] == "pearson"
    assert not [s for s in found if "random" in s.id]
