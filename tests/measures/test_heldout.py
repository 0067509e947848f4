"""mixedsim-heldout: the halves share no row, and noise does not look like a fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stratoscope.measures.heldout import Half
from stratoscope.measures.similarity import similarity
from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.rows import MemoryRows, count, gather


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 2048])
@pytest.mark.parametrize("n", [4, 5, 63, 129, 300])
def test_halves_are_every_other_block_whatever_the_chunks(n: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    rows = MemoryRows([torch.arange(float(n))[:, None]])
    fit, judge = (Half(rows, second=side) for side in (False, True))
    assert all(size > 0 for half in (fit, judge) for size in half.sizes)
    block = min(64, n // 2)
    assert gather(fit, 0).flatten().tolist() == [k for k in range(n) if k // block % 2 == 0]
    assert gather(judge, 0).flatten().tolist() == [k for k in range(n) if k // block % 2 == 1]
    assert count(fit) + count(judge) == n
    assert (fit.layers, fit.eps(0)) == (1, rows.eps(0))


def test_noise_scores_little_where_mixedsim_scores_all() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 120, 80))
    with pytest.warns(UserWarning, match="unrelated"):
        assert similarity(x, y, "mixedsim") > 0.75
    assert similarity(x, y, "mixedsim-heldout") < 0.1


def test_an_exact_map_is_found_with_enough_rows() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((2000, 20))
    x = np.hstack([y[:, :3] @ rng.standard_normal((3, 3)), rng.standard_normal((2000, 3))])
    assert similarity(x, y, "mixedsim-heldout") == pytest.approx(0.5, abs=0.03)
