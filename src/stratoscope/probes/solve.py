"""The probe solved to a stated gap, all penalties side by side.

Proximal gradient steps in a metric of the rows (`metric`: one covariance at first, then one for every tag), each by
sweeps of coordinate descent with soft thresholds, then mixed with the steps before (`mixing`: Anderson
acceleration). The factor c of the metric is from the first steps' secants. The start has a gradient in closed form
and needs no pass. Near penalties share one column of weights until that costs a probe more than a pass gains.

The gap F - F* is at most the smaller of two numbers. One is certified: the distance to a feasible point of the dual
(see `lower_bound`). The other is what the second half of the passes in one metric gained: an upper estimate wherever
the error falls at least as fast as 1 / passes, as it does for proximal gradient. Both are absolute, in nats per word.
Where penalties are so weak that no dual point is near, only the estimate is small; a fit says which of the two it is.
The pair without penalties, whose optimum may be at infinity, is solved apart (`unpenalised`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from stratoscope.probes.features import Features
from stratoscope.probes.metric import LARGEST, Metric, of_tags
from stratoscope.probes.mixing import Mixing
from stratoscope.probes.objective import Penalties, Slope, slope
from stratoscope.probes.unpenalised import unpenalised

CURVATURE, LEAST, MOST = 0.14, 0.02, 0.5
"""c_k = 0.14 sqrt(pi_k) / sum_k pi_k sqrt(pi_k) of tags of share pi_k, within these ends; then from secants."""
MOST_PASSES = 200
FLOOR = 1e-4
"""Of the metric, over the mean variance: weights must not run off where rows do not vary, as after LayerNorm."""
BACK_OFF = 1.5
"""By how much c grows after a rise."""
SHARED, EARLY = 0.4, 1.5
"""Probes share weights while that costs at most this share of the gap, or of what a pass now gains."""
START = 0.05
"""What sharing may cost after the first step, in nats per word."""
SECANT_PASSES, BOLD = 2, 0.6
"""Passes after which c stays, and by how much it is then less, because steps are mixed."""
COMMON_PASSES, LOW, NEAR = 6, 0.3, 2.5
"""The pass after which probes get a metric for every tag: that of the probe at this quantile of losses, for probes of
at most so many times its loss."""
ROUNDING = 1e-7
"""Of an objective."""
FEWEST_OF_WIDTH = 8
"""A metric for every tag pays where probes times tags are at least the neurons over this."""
FEWEST_PASSES = 7
"""Fewer do not tell how fast the objective falls."""
SHRINK = 0.93
"""Finished pairs leave the batch once it becomes so much smaller."""


@dataclass(frozen=True)
class Fit:
    """Probes of all penalties; weights and biases apply to raw features."""

    weight: Tensor
    """(d, K, P)"""
    bias: Tensor
    """(K, P)"""
    objective: Tensor
    """(P,)"""
    gap: Tensor
    """(P,) how far above the optimum the objective is, at most."""
    certified: Tensor
    """(P,) whether the gap is a bound by duality; otherwise it is estimated from the passes."""
    passes: int = 0


@dataclass(frozen=True)
class Moments:
    """What the closed-form start takes: one pass serves every penalty."""

    mean: Tensor
    covariance: Tensor
    with_tags: Tensor
    """(d, K) mean of centred row times one-hot tag."""
    shares: Tensor
    """(K,)"""


def moments(features: Features) -> Moments:
    """Mean, covariance and class sums, from sums about the first chunk's mean."""
    shift: Tensor | None = None
    gram = sums = tags = None
    n = 0
    for x, y in features.chunks():
        shift = x.double().mean(0).float() if shift is None else shift
        x = x - shift
        one_hot = torch.zeros(len(x), features.classes).scatter_(1, y[:, None].long(), 1.0)
        both = torch.cat([one_hot, torch.ones(len(x), 1)], dim=1)
        if gram is None or sums is None or tags is None:
            gram, sums, tags = x.T @ x, (x.T @ both).double(), both.sum(0).double()
        else:
            gram.addmm_(x.T, x)
            sums += x.T @ both
            tags += both.sum(0)
        n += len(x)
    if shift is None or gram is None or sums is None or tags is None:
        raise ValueError("a probe needs rows")
    shares, mean = tags[:-1] / n, sums[:, -1] / n
    covariance = (gram / n).sub_(torch.outer(mean, mean).float())
    covariance.diagonal().add_(FLOOR * covariance.diagonal().mean())
    with_tags = (sums[:, :-1] / n - torch.outer(mean, shares)).float()
    return Moments(shift + mean.float(), covariance, with_tags, shares.float())


