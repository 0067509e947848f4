"""Intervals over sentences: seeded, around the score, narrower with more sentences, sentences drawn whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from measures.layer_cases import related
from stratoscope.core.errors import StratoscopeError
from stratoscope.measures import bootstrap as module
from stratoscope.measures.bootstrap import bootstrap
from stratoscope.measures.score import Setting, score_layers
from stratoscope.measures.table import known_names, parse
from stratoscope.statistics.rows import LayerRows, MemoryRows, gather

REPLICATES = 20


def layers(n: int) -> MemoryRows:
    x, y = related(n, 6, 5)
    return MemoryRows([torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x + y[:, [0, 1, 2, 3, 4, 0]])])


def intervals(
    rows: LayerRows, sentence: Tensor, names: list[str], *, seed: int = 0, level: float = 0.95
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Low end, score, high end by name."""
    wanted = [parse(m) for m in names]
    values = {k: s.values for k, s in score_layers(rows, wanted, Setting(seed=seed)).scored.items()}
    found = bootstrap(rows, sentence, wanted, values, replicates=REPLICATES, setting=Setting(seed=seed), level=level)
    return {name: (low, values[name], high) for name, (low, high) in found.items()}


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


def test_sentences_are_drawn_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of 1, 4, 2 and 5 rows: each resample holds four of them, repeated or not, unbroken and in order."""
    lengths = [1, 4, 2, 5]
    sentence = torch.repeat_interleave(torch.tensor([0, 3, 4, 9]), torch.tensor(lengths))
    rows = MemoryRows([torch.arange(12.0)[:, None]])
    seen = []

    def watch(resampled: LayerRows, wanted: object, setting: object) -> object:
        seen.append(gather(resampled, 0).flatten().long().tolist())
        return score_layers(rows, [parse("ckasim")])

    monkeypatch.setattr(module, "score_layers", watch)
    for b in range(40):
        module._replicate({"rows": rows, "sentence": sentence, "measures": ["ckasim"], "seed": 1, "replicate": b})
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


def test_one_sentence_gives_no_width() -> None:
    low, score, high = intervals(layers(30), torch.zeros(30, dtype=torch.long), ["ckasim"])["ckasim"]
    np.testing.assert_allclose(low, score, atol=1e-12)
    np.testing.assert_allclose(high, score, atol=1e-12)


def test_absent_layers_have_no_interval() -> None:
    rows = layers(40)
    flat = MemoryRows([*rows.matrices, torch.full((40, 3), 0.5, dtype=torch.float64)])
    low, _, high = intervals(flat, by_sentence(40, 2), ["ckasim"])["ckasim"]
    assert low[3].isnan().all()
    assert high[:, 3].isnan().all()
    assert low[:3, :3].isfinite().all()


def test_too_few_replicates() -> None:
    with pytest.raises(StratoscopeError, match="expected at least 20 bootstrap replicates for a 95 % interval, got 19"):
        bootstrap(layers(30), by_sentence(30, 1), [parse("ckasim")], {}, replicates=19, setting=Setting())


def test_too_little_memory() -> None:
    with pytest.raises(
        StratoscopeError, match=r"resamples of 30 rows .* but --memory is 0\.0 GB; give fewer rows with --limit"
    ):
        bootstrap(layers(30), by_sentence(30, 1), [parse("ckasim")], {}, replicates=20, setting=Setting(memory=1e3))
