"""From sums over pairs of heads to scores of layers: the best partner of each head, or all heads of a layer at once.

Sums are linear in sentences, so those of a resample are weighted sums of those of groups of sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stratoscope.measures.attention.rows import Doubles
from stratoscope.measures.attention.sums import COUNTS, SCATTER, SKIPPED, TOTAL, full
from stratoscope.measures.attention.table import AttentionMeasure, Sums

OWN = "own"
"""Scatter of each layer's heads with themselves, layer after layer."""


@dataclass(frozen=True)
class HeadAxis:
    """Heads of all layers in a row, and how sums of pairs of them are kept: panel by panel, each layer once.

    The panel of a layer is its heads against its own and those of all later layers.
    """

    heads: tuple[int, ...]
    """Heads of each layer."""

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First head of each layer, and the end of the last."""
        return (0, *np.cumsum(self.heads).tolist())

    def shape(self, layer: int) -> tuple[int, int]:
        """Heads on the two sides of a layer's panel."""
        return self.heads[layer], self.starts[-1] - self.starts[layer]

    def span(self, layer: int) -> tuple[int, int]:
        """Where a layer's panel is in packed sums."""
        sizes = [math.prod(self.shape(k)) for k in range(layer + 1)]
        return sum(sizes[:-1]), sum(sizes)

    def later(self, layer: int) -> range:
        """The layers of a panel's columns."""
        return range(layer, len(self.heads))

    def columns(self, layer: int, other: int) -> slice:
        """Heads of another layer on the columns of a layer's panel."""
        return slice(self.starts[other] - self.starts[layer], self.starts[other + 1] - self.starts[layer])

    def of(self, values: Tensor, layer: int) -> Tensor:
        """What of the second axis, over all heads, belongs to a layer."""
        return values[:, self.starts[layer] : self.starts[layer + 1]]

    def pack(self, sums: Sums) -> dict[str, Doubles]:
        """Sums of pairs as vectors, panel after panel; those of heads and counts as they are."""
        packed = {}
        for name, value in sums.items():
            if value.ndim < 2:
                packed[name] = value
                continue
            whole, s = full(value), self.starts
            packed[name] = np.concatenate([whole[s[k] : s[k + 1], s[k] :].ravel() for k in range(len(self.heads))])
            if name == SCATTER:
                blocks = [whole[s[k] : s[k + 1], s[k] : s[k + 1]].ravel() for k in range(len(self.heads))]
                packed[OWN] = np.concatenate(blocks)
        return packed

    def unpacked(self, panels: Sequence[Doubles]) -> Doubles:
        """The full symmetric matrix from the panels (heads, heads of later layers) of all layers."""
        whole = np.full((self.starts[-1], self.starts[-1]), math.nan)
        for k, panel in enumerate(panels):
            rows = slice(self.starts[k], self.starts[k + 1])
            whole[rows, self.starts[k] :], whole[self.starts[k] :, rows] = panel, panel.T
        return whole


def matched(similarity: Doubles) -> tuple[Doubles, Doubles]:
    """(..., h, h') to (...), both ways: each head's best partner, then the mean over heads that have one."""
    forward, backward = np.fmax.reduce(similarity, axis=-1), np.fmax.reduce(similarity, axis=-2)
    return _mean(forward), _mean(backward)


def _mean(values: Doubles) -> Doubles:
    known = ~np.isnan(values)
    n = known.sum(axis=-1)
    mean: Doubles = np.where(n > 0, np.where(known, values, 0).sum(axis=-1) / np.maximum(n, 1), math.nan)
    return mean


def score_panel(axis: HeadAxis, layer: int, sums: Sums, measures: Sequence[AttentionMeasure]) -> dict[str, Doubles]:
    """Scores of one layer and every later one, by measure: (resamples, later layers, 2), forward and backward.

    `sums` hold the layer's panel for each resample (resamples, h, heads of later layers), `OWN`, `TOTAL` and `COUNTS`.
    """
    scores: dict[str, Doubles] = {}
    for measure in measures:
        if measure.of_heads is None:
            continue
        similarity = measure.of_heads(sums).clip(*measure.bounds)
        both = [matched(similarity[..., axis.columns(layer, other)]) for other in axis.later(layer)]
        scores[measure.name] = np.stack([np.stack(pair, axis=-1) for pair in both], axis=1)
    distributed = [m.name for m in measures if m.of_heads is None]
    return scores | (_distributed(axis, layer, sums, distributed) if distributed else {})


