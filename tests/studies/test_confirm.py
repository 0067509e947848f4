from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.metrics import difference_interval, metric_named
from stratoscope.studies.cut.confirm import (
    Candidate,
    Loss,
    _score_bound,
    check_rows,
    confirm,
    halves,
    loss_of,
    rows_for,
    rows_needed,
    sequence,
)

ACCURACY = metric_named("accuracy")


def top(depth: int, value: float) -> Candidate:
    return Candidate(tuple(range(1, depth + 1)), value)


def loss(low: float, value: float = 0.0) -> Loss:
    return Loss(value, low, value)


def one_hot(labels: np.ndarray, classes: int = 2) -> np.ndarray:
    return np.eye(classes)[labels.astype(int)]


def flipped(labels: np.ndarray, rows: range) -> np.ndarray:
    other = labels.copy()
    other[list(rows)] = 1 - other[list(rows)]
    return one_hot(other)


# --- the two halves and the order of tests ---------------------------------------------------------------------------


def test_the_halves_share_no_row_and_depend_on_the_seed() -> None:
    one, other = halves(101, 0)
    assert sorted([*one, *other]) == list(range(101))
    assert (len(one), len(other)) == (50, 51)
    assert list(halves(101, 0)[0]) == list(one) != list(halves(101, 1)[0])


def test_tests_go_from_the_mildest_cut_to_the_boldest_of_those_within_the_budget() -> None:
    found = sequence([top(1, 0.6), top(2, 0.86), top(3, 0.88), top(4, 0.89)], whole=0.9, budget=0.05)
    assert [len(c.kept) for c in found] == [4, 3, 2]


def test_a_mild_cut_that_a_bolder_one_outdoes_is_no_hurdle() -> None:
    found = sequence([top(1, 0.87), top(2, 0.86), top(3, 0.88)], whole=0.9, budget=0.05)
    assert [len(c.kept) for c in found] == [3, 1]


def test_of_equally_many_blocks_the_best_stands_for_all_and_of_ties_the_topmost() -> None:
    candidates = [Candidate((2, 3), 0.89), Candidate((1, 2), 0.89), Candidate((1, 3), 0.87)]
    assert sequence(candidates, whole=0.9, budget=0.05) == [Candidate((1, 2), 0.89)]
    assert sequence([*candidates, Candidate((1, 4), 0.9)], whole=0.9, budget=0.05) == [Candidate((1, 4), 0.9)]


def test_nothing_is_tested_after_the_first_failure() -> None:
    lows = {4: -0.01, 3: -0.06, 2: -0.01}
    asked = []

    def measure(c: Candidate) -> Loss:
        asked.append(len(c.kept))
        return loss(lows[len(c.kept)])

    tested = confirm([top(4, 0.9), top(3, 0.89), top(2, 0.88)], measure, budget=0.05)
    assert asked == [4, 3]
    assert [t.confirmed for t in tested] == [True, False]


def test_the_fixed_sequence_keeps_its_error_over_many_cuts() -> None:
    """Twelve cuts, all at the edge of the budget: any of them is confirmed no more often than one would be."""
    rng, wrong = np.random.default_rng(0), 0
    edge = int(binom.ppf(0.05, 400, 0.1)) - 1  # losses of 400 rows that confirm a rate below 0.1 at 95 %

    def measure(c: Candidate) -> Loss:
        return loss(-0.1 if rng.binomial(400, 0.1) <= edge else -0.2)

    order = [top(d, 0.9) for d in range(12, 0, -1)]
    for _ in range(2000):
        wrong += confirm(order, measure, budget=0.1)[0].confirmed
    assert wrong / 2000 < 0.06
    picked = sum(any(measure(c).low >= -0.1 for c in order) for _ in range(500)) / 500
    assert picked > 0.2, "testing all and taking what passes would be wrong far more often"


# --- how sure one can be ---------------------------------------------------------------------------------------------


def test_no_lost_row_is_no_certainty() -> None:
    labels = np.arange(100) % 2.0
    found = loss_of(ACCURACY, one_hot(labels), one_hot(labels), labels, confidence=0.95, seed=0)
    assert (found.value, found.exact) == (0, True)
    assert found.low == pytest.approx(0.05**0.01 - 1)  # the rule of three, exactly


