"""The probe solved to a stated gap, all penalties side by side.

Proximal gradient steps in the metric c_k S of the rows' covariance S (a bound of the curvature up to c: Boehning 1992),
each solved by sweeps of coordinate descent with soft thresholds, then mixed with the steps before (`mixing`: Anderson
acceleration; two thirds of the passes of momentum). c is from the first steps' secants. The start has a gradient
in closed form and needs no pass.

The gap F - F* is at most the smaller of two numbers. One is certified: the distance to a feasible point of the dual
(see `lower_bound`). The other is what the second half of the passes gained: an upper estimate wherever the error
falls at least as fast as 1 / passes, as it does for proximal gradient. Both are absolute, in nats per word. Where
penalties are so weak that no dual point is near (the optimum may be at infinity), only the estimate is small; a fit
says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stratoscope.probes.features import Features
from stratoscope.probes.mixing import Mixing
from stratoscope.probes.objective import Penalties, Slope, slope

SWEEPS, COORDINATES = 3, 64
"""Sweeps of coordinate descent in a step, and coordinates whose residuals are updated together."""
CURVATURE, LEAST, MOST = 0.14, 0.02, 0.5
"""c_k = 0.14 sqrt(pi_k) / sum_k pi_k sqrt(pi_k) of tags of share pi_k, within these ends; then from secants."""
MOST_PASSES = 200
FLOOR = 1e-4
"""Of the metric, over the mean variance: weights must not run off where rows do not vary, as after LayerNorm."""
BACK_OFF = 1.5
"""By how much c grows after a rise."""
SHARED, EARLY = 0.4, 1.0
"""Probes share weights while that costs at most this share of the gap, or of what a pass now gains."""
START = 0.03
"""What sharing may cost after the first step, in nats per word."""
SECANT_PASSES, BOLD = 2, 0.6
"""Passes after which c stays, and by how much it is then less, because steps are mixed."""
ROUNDING = 1e-7
"""Of an objective."""
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


def descend_(weight: Tensor, covariance: Tensor, linear: Tensor, l1: Tensor, l2: Tensor) -> Tensor:
    """Sweeps of coordinate descent on 1/2 w'Sw - <linear, w> + l1 |w| + l2 w^2, in place; everything already over c.

    `weight` and `linear` are (d, K P), `l2` (1, K P) and `l1` (1 or d, K P), infinite where a weight must stay 0.
    """
    d, diagonal = len(weight), covariance.diagonal().tolist()
    inverse = (covariance.diagonal()[:, None] + 2 * l2).clamp_(min=1e-30).reciprocal_()
    low, high = -l1.expand(d, -1), l1.expand(d, -1)
    for _ in range(SWEEPS):
        for a in range(0, d, COORDINATES):
            b = min(a + COORDINATES, d)
            residual = linear[a:b] - covariance[a:b] @ weight
            for j in range(a, b):
                old = weight[j]
                u = torch.add(residual[j - a], old, alpha=diagonal[j])
                moved = u.sub_(torch.clamp(u, low[j], high[j])).mul_(inverse[j])  # soft threshold
                if j + 1 < b:
                    residual[j + 1 - a :].addr_(covariance[j + 1 : b, j], moved - old, alpha=-1)
                old.copy_(moved)
    return weight


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

    def __init__(self, members: list[list[int]], grid: Penalties, weight: Tensor, bias: Tensor, c: Tensor) -> None:
        columns = len(members)
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
        self.trace: list[Tensor] = []
        """Best objective after each pass."""
        self.mixing = Mixing(columns)
        self.risen = torch.zeros(columns, dtype=torch.bool)
        """Whether the last point tried was worse: its probe takes a plain step from the best one."""

    @property
    def penalties(self) -> Penalties:
        return self.grid[torch.tensor([group[0] for group in self.members], dtype=torch.long)]

    def keep(self, which: Tensor) -> None:
        """Only these columns, some perhaps several times."""
        self.slope, self.members = _narrow(self.slope, which), [self.members[k] for k in which.tolist()]
        for name in ("c", "at", "at_bias", "weight", "bias", "best", "low", "risen"):
            setattr(self, name, getattr(self, name)[..., which].contiguous())
        self.trace = [t[which] for t in self.trace]
        self.mixing.keep(which)

    def extra(self) -> list[list[float]]:
        """For every column, how much more its weights cost each of its members than its own pair.

        F_q(W) - F*_q <= (F_q(W) - F_p(W)) + (F_p(W) - F*_p) for penalties p <= q, since F*_p <= F*_q.
        """
        size, square = (v.sum((0, 1)).tolist() for v in (self.weight.abs(), self.weight.square()))
        return [
            [_more(self.grid, group[0], q, a, b) for q in group]
            for group, a, b in zip(self.members, size, square, strict=True)
        ]

    def join(self) -> None:
        """Let pairs share the first step of a weaker one where that costs little."""
        size, square = (v.sum((0, 1)).tolist() for v in (self.at.abs(), self.at.square()))
        groups: list[list[int]] = []
        order = sorted(range(len(self.members)), key=lambda k: float(self.grid.l1[k] + self.grid.l2[k]))
        for q in order:
            for group in groups:
                p = group[0]
                weaker = self.grid.l1[p] <= self.grid.l1[q] and self.grid.l2[p] <= self.grid.l2[q]
                if weaker and _more(self.grid, p, q, size[p], square[p]) <= START:
                    group.append(q)
                    break
            else:
                groups.append([q])
        self.keep(torch.tensor([group[0] for group in groups]))
        self.members = groups

    def split(self, gap: float) -> None:
        """Columns of their own for members that now lose too much by sharing."""
        passes = len(self.trace)
        gains = (self.trace[max(passes - 3, 0)] - self.best) / 2 if passes > 1 else torch.full_like(self.best, START)
        size, square = (v.sum((0, 1)).tolist() for v in (self.weight.abs(), self.weight.square()))
        columns, members, lost = [], [], []
        for k, group in enumerate(self.members):
            most = max(SHARED * gap, EARLY * float(gains[k]))
            for part in _grouped(self.grid, group, size[k], square[k], most):
                columns.append(k)
                members.append(part)
                lost.append(_more(self.grid, group[0], part[0], size[k], square[k]))
        if len(columns) == len(self.members):
            return
        self.keep(torch.tensor(columns))
        self.members, more = members, torch.tensor(lost, dtype=torch.float64)
        self.best = self.best + more
        self.trace = [t + 2 * more for t in self.trace[:-1]] + [self.best] * (passes > 0)

    def gap(self, aim: float) -> tuple[Tensor, Tensor]:
        """(P,) the certified gap where it is within the aim, else the smaller of both; and whether it is certified."""
        bound, passes = self.best - self.low, len(self.trace)
        if passes < FEWEST_PASSES:
            return bound, torch.ones_like(bound, dtype=torch.bool)
        gained = self.trace[passes // 2 - 1] - self.best
        certified = (bound <= aim) | (bound <= gained)
        return torch.where(certified, bound, gained), certified

    def measure(self, slope: Slope, first: Moments) -> None:
        """Take in the slope at `at`: the best point, the bound, and c from the secant while weights grow fast."""
        value = slope.loss + self.penalties.of(self.at)
        self.low = torch.maximum(self.low, lower_bound(self.at, self.at_bias, slope, first, self.penalties))
        again, self.risen = self.risen, value > self.best + ROUNDING
        if self.trace:
            self.c = self.c * self._bend(slope, first) if len(self.trace) < SECANT_PASSES else self.c
            self.c = torch.where(self.risen & (again | (len(self.trace) < SECANT_PASSES)), self.c * BACK_OFF, self.c)
            self.mixing.forget(self.risen)
        self.weight, self.bias, self.best, self.slope = (
            (self.at, self.at_bias, value, slope) if not self.risen.any() else self._best_of(value, slope)
        )
        self.trace.append(self.best)

    def _best_of(self, value: Tensor, slope: Slope) -> tuple[Tensor, Tensor, Tensor, Slope]:
        old = self.slope
        slope = Slope(
            torch.where(self.risen, old.loss, slope.loss),
            torch.where(self.risen, old.weight, slope.weight),
            torch.where(self.risen, old.bias, slope.bias),
        )
        weight, bias = torch.where(self.risen, self.weight, self.at), torch.where(self.risen, self.bias, self.at_bias)
        return weight, bias, torch.where(self.risen, self.best, value), slope

    def _bend(self, slope: Slope, first: Moments) -> Tensor:
        """(P,) curvature along the last step over that of the metric."""
        step, bias = self.at - self.weight, self.at_bias - self.bias
        metric = (first.covariance @ step.view(len(step), -1)).view_as(step).mul_(step).sum(0) + bias.square()
        bent = step.mul_(slope.weight - self.slope.weight).sum(0) + bias * (slope.bias - self.slope.bias)
        return (bent.sum(0) / (self.c * metric).sum(0).clamp(min=1e-30)).nan_to_num(1.0).clamp(0.7, 1.5)

    def step(self, first: Moments, forbidden: Tensor | None) -> None:
        """A proximal step from the best point, mixed with those before."""
        d, classes, pairs = self.weight.shape
        c = self.c if len(self.trace) < SECANT_PASSES else BOLD * self.c
        flat, over = self.weight.view(d, -1), c.view(1, -1)
        linear = (first.covariance @ flat).sub_(self.slope.weight.reshape(d, -1) / over)
        l1, l2 = (v.expand(classes, pairs).reshape(1, -1) / over for v in (self.penalties.l1, self.penalties.l2))
        if forbidden is not None:
            own = torch.tensor([group[0] for group in self.members])
            l1 = torch.where(forbidden[:, None, own], torch.inf, l1.view(1, classes, pairs)).view(d, -1)
        image = descend_(flat.clone(), first.covariance, linear, l1, l2).view_as(self.weight)
        bias = self.bias - self.slope.bias / c
        if len(self.trace) < SECANT_PASSES:
            self.at, self.at_bias = image, bias
            return
        self.mixing.add((self.weight, self.bias), (image, bias), first.covariance)
        self.at, self.at_bias = self.mixing.mixed()


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
    d, pairs, classes = len(first.mean), len(penalties), features.classes
    root = first.shares.sqrt()
    c = (CURVATURE * root / (first.shares * root).sum()).clamp(LEAST, MOST)[:, None].expand(classes, pairs).clone()
    bias = first.shares.clamp(min=0.5 / len(features)).log()[:, None].expand(classes, pairs).clone()
    batch = _Batch([[k] for k in range(pairs)], penalties, torch.zeros(d, classes, pairs), bias, c)
    nothing = -first.with_tags[:, :, None].expand(d, classes, pairs)
    batch.slope = Slope(batch.best, nothing, torch.zeros_like(bias))
    batch.step(first, forbidden)
    if forbidden is None:
        batch.join()
    if len(list(features.pieces())) > 1:
        batch.weight, batch.bias = batch.at, batch.at_bias
        batch.slope = slope(features, batch.at, batch.at_bias, mean=first.mean, skip=2)
        batch.step(first, forbidden)
    done = _Done(d, classes, pairs)
    if passes == 0:  # unmeasured: its objective is unknown
        batch.weight, batch.bias = batch.at, batch.at_bias
    used = 0
    while used < passes and batch.members:
        batch.measure(slope(features, batch.at, batch.at_bias, mean=first.mean), first)
        used += 1
        if used == passes:
            break
        ready = (batch.gap(gap)[0] + torch.tensor([max(e) for e in batch.extra()])) <= gap
        if ready.all() or ready.double().mean() > 1 - SHRINK:
            done.put(batch, ready.nonzero()[:, 0], gap)
            batch.keep((~ready).nonzero()[:, 0])
        if batch.members:
            batch.split(gap)
            batch.step(first, forbidden)
    done.put(batch, torch.arange(len(batch.members)), gap)
    return done.fit(first, used)


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


def _more(grid: Penalties, p: int, q: int, size: float, square: float) -> float:
    """What weights of these norms cost pair q more than pair p."""
    return float(grid.l1[q] - grid.l1[p]) * size + float(grid.l2[q] - grid.l2[p]) * square


def _grouped(grid: Penalties, pairs: list[int], size: float, square: float, most: float) -> list[list[int]]:
    """Pairs that may share weights of these norms: the first of each group is weaker than the others, by at most
    `most`."""
    groups: list[list[int]] = []
    for q in sorted(pairs, key=lambda k: (float(grid.l1[k] + grid.l2[k]), float(grid.l1[k]))):
        for group in groups:
            p = group[0]
            weaker = grid.l1[p] <= grid.l1[q] and grid.l2[p] <= grid.l2[q]
            if weaker and _more(grid, p, q, size, square) <= most:
                group.append(q)
                break
        else:
            groups.append([q])
    return groups
