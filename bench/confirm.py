"""How often a cut that loses just the budget is confirmed all the same, by metric; 95 % confidence allows 5 %.

    python bench/confirm.py                                    # 225 cases, 400 trials each: about an hour
    python bench/confirm.py --metrics matthews --trials 100

Every trial draws rows from a population in which the whole model's metric exceeds the cut's by exactly the budget. They
differ on few rows or on many. "bootstrap" is the rate with the paired bootstrap alone, "confirmed" that of `loss_of`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import numpy as np
from scipy.optimize import brentq

from meter import cores
from stratoscope.data.metrics import Floats, difference_interval, metric_named
from stratoscope.studies.cut.confirm import loss_of

CONFIDENCE = 0.95
POPULATION = 500_000
"""Rows a population's metric is taken from."""
ROWS = {
    "accuracy": (100, 400, 1500),
    "f1": (100, 400, 1500),
    "matthews": (100, 400, 1500),
    "correlation": (100, 300, 750),
}
BUDGETS = (0.01, 0.02, 0.05)
TASKS = {
    "accuracy": {"SST-2": (0.5, 0.92, 0.92)},
    "f1": {"MRPC": (0.68, 0.93, 0.75), "QQP": (0.37, 0.88, 0.92)},
    "matthews": {"CoLA": (0.69, 0.95, 0.6), "rare": (0.1, 0.7, 0.97)},
    "correlation": {"STS-B": (0.75,)},
}
"""Share of class 1 and the whole model's hit rates for classes 1 and 0; its error on targets from 0 to 5."""
CLASSES = ("few", "few, one class", "many", "many, one class")
"""Few: rows are only lost. Many: 3 % are gained besides. One class: only class 0 loses."""
TARGETS = ("few, another", "few, opposite", "many, noise", "many, heavy tails", "many, apart")
"""A few predictions are those of another row or the opposite; or all differ, by noise added or errors of their own."""
GAINED = 0.03

Sample = tuple[Floats, Floats, Floats]
"""Scores of the cut and of the whole model, and the labels."""


@dataclass(frozen=True)
class Case:
    metric: str
    task: str
    differing: str
    budget: float
    rows: int


def main() -> None:
    args = _arguments()
    cases = [c for c in _cases() if c.metric in args.metrics]
    print("| metric | task | rows differing | budget | rows | bootstrap | confirmed |\n|---|---|---|---|---|---|---|")
    worst: dict[str, tuple[float, float]] = {}
    with ProcessPoolExecutor(args.workers) as pool:
        work = partial(rates, trials=args.trials, replicates=args.replicates, seed=args.seed)
        for case, found in zip(cases, pool.map(work, cases, chunksize=3), strict=True):
            if found is None:
                continue
            shown = f"{case.metric} | {case.task} | {case.differing} | {case.budget} | {case.rows}"
            print(f"| {shown} | {found[0]:.1%} | {found[1]:.1%} |", flush=True)
            before = worst.get(case.metric, (0.0, 0.0))
            worst[case.metric] = (max(before[0], found[0]), max(before[1], found[1]))
    print()
    for name, (alone, ours) in worst.items():
        print(
            f"{name}: at most {alone:.1%} by the bootstrap alone, {ours:.1%} as confirmed ({args.trials} trials a case)"
        )


def rates(case: Case, *, trials: int, replicates: int, seed: int) -> tuple[float, float] | None:
    """Share of trials confirmed by the bootstrap alone and by `loss_of`; None where no such cut can lose the budget."""
    metric, size = metric_named(case.metric), edge(replace(case, rows=POPULATION))
    if size is None:
        return None
    rng = np.random.default_rng(
        [seed, case.rows, *case.task.encode(), *case.differing.encode(), int(1e3 * case.budget)]
    )
    alone = ours = 0
    for trial in range(trials):
        cut, whole, labels = draw(case, size, rng)
        if metric.score(cut, labels) - metric.score(whole, labels) < -case.budget:
            continue  # no lower end is above the value itself, and none of ours above that of the bootstrap
        how = {"seed": trial, "replicates": replicates}
        if difference_interval(metric, cut, whole, labels, level=2 * CONFIDENCE - 1, **how)[0] >= -case.budget:
            alone += 1
            ours += loss_of(metric, cut, whole, labels, confidence=CONFIDENCE, **how).low >= -case.budget
    return alone / trials, ours / trials


@cache
def edge(case: Case) -> float | None:
    """The size of the difference at which the population's loss is the budget."""
    metric = metric_named(case.metric)

    def excess(size: float) -> float:
        cut, whole, labels = draw(case, size, np.random.default_rng(0))
        return metric.score(cut, labels) - metric.score(whole, labels) + case.budget

    most = 3.0 if case.differing.startswith("many") and case.metric == "correlation" else 0.6
    return float(brentq(excess, 0, most, xtol=1e-5)) if excess(most) < 0 < excess(0) else None


def draw(case: Case, size: float, rng: np.random.Generator) -> Sample:
    """Rows of a population in which the two models differ by `size`, whatever that is for this kind of difference."""
    facts = TASKS[case.metric][case.task]
    return _targets(case, size, rng, *facts) if len(facts) == 1 else _classes(case, size, rng, *facts)


def _classes(case: Case, size: float, rng: np.random.Generator, share: float, hits: float, rejections: float) -> Sample:
    """`size` is the share of rows lost among those that can be."""
    rows = case.rows
    labels = (rng.random(rows) < share).astype(np.int64)
    right = rng.random(rows) < np.where(labels, hits, rejections)
    wrong = 1 - share * hits - (1 - share) * rejections
    gained = GAINED / wrong if case.differing.startswith("many") else 0.0
    losing = right & (labels == 0) if "one class" in case.differing else right
    changed = rng.random(rows) < np.where(right, losing * size, gained)
    before = np.where(right, labels, 1 - labels)
    return np.eye(2)[np.where(changed, 1 - before, before)], np.eye(2)[before], labels.astype(np.float64)


def _targets(case: Case, size: float, rng: np.random.Generator, error: float) -> Sample:
    """`size` is the share of rows that fail, or how wide the further errors are."""
    rows = case.rows
    labels, others = (np.round(rng.uniform(0, 25, rows)) / 5 for _ in range(2))
    whole, another = (np.clip(y + rng.normal(0, error, rows), 0, 5) for y in (labels, others))
    noise, tails, fails = rng.normal(size=rows), rng.standard_t(3, rows), rng.random(rows) < size
    cut = {
        "few, another": np.where(fails, another, whole),
        "few, opposite": np.where(fails, 5 - whole, whole),
        "many, noise": whole + size * noise,
        "many, heavy tails": whole + size * tails,
        "many, apart": np.clip(labels + (error + size) * noise, 0, 5),
    }[case.differing]
    return cut[:, None], whole[:, None], labels


def _cases() -> Iterator[Case]:
    for metric, tasks in TASKS.items():
        ways = TARGETS if metric == "correlation" else CLASSES
        for task, way, budget, rows in product(tasks, ways, BUDGETS, ROWS[metric]):
            yield Case(metric, task, way, budget, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metrics", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--replicates", type=int, default=200, help="of each bootstrap; a cut is confirmed with 1,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=cores())
    return parser.parse_args()


if __name__ == "__main__":
    main()
