"""Rows kept in float16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stratoscope.statistics.rows import SCALE, StoredRows, halved


def stored(x: torch.Tensor, path: Path) -> StoredRows:
    save_file(halved("x", x), path)
    return StoredRows((len(x),), (((str(path), "x"),),), (1e-7,))


@pytest.mark.parametrize("largest", [1.0, 7e4, 1e6, 1e38, 1e-6, 1e-30])
def test_rows_of_any_size_keep_eleven_bits_of_their_deviations(largest: float, tmp_path: Path) -> None:
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 0, 8)
    x *= largest / float(x.abs().max())
    back = stored(x, tmp_path / "x").chunk(0, 0)
    assert back.dtype == torch.float32
    assert bool(back.isfinite().all())
    error = (back.double() - x.double()).abs() / (x.double() - x.double().mean(0)).abs()
    assert float(error.max()) <= 2**-11 * 1.01


def test_massive_activations_leave_everything_its_digits(tmp_path: Path) -> None:
    x = torch.linspace(-2, 2, 640).reshape(80, 8)
    x[0, 0] = 2.3e5  # in one row
    x[:, 1] += 1e5  # in all of them
    assert not bool(x.half().isfinite().all()), "plain float16 overflows"
    back = stored(x, tmp_path / "x").chunk(0, 0)
    spread = (x - x.mean(0)).abs()
    assert float(((back - x).abs() / spread)[:, 1:].max()) <= 2**-8, "float32 itself has no more beside 1e5"
    assert float((back - x)[1:, 0].abs().max()) <= 2.3e5 / 80 * 2**-11
    assert float(back[0, 0]) == pytest.approx(2.3e5, rel=2**-11)


def test_zeros_and_constants(tmp_path: Path) -> None:
    assert not stored(torch.zeros(3, 2), tmp_path / "x").chunk(0, 0).any()
    assert stored(torch.full((3, 2), 7.3), tmp_path / "x").chunk(0, 0).tolist() == [[pytest.approx(7.3)] * 2] * 3
    assert halved("x", torch.ones(1, 2))["x" + SCALE].isfinite().all()
