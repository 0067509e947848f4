"""Proximal steps in a metric of the rows, mixed with those before (Anderson acceleration), probes side by side."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from stratoscope.probes.metric import Metric
from stratoscope.probes.mixing import Mixing
from stratoscope.probes.objective import Penalties, Point

BACK_OFF = 1.5
"""By how much c grows after a rise."""
SECANT_PASSES, BOLD = 2, 0.6
"""Passes after which c stays, and by how much it is then less, because steps are mixed."""
ROUNDING = 1e-7
"""Of an objective."""


class Proximal:
    """Each step by sweeps of coordinate descent with soft thresholds; c is the metric's factor, from first secants."""

    def __init__(self, metric: Metric, c: Tensor, *, passes: int = 0, forbidden: Tensor | None = None) -> None:
        self.metric, self.c, self.passes = metric, c, passes
        self.forbidden = forbidden
        """(d, P) weights that stay at 0."""
        self.mixing = Mixing(c.shape[1])
        self.risen = torch.zeros(c.shape[1], dtype=torch.bool)
        """Whether the last point tried was worse: its probe takes a plain step from the best one."""
        self.stuck = torch.zeros_like(self.risen)
        """Whether no step is short enough to gain: never, c only grows."""

    def keep(self, which: Tensor) -> None:
        self.c, self.risen, self.stuck = self.c[:, which], self.risen[which], self.stuck[which]
        self.mixing = copy(self.mixing)
        self.mixing.keep(which)
        if self.forbidden is not None:
            self.forbidden = self.forbidden[:, which]

    def cost(self, penalties: Penalties, weight: Tensor) -> Tensor:
        """(P,) what is added to the loss."""
        return penalties.of(weight)

    def judge(self, best: Point, tried: Point) -> Tensor:
        """(P,) whether the point tried is no better; c and the mixing learn from it."""
        again, self.risen = self.risen, tried.value > best.value + ROUNDING
        if self.passes:
            early = self.passes < SECANT_PASSES
            self.c = self.c * self._bend(best, tried) if early else self.c
            self.c = torch.where(self.risen & (again | early), self.c * BACK_OFF, self.c)
            self.mixing.forget(self.risen)
        self.passes += 1
        return self.risen

    def _bend(self, best: Point, tried: Point) -> Tensor:
        """(P,) curvature along the last step over that of the metric."""
        step, bias = tried.weight - best.weight, tried.bias - best.bias
        metric = self.metric.times(step).mul_(step).sum(0) + self.metric.bias * bias.square()
        bent = step.mul_(tried.slope.weight - best.slope.weight).sum(0) + bias * (tried.slope.bias - best.slope.bias)
        return (bent.sum(0) / (self.c * metric).sum(0).clamp(min=1e-30)).nan_to_num(1.0).clamp(0.7, 1.5)

    def next(self, best: Point, penalties: Penalties) -> tuple[Tensor, Tensor]:
        """The next point to try."""
        mixing = self.passes >= SECANT_PASSES
        c = BOLD * self.c if mixing else self.c
        l1, l2 = ((v / c)[None] for v in (penalties.l1, penalties.l2))
        if self.forbidden is not None:
            l1 = torch.where(self.forbidden[:, None], torch.inf, l1)
        image = self.metric.step(best.weight, best.slope.weight / c, l1, l2)
        bias = best.bias - best.slope.bias / (self.metric.bias * c)
        if mixing:
            self.mixing.add((best.weight, best.bias), (image, bias), self.metric)
            image, bias = self.mixing.mixed()
        return image, bias
