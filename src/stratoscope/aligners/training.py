"""Networks fitted to paired rows: started from an exact linear map, trained for seconds, best on held-out rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stratoscope.aligners.linear import Space, shrunk_ridge
from stratoscope.aligners.maps import Map
from stratoscope.aligners.networks import WIDTH, Flow, Free, Network, PaperFlow, PaperFree, xavier_
from stratoscope.core.errors import StratoscopeError


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    steps: int = 300
    batch: int = 256
    lr: float = 5e-3
    linear_lr: float = 1e-3
    """Of what an exact linear map starts, which is near its best and does not decay."""
    decay: float = 1e-2
    warmup: float = 0.1
    every: int = 20
    """Steps between looks at the held-out rows."""
    patience: float = 1 / 3
    """Share of the steps without a gain on them after which training ends."""

    def rate(self, step: int) -> float:
        """Warm-up, then half a cosine, as a share of the learning rate."""
        rise = max(1, round(self.warmup * self.steps))
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, self.steps - rise)))


NARROW, NARROW_WIDTH, NARROW_SCHEDULE = 64, 128, Schedule(steps=2000, linear_lr=5e-3)
"""Spaces of few features are bent more than a linear map shows, and gain from more steps of a smaller network."""
FREE_RATE = 1e-3
"""Learning rate of an `mlp`: nothing limits it, and few rows are soon learnt by heart."""
PAPER_STEPS, PAPER_BATCH, PAPER_RATE, PAPER_GAMMA = 3000, 32, 1e-6, 0.99
"""Adam, its rate times γ after every step: over the whole schedule a weight moves by 1e-4 at most, about."""
PAPER_LAST = 1000
"""After so many steps those left would move a weight by 4e-9 together, which is less than float32 keeps of most."""


def recipe(method: str, features: int) -> tuple[Schedule, int]:
    """How to train between spaces of so many features, and how wide networks are."""
    schedule, width = (NARROW_SCHEDULE, NARROW_WIDTH) if features <= NARROW else (Schedule(), WIDTH)
    return (schedule, width) if method == "inn" else (replace(schedule, lr=FREE_RATE), 4 * width)


def untrained(method: str, features: int, targets: int, *, paper: bool = False) -> Network:
    """The network of a method before its first step."""
    if paper:
        return PaperFlow(features) if method == "inn" else PaperFree(features, targets)
    _, width = recipe(method, features)
    return Flow(features, width=width) if method == "inn" else Free(features, targets, width=width)


class Dense(nn.Module):
    """A dense linear layer and a network behind it."""

    def __init__(self, weight: Tensor, network: Network) -> None:
        super().__init__()
        self.weight, self.network = nn.Parameter(weight), network

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = self.network(x @ self.weight)
        return mapped


def fit_network(method: str, x: Space, y: Space, *, seed: int = 0, schedule: Schedule | None = None) -> Map:
    """An `inn` or `mlp` fitted to the rows of two spaces, started from `shrunk`.

    Start and network are fitted without the held-out rows, which then tell how many steps of training help, if any.
    The map is the start fitted on all rows, trained on all of them for as many steps.
    """
    scale_x, scale_y = (_scale(s, name) for s, name in ((x, "first"), (y, "second")))
    schedule = schedule or recipe(method, x.width)[0]
    zx, zy = x.centred.float() / scale_x, y.centred.float() / scale_y
    model, _ = _started(method, x.without_held(seed), y.without_held(seed), scale_x / scale_y, seed=seed)
    steps = train(model, zx, zy, schedule, held=x.held, seed=seed)
    model, start = _started(method, x, y, scale_x / scale_y, seed=seed)
    train(model, zx, zy, schedule, stop=int(steps["best_step"]), seed=seed)
    network, weight = model.network.double().eval().requires_grad_(False), model.weight.detach().double()
    return Map(method, x.basis.mean, y.basis.mean, weight, network, scale_x, scale_y, {**steps, **start})


def _started(method: str, x: Space, y: Space, scale: float, *, seed: int) -> tuple[Dense, dict[str, float]]:
    """A network that is a linear map, in units in which both spaces have variance 1 per feature."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = untrained(method, x.width, y.width)
    start, chosen = shrunk_ridge(x, y)
    weight = (start * scale).float()
    if not isinstance(network, Free):
        return Dense(weight, network), chosen
    network.linear.weight.data = weight.T.contiguous()
    model = Dense(torch.eye(x.width), network)
    model.weight.requires_grad_(False)
    return model, chosen


def train(
    model: Dense,
    x: Tensor,
    y: Tensor,
    schedule: Schedule,
    *,
    held: Tensor | None = None,
    stop: int | None = None,
    seed: int,
) -> dict[str, float | int]:
    """Minimise the mean squared error with AdamW until a step; with held-out rows, after which step they fit best."""
    generator = torch.Generator().manual_seed(seed)
    (fx, fy), (hx, hy) = ((x, y), (x[:0], y[:0])) if held is None else ((x[~held], y[~held]), (x[held], y[held]))
    started = [p for p in (model.weight, *model.network.started) if p.requires_grad]
    rest = [p for p in model.network.parameters() if not any(p is s for s in started)]
    groups = [{"params": rest, "lr": schedule.lr}, {"params": started, "lr": schedule.linear_lr, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, weight_decay=schedule.decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.rate)

    def error() -> float:
        with torch.no_grad():
            return float(nn.functional.mse_loss(model(hx), hy))

    first = least = error()
    at, order = 0, torch.empty(0, dtype=torch.long)
    for step in range(1, (schedule.steps if stop is None else stop) + 1):
        if len(order) < min(schedule.batch, len(fx)):
            order = torch.randperm(len(fx), generator=generator)
        batch, order = order[: schedule.batch], order[schedule.batch :]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(fx[batch]), fy[batch]).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if held is not None and (step % schedule.every == 0 or step == schedule.steps):
            if (now := error()) < least:
                least, at = now, step
            elif step - at >= schedule.patience * schedule.steps:
                break
    return {"steps": schedule.steps, "best_step": at, "held_out_start": first, "held_out": least}


def fit_paper(method: str, x: Space, y: Space, *, seed: int = 0, last: int = PAPER_LAST) -> Map:
    """The network and schedule of Ren et al. 2023 as published: rows as they are, Xavier weights, Adam at 1e-6.

    Their code trains one network on all layers of a pair of models in turn, here every pair of layers has its own; and
    it goes on for 3,000 steps, the last 2,000 of which change nothing and are left out.
    """
    network = untrained(method, x.width, y.width, paper=True)
    generator = torch.Generator().manual_seed(seed)
    xavier_(network, generator)
    fx, fy = x.rows.float(), y.rows.float()
    optimizer = torch.optim.Adam(network.parameters(), lr=PAPER_RATE, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=PAPER_GAMMA)
    for _ in range(last):
        batch = torch.randint(len(fx), (PAPER_BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(network(fx[batch]), fy[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    network = network.double().eval().requires_grad_(False)
    zero_x, zero_y = (torch.zeros(s.width, dtype=torch.float64) for s in (x, y))
    chosen = {"paper": True, "steps": PAPER_STEPS, "left_out": PAPER_STEPS - last}
    return Map(method, zero_x, zero_y, torch.eye(x.width, dtype=torch.float64), network, chosen=chosen)


def _scale(space: Space, which: str) -> float:
    scale = math.sqrt(float(space.variance.sum()) / space.width)
    if scale == 0:
        raise StratoscopeError(f"the {which} space does not vary over these rows; a network has nothing to learn from")
    return scale
