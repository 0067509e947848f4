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
SHARED = 0.2
"""Share of the gap that a probe may take from using the weights of a weaker penalty's."""
SHARED_AFTER, GROWTH = 1, 4.0
"""The pass after which that is decided, and how much larger weights may still become."""
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
    """The pairs still worked on: everything with a last axis of pairs shrinks together."""

    def __init__(self, index: Tensor, weight: Tensor, bias: Tensor, c: Tensor, penalties: Penalties) -> None:
        pairs = len(index)
        self.index, self.penalties, self.c = index, penalties, c
        self.at, self.at_bias = weight, bias
        """Where the gradient is taken next."""
        self.weight, self.bias = weight, bias
        """The best point so far, with its slope and its objective."""
        self.slope = Slope(torch.zeros(pairs), torch.zeros(0, 0, pairs), torch.zeros(0, pairs))
        self.best = torch.full((pairs,), torch.inf, dtype=torch.float64)
        self.low = torch.zeros(pairs, dtype=torch.float64)
        """A lower bound of the optimum."""
        self.trace: list[Tensor] = []
        """Best objective after each pass."""
        self.mixing = Mixing(pairs)
        self.risen = torch.zeros(pairs, dtype=torch.bool)
        """Whether the last point tried was worse: its probe takes a plain step from the best one."""

    def keep(self, which: Tensor) -> None:
        self.penalties, self.slope = self.penalties[which], _narrow(self.slope, which)
        for name in ("index", "c", "at", "at_bias", "weight", "bias", "best", "low", "risen"):
            setattr(self, name, getattr(self, name)[..., which].contiguous())
        self.trace = [t[which] for t in self.trace]
        self.mixing.keep(which)

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
            l1 = torch.where(forbidden[:, None, self.index], torch.inf, l1.view(1, classes, pairs)).view(d, -1)
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
    batch = _Batch(torch.arange(pairs), torch.zeros(d, classes, pairs), bias, c, penalties)
    nothing = -first.with_tags[:, :, None].expand(d, classes, pairs)
    batch.slope = Slope(batch.best, nothing, torch.zeros_like(bias))
    batch.step(first, forbidden)
    if len(list(features.pieces())) > 1:
        batch.weight, batch.bias = batch.at, batch.at_bias
        batch.slope = slope(features, batch.at, batch.at_bias, mean=first.mean, skip=2)
        batch.step(first, forbidden)
    done = _Done(d, classes, pairs)
    if passes == 0:  # unmeasured: its objective is unknown
        batch.weight, batch.bias = batch.at, batch.at_bias
    used = _solve(batch, done, features, first, forbidden, gap, passes, share=forbidden is None)
    return done.fit(first, used)


class _Done:
    """Finished probes, at centred features."""

    def __init__(self, d: int, classes: int, pairs: int) -> None:
        self.weight, self.bias = torch.zeros(d, classes, pairs), torch.zeros(classes, pairs)
        self.objective, self.gap = (torch.zeros(pairs, dtype=torch.float64) for _ in range(2))
        self.certified = torch.zeros(pairs, dtype=torch.bool)

    def put(self, batch: _Batch, which: Tensor, aim: float) -> None:
        index, (gap, certified) = batch.index[which], batch.gap(aim)
        self.weight[..., index], self.bias[:, index] = batch.weight[..., which], batch.bias[:, which]
        self.objective[index], self.gap[index], self.certified[index] = batch.best[which], gap[which], certified[which]

    def fit(self, first: Moments, passes: int) -> Fit:
        moved = torch.einsum("d,dkp->kp", first.mean.double(), self.weight.double())
        bias = (self.bias - moved).float()
        return Fit(self.weight, bias, self.objective, self.gap, self.certified, passes)


def _solve(
    batch: _Batch,
    done: _Done,
    features: Features,
    first: Moments,
    forbidden: Tensor | None,
    gap: float,
    passes: int,
    *,
    share: bool,
) -> int:
    """Work until every pair is within the gap; pairs that a weaker penalty's weights serve wait for them."""
    served: dict[int, int] = {}
    used, aim = 0, gap
    all_penalties = {
        int(k): (float(a), float(b))
        for k, a, b in zip(batch.index, batch.penalties.l1, batch.penalties.l2, strict=True)
    }
    while used < passes and len(batch.index):
        batch.measure(slope(features, batch.at, batch.at_bias, mean=first.mean), first)
        used += 1
        if used == passes:
            break
        if share and used == SHARED_AFTER:
            served = _served(batch, SHARED * gap)
            aim = gap * (1 - SHARED)
            batch.keep(torch.tensor([int(k) not in served for k in batch.index]))
        ready = batch.gap(aim)[0] <= aim
        if ready.all() or ready.float().mean() > 1 - SHRINK:
            done.put(batch, ready, aim)
            batch.keep(~ready)
        if len(batch.index):
            batch.step(first, forbidden)
    done.put(batch, torch.ones(len(batch.index), dtype=torch.bool), aim)
    rest = []
    for k, of in served.items():
        more = [a - b for a, b in zip(all_penalties[k], all_penalties[of], strict=True)]
        extra = Penalties.one(*more).of(done.weight[..., of : of + 1])[0]
        done.weight[..., k], done.bias[:, k] = done.weight[..., of], done.bias[:, of]
        done.objective[k], done.gap[k] = done.objective[of] + extra, done.gap[of] + extra
        done.certified[k] = done.certified[of]
        if done.gap[k] > gap:
            rest.append(k)
    if rest and used < passes:
        index = torch.tensor(rest)
        l1, l2 = (torch.tensor([all_penalties[k][i] for k in rest]) for i in (0, 1))
        c = first.shares.new_full((features.classes, len(rest)), CURVATURE)
        again = _Batch(index, done.weight[..., index], done.bias[:, index], c, Penalties(l1, l2))
        again.low = torch.where(done.certified[index], done.objective[index] - done.gap[index], 0.0)
        used += _solve(again, done, features, first, forbidden, gap, passes - used, share=False)
    return used


def _narrow(found: Slope, which: Tensor) -> Slope:
    return Slope(found.loss[which], found.weight[..., which].contiguous(), found.bias[..., which])


def _served(batch: _Batch, most: float) -> dict[int, int]:
    """Pairs (of the whole grid) whose penalty of a weaker pair's weights is at most `most` above that pair's own.

    F_q(W_p) - F*_q <= (F_q(W_p) - F_p(W_p)) + (F_p(W_p) - F*_p) for penalties p <= q, since F*_p <= F*_q.
    """
    size = batch.weight.abs().sum((0, 1)).tolist()
    square = batch.weight.square().sum((0, 1)).tolist()
    pairs: Sequence[tuple[float, float]] = list(
        zip(batch.penalties.l1.tolist(), batch.penalties.l2.tolist(), strict=True)
    )
    order = sorted(range(len(pairs)), key=lambda k: (sum(pairs[k]), pairs[k]))
    served: dict[int, int] = {}
    for place, q in enumerate(order):
        for p in order[:place]:
            more = [b - a for a, b in zip(pairs[p], pairs[q], strict=True)]
            if int(batch.index[p]) in served or min(more) < 0:
                continue
            if more[0] * GROWTH * size[p] + more[1] * GROWTH**2 * square[p] <= most:
                served[int(batch.index[q])] = int(batch.index[p])
                break
    return served