def test_few_lost_rows_give_the_clopper_pearson_bound() -> None:
    labels = np.arange(200) % 2.0
    found = loss_of(ACCURACY, flipped(labels, range(2)), one_hot(labels), labels, confidence=0.95, seed=0)
    assert found.value == pytest.approx(-0.01)
    assert binom.cdf(2, 200, -found.low) == pytest.approx(0.05)


def test_with_many_differing_rows_it_is_the_bootstrap() -> None:
    labels = np.arange(1000) % 2.0
    cut, whole = flipped(labels, range(100)), flipped(labels, range(100, 200))
    found = loss_of(ACCURACY, cut, whole, labels, confidence=0.95, seed=0)
    assert (found.value, found.exact) == (0, False)
    assert found.low == pytest.approx(-1.645 * math.sqrt(0.2 / 1000), rel=0.1)
    assert found.high == pytest.approx(-found.low, rel=0.15)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (0, 4), (7, 3), (20, 24)])
def test_the_score_bound_solves_its_equation(gained: int, lost: int) -> None:
    """Against the likelihood: the shares that fit best under the bound are searched for, not computed."""
    n, labels = 150, np.zeros(150)
    cut, whole = np.zeros(n), np.zeros(n)
    whole[:gained], cut[gained : gained + lost] = 1, 1
    d = _score_bound(one_hot(cut), one_hot(whole), labels, 0.95)
    share = np.linspace(max(0.0, -d), (1 - d) / 2, 2_000_001)[1:-1]  # of lost rows; of gained ones it is share + d
    with np.errstate(divide="ignore", invalid="ignore"):
        fit = gained * np.log(share + d) if gained else 0 * share
        fit = fit + (lost * np.log(share) if lost else 0) + (n - gained - lost) * np.log(1 - 2 * share - d)
    best = share[np.nanargmax(fit)]
    assert (gained - lost - n * d) / math.sqrt(n * (2 * best + d - d * d)) == pytest.approx(1.6449, rel=1e-3)


def test_rows_that_differ_both_ways_are_bounded_below_the_bootstrap() -> None:
    """Seven rows gained and ten lost of 150: the bootstrap stops on a step of 1 / n, the score bound goes on."""
    labels = np.zeros(150)
    cut, whole = flipped(labels, range(10)), flipped(labels, range(10, 17))
    low = difference_interval(ACCURACY, cut, whole, labels, level=0.9)[0]
    found = loss_of(ACCURACY, cut, whole, labels, confidence=0.95, seed=0)
    assert found.low == _score_bound(cut, whole, labels, 0.95) < low
    assert not found.exact


@pytest.mark.parametrize("gain", [0.0, 0.01, 0.05])
def test_a_loss_at_the_edge_of_the_budget_is_confirmed_no_more_often_than_stated(gain: float) -> None:
    rng, labels, hits = np.random.default_rng(0), np.zeros(300), 0
    for _ in range(300):
        kind = rng.choice(3, size=300, p=[gain + 0.02, gain, 0.98 - 2 * gain])
        cut, whole = one_hot((kind == 0) * 1.0), one_hot((kind == 1) * 1.0)
        hits += loss_of(ACCURACY, cut, whole, labels, confidence=0.95, seed=0, replicates=100).low >= -0.02
    assert hits / 300 < 0.08


@pytest.mark.parametrize(("name", "n"), [("f1", 75), ("matthews", 150), ("correlation", 150)])
def test_the_edge_of_the_budget_is_kept_by_metrics_that_are_no_shares(name: str, n: int) -> None:
    """The cut is opposite on a share s of the rows, the whole model right: f1 falls by s, both correlations by 2 s."""
    rng, metric, trials, budget = np.random.default_rng(0), metric_named(name), 150, 0.05
    hits = alone = 0
    for seed in range(trials):
        sign = np.where(rng.random(n) < (budget if name == "f1" else budget / 2), -1, 1)
        if metric.regression:
            labels = rng.uniform(-1, 1, n)
            cut, whole = (sign * labels)[:, None], labels[:, None]
        else:
            labels = rng.integers(2, size=n) * 1.0
            cut, whole = one_hot(np.where(sign > 0, labels, 1 - labels)), one_hot(labels)
        if metric.score(cut, labels) >= 1 - budget:
            low = difference_interval(metric, cut, whole, labels, seed=seed, replicates=40, level=0.9)[0]
            found = loss_of(metric, cut, whole, labels, confidence=0.95, seed=seed, replicates=40)
            alone, hits = alone + (low >= -budget), hits + (found.low >= -budget)
    assert hits / trials < 0.06
    assert alone / trials > 0.08, "the bootstrap alone would be too sure"


