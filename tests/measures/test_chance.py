"""Chance levels are what independent noise scores, for every measure that declares one and every one that does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stratoscope.measures import chance
from stratoscope.measures.measure import Measure
from stratoscope.measures.score import score_layers
from stratoscope.measures.table import MEASURES, Request
from stratoscope.statistics.rows import MemoryRows

SIZES = [(48, 30), (75, 30), (150, 30), (600, 30), (120, 100), (200, 8)]
UPPER = {"svsim": 0.11, "pwsim": 0.11}
"""How far below its level noise may stay: truncation leaves out components, and how many is not known beforehand."""


def noise(n: int, width: int) -> dict[str, float]:
    rng = np.random.default_rng([n, width])
    wanted = [Request(m) for m in MEASURES]
    drawn = []
    for _ in range(16):
        rows = MemoryRows([torch.from_numpy(rng.standard_normal((n, width))) for _ in "xy"])
        drawn.append([float(s.values[0, 1]) for s in score_layers(rows, wanted).scored.values()])
    return dict(zip((m.name for m in MEASURES), np.mean(drawn, axis=0), strict=True))


@pytest.fixture(scope="module")
def simulated() -> dict[tuple[int, int], dict[str, float]]:
    return {size: noise(*size) for size in SIZES}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.name)
def test_noise_scores_the_chance_level(
    measure: Measure, size: tuple[int, int], simulated: dict[tuple[int, int], dict[str, float]]
) -> None:
    level = measure.chance(*size) if measure.chance else 0.0
    score = simulated[size][measure.name]
    assert level - max(0.025, UPPER.get(measure.name, 0)) < score < level + 0.025


@pytest.mark.parametrize("measure", [m for m in MEASURES if m.chance], ids=lambda m: m.name)
def test_levels_fall_with_rows_and_stay_within_bounds(measure: Measure) -> None:
    assert measure.chance is not None
    for width in (1, 2, 768, 4096):
        levels = [measure.chance(n, width) for n in (3, 4, 100, 768, 769, 770, 1537, 5000, 10**6)]
        assert levels == sorted(levels, reverse=True)
        assert 0 < levels[-1] < levels[0] <= 1


def test_known_values() -> None:
    """c = 1/2 closes to 4/(2π)·... by hand: a = 1, b = 0, so the mean canonical correlation is 2/π."""
    assert chance.cca(2001, 1000) == pytest.approx(2 / math.pi)
    assert chance.cca(500, 768) == 1
    assert chance.cca(10**6 + 1, 100) == pytest.approx(8 / (3 * math.pi) * 1e-2, rel=1e-3)
    assert chance.mixedsim(401, 100) == pytest.approx(0.5)
    assert chance.linreg(401, 100) == pytest.approx(0.25)
