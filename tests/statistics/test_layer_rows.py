"""Rows in memory and in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.rows import FileRows, LayerRows, MemoryRows, StoredRows, Subset, chunks, count, gather

X = torch.arange(26.0).reshape(13, 2)
Y = -torch.arange(13.0, dtype=torch.float64)[:, None]


@pytest.fixture(params=["memory", "files"])
def rows(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LayerRows:
    if request.param == "memory":
        monkeypatch.setattr(rows_module, "CHUNK", 5)
        return MemoryRows([X, Y], [1e-3, 1e-9])
    files = []
    for k, m in enumerate((X, Y)):
        path = tmp_path / f"{k}.safetensors"
        save_file({"a": m[:1].clone(), "b": m[1:10].clone(), "c": m[10:].clone()}, path)
        files.append(tuple((str(path), name) for name in "abc"))
    return StoredRows((1, 9, 3), tuple(files), (1e-3, 1e-9))


def test_chunks_join_to_the_whole(rows: LayerRows) -> None:
    assert (count(rows), rows.layers) == (13, 2)
    assert torch.equal(torch.cat(list(chunks(rows, 0))), X)
    assert torch.equal(gather(rows, 1), Y)
    assert [len(c) for c in chunks(rows, 0)] == list(rows.sizes)
    assert [len(c) for c in chunks(rows, 1)] == list(rows.sizes)


def test_rounding_is_told(rows: LayerRows) -> None:
    assert (rows.eps(0), rows.eps(1)) == (1e-3, 1e-9)


@pytest.mark.parametrize("index", [[12, 0, 7], [3, 3, 3], [0], [12, 12, 0, 0, 5, 9, 10, 9], list(range(13))])
def test_gather_in_any_order_and_with_repeats(rows: LayerRows, index: list[int]) -> None:
    which = torch.tensor(index)
    assert torch.equal(gather(rows, 0, which), X[which])
    assert torch.equal(gather(rows, 1, which), Y[which])


def test_gather_reads_only_the_chunks_it_needs(tmp_path: Path) -> None:
    save_file({"a": X[:4].clone()}, tmp_path / "a")
    rows = StoredRows((4, 9), (((str(tmp_path / "a"), "a"), (str(tmp_path / "missing"), "b")),), (1e-7,))
    assert torch.equal(gather(rows, 0, torch.tensor([3, 1])), X[[3, 1]])


def test_memory_rows_know_their_own_rounding() -> None:
    rows = MemoryRows([X, Y])
    assert (rows.eps(0), rows.eps(1)) == (torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps)


def test_gathered_rows_are_a_copy() -> None:
    rows = MemoryRows([X.clone()])
    gather(rows, 0).zero_()
    assert torch.equal(rows.matrices[0], X)


def test_rows_in_a_file_are_those_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0))
    rows = FileRows.of(iter(torch.split(x, 700)), 5000, 3)
    assert rows is not None
    assert list(rows.sizes) == [2048, 2048, 904]
    assert torch.equal(gather(rows, 0), x)

    def full(*args: object, **how: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("stratoscope.statistics.rows.tempfile.TemporaryFile", full)
    assert FileRows.of([x], 5000, 3) is None


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_subset_is_the_rows_of_its_index(dtype: torch.dtype) -> None:
    x = torch.randn(7000, 2, generator=torch.Generator().manual_seed(1))
    index = torch.tensor([0, 0, 2047, 2048, 2048, 6143, 6999, 6999], dtype=dtype)
    some = Subset(MemoryRows([x]), index)
    assert some.sizes == [3, 2, 1, 2]
    assert torch.equal(torch.cat([some.chunk(0, k) for k in range(len(some.sizes))]), x[index.long()])
