"""Intervals over sentences: seeded, around the score, narrower with more sentences, sentences drawn whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t
from torch import Tensor

from measures.layer_cases import related
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import Interval, spread
from stratoscope.engine.local import InProcess
from stratoscope.measures import bootstrap as module
from stratoscope.measures.bootstrap import Resampled, bootstrap, check_memory, check_replicates
from stratoscope.measures.score import Scoring, score_layers
from stratoscope.measures.table import MEASURES, Request, known_names, parse
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run
from stratoscope.statistics.rows import LayerRows, MemoryRows, gather

REPLICATES = 20


def layers(n: int) -> MemoryRows:
    x, y = related(n, 6, 5)
    return MemoryRows([torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x + y[:, [0, 1, 2, 3, 4, 0]])])


def made(
    rows: LayerRows, sentence: Tensor, names: list[str], *, seed: int = 0, level: float = 0.95
) -> tuple[dict[str, Tensor], dict[str, Resampled]]:
    """Scores and intervals by name."""
    wanted = [parse(m) for m in names]
    values = {k: s.values for k, s in score_layers(rows, wanted, seed=seed).scored.items()}
    return values, bootstrap(rows, sentence, wanted, values, replicates=REPLICATES, seed=seed, level=level)


def intervals(
    rows: LayerRows, sentence: Tensor, names: list[str], *, seed: int = 0, level: float = 0.95
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Low end, score, high end by name."""
    values, found = made(rows, sentence, names, seed=seed, level=level)
    edges = {name: (torch.from_numpy(of.low), torch.from_numpy(of.high)) for name, of in found.items()}
    return {name: (low, values[name], high) for name, (low, high) in edges.items()}


def by_sentence(n: int, words: int) -> Tensor:
    return torch.arange(n) // words


def test_every_measure_gets_an_interval_around_its_score() -> None:
    found = intervals(layers(60), by_sentence(60, 3), [*known_names(), "svsim@0.5"])
    assert set(found) == {*known_names(), "svsim@0.5"}
    for name, (low, score, high) in found.items():
        bounds = parse(name).measure.bounds
        assert (low <= score + 1e-9).all(), name
        assert (score <= high + 1e-9).all(), name
        assert (high - low)[0, 1] > 1e-3, name
        assert low.min() >= bounds[0], name
        assert high.max() <= bounds[1], name
        if name != "mixedsim-heldout":
            assert (high - low).diagonal().abs().max() < 1e-7, name


def test_the_seed_decides() -> None:
    same = [intervals(layers(60), by_sentence(60, 3), ["ckasim"], seed=k)["ckasim"] for k in (4, 4, 5)]
    assert torch.equal(same[0][0], same[1][0])
    assert not torch.equal(same[0][0], same[2][0])


def test_more_sentences_make_it_narrower() -> None:
    width = []
    for n in (40, 640):
        low, _, high = intervals(layers(n), by_sentence(n, 2), ["ckasim-debiased"])["ckasim-debiased"]
        width.append(float((high - low)[0, 1]))
    assert width[1] < width[0] / 2  # about a quarter: the root of sixteen times as many


def test_a_lower_level_makes_it_narrower() -> None:
    wide, narrow = (intervals(layers(60), by_sentence(60, 3), ["ckasim"], level=p)["ckasim"] for p in (0.95, 0.5))
    assert (narrow[2] - narrow[0])[0, 1] < 0.7 * (wide[2] - wide[0])[0, 1]


def test_the_bootstraps_interval_by_hand() -> None:
    """The deviation of the resamples' scores, times Student's t of 19 degrees; 15 sentences correct by 15/14."""
    rows, sentence = layers(30), by_sentence(30, 2)
    values, found = made(rows, sentence, ["ckasim", "svsim"])
    for name, of in found.items():
        assert (of.interval, of.note) == (Interval(0.95, "bootstrap", 15), "")
        drawn = []
        for b in range(REPLICATES):
            picked = np.sort(np.random.default_rng([0, b]).integers(15, size=15))
            index = torch.from_numpy((picked[:, None] * 2 + [0, 1]).ravel())
            resample = MemoryRows([m[index] for m in rows.matrices])
            drawn.append(score_layers(resample, [parse(name)]).scored[name].values)
        np.testing.assert_allclose(of.replicates, torch.stack(drawn), atol=1e-9)
        half = t.ppf(0.975, 14) * torch.stack(drawn).std(0) * (15 / 14) ** 0.5
        np.testing.assert_allclose(of.low, (values[name] - half).clamp_min(0), atol=1e-9)
        np.testing.assert_allclose(of.high, (values[name] + half).clamp_max(1), atol=1e-9)


