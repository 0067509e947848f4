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

PENALTY = 2.0
"""L2 penalty on the weights of a head with a pooler, times the root of the number of rows (as noise in gradients)."""
LINEAR_PENALTY = 1.0
"""The same on a linear map: scikit-learn's default (C = 1)."""
HELD_OUT = 0.1
"""Share of the training rows that judge between two heads; the better one is then fitted to all rows."""
CHUNK = 10
"""Steps between two looks at the objective."""
MOST_STEPS, MOST_LINEAR_STEPS = 100, 1000
FLAT, LINEAR_FLAT = 1e-3, 1e-5
"""Converged when `CHUNK` steps lower the objective by less than this part of it."""
SMALL = 1e-3
"""Scale at which a pooler's activation passes a linear map through."""
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

    def losses(self, outputs: Tensor, examples: Tensor) -> Tensor:
        """Of each example: cross-entropy (over the choices, if there are some), or the squared error in variances."""
        targets = torch.from_numpy(self.targets)[examples]
        if self.regression:
            variance = max(float(np.var(self.targets)), 1e-12)
            return (outputs[:, 0] - targets.to(outputs.dtype)).square() / (2 * variance)
        return nn.functional.cross_entropy(self._scores(outputs), targets.long(), reduction="none")

    def errors(self, outputs: Tensor, examples: Tensor) -> Tensor:
        """Of each example: 1 if its prediction is wrong, else 0; or the loss of a regression."""
        if self.regression:
            return self.losses(outputs, examples)
        return self._scores(outputs).argmax(dim=1) != torch.from_numpy(self.targets)[examples]

    def _scores(self, outputs: Tensor) -> Tensor:
        """(examples, classes or choices)."""
        return outputs.view(-1, self.choices) if self.choices > 1 else outputs


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
    linear: bool
    """The pooler passes a linear map through: tuning the model's own did not do better on the rows held out."""
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
    """Tune the head of `module` on `vectors` (texts, width); the model stays as it is.

    `start` is the scale of the vectors the head was made for: it begins by reading this layer as if it were that one.
    A head with a pooler is also made from the best linear map, which no pooler needs to lose to: that one is kept
    unless the other errs less on held-out training rows by more than a standard error.
    Objective: mean loss + penalty / (2 rows) * the squared weights in standardised units (biases are free).
    """
    scale, first = scale_of(vectors), first_map(module)
    if scale.constant:
        raise StratoscopeError("no head can be tuned on a layer that gives the same vector for every text")
    begin = _beginning(module, first, start)
    x = _features(vectors, scale, begin.offset)
    n = len(goal.targets)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    with _head_of(module) as head:

        def call(state: _State, rows: Tensor) -> Tensor:
            return head(_assembled(state.parameters, state.offset, scale, first), rows)

        fitting = _Fitting(call, goal, x)
        if sum(p.dim() > 1 for p in begin.parameters.values()) == 1:
            found, converged = fitting.run(begin, order, _linear_penalty(begin), LINEAR_FLAT)
            return FittedHead(scale, found.parameters, found.offset, first, linear=True, converged=converged)
        held, rest = order[: max(2, round(HELD_OUT * n))], order[max(2, round(HELD_OUT * n)) :]
        own, _ = fitting.run(begin, rest, PENALTY * len(rest) ** 0.5, FLAT)
        plain = _Fitting(_linear_call, goal, x)
        zero = _zero_map(begin, first)
        line, _ = plain.run(zero, rest, _linear_penalty(zero), LINEAR_FLAT)
        gain = plain.errors(line, held) - fitting.errors(own, held)
        passed = _passing(begin, first, line)
        if gain.mean() <= gain.std() / len(held) ** 0.5 and _agree(call(passed, x), _linear_call(line, x)):
            line, converged = plain.run(line, order, _linear_penalty(zero), LINEAR_FLAT)
            final, linear = _passing(begin, first, line), True
        else:
            final, converged = fitting.run(own, order, PENALTY * n**0.5, FLAT)
            linear = False
    return FittedHead(scale, final.parameters, final.offset, first, linear=linear, converged=converged)


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
    offset: Tensor | None = None


