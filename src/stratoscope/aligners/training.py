"""Networks fitted to paired rows: started from an exact linear map, trained for seconds, best on held-out rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stratoscope.aligners.linear import Space, products, ridge, rotation
from stratoscope.aligners.maps import Map
from stratoscope.aligners.networks import Flow, Free, Network, PaperFlow, PaperFree, xavier_
from stratoscope.core.errors import StratoscopeError


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    steps: int = 300
    batch: int = 256
    lr: float = 5e-3
    linear_lr: float = 1e-3
    """Of the dense layer, which starts near its best."""
    decay: float = 1e-2
    warmup: float = 0.1
    every: int = 20
    """Steps between looks at the held-out rows."""

    def rate(self, step: int) -> float:
        """Warm-up, then half a cosine, as a share of the learning rate."""
        rise = max(1, round(self.warmup * self.steps))
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, self.steps - rise)))


NARROW, NARROW_STEPS = 64, 600
"""Spaces of few features are bent more than a linear map shows, and gain from twice as many steps; wide ones do not."""
MOST_CONDITION = 1e3
"""Condition number of the dense layer at its start: an inverse in float32 then keeps four digits."""
PAPER_STEPS, PAPER_BATCH, PAPER_RATE, PAPER_GAMMA = 3000, 32, 1e-6, 0.99
"""Adam, its rate times γ after every step: over the whole schedule a weight moves by 1e-4 at most."""


class Dense(nn.Module):
    """A dense linear layer and a network behind it."""

    def __init__(self, weight: Tensor, network: Network) -> None:
        super().__init__()
        self.weight, self.network = nn.Parameter(weight), network

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.network(x @ self.weight)
        return found


def fit_network(method: str, x: Space, y: Space, *, seed: int = 0, schedule: Schedule | None = None) -> Map:
    """An `inn` or `mlp` fitted to the rows of two spaces, started from the best linear map of its kind.

    The start is fitted without the held-out rows, which then tell whether training helps. Where it does not, the map
    is the linear start, fitted on all rows.
    """
    scale_x, scale_y = (_scale(s, name) for s, name in ((x, "first"), (y, "second")))
    default = Schedule(steps=NARROW_STEPS) if x.width <= NARROW else Schedule()
    zx, zy = x.centred.float() / scale_x, y.centred.float() / scale_y
    for last in (False, True):
        a, b = (x, y) if last else (x.without_held(seed), y.without_held(seed))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network: Network = Flow(x.width) if method == "inn" else Free(x.width, y.width)
        if isinstance(network, Flow):
            start, best = shrunk_ridge(a, b)
            model = Dense((start * scale_x / scale_y).float(), network)
        else:
            assert isinstance(network, Free)
            m, best = ridge(a, products(a, b.centred))
            network.linear.weight.data = (a.drop @ m * scale_x / scale_y).T.float()
            model = Dense(torch.eye(x.width), network)
            model.weight.requires_grad_(False)
        if not last:
            chosen = train(model, zx, zy, x.held, schedule or default, seed=seed)
            if chosen["best_step"]:
                break
    network, weight = network.double().eval().requires_grad_(False), model.weight.detach().double()
    return Map(method, x.basis.mean, y.basis.mean, weight, network, scale_x, scale_y, {**chosen, "lambda": best})


def shrunk_ridge(x: Space, y: Space) -> tuple[Tensor, float]:
    """A = argmin ‖y - x A‖²/n + λ‖A - R‖², and λ; R the scaled rotation of x onto y: ridge on what R leaves over.

    λ is that with the least error on held-out rows, or the least from there on that gives a well-conditioned A: plain
    ridge sends directions of little variance almost to nothing, which no inverse brings back.
    """
    r = rotation(x, y)
    p = products(x, y.centred - (x.centred @ r.to(x.centred.dtype)))
    m, best = ridge(x, p)
    floor, there = float(x.variance.sum() / x.width) * 1e-10, x.variance > 0
    raw = m * torch.where(there, (x.variance + best) / torch.where(there, x.variance, 1.0), 0.0)[:, None]
    while True:
        weight = r + x.drop @ (raw * (x.variance / (x.variance + best))[:, None])
        values = torch.linalg.svdvals(weight)
        if float(values[0]) <= MOST_CONDITION * float(values[-1]):
            return weight, best
        best = max(best, floor) * 3


def train(model: Dense, x: Tensor, y: Tensor, held: Tensor, schedule: Schedule, *, seed: int) -> dict[str, float | int]:
    """Minimise the mean squared error with AdamW; the weights with the least one on held-out rows are kept."""
    generator = torch.Generator().manual_seed(seed)
    (fx, fy), (hx, hy) = ((x[part], y[part]) for part in (~held, held))
    dense, rest = [model.weight], list(model.network.parameters())
    groups = [{"params": rest, "lr": schedule.lr}]
    groups += [{"params": dense, "lr": schedule.linear_lr, "weight_decay": 0.0}] if model.weight.requires_grad else []
    optimizer = torch.optim.AdamW(groups, weight_decay=schedule.decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.rate)

    def error() -> float:
        with torch.no_grad():
            return float(nn.functional.mse_loss(model(hx), hy))

    first = least = error()
    best, at = _copy(model), 0
    order = torch.empty(0, dtype=torch.long)
    for step in range(1, schedule.steps + 1):
        if len(order) < min(schedule.batch, len(fx)):
            order = torch.randperm(len(fx), generator=generator)
        batch, order = order[: schedule.batch], order[schedule.batch :]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(fx[batch]), fy[batch]).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % schedule.every == 0 or step == schedule.steps:
            now = error()
            if now < least:
                least, best, at = now, _copy(model), step
    model.load_state_dict(best)
    return {"steps": schedule.steps, "best_step": at, "held_out_start": first, "held_out": least}


def fit_paper(method: str, x: Space, y: Space, *, seed: int = 0, steps: int = PAPER_STEPS) -> Map:
    """The network and schedule of Ren et al. 2023 as published: rows as they are, Xavier weights, Adam at 1e-6."""
    network: Network = PaperFlow(x.width) if method == "inn" else PaperFree(x.width, y.width)
    generator = torch.Generator().manual_seed(seed)
    xavier_(network, generator)
    fx, fy = x.rows.float(), y.rows.float()
    optimizer = torch.optim.Adam(network.parameters(), lr=PAPER_RATE)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=PAPER_GAMMA)
    for _ in range(steps):
        batch = torch.randint(len(fx), (PAPER_BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(network(fx[batch]), fy[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    network = network.double().eval().requires_grad_(False)
    zero_x, zero_y = (torch.zeros(s.width, dtype=torch.float64) for s in (x, y))
    chosen = {"paper": True, "steps": steps}
    return Map(method, zero_x, zero_y, torch.eye(x.width, dtype=torch.float64), network, chosen=chosen)


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}


def _scale(space: Space, which: str) -> float:
    scale = math.sqrt(float(space.variance.sum()) / space.width)
    if scale == 0:
        raise StratoscopeError(f"the {which} space does not vary over these rows; a network has nothing to learn from")
    return scale
