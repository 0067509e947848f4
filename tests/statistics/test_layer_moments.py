"""Moments of one layer: streamed and shifted, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.layer import LayerMoments, layer_moments
from stratoscope.statistics.products import gram, upper_gram
from stratoscope.statistics.rows import MemoryRows


def rows(n: int = 100, d: int = 7, *, dtype: torch.dtype = torch.float32, mean: float = 3000.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) @ torch.randn(d, d, generator=generator).double()
    return (x + mean * torch.arange(d)).to(dtype)


def assert_moments(found: LayerMoments, x: torch.Tensor, within: float = 1e-9) -> None:
    exact = x.double().numpy()
    assert found.count == len(x)
    np.testing.assert_allclose(found.mean, exact.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.variance, exact.var(0), rtol=within)
    if found.scatter.ndim == 2:
        np.testing.assert_allclose(found.covariance, np.cov(exact.T, bias=True), rtol=within, atol=within)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_chunk(full: bool, dtype: torch.dtype) -> None:
    x = rows(dtype=dtype)
    before = x.clone()
    assert_moments(layer_moments(MemoryRows([x]), 0, full=full), x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("chunk", [1, 7, 64, 2048])
@pytest.mark.parametrize("full", [True, False])
def test_streamed(chunk: int, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    x = rows(150)
    x[60:] += 50  # chunks whose means differ
    assert_moments(layer_moments(MemoryRows([rows(150, 3), x]), 1, full=full), x)


def test_variances_are_never_below_0() -> None:
    assert (layer_moments(MemoryRows([torch.full((1000, 3), 0.1)]), 0).variance >= 0).all()


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (1, 5), (5, 1), (3, 3)])
def test_gram_whatever_the_memory_layout(shape: tuple[int, int]) -> None:
    a = torch.from_numpy(np.random.default_rng(0).standard_normal(shape))
    want = a.numpy() @ a.numpy().T
    for same in (a, a.T.contiguous().T, torch.cat([a, a])[: shape[0]], torch.cat([a, a], 1)[:, : shape[1]]):
        np.testing.assert_allclose(gram(same), want, atol=1e-14)
        np.testing.assert_allclose(upper_gram(same), np.triu(want), atol=1e-14)
