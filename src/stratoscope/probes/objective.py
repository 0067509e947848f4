"""The probe: softmax(x W + b) with an elastic net, all penalties side by side.

F(W, b) = mean cross-entropy + l1 |W|_1 + l2 |W|^2_2, weights only, raw features (Durrani et al. 2021, section 2;
the mean and the squared norm as in SPEC 7). Weights of P penalties are one tensor (d, K, P), so that a pass over
the words is two wide matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stratoscope.probes.features import Features

LAMBDAS = (0.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
BLOCK_VALUES = 2_500_000
"""Scores held at once: more do not fit the caches."""
NEGLIGIBLE = -50.0
"""Least logarithm of a probability: far below rounding; float32's denormal numbers take thirty times as long."""


@dataclass(frozen=True)
class Penalties:
    """P pairs of penalties."""

    l1: Tensor
    l2: Tensor

    @classmethod
    def grid(cls, values: tuple[float, ...] = LAMBDAS) -> Penalties:
        """Every pair of these values, l1 changing last: the published grid."""
        pairs = torch.cartesian_prod(torch.tensor(values), torch.tensor(values)).view(-1, 2)
        return cls(pairs[:, 0].clone(), pairs[:, 1].clone())

    @classmethod
    def one(cls, l1: float, l2: float) -> Penalties:
        return cls(torch.tensor([l1]), torch.tensor([l2]))

    def __len__(self) -> int:
        return len(self.l1)

    def __getitem__(self, index: Tensor | list[int]) -> Penalties:
        return Penalties(self.l1[index], self.l2[index])

    def of(self, weight: Tensor) -> Tensor:
        """(P,) l1 |W|_1 + l2 |W|^2_2."""
        size = weight.abs().sum((0, 1), dtype=torch.float64)
        return self.l1 * size + self.l2 * weight.square().sum((0, 1), dtype=torch.float64)


@dataclass(frozen=True)
class Slope:
    """Mean cross-entropy of every penalty's probe, and its gradient."""

    loss: Tensor
    """(P,) in float64."""
    weight: Tensor
    """(d, K, P)"""
    bias: Tensor
    """(K, P)"""


@dataclass(frozen=True)
class Point:
    """Weights and biases of probes, what they cost and the slope of the loss there."""

    weight: Tensor
    """(d, K, P)"""
    bias: Tensor
    """(K, P)"""
    value: Tensor
    """(P,) in float64."""
    slope: Slope

    def keep(self, which: Tensor) -> Point:
        """Only these probes, some perhaps several times."""
        return self._each(self, lambda own, _: own[..., which].contiguous())

    def replaced(self, where: Tensor, other: Point) -> Point:
        """The other point for these probes."""
        return self._each(other, lambda own, theirs: torch.where(where, theirs, own))

    def _each(self, other: Point, choose: Callable[[Tensor, Tensor], Tensor]) -> Point:
        of, by = self.slope, other.slope
        slope = Slope(choose(of.loss, by.loss), choose(of.weight, by.weight), choose(of.bias, by.bias))
        weight, bias = choose(self.weight, other.weight), choose(self.bias, other.bias)
        return Point(weight, bias, choose(self.value, other.value), slope)


def block_rows(weight: Tensor) -> int:
    """Rows whose scores are held at once."""
    return max(128, min(1024, BLOCK_VALUES // (weight.shape[1] * weight.shape[2])))


def slope(features: Features, weight: Tensor, bias: Tensor, *, mean: Tensor, skip: int = 1) -> Slope:
    """Gradient of the mean cross-entropy at rows less `mean`: X^T (softmax(X W + b) - Y) / n.

    Products have the words along their last axis, which for few probes takes a fifth less time.
    """
    d, classes, pairs = weight.shape
    flat, n = weight.view(d, -1).T.contiguous(), 0
    gradient, of_bias = torch.zeros_like(flat), torch.zeros(classes, pairs, dtype=torch.float64)
    loss = torch.zeros(pairs, dtype=torch.float64)
    for x, y in features.chunks(block_rows(weight), skip=skip):
        x = x - mean
        scores = torch.addmm(bias.view(-1, 1), flat, x.T).view(classes, pairs, -1)
        errors, entropy = softmax_errors_(scores, y)
        loss += entropy
        of_bias += errors.sum(2, dtype=torch.float64)
        gradient.addmm_(errors.view(-1, len(x)), x)
        n += len(x)
    return Slope(loss / n, gradient.div_(n).T.contiguous().view(d, classes, pairs), (of_bias / n).float())


def softmax_errors_(scores: Tensor, tags: Tensor) -> tuple[Tensor, Tensor]:
    """softmax - one-hot over the first axis in the place of (K, P, n) scores, and the summed cross-entropy (P,)."""
    scores -= scores.amax(0)
    row = torch.arange(len(tags))
    own = scores[tags, :, row]
    total = scores.clamp_(min=NEGLIGIBLE).exp_().sum(0)
    scores /= total
    scores[tags, :, row] -= 1
    return scores, total.log().sum(1, dtype=torch.float64) - own.sum(0, dtype=torch.float64)


def predict(features: Features, weight: Tensor, bias: Tensor) -> Tensor:
    """(n, P) the tag each penalty's probe gives to each row; of equal scores the first."""
    flat = weight.reshape(len(weight), -1)
    parts = [
        torch.addmm(bias.reshape(1, -1), x, flat).view(-1, *bias.shape).argmax(1).to(torch.int16)
        for x, _ in features.chunks(block_rows(weight))
    ]
    return torch.cat(parts)


def accuracy(features: Features, weight: Tensor, bias: Tensor) -> Tensor:
    """(P,) share of rows that get their tag."""
    flat, right = weight.reshape(len(weight), -1), torch.zeros(bias.shape[1], dtype=torch.float64)
    for x, y in features.chunks(block_rows(weight)):
        given = torch.addmm(bias.reshape(1, -1), x, flat).view(-1, *bias.shape).argmax(1)
        right += (given == y[:, None]).sum(0)
    return right / len(features)


def code_length(features: Features, weight: Tensor, bias: Tensor, *, trained_on: int) -> float:
    """Bits that the tags of these rows take under the first probe, mixed with one uniform row among `trained_on`.

    -sum log2 ((n p(tag) + 1 / K) / (n + 1)): a tag that training never had costs much, not without end.
    """
    bits = 0.0
    for x, y in features.chunks():
        p = torch.softmax(torch.addmm(bias[:, 0], x, weight[:, :, 0]).double(), dim=1)[torch.arange(len(y)), y]
        bits -= float(((trained_on * p + 1 / features.classes) / (trained_on + 1)).log2().sum())
    return bits
