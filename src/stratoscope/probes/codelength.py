"""Description length: how many bits the tags take when a probe learns them block by block (Voita & Titov 2020)."""

from __future__ import annotations

import math
from itertools import pairwise

from stratoscope.probes.features import Features
from stratoscope.probes.objective import Penalties, code_length
from stratoscope.probes.solve import solve

SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Ends of the blocks; the first is sent with a uniform code."""
PASSES = 12


def online_code(features: Features, penalties: Penalties, *, gap: float = 1e-2) -> float:
    """Bits of the online code: n_1 log2 K + sum over blocks of their code under the probe of all rows before them."""
    n = len(features)
    ends = sorted({max(1, round(n * share)) for share in SHARES})
    bits = ends[0] * math.log2(features.classes)
    for known, end in pairwise(ends):
        fit = solve(features.between(0, known), penalties, gap=gap, passes=PASSES)
        bits += code_length(features.between(known, end), fit.weight, fit.bias, trained_on=known)
    return bits