def _distributed(axis: HeadAxis, layer: int, sums: Sums, names: Sequence[str]) -> dict[str, Doubles]:
    """svsim, pwsim and ckasim of rows = word pairs and columns = heads, from their covariance alone.

    The same as `measures.linear` gives of the rows, for all resamples at once: their layers are so narrow that one by
    one the time would go into calls.
    """
    n = torch.from_numpy(sums[COUNTS][:, 2])[:, None, None]
    mean = torch.from_numpy(sums[TOTAL])[:, :, None] / n
    cross = torch.from_numpy(sums[SCATTER]) / n - axis.of(mean, layer) @ mean[:, axis.starts[layer] :].mT
    own = torch.split(torch.from_numpy(sums[OWN]), [h * h for h in axis.heads], dim=1)
    layers = []
    for k in axis.later(layer):
        part, h = axis.of(mean, k), axis.heads[k]
        layers.append(_Columns.of(own[k].view(-1, h, h) / n - part @ part.mT))
    scores: dict[str, list[Tensor]] = {name: [] for name in names}
    for other, y in zip(axis.later(layer), layers, strict=True):
        both = _compared(layers[0], y, cross[:, :, axis.columns(layer, other)])
        for name, of in scores.items():
            of.append(torch.stack(both[name], dim=-1))
    return {name: torch.stack(of, dim=1).clamp(0, 1).numpy() for name, of in scores.items()}


@dataclass(frozen=True)
class _Columns:
    """The heads of a layer on every resample: covariance, and the components that hold 99 % of the variance."""

    covariance: Tensor
    """(resamples, h, h)."""
    kept: Tensor
    """(resamples,): how many components; the one that crosses 99 % is among them."""
    whiten: Tensor
    """(resamples, h, h): columns take heads to components of variance 1, those not kept to 0."""

    @classmethod
    def of(cls, covariance: Tensor) -> _Columns:
        values, axes = torch.linalg.eigh(covariance)
        values, axes = values.flip(-1).clamp_min(0), axes.flip(-1)
        reached = values.cumsum(-1)
        kept = (reached < 0.99 * reached[:, -1:] * (1 - 1e-12)).sum(-1) + 1
        inside = (torch.arange(values.shape[1]) < kept[:, None]) & (values > 0)
        return cls(covariance, kept, axes * torch.where(inside, values, math.inf).rsqrt()[:, None])


def _compared(x: _Columns, y: _Columns, cross: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Each measure both ways, (resamples,); NaN where all heads of a layer are constant."""
    norms = x.covariance.square().sum((1, 2)) * y.covariance.square().sum((1, 2))
    cka = cross.square().sum((1, 2)) / norms.sqrt()
    u, rho, vt = torch.linalg.svd(x.whiten.mT @ cross @ y.whiten, full_matrices=False)
    count = torch.minimum(x.kept, y.kept)
    there = (torch.arange(rho.shape[1]) < count[:, None]) & (norms > 0)[:, None]
    rho = torch.where(there, rho.clamp(0, 1), 0)
    sv = torch.where(norms > 0, rho.sum(-1) / count, math.nan)
    pw = []
    for columns, turn in ((x, u), (y, vt.mT)):  # α: covariance of each variate with each head, absolute, summed
        weight = torch.where(there, (turn.mT @ columns.whiten.mT @ columns.covariance).abs().sum(-1), 0)
        pw.append((weight * rho).sum(-1) / weight.sum(-1))
    return {"ckasim": (cka, cka), "svsim": (sv, sv), "pwsim": (pw[0], pw[1])}


def weighted(groups: Mapping[str, Doubles], weights: Doubles) -> dict[str, Doubles]:
    """Sums of each resample (first axis of `weights`) from those of groups of sentences (first axis of each)."""
    return {
        name: (weights @ g.reshape(len(g), -1)).reshape(len(weights), *g.shape[1:])
        for name, g in groups.items()
        if name != SKIPPED
    }


def group_weights(groups: int, resamples: int, seed: int) -> Doubles:
    """(1 + resamples, groups): once each, then how often each group is drawn when as many are drawn with repeats."""
    drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=resamples)
    return np.concatenate([np.ones((1, groups)), drawn]).astype(np.float64)
