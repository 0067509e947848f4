from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stratoscope.models.surgery import latency
from stratoscope.models.surgery.latency import _median_ranks, latency_ratio

BATCH = [{"input_ids": torch.zeros(1, 1), "labels": torch.zeros(1)}]


class Sleeper(torch.nn.Module):
    """Takes its time, and notes when it was called."""

    def __init__(self, seconds: float, calls: list[float]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seconds, self.calls = seconds, calls

    def forward(self, **given: Any) -> Any:
        assert not self.training
        assert torch.is_inference_mode_enabled()
        assert set(given) == {"input_ids"}
        self.calls.append(self.seconds)
        time.sleep(self.seconds)
        return SimpleNamespace(logits=None)


def test_a_model_twice_as_fast_takes_half_the_time_and_modes_are_put_back() -> None:
    calls: list[float] = []
    slow, fast = Sleeper(0.02, calls), Sleeper(0.01, calls)
    ratio, low, high = latency_ratio(slow.train(), fast, BATCH, rounds=7)
    assert low <= ratio <= high
    assert 0.4 < ratio < 0.65
    assert slow.training
    assert calls[:2] == [0.02, 0.01]  # warm-up
    assert calls[2:6] == [0.02, 0.01, 0.01, 0.02]  # interleaved, each first in turn
    assert len(calls) == 2 * 8


def test_the_ratio_is_the_median_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that becomes ten times slower for a while does not move it."""
    calls: list[float] = []
    a, b = Sleeper(0, calls), Sleeper(0, calls)
    load = iter([1, 1, 1, 10, 10])
    taken: list[float] = []

    def seconds(module: Any, batches: Any) -> float:
        taken.append(1)
        if len(taken) > 2 and len(taken) % 2:
            seconds.load = next(load)  # type: ignore[attr-defined]
        return (4.0 if module is a else 2.0) * getattr(seconds, "load", 1)

    monkeypatch.setattr(latency, "_seconds", seconds)
    assert latency_ratio(a, b, BATCH, rounds=5) == (0.5, 0.5, 0.5)


def test_ranks_of_the_median() -> None:
    """Tables of the sign test: 15 values give the 4th and the 12th, six the extremes."""
    assert _median_ranks(15) == (3, 11)
    assert _median_ranks(6) == (0, 5)
    assert _median_ranks(3) == (0, 2)
