"""Intervals over sentences: seeded, around the score, narrower with more sentences, sentences drawn whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import t
from torch import Tensor

from measures.layer_cases import related
from stratoscope.core.errors import StratoscopeError
from stratoscope.engine.local import InProcess
from stratoscope.measures import bootstrap as module
from stratoscope.measures.bootstrap import Interval, bootstrap, check_memory, check_replicates
from stratoscope.measures.measure import Item
from stratoscope.measures.score import Scoring, score_layers
from stratoscope.measures.table import MEASURES, Request, known_names, parse
from stratoscope.statistics.rows import LayerRows, MemoryRows, gather

REPLICATES = 20


def layers(n: int) -> MemoryRows:
    x, y = related(n, 6, 5)
    return MemoryRows([torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x + y[:, [0, 1, 2, 3, 4, 0]])])


def made(
    rows: LayerRows, sentence: Tensor, names: list[str], *, seed: int = 0, level: float = 0.95
) -> tuple[dict[str, Tensor], dict[str, Interval]]:
    """Scores and intervals by name."""
    wanted = [parse(m) for m in names]
    values = {k: s.values for k, s in score_layers(rows, wanted, seed=seed).scored.items()}
    return values, bootstrap(rows, sentence, wanted, values, replicates=REPLICATES, seed=seed, level=level)


def intervals(
    rows: LayerRows, sentence: Tensor, names: list[str], *, seed: int = 0, level: float = 0.95
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Low end, score, high end by name."""
    values, found = made(rows, sentence, names, seed=seed, level=level)
    return {name: (of.low, values[name], of.high) for name, of in found.items()}


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
        assert (of.method, of.level, of.note) == ("bootstrap", 0.95, "")
        drawn = []
        for b in range(REPLICATES):
            picked = np.sort(np.random.default_rng([0, b]).integers(15, size=15))
            index = torch.from_numpy((picked[:, None] * 2 + [0, 1]).ravel())
            resample = MemoryRows([m[index] for m in rows.matrices])
            drawn.append(score_layers(resample, [parse(name)]).scored[name].values)
        half = t.ppf(0.975, 14) * torch.stack(drawn).std(0) * (15 / 14) ** 0.5
        np.testing.assert_allclose(of.low, (values[name] - half).clamp_min(0), atol=1e-9)
        np.testing.assert_allclose(of.high, (values[name] + half).clamp_max(1), atol=1e-9)


SATURATING = [m.name for m in MEASURES if m.saturates]


def test_the_jackknifes_interval_by_hand() -> None:
    """Where rows may not repeat, sentences are left out in turn: fewer than the replicates, so one at a time."""
    rows, sentence = layers(16), by_sentence(16, 2)
    values, found = made(rows, sentence, list(known_names()))
    assert {name for name, of in found.items() if of.method == "jackknife"} == {*SATURATING, "mixedsim-heldout"}
    for name in SATURATING:
        left = [MemoryRows([m[sentence != k] for m in rows.matrices]) for k in range(8)]
        scores = torch.stack([score_layers(r, [parse(name)]).scored[name].values for r in left])
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


@pytest.mark.parametrize("name", SATURATING)
def test_no_interval_where_leaving_rows_out_saturates(name: str) -> None:
    """Seven rows about their mean span six directions: as many as there are neurons."""
    _, found = made(layers(8), by_sentence(8, 1), [name, "ckasim"])
    assert found[name].method is None
    assert found[name].low.isnan().all()
    assert found[name].high.isnan().all()
    assert found[name].note == (
        f"no interval for {name}: with some sentences left out, any two layers score 1 (7 rows for 6 neurons); add rows"
    )
    assert list(found) == [name, "ckasim"]
    assert found["ckasim"].method == "bootstrap"


