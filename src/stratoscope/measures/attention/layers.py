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
from stratoscope.measures.pair import Pair
from stratoscope.measures.table import parse
from stratoscope.statistics.layer import LayerBasis, LayerMoments, whitened_basis

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


def score_panel(
    axis: HeadAxis, layer: int, sums: Sums, measures: Sequence[AttentionMeasure], eps: float
) -> dict[str, Doubles]:
    """Scores of one layer and every later one, by measure: (resamples, later layers, 2), forward and backward.

    `sums` hold the layer's panel for each resample (resamples, h, heads of later layers), `OWN`, `TOTAL` and `COUNTS`.
    """
    found: dict[str, Doubles] = {}
    for measure in measures:
        if measure.of_heads is None:
            continue
        similarity = measure.of_heads(sums).clip(*measure.bounds)
        both = [matched(similarity[..., axis.columns(layer, other)]) for other in axis.later(layer)]
        found[measure.name] = np.stack([np.stack(pair, axis=-1) for pair in both], axis=1)
    distributed = [m.name for m in measures if m.of_heads is None]
    return found | (_distributed(axis, layer, sums, distributed, eps) if distributed else {})


def _distributed(axis: HeadAxis, layer: int, sums: Sums, names: Sequence[str], eps: float) -> dict[str, Doubles]:
    """Measures of representations on rows = word pairs and columns = heads, from their covariance alone."""
    resamples, later = len(sums[COUNTS]), axis.later(layer)
    scores = {name: np.full((resamples, len(later), 2), math.nan) for name in names}
    ordered = sorted(names, key=lambda name: name != "pwsim")  # svsim reads pwsim's correlations
    compare = {name: parse(name).measure.compare for name in ordered}
    for r in range(resamples):
        n, total = sums[COUNTS][r, 2], torch.from_numpy(sums[TOTAL][r])
        bases = [_basis(axis, k, sums[OWN][r], total, n, eps) for k in later]
        cross = torch.from_numpy(sums[SCATTER][r]) / n
        mean = total / n
        for k, other in enumerate(later):
            x, y = bases[0], bases[k]
            if x.constant or y.constant:
                continue
            mine, theirs = (mean[axis.starts[m] : axis.starts[m + 1]] for m in (layer, other))
            product = _whitened(cross[:, axis.columns(layer, other)] - torch.outer(mine, theirs), x, y)
            pair = Pair(x, y, product, torch.zeros(2, 2))
            for name, of in compare.items():
                assert of is not None
                both = of(pair, 1.0)
                scores[name][r, k] = np.clip([both.forward, both.backward], 0, 1)
    return scores


def _basis(axis: HeadAxis, layer: int, own: Doubles, total: Tensor, n: float, eps: float) -> LayerBasis:
    h, before = axis.heads[layer], sum(k * k for k in axis.heads[:layer])
    scatter = torch.from_numpy(own[before : before + h * h].reshape(h, h))
    part = total[axis.starts[layer] : axis.starts[layer + 1]]
    return whitened_basis(LayerMoments(int(n), torch.zeros(h, dtype=torch.float64), part, scatter), eps)


def _whitened(covariance: Tensor, x: LayerBasis, y: LayerBasis) -> Tensor:
    """Products of whitened coordinates from the covariance of heads."""
    left, right = (b.to / torch.where(b.sd > 0, b.sd, 1)[:, None] for b in (x, y) if b.to is not None)
    return left.T @ covariance @ right


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
