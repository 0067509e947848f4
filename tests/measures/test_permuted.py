"""Chance levels from permuted sentences: what unrelated layers on rows of shared sentences really score."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.measures.permuted import matched_rows, permuted_chance
from stratoscope.measures.score import score_layers
from stratoscope.measures.table import parse
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run
from stratoscope.statistics.rows import MemoryRows

DEBIASED = [parse("ckasim-debiased")]


def sentences(lengths: list[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def unrelated(number: int, sentence: Tensor, *, seed: int, alike: float = 1.0) -> MemoryRows:
    """Layers that have nothing in common but that rows of one sentence are alike in each."""
    rng = np.random.default_rng(seed)
    count = int(sentence.max()) + 1
    own = [rng.standard_normal((count, 8))[sentence] * alike for _ in range(number)]
    return MemoryRows([torch.from_numpy(m + rng.standard_normal(m.shape)) for m in own])


def debiased(rows: MemoryRows) -> np.ndarray:
    """Scores of all pairs of different layers."""
    values = score_layers(rows, DEBIASED).scored["ckasim-debiased"].values
    return values[tuple(torch.triu_indices(rows.layers, rows.layers, 1))].numpy()


SENTENCES = sentences([20] * 15 + [30] * 15)


def test_unrelated_layers_of_sentences_score_the_level() -> None:
    scores = np.concatenate([debiased(unrelated(6, SENTENCES, seed=seed)) for seed in range(4)])
    levels = [
        permuted_chance(unrelated(4, SENTENCES, seed=10 + s), SENTENCES, DEBIASED)["ckasim-debiased"] for s in range(3)
    ]
    assert scores.mean() > 0.04, "this is not about 0"
    for level in levels:
        assert scores.mean() < level < 2 * scores.max()
        assert (scores > level).mean() < 0.25


@pytest.mark.parametrize("lengths", [[20] * 15 + [30] * 15, [1] * 750])
def test_the_level_of_independent_rows_is_about_0(lengths: list[int]) -> None:
    sentence = sentences(lengths)
    rows = unrelated(4, sentence, seed=0, alike=0.0)
    level = permuted_chance(rows, sentence, DEBIASED)["ckasim-debiased"]
    assert abs(level) < 0.03


def test_rows_permuted_one_by_one_would_hide_it() -> None:
    """The control: the same layers, each row taken for a sentence of its own."""
    rows = unrelated(4, SENTENCES, seed=0)
    kept = permuted_chance(rows, SENTENCES, DEBIASED)["ckasim-debiased"]
    broken = permuted_chance(rows, torch.arange(len(SENTENCES)), DEBIASED)["ckasim-debiased"]
    assert broken < 0.03 < kept


def test_related_layers_are_above_the_level() -> None:
    x = unrelated(1, SENTENCES, seed=0).matrices[0]
    turned = x @ torch.from_numpy(np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0])
    rows = MemoryRows([x, turned + 0.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))])
    assert float(debiased(rows)[0]) > 3 * permuted_chance(rows, SENTENCES, DEBIASED)["ckasim-debiased"]


def test_what_rows_at_one_place_share_counts_as_chance() -> None:
    rng = np.random.default_rng(0)
    sentence = sentences([10] * 60)
    place = torch.arange(10).repeat(60)
    rows = MemoryRows(
        [torch.from_numpy(rng.standard_normal((10, 6))[place] + rng.standard_normal((600, 6))) for _ in "xyz"]
    )
    level = permuted_chance(rows, sentence, DEBIASED)["ckasim-debiased"]
    assert level == pytest.approx(debiased(rows).max(), abs=0.03)
    assert level > 0.08


def test_every_measure_has_its_level_in_both_directions() -> None:
    rows = unrelated(3, SENTENCES, seed=0)
    names = ["ckasim", "neuronsim@0.5", "linreg", "cca", "rsa", "mixedsim-heldout"]
    levels = permuted_chance(rows, SENTENCES, [parse(n) for n in names], pairs=[(0, 2)], draws=3)
    swapped = permuted_chance(rows, SENTENCES, [parse(n) for n in names], pairs=[(2, 0)], draws=3)
    assert list(levels) == names
    assert all(0 < level < 1 for level in levels.values())
    assert levels != swapped, "other sentences meet"
    one = permuted_chance(rows, SENTENCES, [parse("linreg")], pairs=[(0, 2)], draws=1)["linreg"]
    assert levels["linreg"] >= one


def test_the_seed_decides_and_parts_are_read_again(tmp_path: Path) -> None:
    rows = unrelated(3, SENTENCES, seed=0)
    want = permuted_chance(rows, SENTENCES, DEBIASED, draws=3)
    assert permuted_chance(rows, SENTENCES, DEBIASED, draws=3) == want
    assert permuted_chance(rows, SENTENCES, DEBIASED, draws=3, seed=1) != want
    for _ in range(2):
        with RunFolder.open(tmp_path) as folder:
            run = Run(folder)
            assert permuted_chance(rows, SENTENCES, DEBIASED, draws=3, run=run, key="k") == want
    assert len(list((tmp_path / "parts").glob("chance-*.safetensors"))) == 3


def test_layers_that_do_not_vary_are_passed_over() -> None:
    x, y = unrelated(2, SENTENCES, seed=0).matrices
    flat = torch.full_like(x, 0.5)
    assert math.isfinite(permuted_chance(MemoryRows([flat, x, y]), SENTENCES, DEBIASED, draws=9)["ckasim-debiased"])
    assert math.isnan(permuted_chance(MemoryRows([flat, x]), SENTENCES, DEBIASED, draws=2)["ckasim-debiased"])
    assert math.isfinite(permuted_chance(MemoryRows([x]), SENTENCES, DEBIASED, draws=2)["ckasim-debiased"])


def test_few_rows_are_whole_sentences_and_score_no_less() -> None:
    rows = unrelated(3, SENTENCES, seed=0)
    names = [parse("linreg"), parse("ckasim")]
    few, all_of_them = (permuted_chance(rows, SENTENCES, names, draws=5, most_rows=m) for m in (200, 10_000))
    assert all(few[name] > all_of_them[name] for name in few)


@pytest.mark.parametrize(
    "lengths", [[5] * 8, [3, 4, 5, 6, 7], [2, 9], [1] * 30, [4, 4, 9], [1, 4, 4, 4, 9, 9, 12], [7, 7, 2, 7, 3, 3]]
)
def test_sentences_meet_others_of_like_length(lengths: list[int]) -> None:
    sentence = sentences(lengths)
    place = torch.cat([torch.arange(n) for n in lengths])
    for seed in range(20):
        own, other = matched_rows(sentence, np.random.default_rng(seed), 10_000)
        assert torch.equal(place[own], place[other])
        assert (sentence[own] != sentence[other]).all()
        assert len(own.unique()) == len(other.unique()) == len(own)
        assert (own.diff() > 0).all(), "in the order of the corpus"
        for s in range(len(lengths)):
            met = sentence[other][sentence[own] == s].unique()
            assert len(met) == 1
            of_its_length = lengths.count(lengths[s])
            if of_its_length > 2 and lengths.count(lengths[int(met)]) > 2:
                assert lengths[int(met)] == lengths[s]
            assert int((sentence[own] == s).sum()) == min(lengths[s], lengths[int(met)])


def test_permutations_differ_and_reach_every_sentence() -> None:
    sentence = sentences([3] * 6)
    met = {tuple(matched_rows(sentence, np.random.default_rng(k), 99)[1].tolist()) for k in range(40)}
    assert len(met) > 30
    assert {rows[0] // 3 for rows in met} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(("most", "want"), [(100, 18), (10, 9), (9, 9), (6, 6), (1, 6)])
def test_at_most_so_many_rows(most: int, want: int) -> None:
    own, other = matched_rows(sentences([3] * 6), np.random.default_rng(0), most)
    assert len(own) == len(other) == want


def test_one_sentence_cannot_be_permuted() -> None:
    with pytest.raises(StratoscopeError, match=r"at least 2 sentences .* got 1"):
        permuted_chance(unrelated(2, sentences([40]), seed=0), sentences([40]), DEBIASED)
