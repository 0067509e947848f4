"""L-BFGS for many probes side by side, where penalties are so weak that |w| may be smoothed (Liu & Nocedal 1989).

|w| becomes sqrt(w^2 + e^2) - e, less than it by at most e: what that costs is known and counts in the gap. The first
inverse of the second derivative is that of a metric of the rows plus a ridge for the penalties' own curvature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stratoscope.probes.metric import LARGEST, Metric
from stratoscope.probes.objective import Penalties, Point

HISTORY = 20
DESCENT = 1e-4
"""A step must gain this share of what the slope promises (Armijo)."""
SHORTEST, LONGEST = 0.1, 0.5
"""By how much a step that does not is made shorter."""
STUCK = 1e-2
"""No gain by so short a step, of one that should reach the minimum, is no gain."""
ROUNDING = 1e-7
SMOOTHED = 0.1
"""Share of the gap that smoothing may cost."""
ROUNDEST = 1e3
STIFF = 10.0
"""Largest curvature of a smoothed penalty over the metric's mean: proximal steps are better beyond."""
RIDGE_PASSES, SAME, ALIKE = 8, 1.0, 2.3
"""Passes after which ridges are made anew where they differ by more; probes share one that differs by less (both in
logarithms)."""
OLD = (10, 26)
"""Passes at which the metric has become old."""
LEAST_RIDGE = 1e-6
"""Over the metric's mean curvature."""


@dataclass(frozen=True)
class Smoothing:
    """How round |w| is at 0 for probes of so many weights."""

    gap: float
    weights: int

    def round(self, l1: Tensor) -> Tensor:
        """(P,) e, so that all weights together cost at most a share of the gap."""
        return (SMOOTHED * self.gap / (l1.clamp(min=1e-30) * self.weights)).clamp(max=ROUNDEST)

    def stiffness(self, l1: Tensor) -> Tensor:
        """(P,) the largest second derivative of l1 |w|."""
        return l1 / self.round(l1)

    def of(self, penalties: Penalties, weight: Tensor) -> Tensor:
        """(P,) what the penalties cost."""
        e = self.round(penalties.l1)
        size = (torch.hypot(weight, e) - e).sum((0, 1), dtype=torch.float64)
        return penalties.l1 * size + penalties.l2 * weight.square().sum((0, 1), dtype=torch.float64)

    def slope(self, penalties: Penalties, weight: Tensor) -> Tensor:
        """(d, K, P)"""
        return weight * (penalties.l1 / torch.hypot(weight, self.round(penalties.l1)) + 2 * penalties.l2)

    def ridge(self, penalties: Penalties, weight: Tensor) -> Tensor:
        """(P,) mean second derivative of the penalties."""
        e = self.round(penalties.l1)
        return (penalties.l1 * e**2 / torch.hypot(weight, e) ** 3).mean((0, 1)) + 2 * penalties.l2


class Root(NamedTuple):
    """Cholesky's factors for ridges about exp(level)."""

    level: float
    factors: Tensor
    """(1 or K, d, d)"""


