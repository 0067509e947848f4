"""Verdicts from evidence: the interval of the tested number against its margin, and what keeps a verdict back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from stratoscope.claims import claim as claim_module
from stratoscope.claims.claim import (
    BY_CHANCE,
    CONSTANT,
    CONTROL,
    INCLUDES_MARGIN,
    MODEL_AT_CHANCE,
    NO_INTERVAL,
    CannotTellError,
    Claim,
    Evidence,
    Reason,
)
from stratoscope.claims.judge import decimals, statement, unknown, weigh
from stratoscope.claims.scores import spans, without_chance
from stratoscope.core import record
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import Interval, spread

BOOTSTRAP = Interval(0.95, "bootstrap", 1000)
CLAIM = Claim("x2000-a", "A.", "X 2000", "d", 0.1, "a tenth", "It is {D}, with {part} of {model}", lambda: None)  # type: ignore[arg-type,return-value]


def evidence(value: float, deviation: float, interval: Interval | None = BOOTSTRAP, number: int = 100) -> Evidence:
    """D with resamples of exactly this deviation."""
    drawn = np.random.default_rng(0).normal(size=number)
    drawn = (drawn - drawn.mean()) / drawn.std(ddof=1) * deviation
    return Evidence(np.append(value, value + drawn), interval, {"part": 0.25})


@pytest.mark.parametrize(
    ("value", "deviation", "verdict"),
    [(0.2, 0.01, HOLDS), (0.12, 0.05, OPEN), (0.08, 0.05, OPEN), (0.05, 0.01, FAILS), (-1.0, 0.01, FAILS)],
)
def test_the_whole_interval_decides(value: float, deviation: float, verdict: str) -> None:
    outcome = weigh(CLAIM, evidence(value, deviation))
    assert outcome.verdict == verdict
    assert (outcome.reason is not None) == (verdict == OPEN)
    if outcome.reason is not None:
        assert outcome.reason.kind == INCLUDES_MARGIN


def test_an_interval_that_only_touches_the_margin_is_not_above_it() -> None:
    assert weigh(CLAIM, evidence(0.1, 0.0)).verdict == FAILS
    assert weigh(CLAIM, evidence(0.1 + 1e-15, 0.0)).verdict == FAILS, "rounding does not decide"
    assert weigh(CLAIM, evidence(0.1001, 0.0)).verdict == HOLDS


@pytest.mark.parametrize("method", ["bootstrap", "jackknife", "percentiles"])
def test_the_interval_is_the_one_that_scores_have(method: str) -> None:
    how = Interval(0.9, method, 40)
    given = evidence(0.3, 0.02, how, number=40)
    value = weigh(CLAIM, given).value
    low, high = spread(np.array(0.3), given.d[1:], how)
    assert (value.value, value.low, value.high) == (0.3, pytest.approx(float(low)), pytest.approx(float(high)))


def test_bounds_of_the_number_bound_its_interval() -> None:
    value = weigh(CLAIM, replace(evidence(0.95, 0.1), bounds=(0, 1))).value
    assert value.high == 1


def without_some(number: int, interval: Interval) -> Evidence:
    given = evidence(0.3, 0.02, interval)
    given.d[1 : 1 + number] = np.nan
    return given


@pytest.mark.parametrize(
    "given",
    [
        evidence(0.3, 0.02, None),
        evidence(0.3, 0.02, number=1000, interval=Interval(0.95, "bootstrap", 0)),
        Evidence(np.array([0.3]), BOOTSTRAP, {"part": 0.0}),
        without_some(6, BOOTSTRAP),
        without_some(1, Interval(0.95, "jackknife", 100)),
    ],
    ids=["none asked for", "groups unknown", "no resamples", "undefined on some", "jackknife lacks one"],
)
def test_without_an_interval_nothing_is_told(given: Evidence) -> None:
    outcome = weigh(CLAIM, given)
    assert (outcome.verdict, outcome.value.value, outcome.value.has_interval) == (OPEN, 0.3, False)
    assert outcome.reason is not None
    assert outcome.reason.kind == NO_INTERVAL


def test_a_few_undefined_resamples_do_no_harm() -> None:
    assert weigh(CLAIM, without_some(5, BOOTSTRAP)).verdict == HOLDS


def test_a_number_that_does_not_exist() -> None:
    outcome = weigh(CLAIM, evidence(np.nan, 0.1))
    assert outcome.reason is not None
    assert (outcome.verdict, outcome.reason.kind) == (OPEN, CONSTANT)


@pytest.mark.parametrize(
    ("value", "chance", "verdict", "kind"),
    [
        (0.2, (-0.05, 0.0), HOLDS, None),
        (0.2, (-0.15, 0.0), OPEN, BY_CHANCE),
        (0.2, (0.0, 0.5), HOLDS, None),
        (0.0, (-0.5, 0.05), FAILS, None),
        (0.0, (0.0, 0.2), OPEN, BY_CHANCE),
        (0.1, (-0.5, 0.5), OPEN, INCLUDES_MARGIN),
    ],
)
def test_chance_widens_the_interval(value: float, chance: tuple[float, float], verdict: str, kind: str | None) -> None:
    outcome = weigh(CLAIM, replace(evidence(value, 0.01), chance=chance))
    assert (outcome.verdict, None if outcome.reason is None else outcome.reason.kind) == (verdict, kind)
    assert outcome.left_to_chance == (kind == BY_CHANCE)


def test_what_is_all_within_chance_is_not_told() -> None:
    assert weigh(CLAIM, replace(evidence(0.5, 0.01), all_by_chance=True)).left_to_chance


@pytest.mark.parametrize(("beside", "verdict"), [(0.3, HOLDS), (0.1, OPEN), (0.0, OPEN)])
def test_a_claim_holds_only_if_it_holds_beside_the_control(beside: float, verdict: str) -> None:
    outcome = weigh(CLAIM, replace(evidence(0.3, 0.01), control=evidence(beside, 0.01)))
    assert outcome.verdict == verdict
    assert verdict == HOLDS or (outcome.reason is not None and outcome.reason.kind == CONTROL)
    failing = weigh(CLAIM, replace(evidence(0.0, 0.01), control=evidence(beside, 0.01)))
    assert failing.verdict == FAILS, "a control cannot rescue or blur a claim that does not hold"


@pytest.mark.parametrize(
    ("score", "level", "least"),
    [(0.9, 0.5, 0.8), (0.4, 0.5, 0.0), (-0.1, 0.5, -0.1), (0.9, 0.05, 0.9), (0.04, 0.05, 0.0), (1.0, 1.0, 0.0)],
)
def test_what_a_score_may_be_without_chance(score: float, level: float, least: float) -> None:
    assert without_chance(score, level) == pytest.approx(least)


def said(names: Sequence[str] = ("base",), **further: object) -> Statement:
    return statement(CLAIM, weigh(CLAIM, evidence(0.3, 0.01)), about={"model": "base"}, subject=names, **further)  # type: ignore[arg-type]


def test_a_statement_has_all_its_parts_and_is_saved_and_loaded() -> None:
    got = said()
    assert (got.id, got.claim, got.source, got.margin) == ("x2000-a:base", "A.", "X 2000", 0.1)
    assert (got.verdict, got.reason, got.numbers, got.about) == (HOLDS, "", {"part": 0.25}, {"model": "base"})
    assert "0.25" in got.text
    assert "base" in got.text
    assert record.from_plain(Statement, record.to_plain(got)) == got


def test_a_guard_takes_the_verdict_and_leaves_the_numbers() -> None:
    got = said(guard=Reason(MODEL_AT_CHANCE, "so"))
    assert (got.verdict, got.reason, got.value.value) == (OPEN, f"{MODEL_AT_CHANCE}: so", 0.3)
    assert got.numbers == {"part": 0.25}


def test_a_statistic_that_cannot_be_computed_is_a_statement_too() -> None:
    outcome = unknown(CannotTellError(CONSTANT, "why"))
    got = statement(CLAIM, outcome, about={"model": "base"}, subject=["base"])
    assert (got.verdict, got.reason, got.value.known, got.text) == (OPEN, f"{CONSTANT}: why", False, "")


def test_ids_hold_any_names_apart() -> None:
    names = [["a b"], ["a-b"], ["a:b"], ["a", "b"], ['a"<b'], ["org/model@main"], ["é"], ["a%20b"]]
    ids = [said(n).id for n in names]
    assert len(set(ids)) == len(ids)
    assert not any(set(" \t\n\"'<>&") & set(i) for i in ids)
    assert "org/model@main" in ids[5]


@pytest.mark.parametrize(
    ("values", "digits"), [([0.5, 0.4], 3), ([0.9999, 0.9998], 4), ([0.9999], 4), ([0.0004, 0.0004], 4), ([0, 1], 3)]
)
def test_digits_show_what_differs(values: list[float], digits: int) -> None:
    assert decimals(values) == digits


@pytest.mark.parametrize(
    ("blocks", "words"), [([], ""), ([3], "3"), ([1, 2, 4], "1-2, 4"), ([5, 6, 7], "5-7"), ([1, 3, 5], "1, 3, 5")]
)
def test_runs_of_layers_are_drawn_together(blocks: list[int], words: str) -> None:
    assert spans(blocks) == words


def test_reasons_are_told_apart() -> None:
    reasons = [text for name, text in vars(claim_module).items() if name.isupper() and isinstance(text, str)]
    assert len(reasons) == 10
    assert len(set(reasons)) == len(reasons)
    assert not any(":" in r for r in reasons)


def test_the_least_of_many_is_not_found_too_low_by_bad_luck() -> None:
    """Twelve layers all above the margin by half of what one is uncertain by: the claim is true, and never refuted.

    The plain percentiles of the least would refute it nearly always.
    """
    rng = np.random.default_rng(0)
    how = Interval(0.95, "percentiles")
    refuted = naive = 0
    for _ in range(60):
        estimate = 0.12 + rng.normal(0, 0.04, 12)
        gaps = np.concatenate([estimate[None], estimate + rng.normal(0, 0.04, (200, 12))])
        plain = Evidence(gaps.min(axis=1), how, {"part": 0.0})
        naive += weigh(CLAIM, plain).verdict == FAILS
        refuted += weigh(CLAIM, replace(plain, least_of=gaps)).verdict == FAILS
    assert naive > 40
    assert refuted <= 3


def test_the_least_of_layers_that_all_exceed_the_margin_does_so() -> None:
    gaps = 0.3 + np.random.default_rng(0).normal(0, 0.01, (101, 12))
    given = Evidence(gaps.min(axis=1), Interval(0.95, "percentiles"), {"part": 0.0}, least_of=gaps)
    assert weigh(CLAIM, given).verdict == HOLDS
    gaps[:, 3] -= 0.4
    given = Evidence(gaps.min(axis=1), Interval(0.95, "percentiles"), {"part": 0.0}, least_of=gaps)
    assert weigh(CLAIM, given).verdict == FAILS
