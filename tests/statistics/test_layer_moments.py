"""Moments of one layer: streamed, merged and shifted, against numpy."""

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
    assert_moments(LayerMoments.of(x, full=full), x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("cuts", [[50], [1], [99], [1, 2, 40]])
def test_shards_with_their_own_shifts_add_up(cuts: list[int], full: bool) -> None:
    x = rows()
    x[60:] += 50  # shards whose means differ
    parts = [LayerMoments.of(part, full=full) for part in x.tensor_split(cuts)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert_moments(total, x)
    backwards = parts[-1]
    for part in reversed(parts[:-1]):
        backwards = backwards + part
    assert_moments(backwards, x)


def test_any_shift_gives_the_same_moments() -> None:
    x = rows()
    shift = x[0].double() + 1
    a = LayerMoments.of(x[:30], shift=shift) + LayerMoments.of(x[30:], shift=shift)
    b = LayerMoments.of(x[:30], shift=shift) + LayerMoments.of(x[30:])
    c = LayerMoments.of(x[:30]) + LayerMoments.of(x[30:], shift=shift)
    d = LayerMoments.of(x[:30]) + (LayerMoments.of(x[30:35]) + LayerMoments.of(x[35:]))
    for merged in (a, b, c, d):
        assert_moments(merged, x)


@pytest.mark.parametrize("chunk", [1, 7, 64, 2048])
@pytest.mark.parametrize("full", [True, False])
def test_streamed(chunk: int, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    x = rows(150)
    assert_moments(layer_moments(MemoryRows([rows(150, 3), x]), 1, full=full), x)


def test_variances_are_never_below_0() -> None:
    assert (LayerMoments.of(torch.full((1000, 3), 0.1)).variance >= 0).all()


def test_moments_of_another_kind_or_width_do_not_add() -> None:
    x = rows()
    for other in (LayerMoments.of(x, full=False), LayerMoments.of(x[:, :5])):
        with pytest.raises(ValueError, match="expected moments of one kind and width, got shapes"):
            LayerMoments.of(x) + other


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (1, 5), (5, 1), (3, 3)])
def test_gram_whatever_the_memory_layout(shape: tuple[int, int]) -> None:
    a = torch.from_numpy(np.random.default_rng(0).standard_normal(shape))
    want = a.numpy() @ a.numpy().T
    for same in (a, a.T.contiguous().T, torch.cat([a, a])[: shape[0]], torch.cat([a, a], 1)[:, : shape[1]]):
        np.testing.assert_allclose(gram(same), want, atol=1e-14)
        np.testing.assert_allclose(upper_gram(same), np.triu(want), atol=1e-14)
