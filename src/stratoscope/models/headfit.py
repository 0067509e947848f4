"""Tune a model's own head on the vectors of another layer, to convergence, on standardised features.

The first linear map of the head reads z = (x - mean) / spread, with the statistics of the training rows. As both maps
are linear this is a head of the same architecture on x itself, and `FittedHead.parameters` is that head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.examples import Floats
from stratoscope.models.extraction import evaluating
from stratoscope.models.heads import head_parameters, reading

DEEP = (2.0, 6.0, 0.6)
"""L2 penalties tried on heads with a pooler, times the root of the number of rows, as the noise in a gradient grows."""
SHALLOW = (10.0, 100.0, 1.0)
"""The same for a head that is one linear map; the last is scikit-learn's default (C = 1)."""
HELD_OUT = 0.1
"""Share of the training rows by which the penalty is chosen; the head is then fitted to all of them."""
CHUNK, MOST_CHUNKS = 10, 20
FLAT = 1e-3
"""Converged when ten steps lower the objective by less than this part of it."""
ROUNDING = 8 * torch.finfo(torch.float32).eps
"""A feature that varies by less than this part of its size does not vary."""


@dataclass(frozen=True)
class Scale:
    """Mean and spread of features over the training rows."""

    mean: Tensor
    """(width,) float64."""
    spread: Tensor
    """(width,) float64; 1 for a feature that does not vary."""
    constant: bool
    """No feature varies: every row is the same vector."""

    def __call__(self, x: Tensor) -> Tensor:
        """Standardised rows, float32."""
        return ((x.double() - self.mean) / self.spread).float()


def scale_of(x: Tensor) -> Scale:
    """Statistics of rows (n, width)."""
    spread, mean = torch.std_mean(x.double(), dim=0, correction=0)
    still = spread <= ROUNDING * x.abs().amax(dim=0)
    return Scale(mean, torch.where(still, 1.0, spread), bool(still.all()))


@dataclass(frozen=True)
class Goal:
    """What a head is tuned for."""

    targets: Floats
    """(examples,) class indices, right choices, or targets of a regression."""
    choices: int
    regression: bool

    def loss(self, outputs: Tensor, examples: Tensor) -> Tensor:
        """Mean cross-entropy (over the choices, if there are some), or the unexplained share of the variance."""
        targets = torch.from_numpy(self.targets)[examples]
        if self.regression:
            variance = max(float(np.var(self.targets)), 1e-12)
            return (outputs[:, 0] - targets.to(outputs.dtype)).square().mean() / (2 * variance)
        scores = outputs.view(-1, self.choices) if self.choices > 1 else outputs
        return nn.functional.cross_entropy(scores, targets.long())


@dataclass(frozen=True)
class FittedHead:
    """A head of the model's own architecture, tuned on one layer."""

    scale: Scale
    standardised: Mapping[str, Tensor]
    """Parameters by their names in the model, for standardised vectors."""
    offset: Tensor | None
    """Where the first map has no bias: (outputs,) what it adds along the mean vector instead."""
    first: str
    """Name of the first map."""
    penalty: float
    converged: bool

    @property
    def parameters(self) -> dict[str, Tensor]:
        """By the names they have in the model; with these in place it reads the layer's vectors as they are."""
        found = _assembled(self.standardised, self.offset, self.scale, self.first)
        weight = found[f"{self.first}.weight"].double() / self.scale.spread
        bias = found.get(f"{self.first}.bias")
        if bias is not None:
            found[f"{self.first}.bias"] = (bias.double() - weight @ self.scale.mean).float()
        return {**found, f"{self.first}.weight": weight.float()}

    def scores(self, module: Any, vectors: Tensor, *, choices: int = 1) -> Floats:
        """Scores (examples, k) for the layer's vectors (texts, width)."""
        with _head_of(module) as head, torch.no_grad():
            given = _assembled(self.standardised, self.offset, self.scale, self.first)
            out: Floats = head(given, _features(vectors, self.scale, self.offset)).double().cpu().numpy()
        return out.reshape(-1, choices) if choices > 1 else out


def fit_head(module: Any, vectors: Tensor, goal: Goal, *, start: Scale, seed: int = 0) -> FittedHead:
    """Tune the head of `module` on `vectors` (texts, width), beginning with its own weights; the model stays as it is.

    `start` is the scale of the vectors the head was made for: it begins by reading this layer as if it were that one.
    Objective: mean loss + penalty / (2 rows) * the squared weights in standardised units (biases are free).
    """
    scale, first = scale_of(vectors), first_map(module)
    if scale.constant:
        raise StratoscopeError("no head can be tuned on a layer that gives the same vector for every text")
    begin, offset = _beginning(module, first, start, scale)
    x = _features(vectors, scale, offset)
    fitting = _Fitting(module, first, scale, goal, x)
    n = len(goal.targets)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    held, rest = order[: max(1, round(HELD_OUT * n))], order[max(1, round(HELD_OUT * n)) :]
    deep = sum(p.dim() > 1 for p in begin.values()) > 1
    penalties = [p * (n**0.5 if deep else 1.0) for p in (DEEP if deep else SHALLOW)]
    with _head_of(module) as head:
        state = _State(begin, offset)
        tried = []
        for penalty in penalties:  # the first from the tuned head, the others from where the first ended
            found, _ = fitting.run(head, tried[0][2] if tried else state, rest, penalty)
            tried.append((fitting.loss(head, found, held), penalty, found))
        _, penalty, best = min(tried, key=lambda t: t[0])
        final, converged = fitting.run(head, best, order, penalty)
    return FittedHead(scale, final.parameters, final.offset, first, penalty, converged)