def lower_bound(weight: Tensor, bias: Tensor, at: Slope, first: Moments, penalties: Penalties) -> Tensor:
    """(P,) at most the optimum, by Fenchel duality, without another pass.

    For P the probe's probabilities, D = mean entropy(P') - sum ((|X^T (P' - Y) / n| - l1)+)^2 / (4 l2) for any P' =
    Y + s ((1 - t) P + t q - Y) whose column means are those of Y; mean entropy(P) = loss - <W, G> - <b, g>, and
    entropy is concave. t and the row q put the column means right, s shrinks the gradient (for l2 = 0 to within
    l1).
    """
    g, share = at.bias, first.shares[:, None]
    entropy = at.loss - (weight * at.weight).sum((0, 1), dtype=torch.float64) - (bias * g).sum(0, dtype=torch.float64)
    means = (share + g).clamp(min=1e-12)
    t = ((1 - share / means).amax(0).clamp(min=0) * 1.0001 + 1e-7).clamp(max=1)
    q = ((share - (1 - t) * means) / t).clamp(min=0)
    q /= q.sum(0)
    entropy = (1 - t) * entropy - t * torch.xlogy(q, q).sum(0)
    size = ((1 - t) * at.weight - t * first.with_tags[:, :, None]).abs_()
    largest = size.amax((0, 1)).clamp(min=1e-30)
    best = torch.zeros_like(entropy)
    for share_kept in (1.0, 0.98, 0.9, 0.75, 0.5):
        s = torch.where(penalties.l2 > 0, share_kept, (share_kept * penalties.l1 / largest).clamp(max=1))
        over = (size * s - penalties.l1).clamp_(min=0).square_().sum((0, 1), dtype=torch.float64)
        spent = torch.where(penalties.l2 > 0, over / (4 * penalties.l2).clamp(min=1e-30), 0.0)
        best = torch.maximum(best, s * entropy - spent)
    return best