@dataclass(frozen=True)
class _Fitting:
    call: Callable[[_State, Tensor], Tensor]
    goal: Goal
    features: Tensor

    def errors(self, state: _State, examples: Tensor) -> Tensor:
        """What the head gets wrong of each example."""
        with torch.no_grad():
            return self.goal.errors(self.call(state, self._texts(examples)), examples).double()

    def run(self, state: _State, examples: Tensor, penalty: float, flat: float) -> tuple[_State, bool]:
        """L-BFGS on all examples at once until the objective is flat; whether it became so."""
        free = {k: v.clone().requires_grad_() for k, v in state.parameters.items()}
        offset = None if state.offset is None else state.offset.clone().requires_grad_()
        leaves = [*free.values(), *(() if offset is None else (offset,))]
        now, x = _State(free, offset), self._texts(examples)
        optimiser: Any = torch.optim.LBFGS(
            leaves, max_iter=CHUNK, history_size=CHUNK, line_search_fn="strong_wolfe", tolerance_change=0.0
        )

        def objective() -> Tensor:
            optimiser.zero_grad()
            size = torch.stack([p.square().sum() for p in free.values() if p.dim() > 1]).sum()
            loss = self.goal.losses(self.call(now, x), examples).mean()
            total = loss + penalty / (2 * len(examples)) * size
            total.backward()  # type: ignore[no-untyped-call]
            return total

        before, converged = float("inf"), False
        for _ in range((MOST_STEPS if flat == FLAT else MOST_LINEAR_STEPS) // CHUNK):
            after = float(optimiser.step(objective).detach())  # what it was before these steps
            converged = before - after < flat * before
            if converged:
                break
            before = after
        return _State({k: v.detach() for k, v in free.items()}, None if offset is None else offset.detach()), converged

    def _texts(self, examples: Tensor) -> Tensor:
        """Features of all texts of these examples."""
        c = self.goal.choices
        return self.features[(examples[:, None] * c + torch.arange(c)).flatten()]


def _linear_call(state: _State, x: Tensor) -> Tensor:
    return x @ state.parameters["weight"].T + state.parameters["bias"]


def _zero_map(begin: _State, first: str) -> _State:
    """A linear map from the vector to the outputs of the head, to begin with."""
    last = _last_weight(begin, first)
    width = begin.parameters[f"{first}.weight"].shape[1]
    return _State(
        {"weight": torch.zeros(len(begin.parameters[last]), width), "bias": torch.zeros(len(begin.parameters[last]))}
    )


def _linear_penalty(state: _State) -> float:
    """Two classes have two opposite rows here and one in scikit-learn, whose square is twice that of both."""
    rows = len(next(p for p in state.parameters.values() if p.dim() > 1))
    return LINEAR_PENALTY * (2.0 if rows == 2 else 1.0)


def _last_weight(begin: _State, first: str) -> str:
    return [name for name, p in begin.parameters.items() if p.dim() > 1 and name != f"{first}.weight"][-1]


def _passing(begin: _State, first: str, line: _State) -> _State:
    """The head as a linear map: each output has two opposite units, between which any activation is odd, and small."""
    last = _last_weight(begin, first)
    found = {name: torch.zeros_like(p) if p.dim() > 1 else p.clone() for name, p in begin.parameters.items()}
    rows = line.parameters["weight"]
    if f"{first}.bias" in found:
        found[f"{first}.bias"].zero_()
    if 2 * len(rows) > found[last].shape[1] or last.replace("weight", "bias") not in found:
        return begin
    found[f"{first}.weight"][: 2 * len(rows)] = SMALL * torch.cat([rows, -rows])
    units = torch.eye(len(rows)) / SMALL
    found[last][:, : 2 * len(rows)] = torch.cat([units, -units], dim=1)
    found[last.replace("weight", "bias")] = line.parameters["bias"].clone()
    return _State(found, None if begin.offset is None else torch.zeros_like(begin.offset))


def _agree(got: Tensor, wanted: Tensor) -> bool:
    """Whether a head passes a map through (one that normalises what its pooler gives does not)."""
    return bool((got - wanted).abs().max() <= 1e-2 * max(1.0, float(wanted.abs().max())))


def _beginning(module: Any, first: str, start: Scale) -> _State:
    """The model's own head for vectors standardised as `start` would have it, with an offset where it has no bias."""
    found = {name: p.detach().to("cpu", torch.float32) for name, p in head_parameters(module)}
    weight = found[f"{first}.weight"].double()
    shift = (weight @ start.mean).float()
    found[f"{first}.weight"] = (weight * start.spread).float()
    if f"{first}.bias" not in found:
        return _State(found, shift)
    found[f"{first}.bias"] = found[f"{first}.bias"] + shift
    return _State(found)


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
def _head_of(module: Any) -> Iterator[Callable[[Mapping[str, Tensor], Tensor], Tensor]]:
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
            out: Tensor = functional_call(reader, given, (x.to(device),)).to("cpu")
            return out

        yield call
