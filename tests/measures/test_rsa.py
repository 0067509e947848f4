"""rsa: ranks of dissimilarities, ties shared, rows sampled by seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from measures.layer_cases import related
from measures.reference import rsa as reference
from stratoscope.measures.kernels import rsa
from stratoscope.measures.score import score_layers
from stratoscope.measures.similarity import similarity
from stratoscope.measures.table import parse
from stratoscope.statistics.rows import MemoryRows


def test_rows_that_repeat_share_their_ranks() -> None:
    """Six distinct rows a hundred times over: all but a few dissimilarities tie, and only rounding tells them apart."""
    x, y = related(6, 5, 4)
    repeat = np.random.default_rng(0).integers(6, size=120)
    for dtype in (np.float32, np.float64):
        a, b = x[repeat].astype(dtype), y[repeat].astype(dtype)
        assert similarity(a, b, "rsa") == pytest.approx(reference(a, b), abs=1e-6)


def test_two_neurons_have_two_dissimilarities() -> None:
    x = np.random.default_rng(0).standard_normal((80, 2))
    y = x + 0.3 * np.random.default_rng(1).standard_normal((80, 2))
    assert similarity(x, y, "rsa") == pytest.approx(reference(x, y), abs=1e-6)


def test_the_summary_says_that_neurons_are_centred_and_they_are() -> None:
    assert rsa.RSA.summary.endswith("neurons centred over rows first")
    x, y = related(40, 8, 6)
    shifted = x + 50 * np.random.default_rng(2).standard_normal(8)
    assert similarity(shifted, y, "rsa") == pytest.approx(similarity(x, y, "rsa"), abs=1e-6)


def test_one_neuron_has_none() -> None:
    x = np.random.default_rng(0).standard_normal((30, 1))
    assert similarity(x, x, "rsa") == 0


def test_many_rows_are_sampled_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [torch.from_numpy(m) for m in related(90, 8, 6)]
    monkeypatch.setattr(rsa, "ROWS", 40)

    def score(seed: int) -> float:
        return float(score_layers(MemoryRows(layers), [parse("rsa")], seed=seed).scored["rsa"].values[0, 1])

    kept = torch.randperm(90, generator=torch.Generator().manual_seed(2))[:40].numpy()
    x, y = ((m - m.mean(0)).numpy() for m in layers)  # centred over all rows, not over the sample
    i, j = np.triu_indices(40, 1)
    from scipy.stats import spearmanr

    want = spearmanr(np.corrcoef(x[kept])[i, j], np.corrcoef(y[kept])[i, j]).statistic
    assert score(2) == pytest.approx(want, abs=1e-6)
    assert score(2) == score(2) != score(3)
