from __future__ import annotations

import numpy as np
import torch

from stratoscope.measures.moved import row_moves
from stratoscope.statistics.rows import MemoryRows


def test_moves_are_cosines_of_gram_rows_whatever_the_rotation() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(3, 1, (40, 6))
    y = x.copy()
    y[7] = 6 - x[7]
    turned = (y - 5) @ np.linalg.qr(rng.normal(size=(6, 6)))[0] * 2
    k, m = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x, turned))
    slow = [1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(k, m, strict=True)]
    moved = row_moves(MemoryRows([torch.from_numpy(x), torch.from_numpy(turned)]), 0, 1)
    np.testing.assert_allclose(moved.numpy(), slow, atol=1e-12)
    assert moved.argmax() == 7
    np.testing.assert_allclose(row_moves(MemoryRows([torch.from_numpy(x)] * 2), 0, 1).numpy(), 0, atol=1e-12)
