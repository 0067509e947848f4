"""Resampled CKA from kernels is CKA of the resampled rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stratoscope.measures.kernels.weighted import NAMES, kernels, weighted_cka
from stratoscope.measures.score import score_layers
from stratoscope.measures.table import parse
from stratoscope.statistics.rows import MemoryRows


@pytest.mark.parametrize("n", [12, 90])
def test_weights_stand_for_repeated_rows(n: int) -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((n, 6))
    layers = [torch.from_numpy(z @ rng.standard_normal((6, d)) + 5 + rng.standard_normal((n, d))) for d in (5, 20, 7)]
    drawn = torch.from_numpy(rng.integers(n, size=n))
    found = weighted_cka(kernels(MemoryRows(layers)), torch.bincount(drawn, minlength=n), NAMES)
    repeated = MemoryRows([x[drawn] for x in layers])
    for name, want in score_layers(repeated, [parse(name) for name in NAMES]).scored.items():
        torch.testing.assert_close(found[name], want.values, atol=1e-10, rtol=0)


def test_a_constant_layer_does_not_spoil_the_others() -> None:
    x = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = weighted_cka(kernels(MemoryRows([x, torch.ones_like(x)])), torch.ones(20, dtype=torch.long), NAMES)
    for scores in found.values():
        assert scores[0, 0] == pytest.approx(1)
        assert scores[0, 1] == 0
