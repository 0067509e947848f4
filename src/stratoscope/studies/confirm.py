"""Which cuts may be made: chosen on one half of the validation rows, confirmed on the other, which took no part in it.

Confirmation is a fixed-sequence test of non-inferiority (Maurer, Hothorn & Lehmacher 1995). The choice half lays down
the order, from the mildest cut to the boldest; on the other half each is tested in that order at the full level until
the first fails. A wrong cut can be confirmed only if the first wrong one of the sequence is, so the probability of ever
confirming one is at most 1 - confidence, however many are tested, and no correction is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.metrics import Floats, Metric, difference_interval
from stratoscope.models.encoding import IntArray

ROUNDING = 1e-12


@dataclass(frozen=True)
class Candidate:
    """A cut that could be made."""

    kept: tuple[int, ...]
    """Blocks that stay, from 1."""
    value: float
    """The metric on the rows used for the choice."""


@dataclass(frozen=True)
class Loss:
    """What a cut does to the metric on rows that took no part in choosing it: cut minus whole."""

    value: float
    low: float
    """One-sided lower end, of the stated confidence."""
    high: float
    """One-sided upper end of the bootstrap."""
    exact: bool
    """The lower end is that of unseen losses; all others were higher."""


@dataclass(frozen=True)
class Tested:
    """A candidate held against the rows for confirmation."""

    candidate: Candidate
    loss: Loss
    confirmed: bool


def halves(rows: int, seed: int) -> tuple[IntArray, IntArray]:
    """Seeded halves of the row numbers, each in order: those to choose on and those to confirm on."""
    drawn = np.random.default_rng(seed).permutation(rows)
    return np.sort(drawn[: rows // 2]), np.sort(drawn[rows // 2 :])


def sequence(candidates: Iterable[Candidate], *, whole: float, budget: float) -> list[Candidate]:
    """The candidates worth testing, mildest first: within the budget on the choice half, and not outdone there.

    One that keeps more blocks than another and does worse only adds a hurdle, so it is left out: along what is left,
    the metric does not rise as blocks go. Of equally many blocks the best stands for all, the topmost cut of ties.
    """
    within = [c for c in candidates if c.value >= whole - budget - ROUNDING]
    front: list[Candidate] = []
    for c in sorted(within, key=lambda c: (len(c.kept), -c.value, c.kept)):
        if not front or (len(c.kept) > len(front[-1].kept) and c.value >= front[-1].value - ROUNDING):
            front.append(c)
    return front[::-1]


def confirm(order: Sequence[Candidate], measure: Callable[[Candidate], Loss], *, budget: float) -> list[Tested]:
    """Test candidates in order until one is not confirmed; `measure` is called for no more than those."""
    tested: list[Tested] = []
    for candidate in order:
        loss = measure(candidate)
        tested.append(Tested(candidate, loss, loss.low >= -budget - ROUNDING))
        if not tested[-1].confirmed:
            break
    return tested


def loss_of(metric: Metric, cut: Floats, whole: Floats, labels: Floats, *, confidence: float, seed: int) -> Loss:
    """Metric of `cut` minus that of `whole` (scores, n by k) on the same rows, with one-sided ends.

    The lower end is the lowest of several. The paired bootstrap sees what varies between the rows there are; with few
    rows on which the models differ it is far too sure (with none its width is 0). So the loss is also taken as if as
    many rows were lost as the Clopper-Pearson bound for the rows that were leaves possible (3 of n for none: the rule
    of three), in the class where it hurts most. Accuracy has Tango's score bound besides (1998, eq. 8). Simulated at
    the edge of the budget (90 cases: 100 to 1,500 rows, budgets of 0.01 to 0.05), 95 % confidence confirmed a wrong cut
    in up to 37 % of the trials by the bootstrap alone, 8 % with Clopper-Pearson, 6 % with all three. Metrics other than
    accuracy have the first two only, and were not simulated.
    """
    value = metric.score(cut, labels) - metric.score(whole, labels)
    low, high = difference_interval(metric, cut, whole, labels, seed=seed, level=2 * confidence - 1)
    if metric.name == "accuracy":
        low = min(low, _score_bound(cut, whole, labels, confidence))
    unseen = _unseen_regression if metric.regression else _unseen_classes
    floor = unseen(metric, cut, whole, labels, confidence)
    return Loss(value, min(low, floor), max(high, value), exact=floor < low)


def rows_for(budget: float, confidence: float) -> int:
    """Rows without a single loss that confirm an accuracy within `budget`: (1 - budget)^n <= 1 - confidence."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-budget))