@pytest.mark.parametrize(
    ("n", "name", "widest"),
    [
        *((60, name, 1.4) for name in ("ckasim", "ckasim-debiased", "ckasim-rbf", "neuronsim", "procrustes")),
        *((60, "rsa", 1.6), (80, "svsim", 2.2), (80, "pwsim", 2.2), (80, "cca", 2.5), (80, "mixedsim", 2)),
        *((80, "linreg", 2), (12, "linreg", 3), (160, "mixedsim-heldout", 2.5)),
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

    def watch(resampled: LayerRows, wanted: object, setting: Setting) -> object:
        seen.append(gather(resampled, 0).flatten().long().tolist())
        assert setting.memory == 123
        return score_layers(rows, [parse("ckasim")])

    monkeypatch.setattr(module, "score_layers", watch)
    for b in range(40):
        module._resampled(123, {"rows": rows, "sentence": sentence, "measures": ["ckasim"], "seed": 1, "replicate": b})
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
    assert found["ckasim"].method is None
    assert found["ckasim"].low.isnan().all()
    assert found["ckasim"].note == "no interval for ckasim: all rows are of one sentence"


def test_absent_layers_have_no_interval() -> None:
    rows = layers(40)
    flat = MemoryRows([*rows.matrices, torch.full((40, 3), 0.5, dtype=torch.float64)])
    low, _, high = intervals(flat, by_sentence(40, 2), ["ckasim"])["ckasim"]
    assert low[3].isnan().all()
    assert high[:, 3].isnan().all()
    assert low[:3, :3].isfinite().all()


@pytest.mark.parametrize("replicates", [1, 19, -5])
def test_too_few_replicates(replicates: int) -> None:
    words = rf"expected at least 20 bootstrap replicates for a 95 % interval \(or 0 for none\), got {replicates}"
    with pytest.raises(StratoscopeError, match=words):
        check_replicates(replicates)
    with pytest.raises(StratoscopeError, match=words):
        bootstrap(layers(30), by_sentence(30, 1), [parse("ckasim")], {}, replicates=replicates, setting=Setting())
    check_replicates(0)
    check_replicates(20)


def test_too_little_memory() -> None:
    """30 rows of 17 neurons in all, 8 bytes each, for each worker."""
    check_memory(30, 17, workers=2, memory=8160)
    words = r"resamples of 30 rows .* but --memory is 0\.0 GB; give fewer rows with --limit, fewer --workers, or more"
    with pytest.raises(StratoscopeError, match=words):
        check_memory(30, 17, workers=2, memory=8159)
    with pytest.raises(StratoscopeError, match=words):
        bootstrap(layers(30), by_sentence(30, 1), [parse("ckasim")], {}, replicates=20, setting=Setting(memory=4079))


def test_replicates_work_in_the_memory_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared between the workers; parts of a run keep their names when it changes."""
    given, parts = [], []

    def watch(work: Callable[..., object], items: list[Item], *rest: object) -> list[dict[str, Tensor]]:
        parts.append(items)
        return [dict(work(item)) for item in items]  # type: ignore[call-overload]

    def score(rows: LayerRows, wanted: list[Request], setting: Setting) -> Scoring:
        given.append(setting.memory)
        return score_layers(rows, wanted, setting)

    monkeypatch.setattr(module, "run_parts", watch)
    monkeypatch.setattr(module, "score_layers", score)
    for memory in (1e8, 2e8):
        wanted = [parse("procrustes")]
        values = {"procrustes": torch.ones(3, 3, dtype=torch.float64)}
        bootstrap(
            layers(30), by_sentence(30, 1), wanted, values, replicates=20, setting=Setting(TwoWorkers(), memory=memory)
        )
    assert set(given) == {0.5e8, 1e8}
    plain = [[{k: v for k, v in item.items() if k not in ("rows", "sentence")} for item in items] for items in parts]
    assert plain[0] == plain[1]


class TwoWorkers(InProcess):
    """Works here, but counts as two."""

    @property
    def workers(self) -> int:
        return 2


def test_kernels_give_the_resamples_of_the_slow_way() -> None:
    """Little memory forbids the kernels; the interval is the same to rounding."""
    rows, names = layers(60), ["ckasim", "ckasim-debiased"]
    wanted = [parse(m) for m in names]
    values = {k: s.values for k, s in score_layers(rows, wanted, Setting()).scored.items()}
    least = module.weighted.BYTES * rows.layers * 60**2
    fast, slow = (
        bootstrap(rows, by_sentence(60, 3), wanted, values, replicates=REPLICATES, setting=Setting(memory=memory))
        for memory in (least, least - 1)
    )
    for name in names:
        for end in ("low", "high"):
            torch.testing.assert_close(getattr(fast[name], end), getattr(slow[name], end), atol=1e-9, rtol=0)