def method(of: Resampled) -> str | None:
    return of.interval and of.interval.method


SATURATING = [m.name for m in MEASURES if m.saturates]


def test_the_jackknifes_interval_by_hand() -> None:
    """Where rows may not repeat, sentences are left out in turn: fewer than the replicates, so one at a time."""
    rows, sentence = layers(16), by_sentence(16, 2)
    values, found = made(rows, sentence, list(known_names()))
    order = np.argsort(np.random.default_rng(0).permutation(8))
    assert {name for name, of in found.items() if method(of) == "jackknife"} == {
        *SATURATING,
        "mixedsim-heldout",
        "knn",
        "knn-jaccard",
    }
    for name in SATURATING:
        left = [MemoryRows([m[sentence != int(k)] for m in rows.matrices]) for k in order]
        scores = torch.stack([score_layers(r, [parse(name)]).scored[name].values for r in left])
        assert found[name].interval == Interval(0.95, "jackknife", 8)
        np.testing.assert_allclose(found[name].replicates, scores, atol=1e-9)
        half = t.ppf(0.975, 7) * (7 / 8 * (scores - scores.mean(0)).square().sum(0)).sqrt()
        np.testing.assert_allclose(found[name].low, (values[name] - half).clamp_min(0), atol=1e-9)
        np.testing.assert_allclose(found[name].high, (values[name] + half).clamp_max(1), atol=1e-9)


def test_more_sentences_than_replicates_are_left_out_in_groups() -> None:
    sentence = torch.repeat_interleave(torch.arange(50), torch.arange(50) % 3 + 1)
    kept = torch.stack([module._without(sentence, k, REPLICATES, 5) for k in range(REPLICATES)])
    assert (kept.sum(0) == REPLICATES - 1).all(), "every row is left out once"
    for k in range(50):
        assert (kept[:, sentence == k].float().std(1, correction=0) == 0).all(), "sentences stay whole"
    assert {int(sentence[~of].unique().numel()) for of in kept} == {2, 3}
    assert not torch.equal(kept[0], module._without(sentence, 0, REPLICATES, 6))


@pytest.mark.parametrize("name", SATURATING)
def test_no_interval_has_no_width_where_rows_are_few(name: str) -> None:
    """A resample of 9 rows has about 6 distinct ones: all would score 1 for 6 neurons."""
    low, score, high = intervals(layers(9), by_sentence(9, 1), [name])[name]
    assert score[1, 0] < 1 - 1e-6
    assert (high - low)[1, 0] > 0.02


def withheld(of: Resampled) -> bool:
    return of.replicates is of.low is of.high is of.interval is None


@pytest.mark.parametrize("name", SATURATING)
def test_no_interval_where_leaving_rows_out_saturates(name: str) -> None:
    """Seven rows about their mean span six directions: as many as there are neurons."""
    _, found = made(layers(8), by_sentence(8, 1), [name, "ckasim"])
    assert withheld(found[name])
    assert re.search(f"{name}.*7 rows for 6 neurons", found[name].note)
    assert list(found) == [name, "ckasim"]
    assert method(found["ckasim"]) == "bootstrap"


