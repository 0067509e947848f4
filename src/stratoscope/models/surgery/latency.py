"""How much faster one model is than another, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.models.read.loop import evaluating
from stratoscope.models.surgery.blocks import keeping

ROUNDS = 15
FEW_ROUNDS = 3
"""Of the times that a table shows beside others."""
LEVEL = 0.95


def latency_ratio(
    a: Any, b: Any, batches: Sequence[Mapping[str, Tensor]], *, rounds: int = ROUNDS
) -> tuple[float, float, float]:
    """Time of `b` over time of `a` for the same batches: the median of paired rounds, with its interval.

    Both run in every round, and the one that began last time comes second, so that whatever slows the machine for a
    while slows both. The interval is that of a median by ranks (95 % from six rounds on, below that the extremes).
    """
    ratios = []
    with evaluating(a), evaluating(b), torch.inference_mode():
        for module in (a, b):
            _seconds(module, batches)  # the first pass of a model also allocates and compiles
        for k in range(rounds):
            pair = (a, b) if k % 2 == 0 else (b, a)
            first, second = (_seconds(module, batches) for module in pair)
            ratios.append(second / first if k % 2 == 0 else first / second)
    low, high = _median_ranks(rounds)
    ordered = sorted(ratios)
    return float(np.median(ordered)), ordered[low], ordered[high]


def time_shares(
    model: nn.Module, cuts: Iterable[Sequence[int]], batch: Mapping[str, Tensor], *, rounds: int = FEW_ROUNDS
) -> dict[int, float]:
    """Time of a model with only these blocks over that of the whole one, by number of blocks: the median of rounds."""
    kept = {len(blocks): blocks for blocks in cuts}
    ratios: dict[int, list[float]] = {number: [] for number in kept}
    with evaluating(model), torch.inference_mode():
        _seconds(model, [batch])
        for _ in range(rounds):
            whole = _seconds(model, [batch])
            for number, blocks in kept.items():
                with keeping(model, blocks):
                    ratios[number].append(_seconds(model, [batch]) / whole)
    return {number: float(np.median(values)) for number, values in sorted(ratios.items())}


def _seconds(module: Any, batches: Sequence[Mapping[str, Tensor]]) -> float:
    device = next(module.parameters()).device
    given = [{k: v.to(device) for k, v in batch.items() if k != "labels"} for batch in batches]
    _wait(device)
    start = time.perf_counter()
    for batch in given:
        module(**batch)
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    """Let a device that works on its own come to an end."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _median_ranks(n: int) -> tuple[int, int]:
    """Positions in the ordered values between which the median lies with the level: binomial with p = 1/2."""
    from scipy.stats import binom

    low = max(int(binom.ppf((1 - LEVEL) / 2, n, 0.5)) - 1, 0)
    return low, n - 1 - low
