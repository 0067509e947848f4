"""Products of pairs of layers: streamed, and what they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from measures.layer_cases import related
from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.cross import cross_products, norm_products
from stratoscope.statistics.layer import LayerBasis, fit_basis
from stratoscope.statistics.rows import MemoryRows

PAIRS = ((0, 1), (0, 0), (2, 1))


RAW = [*related(80, 6, 4), related(80, 5, 4, seed=3)[0]]


def prepared(*, whiten: bool) -> tuple[MemoryRows, dict[int, LayerBasis]]:
    rows = MemoryRows([torch.from_numpy(m) for m in RAW])
    bases = {k: fit_basis(rows, k, whiten=whiten) for k in range(3)}
    return MemoryRows([bases[k].transform(rows.matrices[k]) for k in range(3)]), bases


@pytest.mark.parametrize("whiten", [True, False])
def test_products(whiten: bool) -> None:
    coordinates, bases = prepared(whiten=whiten)
    found = cross_products(coordinates, bases, PAIRS)
    assert set(found) == set(PAIRS)
    for i, j in PAIRS:
        want = coordinates.matrices[i].numpy().T @ coordinates.matrices[j].numpy()
        np.testing.assert_allclose(found[i, j], want / 80, atol=1e-12)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("chunk", [7, 2048])
def test_norms(whiten: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, bases = prepared(whiten=whiten)
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    found = norm_products(MemoryRows([bases[k].coordinates(torch.from_numpy(m))["norms"] for k, m in enumerate(RAW)]))
    squared = np.stack([np.square(m - m.mean(0)).sum(1) for m in RAW])
    np.testing.assert_allclose(found, squared @ squared.T, rtol=1e-10)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_do_not_matter(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinates, bases = prepared(whiten=True)
    whole = cross_products(coordinates, bases, PAIRS)
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    pieces = cross_products(coordinates, bases, PAIRS)
    for pair in PAIRS:
        np.testing.assert_allclose(pieces[pair], whole[pair], atol=1e-12)


def test_float32_chunks_are_summed_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", 64)
    x = torch.randn(64 * 60, 2, generator=torch.Generator().manual_seed(0))
    bases = {0: fit_basis(MemoryRows([x]), 0, whiten=False)}
    found = cross_products(MemoryRows([x]), bases, [(0, 0)])[0, 0]
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, x.double().T @ x.double() / len(x), rtol=2e-7, atol=1e-4 / len(x))


@pytest.mark.parametrize("whiten", [True, False])
def test_products_of_the_largest_coordinates_are_exact(whiten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row outweighs all others: float32 products round the rest away, and only the head is made in float64."""
    monkeypatch.setattr(rows_module, "CHUNK", 500)
    layers = [torch.from_numpy(m.astype(np.float32)) for m in related(1500, 30, 25)]
    for k, layer in enumerate(layers):
        layer[3] += 1000 * torch.randn(layer.shape[1], generator=torch.Generator().manual_seed(k))
    rows = MemoryRows(layers)
    bases = {k: fit_basis(rows, k, whiten=whiten) for k in range(2)}
    single = [bases[k].coordinates(m) for k, m in enumerate(layers)]
    rows, heads = (MemoryRows([w[what] for w in single]) for what in ("rows", "heads"))
    found = cross_products(rows, bases, [(0, 1)], heads)[0, 1]
    exact = [bases[k].transform(m, torch.float64) for k, m in enumerate(layers)]
    error = (found - exact[0].T @ exact[1] / 1500).abs()
    head = error[bases[0].head[:, None], bases[1].head]
    assert head.shape == (16, 16)
    assert head.max() < 1e-12
    assert error.max() > 1e-9


def test_no_pairs_no_reading() -> None:
    class Unreadable(MemoryRows):
        def chunk(self, layer: int, index: int) -> torch.Tensor:
            raise AssertionError("read a layer that no pair needs")

    assert cross_products(Unreadable([torch.zeros(5, 1)]), {}, ()) == {}
