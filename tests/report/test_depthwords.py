from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from study_cases import make_depth

from stratoscope.TODO.depth import ABSENT, Point
from stratoscope.core.curve import Curve
from stratoscope.results.depth import TUNED, TUNEDORIG, UNTUNED
from stratoscope.report.depthwords import depth_observations, depth_sentences, droppable


def of(depth, start):
    """The one sentence that begins like this."""
    (found,) = [s for s in depth_sentences(depth) if s.startswith(start)]
    return found


def with_curve(name, values, *, half_width, **changes):
    points = tuple(Point(v, v - half_width, v + half_width) for v in values)
    return make_depth(len(values) - 1, curves=(Curve(name, points),), skip=None, skip_agreement=None, **changes)


def test_within_one_point_only_where_the_interval_supports_it():
    values = [0.5, 0.6, 0.7, 0.905, 0.910, 0.911, 0.912]
    sure = with_curve(UNTUNED, values, half_width=0.002)
    assert of(sure, "UNTUNED") == (
        "UNTUNED (the head as it is): the top 3 of 6 blocks can go within one point: 0.905 [0.903, 0.907] remains."
    )
    partly = with_curve(UNTUNED, values, half_width=0.006)
    assert of(partly, "UNTUNED") == (
        "UNTUNED (the head as it is): about the top 3 of 6 blocks can go within one point (0.905 remains), but the "
        "interval [0.899, 0.911] does not exclude a loss of 1.3 points; within one point with confidence: the top 2 of "
        "6 blocks."
    )
    unsure = with_curve(TUNED, values, half_width=0.03)
    assert "does not exclude a loss of 3.7 points; no cut is within it with confidence." in of(unsure, "TUNED")


def test_a_lucky_low_layer_under_a_bad_one_does_not_count():
    depth = with_curve(UNTUNED, [0.5, 0.912, 0.6, 0.911, 0.912], half_width=0.001)
    assert droppable(depth, depth.curve(UNTUNED), low=False) == 1


def test_exactly_one_point_is_within_it():
    depth = with_curve(UNTUNED, [0.5, 0.90, 0.91], half_width=0.0, full=Point(0.91, 0.91, 0.91))
    assert droppable(depth, depth.curve(UNTUNED), low=True) == 1


def test_nothing_can_go():
    depth = with_curve(UNTUNED, [0.5, 0.6, 0.7, 0.912], half_width=0.01)
    assert of(depth, "UNTUNED") == (
        "UNTUNED (the head as it is): no top block can go within one point: without the last one accuracy is 0.700 "
        "[0.690, 0.710], 21.2 points below the whole model."
    )


@pytest.mark.parametrize(
    ("at", "half_width", "verdict"),
    [(0.906, 0.002, "holds here"), (0.906, 0.02, "may hold here"), (0.80, 0.002, "does NOT hold here")],
)
def test_the_claim_about_top_layers_is_tried_on_the_top_third(at, half_width, verdict):
    depth = with_curve(UNTUNED, [0.5, 0.5, 0.5, 0.5, at, 0.91, 0.912], half_width=half_width)
    said = of(depth, "'The top layers can be dropped with little loss'")
    assert f"{verdict}: without the top 2 of 6 blocks and no tuning, {(0.912 - at) * 100:.1f} points lost" in said
    assert ("a loss of 2.6 points is not excluded" in said) == (verdict == "may hold here")


def test_lagging_behind_is_counted_where_intervals_are_apart():
    def curve(name, values):
        return Curve(name, (ABSENT, *(Point(v, v - 0.02, v + 0.02) for v in values)))

    curves = (curve(TUNED, [0.6, 0.8, 0.9]), curve(TUNEDORIG, [0.61, 0.7, 0.7]))
    depth = make_depth(3, curves=curves, skip=None, skip_agreement=None)
    said = of(depth, "TUNEDORIG")
    assert "lags behind TUNED: 9.7 points below it on average over layers 1-3" in said
    assert "widest gap is at layer 3 (0.700 against 0.900), and the intervals are apart at 2 of 3 layers" in said
    assert said.endswith(
        "does NOT hold at 1 of 3 layers here, where TUNEDORIG is less than a point below TUNED or above it."
    )
    near = dataclasses.replace(depth, curves=(curves[0], curve(TUNEDORIG, [0.57, 0.7, 0.7])))
    assert of(near, "TUNEDORIG").endswith(
        "cannot be told here where the intervals overlap; more validation rows could tell."
    )
    apart = dataclasses.replace(depth, curves=(curves[0], curve(TUNEDORIG, [0.5, 0.6, 0.7])))
    assert of(apart, "TUNEDORIG").endswith("section 4) holds here.")
    level = dataclasses.replace(depth, curves=(curves[0], curve(TUNEDORIG, [0.6, 0.8, 0.9])))
    assert "is level with TUNED" in of(level, "TUNEDORIG")


