"""Sums over rows for pairs of layers: streamed, merged, and what they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from measures.layer_cases import related
from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.cross import CrossMoments, cross_moments, norm_products
from stratoscope.statistics.layer import LayerBasis, fit_basis
from stratoscope.statistics.rows import MemoryRows

PAIRS = ((0, 1), (0, 0), (2, 1))


def prepared(*, whiten: bool) -> tuple[MemoryRows, dict[int, LayerBasis], list[np.ndarray]]:
    raw = [*related(80, 6, 4), related(80, 5, 4, seed=3)[0]]
    rows = MemoryRows([torch.from_numpy(m) for m in raw])
    bases = {k: fit_basis(rows, k, whiten=whiten) for k in range(3)}
    return MemoryRows([bases[k].transform(rows.matrices[k]) for k in range(3)]), bases, [m - m.mean(0) for m in raw]


@pytest.mark.parametrize("whiten", [True, False])
def test_products(whiten: bool) -> None:
    coordinates, bases, _ = prepared(whiten=whiten)
    found = cross_moments(coordinates, bases, PAIRS)
    assert found.count == 80
    assert set(found.products) == set(PAIRS)
    for i, j in PAIRS:
        want = coordinates.matrices[i].numpy().T @ coordinates.matrices[j].numpy()
        np.testing.assert_allclose(found.products[i, j], want, atol=1e-10)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("chunk", [7, 2048])
def test_norms(whiten: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinates, bases, centred = prepared(whiten=whiten)
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    found = norm_products(MemoryRows([bases[k].squared_norms(w) for k, w in enumerate(coordinates.matrices)]))
    squared = np.stack([np.square(c).sum(1) for c in centred])
    np.testing.assert_allclose(found, squared @ squared.T, rtol=1e-10)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_do_not_matter(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinates, bases, _ = prepared(whiten=True)
    whole = cross_moments(coordinates, bases, PAIRS)
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    pieces = cross_moments(coordinates, bases, PAIRS)
    assert pieces.count == whole.count
    for pair in PAIRS:
        np.testing.assert_allclose(pieces.products[pair], whole.products[pair], atol=1e-10)


def test_shards_add_up() -> None:
    coordinates, bases, _ = prepared(whiten=True)
    whole = cross_moments(coordinates, bases, PAIRS)
    parts = [
        cross_moments(MemoryRows([m[a:b] for m in coordinates.matrices]), bases, PAIRS)
        for a, b in ((0, 13), (13, 79), (79, 80))
    ]
    before = parts[0].products[0, 1].clone()
    total = parts[0] + parts[1] + parts[2]
    assert total.count == 80
    for pair in PAIRS:
        np.testing.assert_allclose(total.products[pair], whole.products[pair], atol=1e-10)
    assert torch.equal(parts[0].products[0, 1], before), "adding changed a shard"


def test_float32_chunks_are_summed_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", 64)
    x = torch.randn(64 * 60, 2, generator=torch.Generator().manual_seed(0))
    bases = {0: fit_basis(MemoryRows([x]), 0, whiten=False)}
    found = cross_moments(MemoryRows([x]), bases, ((0, 0),)).products[0, 0]
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, x.double().T @ x.double(), rtol=2e-7, atol=1e-4)


def test_no_pairs_no_reading() -> None:
    class Unreadable(MemoryRows):
        def chunk(self, layer: int, index: int) -> torch.Tensor:
            raise AssertionError("read a layer that no pair needs")

    assert cross_moments(Unreadable([torch.zeros(5, 1)]), {}, ()).count == 0


def test_moments_of_other_pairs_do_not_add() -> None:
    with pytest.raises(ValueError, match="expected moments of the same pairs of layers, got"):
        CrossMoments(((0, 1),)) + CrossMoments(((0, 2),))
