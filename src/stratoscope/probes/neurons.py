"""Which neurons hold a property: rankings, subsets of them, and where in the model they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stratoscope.probes.features import Features


def entry_shares(weight: Tensor) -> Tensor:
    """(d, K) share of a class's weight mass that stronger neurons hold: when a neuron enters the salient set.

    Linear correlation analysis (Dalvi et al. 2019) takes neurons, class by class, until they hold a share p of sum |w|;
    a neuron enters at the share before it. Without any weight it never does.
    """
    size = weight.abs().double()
    order = size.argsort(dim=0, descending=True, stable=True)
    ordered = size.gather(0, order)
    before = (ordered.cumsum(0) - ordered) / ordered.sum(0).clamp(min=1e-300)
    entry = torch.empty_like(before).scatter_(0, order, before)
    return entry.masked_fill_(size == 0, 1.0)


def rank_by_weight(weight: Tensor, pull: Tensor | None = None) -> Tensor:
    """(d,) neurons, most salient first: by the least share at which they enter for any class.

    Among equals (the first of every class enters at 0) by the largest share of a class's mass, then by `pull` (d,
    K), how near a weight of 0 is to becoming another; then by index.
    """
    size = weight.abs().double()
    share = (size / size.sum(0).clamp(min=1e-300)).amax(1)
    near = torch.zeros(len(weight), dtype=torch.float64) if pull is None else pull.double().amax(1)
    return lexicographic(entry_shares(weight).amin(1), -share, -near)


def lexicographic(*keys: Tensor) -> Tensor:
    """Order by the first key, ties by the next, at last by index."""
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order


@dataclass(frozen=True)
class ClassMoments:
    """What rankings without a probe look at: per class, how many rows there are, and mean and variance of each
    neuron."""

    count: Tensor
    """(K,)"""
    mean: Tensor
    """(K, d)"""
    variance: Tensor
    """(K, d)"""


def class_moments(features: Features) -> ClassMoments:
    """Streamed, about the first chunk's mean."""
    classes = features.classes
    shift: Tensor | None = None
    count = torch.zeros(classes, dtype=torch.float64)
    sums = squares = torch.zeros(0)
    for x, y in features.chunks():
        if shift is None:
            shift = x.double().mean(0)
            sums, squares = (torch.zeros(classes, len(shift), dtype=torch.float64) for _ in range(2))
        centred = x.double() - shift
        count += torch.bincount(y, minlength=classes)
        sums.index_add_(0, y.long(), centred)
        squares.index_add_(0, y.long(), centred.square_())
    assert shift is not None
    n = count[:, None].clamp(min=1)
    mean = sums / n
    return ClassMoments(count, mean + shift, (squares / n - mean.square()).clamp(min=0))


def rank_probeless(of: ClassMoments) -> Tensor:
    """By the summed distance of class means, neuron by neuron (Antverg & Belinkov 2022); ties by index."""
    mean = of.mean[of.count > 0]
    distance = sum((a - mean).abs().sum(0) for a in mean)
    return lexicographic(-torch.as_tensor(distance))


def rank_gaussian(of: ClassMoments) -> Tensor:
    """By the information one neuron gives on the tag if each class is a Gaussian; ties by index.

    1/2 (log of the variance - mean log of the variances within classes): what selecting the first neuron of Torroba
    Hennigen et al. 2020 compares.
    """
    present = of.count > 0
    share, mean, variance = (v[present] for v in (of.count / of.count.sum(), of.mean, of.variance))
    share = share[:, None]
    centre = (share * mean).sum(0)
    total = (share * (variance + (mean - centre).square())).sum(0)
    least = 1e-8 * total + 1e-30
    gain = 0.5 * ((total + least).log() - (share * (variance + least).log()).sum(0))
    return lexicographic(-gain)


def rank_iou(features: Features, of: ClassMoments) -> Tensor:
    """By the best overlap of rows on one side of a neuron's mean with the rows of a class: |A and B| / |A or B|.

    Compositional explanations of neurons (Mu & Andreas 2020) with single tags as concepts; ties by index.
    """
    share = (of.count / of.count.sum())[:, None]
    centre = (share * of.mean).sum(0).float()
    on = torch.zeros(features.classes, len(centre), dtype=torch.float64)
    for x, y in features.chunks():
        on.index_add_(0, y.long(), (x > centre).double())
    best = torch.zeros(len(centre), dtype=torch.float64)
    for inside in (on, of.count[:, None] - on):
        best = torch.maximum(best, (inside / (inside.sum(0) + of.count[:, None] - inside).clamp(min=1)).amax(0))
    return lexicographic(-best)


RANKINGS: dict[str, Callable[[Features, Tensor, Tensor | None], Tensor]] = {
    "weights": lambda features, weight, pull: rank_by_weight(weight, pull),
    "probeless": lambda features, weight, pull: rank_probeless(class_moments(features)),
    "gaussian": lambda features, weight, pull: rank_gaussian(class_moments(features)),
    "iou": lambda features, weight, pull: rank_iou(features, class_moments(features)),
}
"""Neurons by salience, from the training rows and the weights (d, K) of a probe on all of them."""


def subset(ranking: Tensor, share: float, which: str, seed: int = 0) -> Tensor:
    """The top, bottom or random share of the neurons, in the order of the ranking."""
    n = max(1, round(share * len(ranking)))
    if which == "random":
        chosen = torch.randperm(len(ranking), generator=torch.Generator().manual_seed(seed))[:n]
        return ranking[chosen.sort().values]
    return ranking[:n] if which == "top" else ranking[-n:]


def nested(d: int, sizes: Sequence[int]) -> Tensor:
    """(d, P) neurons outside the first so many: what `solve` must hold at 0 to solve nested subsets side by side."""
    return torch.arange(d)[:, None] >= torch.tensor(sizes)


def masked(weight: Tensor, kept: Tensor) -> Tensor:
    """Weights (d, K) with those of all but the kept neurons at 0: a neuron of value 0 without retraining."""
    inside = torch.zeros(len(weight), 1, dtype=torch.bool)
    inside[kept] = True
    return torch.where(inside, weight, 0.0)
