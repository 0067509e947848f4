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
from functools import partial

import numpy as np

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import Value
from stratoscope.data.metrics import REPLICATES, Floats, Metric, difference_interval, rows_for
from stratoscope.models.text.encoder import IntArray
from stratoscope.results.cutting.cut import Candidate, Tested

ROUNDING = 1e-12


@dataclass(frozen=True)
class Loss(Value):
    """What a cut does to the metric on rows that took no part in choosing it: cut minus whole, with one-sided ends."""

    exact: bool = False
    """The lower end is, for the most part, that of losses these rows happen not to show."""


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


def confirm(
    order: Sequence[Candidate],
    measure: Callable[[Candidate], Loss],
    *,
    budget: float,
    refused: Callable[[Candidate], bool] = lambda candidate: False,
) -> list[Tested]:
    """Test candidates in order until one is not confirmed; `measure` is called for no more than those.

    What is `refused` is no better than the majority label, and not confirmed whatever it loses.
    """
    tested: list[Tested] = []
    for candidate in order:
        loss = measure(candidate)
        within, low = loss.low >= -budget - ROUNDING, refused(candidate)
        value = Value(loss.value, loss.low, loss.high)
        tested.append(Tested(candidate.kept, value, within and not low, loss.exact, within and low))
        if not tested[-1].confirmed:
            break
    return tested


def loss_of(
    metric: Metric,
    cut: Floats,
    whole: Floats,
    labels: Floats,
    *,
    confidence: float,
    seed: int,
    replicates: int = REPLICATES,
) -> Loss:
    """Metric of `cut` minus that of `whole` (scores, n by k) on the same rows, with one-sided ends.

    The lower end is the lowest of several. The paired bootstrap sees what varies between the rows there are; with few
    rows on which the cut fails it is far too sure (with none its width is 0). So accuracy takes as many rows as lost as
    the Clopper-Pearson bound leaves possible (3 of n for none: the rule of three), and Tango's score bound (1998,
    eq. 8). Other metrics bootstrap the rows once more with one added on which the cut fails, which does the same: of
    lost rows it draws as many as Clopper-Pearson leaves possible, to within a row.

    Simulated at the edge of the budget (100 to 1,500 rows, budgets of 0.01 to 0.05), 95 % confidence confirmed a wrong
    cut in up to 37 % of the trials by the bootstrap alone and 6 % as here for accuracy (90 cases). In bench/confirm.py
    it was 41 % and 7 % for F1 (72 cases), 81 % and 7 % for Matthews (72), 64 % and 7 % for correlations (45, up to 750
    rows); the worst case of each, drawn anew with 500 to 1,500 trials, came to 5.4 to 5.5 %.
    """
    value = metric.score(cut, labels) - metric.score(whole, labels)
    bootstrap = partial(difference_interval, metric, seed=seed, replicates=replicates, level=2 * confidence - 1)
    low, high = bootstrap(cut, whole, labels)
    if metric.name == "accuracy":
        low = min(low, _score_bound(cut, whole, labels, confidence))
        floor = value - _unseen_share(cut, whole, labels, confidence)
        exact = floor < low
    else:
        floor = bootstrap(*_with_failure(metric, cut, whole, labels))[0]
        exact = low - floor > value - low
    return Loss(value, min(low, floor, value), max(high, value), exact)


def rows_needed(loss: Value, rows: int, *, budget: float, exact: bool) -> int | None:
    """About how many rows would confirm a loss seen on `rows` of them; None when the loss itself is too large.

    The lower end comes nearer as 1 / sqrt(rows), as 1 / rows where it is that of unseen losses. Two digits are kept.
    """
    margin = budget + loss.value
    if margin <= 0:
        return None
    excess = (loss.value - loss.low) / margin
    needed = max(rows, rows * (excess if exact else excess**2))
    digits: int = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    return math.ceil(needed / digits) * digits


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


def _unseen_share(cut: Floats, whole: Floats, labels: Floats, confidence: float) -> float:
    """Share of rows that may be lost besides those that were (Clopper & Pearson 1934)."""
    from scipy.stats import beta

    n = len(labels)
    lost = int(((whole.argmax(axis=1) == labels) & (cut.argmax(axis=1) != labels)).sum())
    return float(beta.ppf(confidence, lost + 1, n - lost)) - lost / n if lost < n else 0.0


def _with_failure(metric: Metric, cut: Floats, whole: Floats, labels: Floats) -> tuple[Floats, Floats, Floats]:
    """Scores of cut and whole and the labels, with one row more on which the cut alone fails, where that costs most.

    A class is taken for another; a target off the mean is predicted as far on the other side of it. That costs about
    the square of the distance: the row is one of root mean square cost, as those of mean cost proved too mild.
    """
    k = cut.shape[1]
    if metric.regression:
        off = labels - labels.mean()
        far = float((off**4).mean() ** 0.25)
        like = [int(np.abs(off - end).argmin()) for end in (-far, far)]
        failures = [(2 * cut.mean() - cut[i], whole[i], labels[i]) for i in like]
    else:
        failures = [(np.eye(k)[(label + 1) % k], np.eye(k)[label], label) for label in range(k)]
    extended = [(np.vstack([cut, c]), np.vstack([whole, w]), np.append(labels, y)) for c, w, y in failures]
    return min(extended, key=lambda f: metric.score(f[0], f[2]) - metric.score(f[1], f[2]))
