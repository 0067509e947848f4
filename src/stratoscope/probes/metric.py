"""The metric of a step: what the curvature of the loss is taken to be, and the step itself by coordinate descent.

One covariance of the rows for all tags at first (a bound of the curvature up to a factor: Boehning 1992). Later one
for every tag, its rows by p (1 - p) of that tag under a probe: the diagonal blocks of the loss's second derivative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratoscope.probes.features import Features

SWEEPS, SWEEPS_OF_TAGS = 3, 2
"""Sweeps of coordinate descent in a step, with one covariance and with many."""
COORDINATES, COORDINATES_OF_TAGS = 64, 16
"""Coordinates whose residuals are updated together, likewise."""
CERTAIN = 1e-2
"""p (1 - p) below which a row is left out of a tag's covariance."""
SHARED = 0.1
"""Share of the common metric that is added to a tag's: rare tags have fewer such rows than there are neurons."""
LARGEST = 64_000_000
"""Values of the covariances of all tags (256 MB)."""


@dataclass(frozen=True)
class Metric:
    """Curvature of weights and biases, up to a factor of each probe."""

    matrices: Tensor
    """(1 or K, d, d)"""
    bias: Tensor
    """(K, 1)"""

    @classmethod
    def common(cls, covariance: Tensor, classes: int) -> Metric:
        return cls(covariance[None], torch.ones(classes, 1))

    def laid(self, values: Tensor) -> Tensor:
        """(d, K, P) as (1, d, K P) or (K, d, P)."""
        return values.reshape(1, len(values), -1) if len(self.matrices) == 1 else values.transpose(0, 1).contiguous()

    def times(self, weight: Tensor) -> Tensor:
        """(d, K, P) the metric times weights."""
        return self.back(torch.bmm(self.matrices, self.laid(weight)), weight)

    def step(self, weight: Tensor, slope: Tensor, l1: Tensor, l2: Tensor) -> Tensor:
        """(d, K, P) about the minimum over w of slope (w - weight) + 1/2 |w - weight|^2 + l1 |w| + l2 w^2.

        `l1` and `l2` are (1 or d, K, P), l1 infinite where a weight must stay 0; all over the probe's factor.
        """
        laid = [self.laid(v) for v in (slope, l1, l2)]
        return self.back(descend_(self.laid(weight).clone(), self.matrices, *laid), weight)

    @staticmethod
    def back(values: Tensor, like: Tensor) -> Tensor:
        return values.view_as(like) if len(values) == 1 else values.transpose(0, 1).contiguous()


def descend_(weight: Tensor, matrices: Tensor, slope: Tensor, l1: Tensor, l2: Tensor) -> Tensor:
    """Sweeps of coordinate descent from w = v on <slope, w - v> + 1/2 (w - v)'S(w - v) + l1 |w| + l2 w^2, in place.

    `weight` and `slope` are (M, d, C) for every matrix S, `l1` and `l2` (M, 1 or d, C).
    """
    d, common = weight.shape[1], len(weight) == 1
    sweeps, together = (SWEEPS, COORDINATES) if common else (SWEEPS_OF_TAGS, COORDINATES_OF_TAGS)
    diagonal = matrices.diagonal(dim1=1, dim2=2)[..., None]
    inverse = (diagonal + 2 * l2).clamp_(min=1e-30).reciprocal_()
    start, l1 = weight.clone(), l1.expand(-1, d, -1)
    columns = [v.unbind(1) for v in (weight, diagonal, inverse, l1, -l1)]  # slices would take most of the time
    for sweep in range(sweeps):
        gone = weight - start
        for a in range(0, d, together):
            b = min(a + together, d)
            reached = d if sweep else a
            rest = torch.baddbmm(slope[:, a:b], matrices[:, a:b, :reached], gone[:, :reached])
            pull, corner = rest.neg_(), matrices[:, a:b, a:b]
            for j, (old, bend, by, high, low) in enumerate(zip(*(v[a:b] for v in columns), strict=True)):
                u = torch.addcmul(pull[:, j], old, bend)
                moved = u.sub_(torch.clamp(u, low, high)).mul_(by)  # soft threshold
                if a + j + 1 < b:
                    pull[:, j + 1 :].baddbmm_(corner[:, j + 1 :, j : j + 1], (old - moved)[:, None])
                old.copy_(moved)
            torch.sub(weight[:, a:b], start[:, a:b], out=gone[:, a:b])
    return weight


def of_tags(
    features: Features, weight: Tensor, bias: Tensor, *, mean: Tensor, common: Tensor, factor: Tensor
) -> Metric:
    """For every tag k, mean p_k (1 - p_k) x x' under this probe (d, K), (K,), plus SHARED factor_k `common`."""
    d, classes = weight.shape
    matrices, spread = torch.zeros(classes, d, d), torch.zeros(classes)
    for x, _ in features.chunks():
        x = x - mean
        p = torch.softmax(torch.addmm(bias, x, weight), dim=1)
        each = p.sub_(p.square())
        spread += each.sum(0)
        for k in range(classes):
            which = (each[:, k] > CERTAIN).nonzero()[:, 0]
            scaled = x[which] * each[which, k].sqrt()[:, None]
            matrices[k].addmm_(scaled.T, scaled)
    matrices /= len(features)
    floor = SHARED * factor
    for k in range(classes):
        matrices[k].add_(common, alpha=float(floor[k]))
    return Metric(matrices, (spread / len(features) + floor)[:, None])