def test_worst_and_best_block_and_upper_spans():
    skip = np.array(
        [
            [0.80, 0.70, 0.60, 0.50],
            [np.nan, 0.90, 0.85, 0.80],
            [np.nan, np.nan, 0.913, 0.91],
            [np.nan, np.nan, np.nan, 0.85],
        ]
    )
    depth = make_depth(4, skip=skip, skip_agreement=None, full=Point(0.912, 0.902, 0.922))
    said = of(depth, "Skipping one block")
    assert (
        "most at block 1 (11.2 points lost; the first block, which Phang et al. 2021 too found costly to skip)" in said
    )
    assert "least at block 3 (0.1 points gained); 1 of 4 single blocks cost a point or less" in said
    spans = of(depth, "Spans inside the upper half (blocks 3-4)")
    assert "on average 2.1 points lost, inside the lower half 11.2 points lost; 2 of 3 upper spans" in spans
    assert "holds here for most of them" in spans
    assert "the whole model's own is ±1.0 point." in spans
    skip[2, 3] = 0.8
    assert "does NOT hold here for most" in of(dataclasses.replace(depth, skip=skip), "Spans inside")


def test_a_model_no_better_than_a_bag_of_words_says_so():
    worse = make_depth(half_width=0.01, bag_of_words=0.95)
    assert "does not beat a bag of words (0.912 against 0.950)" in " ".join(depth_sentences(worse))
    close = make_depth(half_width=0.01, bag_of_words=0.905)
    assert "beats a bag of words by 0.7 points, but its interval reaches down to 0.902" in " ".join(
        depth_sentences(close)
    )
    clear = " ".join(depth_sentences(make_depth(half_width=0.01)))
    assert "does not beat" not in clear
    assert "may not on other rows" not in clear
    assert "has not learnt the task" in " ".join(depth_sentences(make_depth(majority=0.92)))


def test_scope_warnings_and_what_is_absent():
    depth = make_depth()
    assert depth_sentences(depth)[0] == (
        "tuned (12 blocks, tuned from base) on sst2: accuracy 0.912 [0.908, 0.916] on 872 validation rows; always the "
        "commonest label of the training rows 0.509, a bag of words 0.804."
    )
    assert depth_sentences(depth)[-1] == "Warning: the validation rows are few"
    assert depth_sentences(depth)[:-1] == depth_observations(depth)
    bare = make_depth(base=None, curves=(), skip=None, skip_agreement=None, bag_of_words=math.nan, warnings=())
    (only,) = depth_sentences(bare)
    assert "a bag of words unknown" in only


@pytest.mark.parametrize(
    ("full", "majority", "reason"),
    [
        (Point(0.50, 0.47, 0.53), 0.51, "tuned has not learnt the task (accuracy 0.500 [0.470, 0.530]"),
        (Point(0.51, 0.51, 0.51), 0.51, "tuned has not learnt the task (accuracy 0.510 [0.510, 0.510]"),
        (Point(0.54, 0.51, 0.57), 0.51, "tuned may not have learnt the task (accuracy 0.540 [0.510, 0.570]"),
        (Point(0.50, math.nan, math.nan), 0.51, "tuned has not learnt the task (accuracy 0.500"),
    ],
)
def test_findings_are_not_judged_by_a_model_at_chance(full, majority, reason):
    said = depth_sentences(make_depth(full=full, majority=majority))
    (why,) = [s for s in said if "published finding" in s]
    assert why == f"{reason}, always the commonest label 0.510), so no published finding is judged here."
    assert not [s for s in said if "et al." in s]
    assert not [s for s in said if "holds here" in s or "NOT hold" in s or "may hold" in s]
    kept = ("UNTUNED", "TUNED ", "TUNEDORIG", "Skipping one block", "Spans inside the upper half")
    assert all(any(s.startswith(start) for s in said) for start in kept), "what was measured is still told"


@pytest.mark.parametrize("majority", [0.509, math.nan])
def test_findings_are_judged_by_a_model_above_chance_or_without_a_known_one(majority):
    said = depth_sentences(make_depth(full=Point(0.54, 0.51, 0.57), majority=majority))
    assert len([s for s in said if "Phang et al. 2021, section 4" in s]) == 3
    assert not [s for s in said if "not judged" in s]
