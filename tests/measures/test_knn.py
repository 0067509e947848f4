"""knn and knn-jaccard: neighbours found in chunks, ties in the order of the rows, the work shared."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from measures.layer_cases import related
from measures.reference import knn as reference
from measures.reference import neighbours
from stratoscope.measures.kernels import knn
from stratoscope.measures.score import score_layers
from stratoscope.measures.similarity import similarity
from stratoscope.measures.table import parse
from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.rows import LayerRows, MemoryRows


def found(x: torch.Tensor) -> list[list[int]]:
    rows = MemoryRows([x])
    return [r for item in knn._plan(rows, 0) for tensor in knn._work(rows, item).values() for r in tensor.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [7, 64, 300])
def test_neighbours_are_scikit_learns_in_order_of_distance(
    chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    x = torch.from_numpy(related(300, 10, 7)[0]).to(dtype)
    exact = x.double().numpy()
    search = NearestNeighbors(n_neighbors=10, metric="cosine").fit(exact - exact.mean(0))
    assert found(x) == search.kneighbors(return_distance=False).tolist()


@pytest.mark.parametrize("chunk", [8, 300])
def test_ties_are_in_the_order_of_the_rows(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six distinct rows many times over: ten copies of a row are its neighbours, the first ten."""
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    repeat = np.random.default_rng(0).integers(6, size=120)
    for dtype in (np.float32, np.float64):
        x = related(6, 5, 4)[0].astype(dtype)[repeat]
        got = found(torch.from_numpy(x))
        assert got == neighbours(x.astype(np.float64))
        for i, row in enumerate(got):
            assert row == [j for j in range(120) if repeat[j] == repeat[i] and j != i][:10]


def test_a_row_at_the_mean_has_the_first_rows_as_neighbours_and_is_near_nobody() -> None:
    x = torch.from_numpy(related(40, 6, 6)[0]).float()
    x[25] = torch.cat([x[:25], x[26:]]).double().mean(0).float()
    got = found(x)
    assert got[25] == list(range(10))
    y = torch.from_numpy(related(40, 6, 6)[1])
    assert 0 < similarity(x, y, "knn") < 1


@pytest.mark.parametrize("n", [3, 8, 11])
def test_few_rows_are_all_neighbours(n: int) -> None:
    x, y = related(n, 4, 4)
    with pytest.warns(UserWarning, match=r"already score up to 1\.00 \(knn\)"):
        assert similarity(x, y, "knn") == 1
    assert reference(x, y) == 1


def test_scores_are_planted() -> None:
    """Clusters of eleven far apart: all ten neighbours agree; with two clusters joined and cut otherwise, half do."""
    centres = 100 * np.eye(4)
    noise = np.random.default_rng(0).standard_normal((2, 44, 4))
    x, y = (centres.repeat(11, 0) + e for e in noise)
    assert similarity(x, y, "knn") == similarity(x, y, "knn-jaccard") == 1
    swapped = y.copy()
    swapped[:5], swapped[11:16] = y[11:16], y[:5]  # five of cluster 0 trade places with five of cluster 1
    share = (2 * (5 * 4 + 6 * 5) + 22 * 10) / 440
    assert similarity(x, swapped, "knn") == pytest.approx(share)
    jaccard = (2 * (5 * 4 / 16 + 6 * 5 / 15) + 22) / 44
    assert similarity(x, swapped, "knn-jaccard") == pytest.approx(jaccard)


def test_neighbours_are_found_once_for_both_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MemoryRows([torch.from_numpy(m) for m in related(100, 8, 6)])
    searched = []
    work = knn.KNN.rows
    assert work is not None
    directions = knn._directions

    def counted(*args: object) -> torch.Tensor:
        searched.append(1)
        return directions(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(knn, "_directions", counted)
    both = score_layers(rows, [parse("knn"), parse("knn-jaccard")]).scored
    assert len(searched) == 2 * 2  # two layers of one chunk, met by itself
    alone = score_layers(rows, [parse("knn-jaccard")]).scored["knn-jaccard"]
    assert torch.equal(both["knn-jaccard"].values, alone.values)
    assert float(both["knn"].values[0, 1]) > float(alone.values[0, 1])


def test_memory_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than two chunks of a layer are held at once: their cosines are all that is made of them."""
    monkeypatch.setattr(rows_module, "CHUNK", 50)
    largest = []
    round_ = torch.Tensor.round_

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        largest.append(tuple(tensor.shape))
        return round_(tensor)

    monkeypatch.setattr(torch.Tensor, "round_", seen)
    rows: LayerRows = MemoryRows([torch.from_numpy(related(500, 8, 6)[0])])
    knn._work(rows, {"layer": 0, "chunk": 3})
    assert largest == [(50, 50)] * 10