@pytest.mark.parametrize("name", ["matthews", "f1"])
def test_other_metrics_of_classes_take_unseen_losses_where_they_hurt_most(name: str) -> None:
    labels = (np.arange(100) < 10) * 1.0  # ten rows of class 1
    metric = metric_named(name)
    found = loss_of(metric, one_hot(labels), one_hot(labels), labels, confidence=0.95, seed=0)
    assert (found.value, found.exact) == (0, True)
    rare, common = (metric.score(flipped(labels, rows), labels) - 1 for rows in (range(3), range(50, 53)))
    assert rare < found.low < common  # about three of the rare class, one of which was added: the rule of three


def test_a_regression_takes_an_unseen_row_as_predicted_on_the_other_side() -> None:
    metric = metric_named("correlation")
    few, many = (
        loss_of(metric, y[:, None], y[:, None], y, confidence=0.95, seed=0, replicates=200)
        for y in (np.linspace(-1, 1, 100), np.linspace(-1, 1, 1000))
    )
    assert few.low == pytest.approx(-2 * 1.8**0.5 * 3 / 100, rel=0.15)  # E c² = 1.8 (E c)² over an even spread
    assert many.low == pytest.approx(few.low / 10, rel=0.15)
    assert few.exact
    assert many.exact


def test_errors_all_over_leave_a_regression_to_the_bootstrap() -> None:
    rng, metric = np.random.default_rng(0), metric_named("correlation")
    labels = rng.uniform(0, 5, 1000)
    whole = labels + rng.normal(size=1000)
    cut = labels + rng.normal(size=1000)
    low = difference_interval(metric, cut[:, None], whole[:, None], labels, level=0.9, replicates=200)[0]
    found = loss_of(metric, cut[:, None], whole[:, None], labels, confidence=0.95, seed=0, replicates=200)
    assert low - 0.01 < found.low < low
    assert not found.exact


def test_a_cut_wrong_everywhere_has_no_lower_end_below_what_is_possible() -> None:
    labels = np.arange(20) % 2.0
    found = loss_of(ACCURACY, flipped(labels, range(20)), one_hot(labels), labels, confidence=0.95, seed=0)
    assert found.low == found.value == -1


# --- how many rows it takes ------------------------------------------------------------------------------------------


def test_rows_for_a_loss_free_cut_are_just_enough() -> None:
    n = rows_for(0.01, 0.95)
    assert n == 299
    assert 1 - 0.05 ** (1 / n) <= 0.01 < 1 - 0.05 ** (1 / (n - 1))


def test_rows_needed_grow_with_the_square_of_the_excess() -> None:
    assert rows_needed(loss(-0.06, -0.02), 100, budget=0.04, exact=False) == 400
    assert rows_needed(loss(-0.06, -0.02), 100, budget=0.04, exact=True) == 200
    assert rows_needed(loss(-0.0633, 0.0), 1000, budget=0.03, exact=False) == 4500
    assert rows_needed(loss(-0.08, -0.04), 100, budget=0.04, exact=False) is None


def test_rows_too_few_for_the_budget_are_told() -> None:
    with pytest.raises(StratoscopeError, match=r"50 validation rows are too few.*loss of at most 0.01 with 95%.*598"):
        check_rows(50, ACCURACY, budget=0.01, confidence=0.95)
    check_rows(598, ACCURACY, budget=0.01, confidence=0.95)
    with pytest.raises(StratoscopeError, match="3 validation rows are too few"):
        check_rows(3, metric_named("correlation"), budget=0.01, confidence=0.95)
