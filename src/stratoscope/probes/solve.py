"""The probe solved to a stated gap, all penalties side by side.

Proximal gradient steps in a metric of the rows (`metric`: one covariance at first, then one for every tag), each by
sweeps of coordinate descent with soft thresholds, then mixed with the steps before (`proximal`, `mixing`). The factor
c of the metric is from the first steps' secants. The start has a gradient in closed form and needs no pass. Near
penalties share one column of weights until that costs a probe more than a pass gains. After some passes pairs of so
weak an l1 that |w| may be smoothed go on by L-BFGS (`quasi`).

The gap F - F* is at most the smaller of two numbers. One is certified: the distance to a feasible point of the dual
(see `lower_bound`; without penalties the loss itself). The other is estimated from how the objective falls (see
`_Batch._left`). Both are absolute, in nats per word. Where penalties are so weak that no dual point is near, only the
estimate is small; a fit says which of the two it is.
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
from stratoscope.probes.objective import Penalties, Point, Slope, slope
from stratoscope.probes.proximal import BOLD, Proximal
from stratoscope.probes.quasi import STIFF, QuasiNewton, Smoothing

CURVATURE, LEAST, MOST = 0.14, 0.02, 0.5
"""c_k = 0.14 sqrt(pi_k) / sum_k pi_k sqrt(pi_k) of tags of share pi_k, within these ends; then from secants."""
MOST_PASSES = 200
FLOOR = 1e-4
"""Of the metric, over the mean variance: weights must not run off where rows do not vary, as after LayerNorm."""
SHARED, EARLY = 0.4, 1.5
"""Probes share weights while that costs at most this share of the gap, or of what a pass now gains."""
START = 0.05
"""What sharing may cost after the first step, in nats per word."""
COMMON_PASSES, LOW, NEAR = 6, 0.3, 2.5
"""The pass after which probes get a metric for every tag: that of the probe at this quantile of losses, for probes of
at most so many times its loss."""
FEWEST_OF_WIDTH = 8
"""A metric for every tag pays where probes times tags are at least the neurons over this."""
RENEWED = 0.03
"""Share of the common metric in one that is made anew, per nat of loss: less than in the first, of larger errors."""
REMEMBERED = 4
"""Passes before L-BFGS that still count: its own begin from where these came to."""
FEWEST_PASSES, STEADY = 7, 2
"""Fewer passes do not tell how fast the objective falls, and so many in a row must tell it."""
MANY_PASSES, LATE = 16, 0.6
"""After many passes the last .4 of them tell it, before the last half."""
RECENT, FEWEST_RECENT = 8, 3
"""Which of the passes, and at least how many, tell what a pass now gains."""
CAUTION = 1.5
"""Of what a pass now gains: the fall may slow down first and then quicken, as where L-BFGS meets flat directions."""
SLOWEST = 0.75
"""Of the gain, from half to half."""
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

    def __init__(self, members: list[list[int]], grid: Penalties, best: Point, steps: Proximal | QuasiNewton) -> None:
        columns = len(members)
        self.members, self.grid, self.steps = members, grid, steps
        """Pairs of penalties that share a column, its own first: none is weaker than that in either penalty."""
        self.best, self.at = best, (best.weight, best.bias)
        """The best point so far, and where the slope is taken next."""
        self.low = torch.zeros(columns, dtype=torch.float64)
        """A lower bound of the optimum."""
        self.passes = 0
        self.trace, self.count = torch.zeros(0, columns, dtype=torch.float64), torch.zeros(columns, dtype=torch.long)
        """Best objectives, and how many: a pass without a better one is not counted."""

    @property
    def own(self) -> Tensor:
        return torch.tensor([group[0] for group in self.members], dtype=torch.long)

    @property
    def penalties(self) -> Penalties:
        return self.grid[self.own]

    def keep(self, which: Tensor) -> None:
        """Only these columns, some perhaps several times."""
        self.best, self.members = self.best.keep(which), [self.members[k] for k in which.tolist()]
        self.at = self.at[0][..., which].contiguous(), self.at[1][..., which].contiguous()
        for name in ("low", "trace", "count"):
            setattr(self, name, getattr(self, name)[..., which].contiguous())
        self.steps.keep(which)

    def some(self, which: Tensor) -> _Batch:
        """These columns apart from the others."""
        other = copy(self)
        other.steps = copy(self.steps)
        other.keep(which.nonzero()[:, 0])
        return other

    def extra(self) -> list[list[float]]:
        """For every column, how much more its weights cost each of its members than what its steps minimise.

        F_q(W) - F*_q <= (F_q(W) - F_p(W)) + (F_p(W) - F*_p) for penalties p <= q, since F*_p <= F*_q.
        """
        penalties, weight = self.penalties, self.best.weight
        rounded = (penalties.of(weight) - self.steps.cost(penalties, weight)).tolist()
        norms = _norms(weight)
        return [
            [rounded[k] + _more(self.grid, group[0], q, norms[k]) for q in group]
            for k, group in enumerate(self.members)
        ]

    def join(self) -> None:
        """Let pairs share the first step of a weaker one where that costs little."""
        norms = _norms(self.at[0])
        groups = _grouped(self.grid, range(len(self.members)), lambda p, q: _more(self.grid, p, q, norms[p]), START)
        self.keep(torch.tensor([group[0] for group in groups]))
        self.members = groups

    def split(self, gap: float) -> None:
        """Columns of their own for members that now lose too much by sharing."""
        best = self.best.value
        gains = (self._before(self.count - 3) - best) / 2 if self.passes > 1 else torch.full_like(best, START)
        columns, members = [], []
        for k, (group, norms) in enumerate(zip(self.members, _norms(self.best.weight), strict=True)):
            more = partial(_more, self.grid, norms=norms)
            for part in _grouped(self.grid, group, more, max(SHARED * gap, EARLY * float(gains[k]))):
                columns.append(k)
                members.append(part)
        if len(columns) > len(self.members):
            self.regroup(columns, members)

    def regroup(self, columns: list[int], members: list[list[int]]) -> None:
        """These members, each group with a copy of one of the columns."""
        self.keep(torch.tensor(columns))
        self.members = members
        value = self.best.slope.loss + self.steps.cost(self.penalties, self.best.weight)
        above = value - self.best.value
        self.best = replace(self.best, value=value)
        self.trace = self.trace + 2 * above  # it was not their objective that fell: what it gained counts twice
        self.trace.scatter_(0, self.count[None] - 1, value[None])

    def _before(self, count: Tensor) -> Tensor:
        """(P,) the best objective of this number."""
        return self.trace.gather(0, count.clamp(min=0)[None])[0]

    def gap(self, aim: float) -> tuple[Tensor, Tensor]:
        """(P,) the certified gap where it is within the aim, else the smaller of both; and whether it is certified."""
        bound = self.best.value - self.low
        if not self.passes:
            return bound, torch.ones_like(bound, dtype=torch.bool)
        left = torch.stack([self._left(self.count - back) for back in range(STEADY)]).amax(0)
        certified = (bound <= aim) | (bound <= left) | (self.count < FEWEST_PASSES)
        return torch.where(certified, bound, left), certified

    def _left(self, count: Tensor) -> Tensor:
        """(P,) what so many passes leave to gain; 0 after too few.

        Were errors e to fall as passes^-a, e would be what the second half of the passes gained at a = 1, what the
        last .4 gained at a = 1.36, and passes times what one now gains at a = 1. Where they fall slower than at a = 1,
        as after many passes a half and the one before show, it is more.
        """
        recent = (count // RECENT).clamp(min=FEWEST_RECENT)
        many = count >= MANY_PASSES
        late = torch.where(many, (LATE * count).long(), count // 2)
        now, half, quarter = (self._before(n - 1) for n in (count, count // 2, (count + 3) // 4))
        falls = torch.where(many, (half - now) / (quarter - half).clamp(min=1e-30), 0.5).clamp(max=SLOWEST)
        rate = (self._before(count - recent - 1) - now) / recent
        gained = torch.maximum(self._before(late - 1) - now, CAUTION * rate * count)
        return torch.where(count < FEWEST_PASSES, 0.0, gained * (falls / (1 - falls)).clamp(min=1))

    def measure(self, slope: Slope, first: Moments) -> None:
        """Take in the slope at `at`: the best point and the bound."""
        penalties, (weight, bias) = self.penalties, self.at
        tried = Point(weight, bias, slope.loss + self.steps.cost(penalties, weight), slope)
        self.low = torch.maximum(self.low, lower_bound(weight, bias, slope, first, penalties))
        risen = self.steps.judge(self.best, tried)
        self.best = tried.replaced(risen, self.best) if risen.any() else tried
        self.passes += 1
        self.trace = torch.cat([self.trace, torch.zeros_like(self.best.value[None])])
        self.trace.scatter_(0, self.count[None], self.best.value[None])
        self.count = self.count + (~risen | self.steps.stuck)

    def step(self) -> None:
        self.at = self.steps.next(self.best, self.penalties)

    def renew(self, features: Features, first: Moments) -> None:
        """A metric for every tag made anew where the steps' has become old and enough probes are left."""
        steps, loss = self.steps, self.best.slope.loss
        if isinstance(steps, QuasiNewton) and steps.old and _pays(len(loss), features.classes, len(first.mean)):
            k = int(loss.argsort()[int(LOW * len(loss))])
            at, factor = (self.best.weight[..., k], self.best.bias[:, k]), torch.full_like(first.shares, float(loss[k]))
            steps.renew(of_tags(features, *at, mean=first.mean, common=first.covariance, factor=RENEWED * factor))

    def apart(self, features: Features, first: Moments, gap: float) -> list[_Batch]:
        """Probes of weak l1 by L-BFGS, others of little loss with a metric for every tag, then the rest."""
        steps, loss, d, classes = self.steps, self.best.slope.loss, len(first.mean), features.classes
        assert isinstance(steps, Proximal)
        k = int(loss.argsort()[int(LOW * len(loss))])
        usual, most, factor = float(loss[k]), NEAR * float(loss[k]), BOLD * steps.c[:, k]
        pays = _pays(int((loss <= most).sum()), classes, d)
        if pays:
            at = self.best.weight[..., k], self.best.bias[:, k]
            metric = of_tags(features, *at, mean=first.mean, common=first.covariance, factor=factor)
        else:
            metric = Metric(first.covariance[None] * factor.mean(), factor[:, None])
        smoothing = Smoothing(gap, d * classes)
        weak = smoothing.stiffness(self.grid.l1) <= STIFF * metric.matrices.diagonal(dim1=1, dim2=2).mean()
        if steps.forbidden is not None:
            weak[:] = False
        self._by_kind(weak)
        weak, near = weak[self.own], self.best.slope.loss <= most
        batches = [
            self._quasi(weak & near if pays else weak, metric, smoothing),
            self._anew(~weak & near & pays, metric, usual),
            self.some(~near if pays else ~weak),
        ]
        return [batch for batch in batches if batch.members]

    def _by_kind(self, weak: Tensor) -> None:
        """Columns whose members are all weak or all not."""
        columns, members = [], []
        for k, group in enumerate(self.members):
            for kind in (True, False):
                for part in _grouped(self.grid, [q for q in group if bool(weak[q]) == kind], lambda *_: 0.0, 0.0):
                    columns.append(k)
                    members.append(part)
        self.regroup(columns, members)

    def _quasi(self, which: Tensor, metric: Metric, smoothing: Smoothing) -> _Batch:
        batch = self.some(which)
        if batch.members:
            batch.steps = QuasiNewton(metric, smoothing, batch.best, batch.penalties)
            last = (batch.count - REMEMBERED)[None] + torch.arange(REMEMBERED)[:, None]
            batch.trace = batch.trace.gather(0, last.clamp(min=0))
            batch.count = torch.full_like(batch.count, REMEMBERED)
            batch.regroup(list(range(len(batch.members))), batch.members)
        return batch

    def _anew(self, which: Tensor, metric: Metric, usual: float) -> _Batch:
        batch = self.some(which)
        c = ((batch.best.slope.loss / usual).sqrt() / BOLD).float().expand(metric.bias.shape[0], -1)
        forbidden = batch.steps.forbidden if isinstance(batch.steps, Proximal) else None
        batch.steps = Proximal(metric, c, passes=batch.passes, forbidden=forbidden)
        batch.trace, batch.count = batch.best.value[None].clone(), torch.ones_like(batch.count)
        return batch


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
    unknown = torch.full((pairs,), torch.inf, dtype=torch.float64)
    nothing = Slope(unknown, -first.with_tags[:, :, None].expand(d, classes, pairs), torch.zeros_like(bias))
    steps = Proximal(Metric.common(first.covariance, classes), c, forbidden=forbidden)
    start = Point(torch.zeros(d, classes, pairs), bias, unknown, nothing)
    batch = _Batch([[k] for k in range(pairs)], penalties, start, steps)
    batch.step()
    if forbidden is None:
        batch.join()
    if len(list(features.pieces())) > 1:
        half = slope(features, *batch.at, mean=first.mean, skip=2)
        batch.best = Point(*batch.at, torch.full_like(half.loss, torch.inf), half)
        batch.step()
    done = _Done(d, classes, pairs)
    if passes == 0:  # unmeasured: its objective is unknown
        batch.best = replace(batch.best, weight=batch.at[0], bias=batch.at[1])
    batches = [batch]
    if _work(batch, done, features, first, gap, min(passes, COMMON_PASSES)):
        batches = batch.apart(features, first, gap) if batch.passes < passes else []
        for some in batches:
            some.split(gap)
            some.step()
            _work(some, done, features, first, gap, passes)
    return done.fit(first, max(some.passes for some in [batch, *batches]))