@pytest.mark.parametrize(
    ("n", "name", "widest"),
    [
        *((60, name, 1.4) for name in ("ckasim", "ckasim-debiased", "ckasim-rbf", "neuronsim", "procrustes")),
        *((60, "rsa", 1.6), (80, "svsim", 2.2), (80, "pwsim", 2.2), (80, "cca", 2.5), (80, "mixedsim", 2)),
        *((80, "linreg", 2), (12, "linreg", 3), (160, "mixedsim-heldout", 2.5)),
        *((80, "knn", 1.6), (160, "knn-jaccard", 1.6)),
    ],
)
def test_intervals_are_as_wide_as_scores_spread_over_other_draws(n: int, name: str, widest: float) -> None:
    """Half-width over 1.96 true standard deviations: near 1, for measures that whiten on the wide side."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 8))

    def draw() -> MemoryRows:
        z = rng.standard_normal((n, 3))
        return MemoryRows([torch.from_numpy(z @ m + rng.standard_normal((n, 8))) for m in (a, b)])

    true = np.std([float(score_layers(draw(), [parse(name)]).scored[name].values[0, 1]) for _ in range(100)])
    half = []
    for _ in range(5):
        low, score, high = intervals(draw(), by_sentence(n, 1), [name])[name]
        half.append(float(torch.maximum(high - score, score - low)[0, 1]))
    assert 0.75 < np.median(half) / (1.96 * true) < widest


def test_sentences_are_drawn_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of 1, 4, 2 and 5 rows: each resample holds four of them, repeated or not, unbroken and in order."""
    lengths = [1, 4, 2, 5]
    sentence = torch.repeat_interleave(torch.tensor([0, 3, 4, 9]), torch.tensor(lengths))
    rows = MemoryRows([torch.arange(12.0)[:, None]])
    seen = []

    def watch(resampled: LayerRows, wanted: object, *, run: Run, seed: int) -> object:
        seen.append(gather(resampled, 0).flatten().long().tolist())
        assert (run.memory, seed) == (123, 1)
        return score_layers(rows, [parse("ckasim")])

    monkeypatch.setattr(module, "score_layers", watch)
    shared = {"rows": rows, "sentence": sentence, "seed": 1, "memory": 123}
    for b in range(40):
        module._resampled(shared, {"measures": ["ckasim"], "replicate": b})
    starts = [0, 1, 5, 7]
    whole = [list(range(s, s + k)) for s, k in zip(starts, lengths, strict=True)]
    for index in seen:
        drawn = 0
        while index:
            part = next(w for w in whole if w[0] == index[0])
            assert index[: len(part)] == part
            index = index[len(part) :]
            drawn += 1
        assert drawn == 4
    assert len({tuple(s) for s in seen}) > 20
    assert {w[0] for w in whole} == {k for s in seen for k in s if k in starts}


def test_one_sentence_gives_no_interval() -> None:
    _, found = made(layers(30), torch.zeros(30, dtype=torch.long), ["ckasim"])
    assert withheld(found["ckasim"])
    assert re.search("ckasim.*one sentence", found["ckasim"].note)


def test_absent_layers_have_no_interval() -> None:
    rows = layers(40)
    flat = MemoryRows([*rows.matrices, torch.full((40, 3), 0.5, dtype=torch.float64)])
    low, _, high = intervals(flat, by_sentence(40, 2), ["ckasim"])["ckasim"]
    assert low[3].isnan().all()
    assert high[:, 3].isnan().all()
    assert low[:3, :3].isfinite().all()


@pytest.mark.parametrize("replicates", [1, 19, -5])
def test_too_few_replicates(replicates: int) -> None:
    words = f"at least 20.*{replicates}"
    with pytest.raises(StratoscopeError, match=words):
        check_replicates(replicates)
    with pytest.raises(StratoscopeError, match=words):
        bootstrap(layers(30), by_sentence(30, 1), [parse("ckasim")], {}, replicates=replicates)
    check_replicates(0)
    check_replicates(20)


def test_too_little_memory() -> None:
    """30 rows of 17 neurons in all, 8 bytes each, for each worker."""
    check_memory(30, 17, workers=2, memory=8160)
    words = r"30 rows.*--memory.*--limit.*--workers"
    with pytest.raises(StratoscopeError, match=words):
        check_memory(30, 17, workers=2, memory=8159)
    with pytest.raises(StratoscopeError, match=words):
        bootstrap(layers(30), by_sentence(30, 1), [parse("ckasim")], {}, replicates=20, run=Run(memory=4079))


def ones(name: str) -> dict[str, Tensor]:
    return {name: torch.ones(3, 3, dtype=torch.float64)}


