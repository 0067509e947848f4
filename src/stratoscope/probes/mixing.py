"""Anderson acceleration of a fixed-point map for many probes side by side (Anderson 1965; Bertrand & Massias 2021).

Of the last points x_i and their images T(x_i), the next point is sum_i a_i T(x_i) with sum a_i = 1 and the smallest
|sum_i a_i (T(x_i) - x_i)| in the metric of the steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratoscope.probes.metric import Metric

MEMORY, LEAST_MEMORY, VALUES = 24, 4, 20_000_000
"""Most and fewest images kept, and values of all of them: fewer images of many weights."""
RIDGE = 1e-6
"""Of the products of residuals, which become dependent."""
FORGOTTEN = 1e12


class Mixing:
    """Images and residuals of the last points; every tensor's last axis is the probes'."""

    def __init__(self, pairs: int) -> None:
        self.images: list[tuple[Tensor, Tensor]] = []
        self.residuals: list[tuple[Tensor, Tensor]] = []
        self.products = torch.zeros(0, 0, pairs, dtype=torch.float64)
        self.kept = torch.zeros(0, pairs, dtype=torch.bool)
        """Which images each probe still uses."""

    def keep(self, which: Tensor) -> None:
        self.images, self.residuals = (
            [(weight[..., which].contiguous(), bias[..., which]) for weight, bias in pairs]
            for pairs in (self.images, self.residuals)
        )
        self.products, self.kept = self.products[..., which], self.kept[:, which]

    def forget(self, which: Tensor) -> None:
        """These probes begin anew."""
        self.kept = self.kept & ~which

    def add(self, point: tuple[Tensor, Tensor], image: tuple[Tensor, Tensor], metric: Metric) -> None:
        """Take in one more point with its image."""
        most = max(LEAST_MEMORY, min(MEMORY, VALUES // image[0].numel()))
        del self.images[: 1 - most], self.residuals[: 1 - most]
        old = len(self.images)
        weight, bias = image[0] - point[0], image[1] - point[1]
        self.images.append(image)
        self.residuals.append((weight, bias))
        bent, bent_bias = metric.times(weight), metric.bias * bias
        row = torch.stack([((bent * w).sum((0, 1)) + (bent_bias * b).sum(0)).double() for w, b in self.residuals])
        products = row.new_zeros(old + 1, old + 1, row.shape[1])
        if old:
            products[:old, :old] = self.products[-old:, -old:]
        products[-1], products[:, -1] = row, row
        self.products = products
        self.kept = torch.cat([self.kept[-old:] if old else self.kept[:0], torch.ones_like(row[:1], dtype=torch.bool)])

    def mixed(self) -> tuple[Tensor, Tensor]:
        """The next point: the image itself of a probe that has one only."""
        system = self.products.permute(2, 0, 1)
        system = system / system[:, -1:, -1:].clamp(min=1e-30)
        diagonal = RIDGE * system.diagonal(dim1=1, dim2=2) + torch.where(self.kept.T, 0.0, FORGOTTEN)
        system = system + torch.diag_embed(diagonal + 1e-12)
        share = torch.linalg.solve(system, system.new_ones(len(system), system.shape[1], 1))[..., 0].T
        share = (share / share.sum(0)).nan_to_num(0.0).float()
        weight, bias = (torch.zeros_like(v) for v in self.images[-1])
        for (w, b), a in zip(self.images, share, strict=True):
            weight.addcmul_(w, a)
            bias.addcmul_(b, a)
        return weight, bias