def rows_needed(loss: Loss, rows: int, *, budget: float) -> int | None:
    """About how many rows would confirm a loss seen on `rows` of them; None when the loss itself is too large.

    The lower end comes nearer as 1 / sqrt(rows), as 1 / rows where it is that of unseen losses. Two digits are kept.
    """
    margin = budget + loss.value
    if margin <= 0:
        return None
    excess = (loss.value - loss.low) / margin
    wanted = max(rows, rows * (excess if loss.exact else excess**2))
    digits: int = 10 ** max(0, math.floor(math.log10(wanted)) - 1)
    return math.ceil(wanted / digits) * digits


def check_rows(rows: int, metric: Metric, *, budget: float, confidence: float) -> None:
    """Refuse a validation set on which not even a cut without any loss could be confirmed."""
    least = 2 if metric.name != "accuracy" else rows_for(budget, confidence)
    if rows // 2 < least:
        raise StratoscopeError(
            f"{rows} validation rows are too few: half of them choose the cut, and the other half must confirm a loss"
            f" of at most {budget:g} with {confidence:.0%} confidence, which takes about {2 * least} rows in all even"
            " for a cut that loses nothing; give more rows, a larger --budget or a lower --confidence"
        )


def _score_bound(cut: Floats, whole: Floats, labels: Floats, confidence: float) -> float:
    """Tango's lower bound for a paired difference of shares: the least d that (g - l - n d) / sd(d) = z leaves.

    g rows are gained and l lost of n; sd comes from the shares that fit best if the difference is d.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    right, before = cut.argmax(axis=1) == labels, whole.argmax(axis=1) == labels
    n, gained, lost = len(labels), int((right & ~before).sum()), int((before & ~right).sum())
    z = float(norm.ppf(confidence))

    def excess(d: float) -> float:
        b = -gained - lost + (2 * n - gained + lost) * d
        share = (math.sqrt(max(b * b + 8 * n * lost * d * (1 - d), 0.0)) - b) / (4 * n)
        variance = n * (2 * share + d * (1 - d))
        return (gained - lost - n * d) / math.sqrt(max(variance, 1e-300)) - z

    if lost == n:
        return -1.0
    return float(brentq(excess, -1 + 1e-9, (gained - lost) / n))


def _unseen_classes(metric: Metric, cut: Floats, whole: Floats, labels: Floats, confidence: float) -> float:
    """The difference with as many more rows lost as could be, in the class for which that costs most."""
    from scipy.stats import beta

    n, k = cut.shape
    predicted, before = cut.argmax(axis=1), whole.argmax(axis=1)
    lost = int(((before == labels) & (predicted != labels)).sum())
    bound = float(beta.ppf(confidence, lost + 1, n - lost)) if lost < n else 1.0
    if metric.name == "accuracy":
        return float(metric.score(cut, labels) - metric.score(whole, labels) + lost / n - bound)
    right = np.flatnonzero(predicted == labels)
    more = math.ceil(n * bound) - lost
    found = []
    for label in range(k):
        first = np.argsort(labels[right] != label, kind="stable")[:more]
        worse = predicted.copy()
        worse[right[first]] = (worse[right[first]] + 1) % k
        found.append(metric.score(np.eye(k)[worse], labels))
    return min(found) - metric.score(whole, labels)


def _unseen_regression(metric: Metric, cut: Floats, whole: Floats, labels: Floats, confidence: float) -> float:
    """The difference with as many rows predicted by the mean as may be like none that was seen, the farthest ones."""
    more = math.ceil(len(labels) * (1 - (1 - confidence) ** (1 / len(labels))))
    worse = cut.copy()
    worse[np.argsort(-np.abs(labels - labels.mean()), kind="stable")[:more]] = cut.mean()
    return metric.score(worse, labels) - metric.score(whole, labels)