def test_replicates_work_in_the_memory_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared between the workers."""
    given = []

    def score(rows: LayerRows, wanted: list[Request], *, run: Run, seed: int) -> Scoring:
        given.append(run.memory)
        return score_layers(rows, wanted, run=run, seed=seed)

    monkeypatch.setattr(module, "score_layers", score)
    for memory in (1e8, 2e8):
        run = Run(engine=TwoWorkers(), memory=memory)
        bootstrap(layers(30), by_sentence(30, 1), [parse("procrustes")], ones("procrustes"), replicates=20, run=run)
    assert set(given) == {0.5e8, 1e8}


class TwoWorkers(InProcess):
    """Works here, but counts as two."""

    @property
    def workers(self) -> int:
        return 2


EVERY = ["ckasim", "procrustes", "cca"]
"""One from kernels, one resampled, one by jackknife."""
STEPS = ("_reweighted", "_resampled", "_left_out")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps, as they are done."""
    names: list[str] = []

    def counted(step: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
        return lambda shared, item: (names.append(name), step(shared, item))[1]

    for step in STEPS:
        monkeypatch.setattr(module, step, counted(getattr(module, step), step))
    return names


def kept(folder: Path, *, key: str = "k", seed: int = 0, replicates: int = 30, **how: Any) -> dict[str, Resampled]:
    rows, wanted = layers(60), [parse(m) for m in EVERY]
    values = {k: s.values for k, s in score_layers(rows, wanted).scored.items()}
    sentence = by_sentence(60, 2)
    with RunFolder.open(folder) as opened:
        run = Run(opened, **how)
        return bootstrap(rows, sentence, wanted, values, replicates=replicates, run=run, key=key, seed=seed)


def assert_equal(got: dict[str, Resampled], want: dict[str, Resampled]) -> None:
    assert list(got) == list(want) == EVERY
    for name, of in want.items():
        for field in ("replicates", "low", "high"):
            np.testing.assert_array_equal(getattr(got[name], field), getattr(of, field))


def test_parts_are_reused_whatever_the_workers_and_the_memory(tmp_path: Path, done: list[str]) -> None:
    first = kept(tmp_path, memory=1e9)
    assert {step: done.count(step) for step in STEPS} == {"_reweighted": 2, "_resampled": 30, "_left_out": 30}
    there = {p.name for p in (tmp_path / "parts").iterdir()}
    for how in ({"memory": 1e5}, {"memory": 1e7, "engine": TwoWorkers()}):
        done.clear()
        assert_equal(kept(tmp_path, **how), first)
        assert done == []
        assert_equal(kept(tmp_path / "another", **how), first)
        assert {p.name for p in (tmp_path / "another" / "parts").iterdir()} == there


def test_more_replicates_reuse_those_there_are(tmp_path: Path, done: list[str]) -> None:
    """Resamples are numbered; groups that are left out are others when there are more of them."""
    first = kept(tmp_path, replicates=25)
    done.clear()
    more = kept(tmp_path, replicates=28)
    assert {step: done.count(step) for step in STEPS} == {"_reweighted": 1, "_resampled": 3, "_left_out": 28}
    for name in ("ckasim", "procrustes"):
        np.testing.assert_array_equal(more[name].replicates[:25], first[name].replicates)  # type: ignore[index]


def test_another_seed_and_other_rows_are_other_parts(tmp_path: Path, done: list[str]) -> None:
    kept(tmp_path)
    once = len(done)
    for how in ({"seed": 1}, {"key": "others"}):
        done.clear()
        kept(tmp_path, **how)
        assert len(done) == once


def test_kernels_give_the_resamples_of_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all kernels are too large they are not held; the resamples are the same to rounding."""
    rows, names = layers(60), ["ckasim", "ckasim-debiased"]
    wanted = [parse(m) for m in names]
    values = {k: s.values for k, s in score_layers(rows, wanted).scored.items()}
    least, found, steps = module.weighted.BYTES * rows.layers * 60**2, [], []
    for limit in (least, least - 1):
        monkeypatch.setattr(module, "LIGHT_BYTES", limit)
        used: list[str] = []
        monkeypatch.setattr(module, "_resampled", counting(used))
        found.append(bootstrap(rows, by_sentence(60, 3), wanted, values, replicates=REPLICATES))
        steps.append(len(used))
        monkeypatch.undo()
    assert steps == [0, REPLICATES]
    for name in names:
        for field in ("replicates", "low", "high"):
            np.testing.assert_allclose(*(getattr(of[name], field) for of in found), atol=1e-9, rtol=0)


def counting(used: list[str]) -> Callable[[Any, Any], Any]:
    real = module._resampled
    return lambda shared, item: (used.append(""), real(shared, item))[1]


def test_intervals_are_the_spread_of_the_kept_resamples() -> None:
    """So that the interval of any difference of scores can be made later."""
    values, found = made(layers(60), by_sentence(60, 3), ["ckasim", "cca"])
    for name, of in found.items():
        assert of.replicates is not None
        assert of.interval is not None
        assert of.replicates.shape == (REPLICATES, 3, 3)
        low, high = spread(values[name].numpy(), of.replicates, of.interval, bounds=parse(name).measure.bounds)
        np.testing.assert_array_equal(of.low, low)
        np.testing.assert_array_equal(of.high, high)