class Inverse:
    """(metric + ridge)^-1; probes of like ridges share one."""

    def __init__(self, metric: Metric, ridge: Tensor) -> None:
        self.metric, self.ridge = metric, torch.zeros_like(ridge)
        self.roots: dict[int, Root] = {}
        self.fit(metric, ridge)

    def fit(self, metric: Metric, ridge: Tensor) -> None:
        """Made anew unless it is much the same."""
        matrices = metric.matrices
        size = float(matrices.diagonal(dim1=1, dim2=2).mean())
        ridge = ridge.clamp(min=max(LEAST_RIDGE * size, 1e-30))
        if metric is self.metric and bool(((ridge / self.ridge).log().abs() < SAME).all()):
            return
        known = self.roots if metric is self.metric else {}
        self.metric, self.ridge = metric, ridge
        self.group = _alike(ridge, most=max(1, LARGEST // matrices.numel()))
        self.roots = {}
        for k in set(self.group.tolist()):
            level = float(ridge[self.group == k].log().mean())
            near = min(known.values(), key=lambda root: abs(root.level - level), default=None)
            if near is None or abs(near.level - level) > SAME / 2:
                near = Root(level, _root(matrices, math.exp(level), size))
            self.roots[k] = near

    def keep(self, which: Tensor) -> None:
        self.group, self.ridge = self.group[which], self.ridge[which]
        self.roots = {k: self.roots[k] for k in set(self.group.tolist())}

    def times(self, weight: Tensor) -> Tensor:
        """(d + 1, K, P or 2 P), its last row of biases, a second half of the same probes."""
        out = torch.empty_like(weight)
        for k, root in self.roots.items():
            own = (self.group == k).nonzero()[:, 0]
            own = torch.cat([own, own + len(self.group)]) if weight.shape[2] > len(self.group) else own
            some = weight[:-1, :, own]
            # cholesky_solve takes five times as long
            half = torch.linalg.solve_triangular(root.factors, self.metric.laid(some), upper=False)
            whole = torch.linalg.solve_triangular(root.factors.mT, half, upper=True)
            out[:-1, :, own] = self.metric.back(whole, some)
        out[-1] = weight[-1] / self.metric.bias
        return out


def _alike(ridge: Tensor, *, most: int) -> Tensor:
    """(P,) number of each ridge's group: those within a factor, wider ones where there would be too many."""
    steps, factor = (ridge / ridge.min()).log(), ALIKE
    while len(groups := torch.unique((steps / factor).round())) > most:
        factor *= 2
    return torch.searchsorted(groups, (steps / factor).round())


def _root(matrices: Tensor, ridge: float, size: float) -> Tensor:
    """Cholesky's factors, one after the other: a batch at once takes longer."""
    return torch.stack([_factor(own, ridge, size) for own in matrices])


def _factor(matrix: Tensor, ridge: float, size: float) -> Tensor:
    """With more on the diagonal where layers are constant, or rounding leaves them no variance."""
    factor = matrix
    for more in (0.0, 1e-6, 1e-4, 1e-2, 1.0):
        raised = matrix.clone()
        raised.diagonal().add_(ridge + more * max(size, 1e-30))
        factor, failed = torch.linalg.cholesky_ex(raised)
        if not int(failed):
            break
    return factor


class QuasiNewton:
    """Steps along L-BFGS's directions, shorter after a rise. Biases are the last row of (d + 1, K, P)."""

    def __init__(self, metric: Metric, smoothing: Smoothing, best: Point, penalties: Penalties) -> None:
        probes = len(penalties)
        self.smoothing, self.penalties = smoothing, penalties
        self.slope = self._slope(best)
        self.metric, self.passes = metric, 0
        self.inverse = Inverse(metric, smoothing.ridge(penalties, best.weight))
        self.direction = torch.zeros_like(self.slope)
        self.length, self.scale = torch.ones(probes), torch.ones(probes)
        """Of the next step, and of the first inverse."""
        self.promise = torch.zeros(probes, dtype=torch.float64)
        """Slope along the direction."""
        self.risen, self.stuck = (torch.zeros(probes, dtype=torch.bool) for _ in range(2))
        """Whether the last step gained too little, and whether a short one did: steps are then forgotten."""
        self.steps: list[Tensor] = []
        self.bends: list[Tensor] = []
        self.inner: list[Tensor] = []
        """Of the last steps: themselves, what they changed in the slope, and 1 / their product, 0 after a rise."""

    def keep(self, which: Tensor) -> None:
        self.inverse.keep(which)
        for name in ("slope", "direction", "length", "scale", "promise", "risen", "stuck"):
            setattr(self, name, getattr(self, name)[..., which].contiguous())
        for values in (self.steps, self.bends, self.inner):
            values[:] = [v[..., which].contiguous() for v in values]

    @property
    def old(self) -> bool:
        """Whether probes have moved far from where the metric was made."""
        return self.passes in OLD

    def renew(self, metric: Metric) -> None:
        self.metric = metric

    def cost(self, penalties: Penalties, weight: Tensor) -> Tensor:
        return self.smoothing.of(penalties, weight)

    def judge(self, best: Point, tried: Point) -> Tensor:
        """(P,) whether the step gained too little; the others are remembered."""
        gained, length = tried.value - best.value, self.length
        self.risen = ~(gained <= DESCENT * length * self.promise + ROUNDING)
        bent = (gained - length * self.promise).nan_to_num(torch.inf).clamp(min=1e-30)
        shorter = (-self.promise * length / (2 * bent)).clamp(SHORTEST, LONGEST)
        self.stuck = self.risen & (length <= STUCK)
        self.length = torch.where(self.risen & ~self.stuck, length * shorter, 1.0).float()
        self.inner = [torch.where(self.stuck, 0.0, v) for v in self.inner]
        if not self.risen.all():
            step = _row(tried.weight - best.weight, tried.bias - best.bias)
            bend = self._slope(tried) - self.slope
            inner = _dot(step, bend)
            good = ~self.risen & (inner > 1e-3 * ROUNDING * ROUNDING)
            self.steps.append(torch.where(good, step, 0.0))
            self.bends.append(torch.where(good, bend, 0.0))
            self.inner.append(torch.where(good, 1 / inner, 0.0))
            for values in (self.steps, self.bends, self.inner):
                del values[:-HISTORY]
        return self.risen

    def next(self, best: Point, penalties: Penalties) -> tuple[Tensor, Tensor]:
        """The next point to try."""
        self.penalties = penalties
        self.passes += 1
        if self.passes % RIDGE_PASSES == 0 or self.inverse.metric is not self.metric:
            self.inverse.fit(self.metric, self.smoothing.ridge(penalties, best.weight))
        self.slope = self._slope(best)
        again = self.risen & ~self.stuck & (_dot(self.direction, self.slope) < 0)
        self.direction = torch.where(again, self.direction, self._direction(self.slope))
        self.promise = _dot(self.direction, self.slope)
        step = self.length * self.direction
        return best.weight + step[:-1], best.bias + step[-1]

    def _slope(self, point: Point) -> Tensor:
        """Of the loss and the smoothed penalties."""
        return _row(point.slope.weight + self.smoothing.slope(self.penalties, point.weight), point.slope.bias)

    def _direction(self, slope: Tensor) -> Tensor:
        """The two loops of L-BFGS."""
        left, shares = -slope, []
        for step, bend, inner in zip(self.steps[::-1], self.bends[::-1], self.inner[::-1], strict=True):
            share = (inner * _dot(step, left)).float()
            left = torch.addcmul(left, bend, share, value=-1)
            shares.append(share)
        if self.steps:
            bend, inner = self.bends[-1], self.inner[-1]
            left, bent = self.inverse.times(torch.cat([left, bend], dim=2)).chunk(2, dim=2)
            scale = 1 / (inner * _dot(bend, bent))
            self.scale = torch.where(inner > 0, scale, self.scale).float()
        else:
            left = self.inverse.times(left)
        left = left * self.scale
        for step, bend, inner, share in zip(self.steps, self.bends, self.inner, shares[::-1], strict=True):
            left = torch.addcmul(left, step, share - (inner * _dot(bend, left)).float())
        return left


def _row(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight, bias[None]])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """(P,) products of probes, in float64."""
    return (a * b).sum((0, 1), dtype=torch.float64)