class _Batch:
    """The probes still worked on, one column each: everything with a last axis of columns is selected together."""

    def __init__(
        self, members: list[list[int]], grid: Penalties, weight: Tensor, bias: Tensor, c: Tensor, metric: Metric
    ) -> None:
        columns = len(members)
        self.metric = metric
        self.members, self.grid, self.c = members, grid, c
        """Pairs of penalties that share a column, its own first: none is weaker than that in either penalty."""
        self.at, self.at_bias = weight, bias
        """Where the gradient is taken next."""
        self.weight, self.bias = weight, bias
        """The best point so far, with its slope and its objective."""
        self.slope = Slope(torch.zeros(columns), torch.zeros(0, 0, columns), torch.zeros(0, columns))
        self.best = torch.full((columns,), torch.inf, dtype=torch.float64)
        self.low = torch.zeros(columns, dtype=torch.float64)
        """A lower bound of the optimum."""
        self.passes = 0
        self.trace, self.count = torch.zeros(0, columns, dtype=torch.float64), torch.zeros(columns, dtype=torch.long)
        """Best objectives, and how many: a pass without a better one is not counted."""
        self.mixing = Mixing(columns)
        self.risen = torch.zeros(columns, dtype=torch.bool)
        """Whether the last point tried was worse: its probe takes a plain step from the best one."""

    @property
    def penalties(self) -> Penalties:
        return self.grid[torch.tensor([group[0] for group in self.members], dtype=torch.long)]

    def keep(self, which: Tensor) -> None:
        """Only these columns, some perhaps several times."""
        self.slope, self.members = _narrow(self.slope, which), [self.members[k] for k in which.tolist()]
        for name in ("c", "at", "at_bias", "weight", "bias", "best", "low", "risen", "trace", "count"):
            setattr(self, name, getattr(self, name)[..., which].contiguous())
        self.mixing.keep(which)

    def extra(self) -> list[list[float]]:
        """For every column, how much more its weights cost each of its members than its own pair.

        F_q(W) - F*_q <= (F_q(W) - F_p(W)) + (F_p(W) - F*_p) for penalties p <= q, since F*_p <= F*_q.
        """
        norms = _norms(self.weight)
        return [[_more(self.grid, group[0], q, norms[k]) for q in group] for k, group in enumerate(self.members)]

    def join(self) -> None:
        """Let pairs share the first step of a weaker one where that costs little."""
        norms = _norms(self.at)
        groups = _grouped(self.grid, range(len(self.members)), lambda p, q: _more(self.grid, p, q, norms[p]), START)
        self.keep(torch.tensor([group[0] for group in groups]))
        self.members = groups

    def split(self, gap: float) -> None:
        """Columns of their own for members that now lose too much by sharing."""
        gains = (self._before(self.count - 3) - self.best) / 2 if self.passes > 1 else torch.full_like(self.best, START)
        columns, members, lost = [], [], []
        for k, (group, norms) in enumerate(zip(self.members, _norms(self.weight), strict=True)):
            more = partial(_more, self.grid, norms=norms)
            for part in _grouped(self.grid, group, more, max(SHARED * gap, EARLY * float(gains[k]))):
                columns.append(k)
                members.append(part)
                lost.append(more(group[0], part[0]))
        if len(columns) == len(self.members):
            return
        self.keep(torch.tensor(columns))
        self.members, above = members, torch.tensor(lost, dtype=torch.float64)
        self.best = self.best + above
        self.trace = self.trace + 2 * above  # it was not their objective that fell: what it gained counts twice
        self.trace.scatter_(0, self.count[None] - 1, self.best[None])

    def _before(self, count: Tensor) -> Tensor:
        """(P,) the best objective of this number."""
        return self.trace.gather(0, count.clamp(min=0)[None])[0]

    def gap(self, aim: float) -> tuple[Tensor, Tensor]:
        """(P,) the certified gap where it is within the aim, else the smaller of both; and whether it is certified."""
        bound = self.best - self.low
        if not self.passes:
            return bound, torch.ones_like(bound, dtype=torch.bool)
        gained = self._before(self.count // 2 - 1) - self.best
        certified = (bound <= aim) | (bound <= gained) | (self.count < FEWEST_PASSES)
        return torch.where(certified, bound, gained), certified

    def measure(self, slope: Slope, first: Moments) -> None:
        """Take in the slope at `at`: the best point, the bound, and c from the secant while weights grow fast."""
        value = slope.loss + self.penalties.of(self.at)
        self.low = torch.maximum(self.low, lower_bound(self.at, self.at_bias, slope, first, self.penalties))
        again, self.risen = self.risen, value > self.best + ROUNDING
        if self.passes:
            early = self.passes < SECANT_PASSES
            self.c = self.c * self._bend(slope) if early else self.c
            self.c = torch.where(self.risen & (again | early), self.c * BACK_OFF, self.c)
            self.mixing.forget(self.risen)
        self.weight, self.bias, self.best, self.slope = (
            (self.at, self.at_bias, value, slope) if not self.risen.any() else self._best_of(value, slope)
        )
        self.passes += 1
        self.trace = torch.cat([self.trace, torch.zeros_like(self.best[None])])
        self.trace.scatter_(0, self.count[None], self.best[None])
        self.count = self.count + ~self.risen

    def _best_of(self, value: Tensor, slope: Slope) -> tuple[Tensor, Tensor, Tensor, Slope]:
        old = self.slope
        slope = Slope(
            torch.where(self.risen, old.loss, slope.loss),
            torch.where(self.risen, old.weight, slope.weight),
            torch.where(self.risen, old.bias, slope.bias),
        )
        weight, bias = torch.where(self.risen, self.weight, self.at), torch.where(self.risen, self.bias, self.at_bias)
        return weight, bias, torch.where(self.risen, self.best, value), slope

    def _bend(self, slope: Slope) -> Tensor:
        """(P,) curvature along the last step over that of the metric."""
        step, bias = self.at - self.weight, self.at_bias - self.bias
        metric = self.metric.times(step).mul_(step).sum(0) + self.metric.bias * bias.square()
        bent = step.mul_(slope.weight - self.slope.weight).sum(0) + bias * (slope.bias - self.slope.bias)
        return (bent.sum(0) / (self.c * metric).sum(0).clamp(min=1e-30)).nan_to_num(1.0).clamp(0.7, 1.5)

    def step(self, forbidden: Tensor | None) -> None:
        """A proximal step from the best point, mixed with those before."""
        mixing = self.passes >= SECANT_PASSES
        c = BOLD * self.c if mixing else self.c
        l1, l2 = ((v / c)[None] for v in (self.penalties.l1, self.penalties.l2))
        if forbidden is not None:
            own = torch.tensor([group[0] for group in self.members])
            l1 = torch.where(forbidden[:, None, own], torch.inf, l1)
        image = self.metric.step(self.weight, self.slope.weight / c, l1, l2)
        bias = self.bias - self.slope.bias / (self.metric.bias * c)
        if mixing:
            self.mixing.add((self.weight, self.bias), (image, bias), self.metric)
            image, bias = self.mixing.mixed()
        self.at, self.at_bias = image, bias

    def apart(self, features: Features, first: Moments) -> list[_Batch]:
        """Probes of little loss with a metric for every tag, then the others; or all of them together."""
        columns, d, loss = len(self.members), len(self.weight), self.slope.loss
        k = int(loss.argsort()[int(LOW * columns)])
        near = loss <= NEAR * loss[k]
        if int(near.sum()) * features.classes < d / FEWEST_OF_WIDTH or features.classes * d * d > LARGEST:
            return [self]
        others, factor = copy(self), BOLD * self.c[:, k]
        others.keep((~near).nonzero()[:, 0])
        weight, bias = self.weight[..., k], self.bias[:, k]
        self.metric = of_tags(features, weight, bias, mean=first.mean, common=first.covariance, factor=factor)
        self.c = ((loss / loss[k]).sqrt() / BOLD).float().expand_as(self.c)
        self.mixing, self.trace, self.count = Mixing(columns), self.best[None].clone(), torch.ones_like(self.count)
        self.keep(near.nonzero()[:, 0])
        return [batch for batch in (self, others) if batch.members]


def solve(
    features: Features,
    penalties: Penalties,
    *,
    gap: float = 1e-2,
    passes: int = MOST_PASSES,
    forbidden: Tensor | None = None,
    first: Moments | None = None,
) -> Fit:
    """The probes of all penalties, each within `gap` of its optimum or after so many passes.

    The first gradient is that of every other chunk. `forbidden` (d, P) holds weights at 0, so that subsets of
    neurons are solved side by side too.
    """
    first = moments(features) if first is None else first
    free = penalties.l1 + penalties.l2 == 0
    if free.any() and forbidden is None and passes > COMMON_PASSES:
        return _with_unpenalised(features, penalties, free, gap, passes, first)
    d, pairs, classes = len(first.mean), len(penalties), features.classes
    root = first.shares.sqrt()
    c = (CURVATURE * root / (first.shares * root).sum()).clamp(LEAST, MOST)[:, None].expand(classes, pairs).clone()
    bias = first.shares.clamp(min=0.5 / len(features)).log()[:, None].expand(classes, pairs).clone()
    metric = Metric.common(first.covariance, classes)
    batch = _Batch([[k] for k in range(pairs)], penalties, torch.zeros(d, classes, pairs), bias, c, metric)
    nothing = -first.with_tags[:, :, None].expand(d, classes, pairs)
    batch.slope = Slope(batch.best, nothing, torch.zeros_like(bias))
    batch.step(forbidden)
    if forbidden is None:
        batch.join()
    if len(list(features.pieces())) > 1:
        batch.weight, batch.bias = batch.at, batch.at_bias
        batch.slope = slope(features, batch.at, batch.at_bias, mean=first.mean, skip=2)
        batch.step(forbidden)
    done = _Done(d, classes, pairs)
    if passes == 0:  # unmeasured: its objective is unknown
        batch.weight, batch.bias = batch.at, batch.at_bias
    batches = [batch]
    if _work(batch, done, features, first, forbidden, gap, min(passes, COMMON_PASSES)):
        batches = batch.apart(features, first) if batch.passes < passes else []
        for some in batches:
            some.split(gap)
            some.step(forbidden)
            _work(some, done, features, first, forbidden, gap, passes)
    return done.fit(first, max(some.passes for some in [batch, *batches]))


def _with_unpenalised(
    features: Features, penalties: Penalties, free: Tensor, gap: float, passes: int, first: Moments
) -> Fit:
    """The same, with the pairs that have no penalty solved apart from the others."""
    bias = first.shares.clamp(min=0.5 / len(features)).log()
    mean, covariance = first.mean, first.covariance
    found = unpenalised(features, bias, mean=mean, covariance=covariance, gap=gap, passes=passes)
    done = _Done(len(mean), features.classes, len(penalties))
    done.weight[..., free], done.bias[:, free] = found.weight[:, :, None], found.bias[:, None]
    done.objective[free] = found.losses[-1]
    done.gap[free], done.certified[free] = found.gap
    alone = done.fit(first, len(found.losses))
    if free.all():
        return alone
    rest = solve(features, penalties[~free], gap=gap, passes=passes, first=first)
    for name in ("weight", "bias", "objective", "gap", "certified"):
        getattr(alone, name)[..., ~free] = getattr(rest, name)
    return replace(alone, passes=max(alone.passes, rest.passes))


def _work(
    batch: _Batch,
    done: _Done,
    features: Features,
    first: Moments,
    forbidden: Tensor | None,
    gap: float,
    passes: int,
) -> bool:
    """Take passes until all probes are within the gap or so many are taken; whether some are left."""
    while batch.passes < passes and batch.members:
        batch.measure(slope(features, batch.at, batch.at_bias, mean=first.mean), first)
        ready = (batch.gap(gap)[0] + torch.tensor([max(e) for e in batch.extra()])) <= gap
        if ready.all() or ready.double().mean() > 1 - SHRINK:
            done.put(batch, ready.nonzero()[:, 0], gap)
            batch.keep((~ready).nonzero()[:, 0])
        if batch.members and batch.passes < passes:
            batch.split(gap)
            batch.step(forbidden)
    done.put(batch, torch.arange(len(batch.members)), gap)
    return bool(batch.members)


class _Done:
    """Finished probes, at centred features."""

    def __init__(self, d: int, classes: int, pairs: int) -> None:
        self.weight, self.bias = torch.zeros(d, classes, pairs), torch.zeros(classes, pairs)
        self.objective, self.gap = (torch.zeros(pairs, dtype=torch.float64) for _ in range(2))
        self.certified = torch.zeros(pairs, dtype=torch.bool)

    def put(self, batch: _Batch, which: Tensor, aim: float) -> None:
        (gap, certified), extra = batch.gap(aim), batch.extra()
        for k in which.tolist():
            for q, more in zip(batch.members[k], extra[k], strict=True):
                self.weight[..., q], self.bias[:, q] = batch.weight[..., k], batch.bias[:, k]
                self.objective[q], self.gap[q], self.certified[q] = batch.best[k] + more, gap[k] + more, certified[k]

    def fit(self, first: Moments, passes: int) -> Fit:
        moved = torch.einsum("d,dkp->kp", first.mean.double(), self.weight.double())
        bias = (self.bias - moved).float()
        return Fit(self.weight, bias, self.objective, self.gap, self.certified, passes)


def _narrow(found: Slope, which: Tensor) -> Slope:
    return Slope(found.loss[which], found.weight[..., which].contiguous(), found.bias[..., which])


def _norms(weight: Tensor) -> list[tuple[float, float]]:
    """Of every column, |W|_1 and |W|^2_2."""
    return list(zip(weight.abs().sum((0, 1)).tolist(), weight.square().sum((0, 1)).tolist(), strict=True))


def _more(grid: Penalties, p: int, q: int, norms: tuple[float, float]) -> float:
    """What weights of these norms cost pair q more than pair p."""
    return float(grid.l1[q] - grid.l1[p]) * norms[0] + float(grid.l2[q] - grid.l2[p]) * norms[1]


def _grouped(grid: Penalties, pairs: Iterable[int], more: Callable[[int, int], float], most: float) -> list[list[int]]:
    """Pairs that may share weights: the first of a group is weaker than each other, which pays at most so much more."""
    groups: list[list[int]] = []
    for q in sorted(pairs, key=lambda k: (float(grid.l1[k] + grid.l2[k]), float(grid.l1[k]))):
        for group in groups:
            p = group[0]
            if grid.l1[p] <= grid.l1[q] and grid.l2[p] <= grid.l2[q] and more(p, q) <= most:
                group.append(q)
                break
        else:
            groups.append([q])
    return groups
