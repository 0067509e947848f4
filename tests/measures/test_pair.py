"""The mapped cross-covariances of two layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stratoscope.measures import pair as pair_module
from stratoscope.measures.pair import Pair, singular_values
from stratoscope.statistics.layer import LayerBasis, fit_basis
from stratoscope.statistics.rows import MemoryRows

NORMS = torch.zeros(2, 2, dtype=torch.float64)


def with_correlations(rho: list[float], *, n: int = 400) -> tuple[Pair, np.ndarray]:
    """Whitened layers of known canonical correlations, rotated so that no axis shows them."""
    rng = np.random.default_rng(0)
    d = len(rho)
    raw = rng.standard_normal((n, 2 * d))
    z = np.linalg.qr(raw - raw.mean(0))[0] * np.sqrt(n)
    a, b = z[:, :d], z[:, :d] * rho + z[:, d:] * np.sqrt(1 - np.square(rho))
    turns = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2)]
    bases: list[LayerBasis] = []
    coordinates = []
    for m, turn in zip((a, b), turns, strict=True):
        rows = MemoryRows([torch.from_numpy(m @ turn * np.linspace(1, 1.2, d))])
        bases.append(fit_basis(rows, 0, whiten=True))
        coordinates.append(bases[-1].transform(rows.chunk(0, 0)))
    return Pair(*bases, coordinates[0].T @ coordinates[1] / n, NORMS), np.array(rho)


def vectors(pair: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    """Canonical vectors of both layers, had back from how their variates correlate with neurons."""
    _, x, y = pair.canonical
    u, v = ((of.double() @ torch.linalg.pinv(b.unit.double())).T for of, b in ((x, pair.x), (y, pair.y)))
    return u, v


@pytest.mark.parametrize(
    "rho", [[0.9, 0.5, 0.1], [1.0, 0.3, 1e-4], [0.8, 1e-5, 3e-6], [0.7, 2e-8, 0.0], [0.0, 0.0, 0.0], [1.0, 0.9, 0.8]]
)
def test_canonical_correlations_and_vectors(rho: list[float]) -> None:
    """Also where correlations are too small for the right vectors to be had from the left ones."""
    pair, want = with_correlations(rho)
    u, v = vectors(pair)
    np.testing.assert_allclose(pair.canonical[0], want, atol=1e-8)
    np.testing.assert_allclose(pair.correlations, np.clip(want, 0, 1), atol=1e-8)
    for own in (u, v):
        np.testing.assert_allclose(own.T @ own, np.eye(3), atol=2e-5)
    np.testing.assert_allclose(u.T @ pair.product @ v, np.diag(want), atol=1e-8)


@pytest.mark.parametrize("rho", [[0.9, 0.5, 0.1], [0.9, 0.5, 1e-4], [0.7, 2e-8, 0.0]])
def test_coordinates_in_float32_lose_nothing_that_shows(rho: list[float]) -> None:
    """Eigenvalues and right vectors are then taken in float32, unless a correlation is too faint for its square."""
    pair, want = with_correlations(rho)
    coarse = Pair(
        *(replace(b, unit=b.unit.float()) for b in (pair.x, pair.y) if b.unit is not None), pair.product, NORMS
    )
    assert coarse.working.dtype == torch.float32
    np.testing.assert_allclose(coarse.full_correlations, want, atol=1e-6)
    assert coarse.full_correlations.dtype == torch.float64
    u, v = vectors(coarse)
    np.testing.assert_allclose(coarse.canonical[0], want, atol=2e-7)
    np.testing.assert_allclose(u.T @ pair.product @ v, np.diag(want), atol=1e-6)


def narrow(product: torch.Tensor, variance: torch.Tensor) -> Pair:
    """Two layers with float32 coordinates of these variances, largest first, and these cross-products."""
    basis = LayerBasis(100, variance, variance.sqrt(), 1.0, variance, unit=torch.eye(len(variance)))
    return Pair(basis, basis, product, NORMS)


def turned(values: np.ndarray, seed: int = 0) -> torch.Tensor:
    """A matrix with these singular values."""
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal((len(values), len(values))))[0] for _ in range(2))
    return torch.from_numpy((u * values) @ v.T)


def test_vectors_of_nearly_equal_correlations_are_told_apart() -> None:
    apart = np.linspace(0.95, 0.2, 60)
    squares = np.sort(np.concatenate([apart**2, apart[::3] ** 2 - 4e-7]))[::-1]
    product = turned(np.sqrt(squares))
    want, _, _ = torch.linalg.svd(product)
    mixed = pair_module._vectors(product.float())[0].double()
    pair = narrow(product, torch.ones(80, dtype=torch.float64))
    rho, variates, _ = pair.canonical
    assert variates.dtype == torch.float32
    u, v = vectors(pair)

    def astray(found: torch.Tensor) -> float:
        return float((1 - (found * want).sum(0).abs()).max())

    assert astray(mixed) > 1e-3 > 1e-6 > astray(u)
    np.testing.assert_allclose(rho, np.sqrt(squares), atol=2e-7)
    np.testing.assert_allclose(product.T @ u, v * rho, atol=1e-6)


@pytest.mark.parametrize(("kx", "ky"), [(20, 30), (30, 20)], ids=["more components in y", "more in x"])
def test_variates_of_truncated_layers_in_float32(kx: int, ky: int) -> None:
    """What is cut off leaves no trace, on either side, and the variates of a weak correlation have their full size."""
    rng = np.random.default_rng(0)
    rho = np.r_[np.linspace(0.9, 0.2, 19), 0.004]
    u, v = (np.linalg.qr(rng.standard_normal((k, 20)))[0] for k in (kx, ky))
    product = rng.uniform(-0.1, 0.1, (40, 40))
    product[:kx, :ky] = (u * rho) @ v.T
    bases = []
    for k in (kx, ky):
        variance = torch.cat([torch.ones(k), torch.full((40 - k,), 1e-6)]).double()
        bases.append(LayerBasis(100, variance, variance.sqrt(), 1.0, variance, unit=torch.eye(40)))
        assert bases[-1].kept() == k
    got, x, y = Pair(*bases, torch.from_numpy(product), NORMS).canonical
    assert x.dtype == y.dtype == torch.float32
    np.testing.assert_allclose(got, rho, atol=2e-7)
    for found, want in ((x, u), (y, v)):
        np.testing.assert_allclose(found[:, : len(want)].abs(), np.abs(want.T), atol=1e-4)
        assert float(found[:, len(want) :].abs().max()) < 1e-4


@pytest.mark.parametrize("faintest", [0.1, 1e-4, 0.0], ids=["strong", "faint", "of low rank"])
def test_the_nuclear_norm_of_layers_of_many_sizes(faintest: float) -> None:
    """Variances fall by 1e8; float32 keeps the sum where it can, and float64 is taken where it cannot."""
    variance = torch.logspace(2, -6, 90, dtype=torch.float64)
    pair = narrow(turned(np.r_[np.linspace(1, 0.3, 30), np.full(60, faintest)]), variance)
    want = float(torch.linalg.svdvals(pair.scaled).sum() / variance.sum())
    assert pair.nuclear == pytest.approx(want, abs=5e-7)
    for size in (1e-30, 1e30):  # squares of what float32 still holds are beyond it
        assert narrow(pair.product, variance * size).nuclear == pytest.approx(want, abs=5e-7)


def test_a_layer_with_itself_needs_no_decomposition() -> None:
    own = Pair.itself(with_correlations([0.9, 0.5, 0.1])[0].x, NORMS)
    rho, x, y = own.canonical
    assert torch.equal(x, own.x_unit[:3])
    assert torch.equal(y, x)
    plain = Pair(own.x, own.x, own.product, NORMS)
    for view in ("x_on_y", "y_on_x", "correlation"):
        np.testing.assert_allclose(getattr(own, view)[:3, :3], getattr(plain, view)[:3, :3], atol=1e-12)
    for found in (rho, own.correlations, own.full_correlations):
        assert found.tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(singular_values(own.scaled), own.x.variance, rtol=1e-15)
    assert singular_values(torch.diag(torch.tensor([1.0, -3.0, 0.0]))).tolist() == [3.0, 1.0, 0.0]


@pytest.mark.parametrize("values", [[-0.6], [0.2, -0.9]], ids=["one component", "two"])
def test_a_diagonal_product_has_its_sizes_as_correlations(values: list[float]) -> None:
    """A layer whose first component holds 99 % of the variance has but one, and its sign means nothing."""
    pair = narrow(torch.diag(torch.tensor(values, dtype=torch.float64)), torch.ones(len(values), dtype=torch.float64))
    rho, x, y = pair.canonical
    assert rho.tolist() == sorted(map(abs, values), reverse=True)
    assert torch.equal(x, torch.eye(len(values)).flip(0))
    assert torch.equal(y, x)


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4), (1, 3), (1, 1)])
def test_singular_values_are_an_svds(shape: tuple[int, int]) -> None:
    m = np.random.default_rng(0).standard_normal(shape)
    np.testing.assert_allclose(singular_values(torch.from_numpy(m)), np.linalg.svd(m, compute_uv=False), atol=1e-10)


def test_a_basis_that_is_not_whitened_has_no_way_back() -> None:
    basis = fit_basis(MemoryRows([torch.randn(20, 3)]), 0, whiten=False)
    pair = Pair(basis, basis, torch.eye(3, dtype=torch.float64), NORMS)
    with pytest.raises(ValueError, match="this view needs a whitened basis"):
        _ = pair.x_on_y
