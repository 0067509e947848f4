"""The coordinates of a layer: white, in order of variance, of the right rank, and invertible."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from measures.layer_cases import NEAR_CONSTANT, ill_conditioned, near_constant, normed, related
from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.layer import LayerBasis, fit_basis
from stratoscope.statistics.rows import MemoryRows


def fitted(x: np.ndarray, *, whiten: bool = True) -> tuple[LayerBasis, torch.Tensor]:
    rows = MemoryRows([torch.from_numpy(x)])
    basis = fit_basis(rows, 0, whiten=whiten)
    return basis, basis.transform(torch.from_numpy(x))


SHAPES = [(200, 12), (30, 12), (12, 12), (13, 12), (8, 12), (50, 1), (9, 9)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whitened(shape: tuple[int, int], dtype: type) -> None:
    x = related(*shape, 3)[0].astype(dtype)
    basis, w = fitted(x)
    exact = x.astype(np.float64) - x.astype(np.float64).mean(0)
    tolerance = 1e-5 if dtype == np.float32 else 1e-9
    rank = min(shape[0] - 1, shape[1])
    assert (basis.rank, basis.n) == (rank, shape[0])
    assert w.dtype == torch.from_numpy(x).dtype
    np.testing.assert_allclose(w.double().T @ w.double() / len(x), np.eye(rank), atol=tolerance)
    np.testing.assert_allclose(w.double() @ basis.unit.double() * basis.sd, exact, atol=tolerance)
    variance = np.linalg.svd(exact, compute_uv=False)[:rank] ** 2 / len(x)
    np.testing.assert_allclose(basis.variance, variance, rtol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("whiten", [True, False])
def test_scalars(shape: tuple[int, int], whiten: bool) -> None:
    x = related(*shape, 3)[0]
    basis, w = fitted(x, whiten=whiten)
    c = x - x.mean(0)
    np.testing.assert_allclose(basis.mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(basis.sd, x.std(0), rtol=1e-10)
    assert basis.spread == pytest.approx(np.linalg.norm(c.T @ c / len(x)), rel=1e-10)
    assert basis.scale == pytest.approx(np.square(c).sum() / len(x), rel=1e-10)
    np.testing.assert_allclose(basis.coordinates(torch.from_numpy(x))["norms"], np.square(c).sum(1), rtol=1e-8)
    if not whiten:
        np.testing.assert_allclose(w, c / x.std(0), atol=1e-12)
        np.testing.assert_allclose(basis.variance, x.var(0), rtol=1e-10)
        assert basis.rank == shape[1]


@pytest.mark.parametrize("x", [normed()[0], normed()[0].astype(np.float16), normed()[0][:20]])
def test_the_direction_layer_norm_loses_is_left_out(x: np.ndarray) -> None:
    rows = MemoryRows([torch.from_numpy(x.astype(np.float32))], [float(np.finfo(x.dtype).eps)])
    assert fit_basis(rows, 0, whiten=True).rank == min(23, len(x) - 1)


def test_a_lost_direction_beside_an_outlier_dimension() -> None:
    """An absolute tolerance from the largest variance would also drop true directions here."""
    x = normed()[0].astype(np.float64)
    x[:, 3] *= 1e4
    assert fit_basis(MemoryRows([torch.from_numpy(x.astype(np.float32))]), 0, whiten=True).rank == 23


@pytest.mark.parametrize("ratio", [1e5, 3e5, 1e6])
@pytest.mark.parametrize("n", [105, 60])
def test_a_near_constant_neuron_costs_its_own_direction_at_most(ratio: float, n: int) -> None:
    for seed in range(5):
        x = near_constant(seed, ratio=ratio).x[:n]
        others = np.delete(x, NEAR_CONSTANT, axis=1)
        assert fitted(others)[0].rank == min(99, n - 1)
        assert fitted(x)[0].rank in ((99, 100) if n > 99 else (n - 1,)), seed


@pytest.mark.parametrize("n", [200, 25])
def test_no_neuron_lowers_the_rank(n: int) -> None:
    """Whatever the neurons' means: a neuron more is a row more of the covariance, and eigenvalues interlace."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((n, 12)) * np.geomspace(1, 1e-4, 12) @ rng.standard_normal((12, 30))
        x = (x + 10 ** rng.uniform(-1, 4, 30) * x.std(0)).astype(np.float32)
        ranks = [fitted(x[:, :k])[0].rank for k in range(8, 31)]
        assert ranks == sorted(ranks), seed
        assert ranks[-1] >= min(12, n - 1) - 1


def test_whitened_beside_a_near_constant_neuron() -> None:
    x = near_constant().x
    basis, w = fitted(x)
    np.testing.assert_allclose(w.double().T @ w.double() / len(x), np.eye(99), atol=1e-5)
    assert basis.variance.diff().max() <= 0
    lost = np.abs(w.double() @ basis.unit.double() - (x - x.mean(0, dtype=float)) / basis.sd).max(0).values
    assert np.delete(lost, NEAR_CONSTANT).max() < 0.1 * lost[NEAR_CONSTANT] < 0.1


