"""Features with a planted answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratoscope.probes.features import Features
from stratoscope.statistics.rows import MemoryRows


@dataclass(frozen=True)
class Problem:
    x: Tensor
    y: Tensor
    features: Features


def planted(*, n: int, d: int, classes: int, seed: int, noise: float = 1.0, shift: float = 3.0) -> Problem:
    """Correlated rows around a mean of `shift`; tags drawn from a softmax of some of the neurons."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator) @ torch.randn(d, d, generator=generator) / d**0.5
    truth = torch.randn(d, classes, generator=generator) * (torch.rand(d, 1, generator=generator) < 0.4) * 2
    y = torch.multinomial(torch.softmax(x @ truth / noise, dim=1), 1, generator=generator)[:, 0]
    x = x + shift
    return Problem(x, y, features_of(x, y, classes))


def features_of(x: Tensor, y: Tensor, classes: int) -> Features:
    return Features(MemoryRows([x]), (0,), y, classes)