def _work(batch: _Batch, done: _Done, features: Features, first: Moments, gap: float, passes: int) -> bool:
    """Take passes until all probes are within the gap or so many are taken; whether some are left."""
    while batch.passes < passes and batch.members:
        batch.measure(slope(features, *batch.at, mean=first.mean), first)
        ready = (batch.gap(gap)[0] + torch.tensor([max(e) for e in batch.extra()])) <= gap
        if ready.all() or ready.double().mean() > 1 - SHRINK:
            done.put(batch, ready.nonzero()[:, 0], gap)
            batch.keep((~ready).nonzero()[:, 0])
        if batch.members and batch.passes < passes:
            batch.split(gap)
            batch.renew(features, first)
            batch.step()
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
                self.weight[..., q], self.bias[:, q] = batch.best.weight[..., k], batch.best.bias[:, k]
                self.objective[q] = batch.best.value[k] + more
                self.gap[q], self.certified[q] = gap[k] + more, certified[k]

    def fit(self, first: Moments, passes: int) -> Fit:
        moved = torch.einsum("d,dkp->kp", first.mean.double(), self.weight.double())
        bias = (self.bias - moved).float()
        return Fit(self.weight, bias, self.objective, self.gap, self.certified, passes)


def _pays(probes: int, classes: int, d: int) -> bool:
    """Whether a metric for every tag is worth its time and has room."""
    return probes * classes >= d / FEWEST_OF_WIDTH and classes * d * d <= LARGEST


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