@pytest.mark.parametrize("n", [105, 60])
def test_rounding_is_kept_for_measures_that_invert_nothing(n: int) -> None:
    rows = MemoryRows([torch.from_numpy(near_constant(ratio=1e6).x[:n])])
    signal, whole = (fit_basis(rows, 0, whiten=True, inverts=inverts) for inverts in (True, False))
    plain = fit_basis(rows, 0, whiten=False)
    assert (signal.rank, whole.rank) == (min(99, n - 1), min(100, n - 1))
    assert whole.spread == pytest.approx(plain.spread, rel=1e-12)
    assert whole.dropped_share < 1e-14
    if n > 100:
        assert signal.dropped_share == pytest.approx(1 - float(signal.variance.sum()) / plain.scale, abs=1e-12)
        assert 1e-7 < signal.dropped_share < 1e-2


def test_layers_in_float32_drop_next_to_nothing() -> None:
    assert fitted(normed()[0])[0].dropped_share < 1e-12


@pytest.mark.parametrize("whiten", [True, False])
def test_coordinates_are_the_transformed_rows_with_a_head_in_float64(whiten: bool) -> None:
    x = torch.from_numpy(related(60, 20, 3)[0].astype(np.float32))
    basis = fit_basis(MemoryRows([x]), 0, whiten=whiten)
    found, exact = basis.coordinates(x), basis.transform(x, torch.float64)
    assert torch.equal(found["rows"][:, : basis.rank], basis.transform(x))
    assert not found["rows"][:, basis.rank :].any()
    assert found["heads"].dtype == torch.float64
    np.testing.assert_allclose(found["heads"], exact[:, basis.head], atol=1e-14)
    assert set(basis.head.tolist()) == set(basis.variance.argsort(descending=True)[:16].tolist())
    assert "heads" not in basis.coordinates(x, torch.float64), "all of it is in float64"


@pytest.mark.parametrize(("rank", "width"), [(1, 2), (1, 3), (2, 5), (9, 14), (20, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_repeated_directions_are_counted_once(rank: int, width: int, dtype: type) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((100, rank)) @ rng.standard_normal((rank, width)) + rng.standard_normal(width)
        assert fit_basis(MemoryRows([torch.from_numpy(x.astype(dtype))]), 0, whiten=True).rank == rank, seed


@pytest.mark.parametrize("condition", [290, 1e3, 1e5, 2e6])
@pytest.mark.parametrize("n", [300, 20])
def test_whitening_reaches_ill_conditioned_directions(condition: float, n: int) -> None:
    x = ill_conditioned(condition, n=n, dtype=np.float64).x
    basis, w = fitted(x)
    assert basis.rank == min(n - 1, 28)
    np.testing.assert_allclose(w.T @ w / n, np.eye(basis.rank), atol=1e-8)
    rounding = max(1e-11, np.finfo(np.float64).eps * condition)  # what a map of this condition makes of one rounding
    np.testing.assert_allclose(w @ basis.unit, (x - x.mean(0)) / x.std(0), atol=rounding)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ill_conditioned(1e5).x
    whole, w = fitted(x)
    monkeypatch.setattr(rows_module, "CHUNK", 7)
    pieces, v = fitted(x)
    np.testing.assert_allclose(pieces.variance, whole.variance, rtol=1e-6)
    np.testing.assert_allclose((w.double().T @ v.double() / len(x)).abs(), np.eye(28), atol=1e-5)


@pytest.mark.parametrize(
    ("variance", "kept"),
    [
        ([0.97, 0.015, 0.01, 0.005], 3),
        ([0.995, 0.004, 0.0007, 0.0003], 1),
        ([0.5, 0.49, 0.01], 2),
        ([1.0], 1),
        ([0.25] * 4, 4),
        ([], 0),
    ],
)
def test_the_component_that_crosses_is_kept(variance: list[float], kept: int) -> None:
    some = torch.zeros(1, dtype=torch.float64)
    basis = LayerBasis(9, some, some, 1.0, torch.tensor(variance, dtype=torch.float64))
    assert basis.kept() == kept


@pytest.mark.parametrize("value", [0.0, 0.1, 1e5])
@pytest.mark.parametrize("n", [50, 3])
def test_a_constant_layer(value: float, n: int) -> None:
    basis, w = fitted(np.full((n, 4), value, dtype=np.float32))
    assert basis.constant
    assert basis.rank == 0
    assert w.shape == (n, 0)


def test_neurons_moved_by_rounding_only_have_no_deviation() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 4)).astype(np.float32)
    x[:, 1] = np.float32(1000) + np.spacing(np.float32(1000)) * rng.integers(-1, 2, 100)
    x[:, 2] = 1000 + 1e-2 * x[:, 2]
    basis, _ = fitted(x)
    assert (basis.sd > 0).tolist() == [True, False, True, True]
    assert basis.rank == 3


@pytest.mark.parametrize("whiten", [True, False])
def test_to_tensors_and_back(whiten: bool) -> None:
    basis, _ = fitted(related(40, 5, 3)[0], whiten=whiten)
    again = LayerBasis.from_tensors(basis.to_tensors())
    assert (again.n, again.spread, again.whitened) == (basis.n, basis.spread, whiten)
    assert again.condition == basis.condition
    assert torch.equal(again.head, basis.head)
    for name in ("mean", "sd", "variance", *(["unit", "to"] if whiten else [])):
        assert torch.equal(getattr(again, name), getattr(basis, name)), name
    less = LayerBasis.from_tensors({k: v for k, v in basis.to_tensors().items() if k != "to"})
    assert less.to is None  # left out where rows are transformed already
    assert torch.equal(less.variance, basis.variance)
