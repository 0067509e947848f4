"""mixedsim-heldout: the halves share no row, and noise does not look like a fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from measures.layer_cases import related, rotation
from stratoscope.measures.heldout import MIXEDSIM_HELDOUT, halves
from stratoscope.measures.similarity import similarity
from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.rows import MemoryRows, Subset, count, gather


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 2048])
@pytest.mark.parametrize("n", [4, 5, 63, 129, 300])
def test_halves_are_every_other_block_whatever_the_chunks(n: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    rows = MemoryRows([torch.arange(float(n))[:, None]])
    fit, judge = halves(rows)
    assert all(size > 0 for half in (fit, judge) for size in half.sizes)
    block = min(64, n // 2)
    assert gather(fit, 0).flatten().tolist() == [k for k in range(n) if k // block % 2 == 0]
    assert gather(judge, 0).flatten().tolist() == [k for k in range(n) if k // block % 2 == 1]
    assert count(fit) + count(judge) == n
    assert MIXEDSIM_HELDOUT.chance is not None
    assert MIXEDSIM_HELDOUT.chance(n, 1) == pytest.approx((2 * np.pi * count(judge)) ** -0.5)
    assert (fit.layers, fit.eps(0)) == (1, rows.eps(0))


def test_rows_left_out_do_not_move_the_others() -> None:
    """Without the first 40 rows, the rest stay on their sides of the 64-row blocks."""
    rows = MemoryRows([torch.arange(300.0)[:, None]])
    fit, judge = (gather(half, 0).flatten().tolist() for half in halves(Subset(rows, torch.arange(40, 300))))
    assert fit == [k for k in range(40, 300) if k // 64 % 2 == 0]
    assert judge == [k for k in range(300) if k // 64 % 2 == 1]


def test_rows_that_repeat_are_never_on_both_sides() -> None:
    rows = MemoryRows([torch.arange(300.0)[:, None]])
    index = torch.from_numpy(np.sort(np.random.default_rng(0).integers(300, size=300)))
    fit, judge = (gather(half, 0).flatten().tolist() for half in halves(Subset(rows, index)))
    assert sorted(fit + judge) == index.tolist()
    assert len(set(fit)) < len(fit)
    assert not set(fit) & set(judge)


def test_linear_maps_do_not_count_as_nothing_while_rows_are_few() -> None:
    """An exact fit to 7 rows of 10 neurons is not unique: which one is taken depends on the axes."""
    x, y = related(14, 10, 10)
    before = similarity(x, y, "mixedsim-heldout")
    assert abs(similarity(x, y @ rotation(10, 3), "mixedsim-heldout") - before) > 1e-3
    assert similarity(x, y * np.geomspace(0.1, 10, 10), "mixedsim-heldout") == pytest.approx(before, abs=1e-8)


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
