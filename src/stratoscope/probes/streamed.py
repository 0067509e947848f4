"""Probes over more neurons than a covariance can be made of: proximal Adam, all penalties side by side.

Centred features, b = log of the tags' shares, a rate that falls to 0, and after each step the soft threshold rate *
l1 / sqrt(v), which gives exact zeros (Duchi & Singer 2009; in Adam's metric).
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratoscope.probes.features import Features
from stratoscope.probes.objective import Penalties, slope, softmax_errors_
from stratoscope.probes.published import Schedule, shuffled

STREAMED = Schedule(epochs=4, rate=8e-3)
FEWEST_STEPS = 300
"""Fewer do not move weights far enough: a small corpus is read more often."""
DECAY, SQUARES, TINY = 0.9, 0.999, 1e-8


def centre(features: Features) -> tuple[Tensor, Tensor]:
    """(d,) mean of the rows and (K,) shares of the tags."""
    total, tags, n = torch.zeros(features.width, dtype=torch.float64), torch.zeros(features.classes), 0
    for x, y in features.chunks():
        total += x.sum(0, dtype=torch.float64)
        tags += torch.bincount(y, minlength=features.classes)
        n += len(x)
    return (total / n).float(), tags / n


def stream(
    features: Features, penalties: Penalties, *, seed: int, schedule: Schedule = STREAMED
) -> tuple[Tensor, Tensor]:
    """Weights (d, K, P) and biases (K, P) for raw features."""
    classes, pairs = features.classes, len(penalties)
    mean, shares = centre(features)
    generator = torch.Generator().manual_seed(seed)
    d = len(mean)
    weight = torch.zeros(d, classes * pairs)
    bias = shares.clamp(min=0.5 / len(features)).log()[:, None].expand(classes, pairs).reshape(1, -1).clone()
    in_epoch = len(features) // schedule.batch + 1
    epochs = max(schedule.epochs, -(-FEWEST_STEPS // in_epoch))
    steps = epochs * in_epoch
    l1, l2 = (v.expand(classes, pairs).reshape(1, -1).clone() for v in (penalties.l1, 2 * penalties.l2))
    moments = [torch.zeros_like(weight), torch.zeros_like(weight), torch.zeros_like(bias), torch.zeros_like(bias)]
    step = 0
    for _ in range(epochs):
        for x, y in shuffled(features, schedule.batch, generator):
            x = x - mean
            scores = torch.addmm(bias.view(-1, 1), weight.T, x.T).view(classes, pairs, -1)
            errors = softmax_errors_(scores, y)[0].view(-1, len(x)).T.div_(len(x))
            rate = schedule.rate * max(0.0, 1 - step / steps)
            step += 1
            gradient = torch.addmm(weight * l2, x.T, errors)
            size = _adam_(weight, gradient, moments[0], moments[1], rate, step)
            threshold = l1 * rate / size
            weight.sub_(torch.clamp(weight, -threshold, threshold))
            _adam_(bias, errors.sum(0, keepdim=True), moments[2], moments[3], rate, step)
    shaped = weight.view(d, classes, pairs)
    return shaped, (bias.view(classes, pairs) - torch.einsum("d,dkp->kp", mean, shaped))


def _adam_(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rate: float, step: int) -> Tensor:
    """One step of Adam in place; gives back sqrt(v), the metric."""
    first.lerp_(gradient, 1 - DECAY)
    second.mul_(SQUARES).addcmul_(gradient, gradient, value=1 - SQUARES)
    size = (second / (1 - SQUARES**step)).sqrt_().add_(TINY)
    value.addcdiv_(first, size, value=-rate / (1 - DECAY**step))
    return size


def pull(features: Features, weight: Tensor, bias: Tensor) -> Tensor:
    """(d, K) size of the loss's gradient at the first probe: how near a weight of 0 is to becoming another."""
    mean, _ = centre(features)
    moved = bias[:, :1] + (mean @ weight[:, :, 0])[:, None]
    return slope(features, weight[:, :, :1].contiguous(), moved, mean=mean).weight[:, :, 0].abs()