def first_map(module: Any) -> str:
    """Name of the linear map a head sends its vector through first."""
    names = {name.rpartition(".")[0] for name, _ in head_parameters(module)}
    called: list[str] = []
    hooks = [
        m.register_forward_pre_hook(lambda m, given, name=name: called.append(name))
        for name, m in module.named_modules()
        if name in names
    ]
    parameter = next(module.parameters())
    try:
        with evaluating(module), torch.no_grad(), reading(module) as head:
            head(torch.zeros(1, module.config.get_text_config().hidden_size).to(parameter))
    finally:
        for hook in hooks:
            hook.remove()
    if not called or not isinstance(module.get_submodule(called[0]), nn.Linear):
        raise StratoscopeError(
            f"the head of {type(module).__name__} does not begin with a linear map, so it cannot be tuned on"
            " standardised features"
        )
    return called[0]


@dataclass(frozen=True)
class _State:
    """Parameters on the way; those of the first map are in standardised units."""

    parameters: Mapping[str, Tensor]
    offset: Tensor | None


_Call = Callable[[Mapping[str, Tensor], Tensor], Tensor]


@dataclass(frozen=True)
class _Fitting:
    module: Any
    first: str
    scale: Scale
    goal: Goal
    features: Tensor

    def loss(self, head: _Call, state: _State, examples: Tensor) -> float:
        with torch.no_grad():
            return float(self._loss(head, state, examples, self._texts(examples)))

    def run(self, head: _Call, state: _State, examples: Tensor, penalty: float) -> tuple[_State, bool]:
        """L-BFGS on all examples at once until the objective is flat; whether it became so."""
        free = {k: v.clone().requires_grad_() for k, v in state.parameters.items()}
        offset = None if state.offset is None else state.offset.clone().requires_grad_()
        leaves = [*free.values(), *(() if offset is None else (offset,))]
        now, x = _State(free, offset), self._texts(examples)
        optimiser = torch.optim.LBFGS(leaves, max_iter=CHUNK, history_size=CHUNK, line_search_fn="strong_wolfe")

        def objective() -> Tensor:
            optimiser.zero_grad()
            size = torch.stack([p.square().sum() for p in free.values() if p.dim() > 1]).sum()
            total = self._loss(head, now, examples, x) + penalty / (2 * len(examples)) * size
            total.backward()  # type: ignore[no-untyped-call]
            return total

        before = float(objective().detach())
        converged = False
        for _ in range(MOST_CHUNKS):
            optimiser.step(objective)  # type: ignore[arg-type]
            after = float(objective().detach())
            converged = before - after < FLAT * before
            if converged:
                break
            before = after
        return _State({k: v.detach() for k, v in free.items()}, None if offset is None else offset.detach()), converged

    def _texts(self, examples: Tensor) -> Tensor:
        """Features of all texts of these examples."""
        c = self.goal.choices
        return self.features[(examples[:, None] * c + torch.arange(c)).flatten()]

    def _loss(self, head: _Call, state: _State, examples: Tensor, x: Tensor) -> Tensor:
        given = _assembled(state.parameters, state.offset, self.scale, self.first)
        return self.goal.loss(head(given, x), examples)


def _beginning(module: Any, first: str, start: Scale, scale: Scale) -> tuple[dict[str, Tensor], Tensor | None]:
    """The model's own head for vectors that are standardised as `start` would have it; and the offset, if needed."""
    found = {name: p.detach().to("cpu", torch.float32) for name, p in head_parameters(module)}
    weight = found[f"{first}.weight"].double()
    shift = (weight @ start.mean).float()
    found[f"{first}.weight"] = (weight * start.spread).float()
    if f"{first}.bias" in found:
        found[f"{first}.bias"] = found[f"{first}.bias"] + shift
        return found, None
    return found, shift


def _features(vectors: Tensor, scale: Scale, offset: Tensor | None) -> Tensor:
    """Standardised rows; for a first map without bias they keep their mean, which then stands in for the bias."""
    z = scale(vectors)
    return z if offset is None else z + (scale.mean / scale.spread).float()


def _assembled(parameters: Mapping[str, Tensor], offset: Tensor | None, scale: Scale, first: str) -> dict[str, Tensor]:
    """Parameters as the module takes them.

    Without a bias the map is v (I - m m^T / |m|^2) + offset m^T / |m|^2, with m the mean in units of the spread: it
    adds `offset` at the mean, and v acts on what is left.
    """
    if offset is None:
        return dict(parameters)
    m = (scale.mean / scale.spread).float()
    size = m.square().sum().clamp_min(1e-12)
    v = parameters[f"{first}.weight"]
    return {**parameters, f"{first}.weight": v + torch.outer((offset - v @ m) / size, m)}


@contextmanager
def _head_of(module: Any) -> Iterator[_Call]:
    """The head as a function of its parameters and the vectors, without dropout."""

    class Reader(nn.Module):
        def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.model = module
            self.read = read

        def forward(self, x: Tensor) -> Tensor:
            return self.read(x)

    with evaluating(module), reading(module) as head:
        reader = Reader(head)
        device = next(module.parameters()).device

        def call(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
            given = {f"model.{name}": p.to(device) for name, p in parameters.items()}
            return functional_call(reader, given, (x.to(device),)).to("cpu")

        yield call
