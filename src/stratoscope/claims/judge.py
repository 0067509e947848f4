"""From the evidence for a claim to a statement with its verdict: the one place where a verdict is given.

With the interval of D over resamples a claim *holds* if the whole interval is above the margin, *does not hold* if it
is wholly at or below, and *cannot be told* otherwise, or where a guard says so. Chance widens the interval: a verdict
must be the same wherever D may lie without what chance added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

import numpy as np

from stratoscope.claims.claim import (
    BY_CHANCE,
    CONSTANT,
    CONTROL,
    INCLUDES_MARGIN,
    NO_INTERVAL,
    CannotTellError,
    Claim,
    Evidence,
    Reason,
)
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import JACKKNIFE, MISSING, PERCENTILES, Interval, Value, Values, spread

MOST_UNDEFINED = 0.05
"""Share of resamples on which D may be undefined (a layer is constant there) before no interval is given."""
UNRESAMPLED = "the scores have no usable bootstrap replicates (--bootstrap)"
ROUNDING_DIGITS = 12
"""0.91 - 0.90 is not quite 0.01; that does not decide what exceeds a margin."""


@dataclass(frozen=True)
class Outcome:
    """A verdict on evidence, with the reason where there is none."""

    value: Value
    verdict: str
    reason: Reason | None = None
    evidence: Evidence | None = None

    @property
    def left_to_chance(self) -> bool:
        """Whether only chance stood in the way of a verdict."""
        return self.reason is not None and self.reason.kind == BY_CHANCE


def weigh(claim: Claim, evidence: Evidence) -> Outcome:
    """The verdict that evidence allows, before any guard of the model."""
    value = _value(evidence)
    verdict, reason = _verdict(claim, evidence, value)
    if verdict == HOLDS and evidence.control is not None:
        beside = weigh(claim, evidence.control)
        if beside.verdict != HOLDS:
            detail = f"beside a random initialisation it is {beside.value:z.3f}, not clearly above {claim.margin:.3g}"
            verdict, reason = OPEN, Reason(CONTROL, detail)
    return Outcome(value, verdict, reason, evidence)


def unknown(error: CannotTellError) -> Outcome:
    """The outcome of a statistic that could not be computed."""
    return Outcome(MISSING, OPEN, error.reason)


def statement(
    claim: Claim, outcome: Outcome, *, about: Mapping[str, str], subject: Sequence[str], guard: Reason | None = None
) -> Statement:
    """The outcome as a statement; a `guard` of the model takes any verdict away but leaves the numbers."""
    if guard is not None:
        outcome = replace(outcome, verdict=OPEN, reason=guard)
    return Statement(
        id=":".join([claim.id, *(_part_of_id(s) for s in subject)]),
        claim=claim.claim,
        source=claim.source,
        about=about,
        value=outcome.value,
        margin=claim.margin,
        verdict=outcome.verdict,
        reason="" if outcome.reason is None else str(outcome.reason),
        numbers={} if outcome.evidence is None else outcome.evidence.numbers,
        text=_sentence(claim, outcome, about),
    )


def _value(evidence: Evidence) -> Value:
    """D with its interval: NaN ends where there are too few resamples to tell."""
    d, how = np.round(evidence.d, ROUNDING_DIGITS), evidence.interval
    estimate, drawn = d[0], d[1:]
    defined = drawn[~np.isnan(drawn)]
    missing = len(drawn) - len(defined)
    if how is None or len(defined) < 2 or missing > MOST_UNDEFINED * len(drawn):
        return Value(float(estimate))
    if (how.method != PERCENTILES and how.groups < 2) or (how.method == JACKKNIFE and missing):
        return Value(float(estimate))
    low, high = spread(np.asarray(estimate), defined, how, bounds=evidence.bounds)
    if evidence.least_of is not None and how.method != JACKKNIFE:
        high = np.maximum(high, estimate + _simultaneous(evidence.least_of, how))
    return Value(*(round(float(v), ROUNDING_DIGITS) for v in (estimate, low, high)))


def _simultaneous(values: Values, how: Interval) -> float:
    """How far above the least of several estimates the least of the true values may be, at the interval's level.

    The least estimate is too low, and the least on a resample lower still: of twelve equal values one is always
    unlucky. So the bound is that of all values together, a quantile over resamples of the largest fall of any value.
    """
    drawn = values[1:][~np.isnan(values[1:]).any(axis=-1)]
    centre = values[0] if how.method == PERCENTILES else drawn.mean(axis=0)
    return float(np.quantile((centre - drawn).max(axis=-1), (1 + how.level) / 2))


def _verdict(claim: Claim, evidence: Evidence, value: Value) -> tuple[str, Reason | None]:
    if not value.known:
        return OPEN, Reason(CONSTANT, "the number does not exist on these rows")
    if not value.has_interval:
        return OPEN, Reason(NO_INTERVAL, UNRESAMPLED)
    level = f"with so few rows chance alone gives up to {evidence.chance_level:.2f}"
    if evidence.all_by_chance:
        return OPEN, Reason(BY_CHANCE, f"{level}, and everything here is within that")
    below, above = evidence.chance
    verdict = _against(claim.margin, value.low + below, value.high + above)
    if verdict != OPEN:
        return verdict, None
    if _against(claim.margin, value.low, value.high) == OPEN:
        digits = decimals([value.low, value.high, claim.margin])
        low, high, margin = (f"{v:z.{digits}f}" for v in (value.low, value.high, claim.margin))
        return OPEN, Reason(INCLUDES_MARGIN, f"[{low}, {high}] includes {margin}; more rows could tell")
    return OPEN, Reason(BY_CHANCE, f"{level}, which could decide it")


def _against(margin: float, low: float, high: float) -> str:
    margin = round(margin, ROUNDING_DIGITS)
    return HOLDS if low > margin else FAILS if high <= margin else OPEN


def _part_of_id(name: str) -> str:
    """A name without blanks, colons or marks that HTML knows, and different from every other name's."""
    return quote(name, safe="/@+=,~")


def _sentence(claim: Claim, outcome: Outcome, about: Mapping[str, str]) -> str:
    if outcome.evidence is None or not outcome.value.known:
        return ""
    numbers = {k: v for k, v in outcome.evidence.numbers.items() if f"{{{k}}}" in claim.text}
    digits = max(decimals(list(numbers.values())), decimals([outcome.value.value]))
    written = {k: f"{v:z.{digits}f}" for k, v in numbers.items()}
    fields = {**about, **outcome.evidence.words, **written, "D": format(outcome.value, f"z.{digits}f")}
    text = claim.text.format_map(fields)
    return f"{text}; {outcome.evidence.note}." if outcome.evidence.note else f"{text}."


def decimals(values: Sequence[float], *, fewest: int = 3, most: int = 6) -> int:
    """Digits that tell these values apart, and each of them from 0 and 1."""
    known = {round(v, ROUNDING_DIGITS) for v in (0.0, 1.0, *values) if math.isfinite(v)}
    for digits in range(fewest, most):
        if len({f"{v:.{digits}f}" for v in known}) == len(known):
            return digits
    return most
