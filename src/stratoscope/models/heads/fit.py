"""Tune a model's own head on the vectors of another layer, to convergence, on standardised features.

The first linear map of the head reads z = (x - mean) / spread, with the statistics of the training rows. As both maps
are linear this is a head of the same architecture on x itself, and `FittedHead.parameters` is that head.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.core.errors import StratoscopeError
from stratoscope.models.heads.minimise import Fitting, Goal, Parameters, Scale, Steps, few_threads, scale_of
from stratoscope.models.heads.reading import head_parameters, reading
from stratoscope.models.read.loop import evaluating
from stratoscope.models.text.examples import Floats

PENALTY = 0.6
"""L2 penalty on the weights of a head with a pooler, times the root of the number of rows (as noise in gradients)."""
LINEAR_PENALTY = 1.0
"""The same on a linear map: scikit-learn's default (C = 1)."""
HELD_OUT = 0.1
"""Share of the training rows that judge between two heads; the better one is then fitted to all rows."""
TRIAL, STEPS, LINEAR_STEPS = Steps(60, 1e-3), Steps(600, 1e-3), Steps(1000, 1e-5)
"""For the pooler while it is judged, for the one that is kept, and for a linear map."""
MOST = 64
"""Heads remembered: a study and a cut of one model ask for the same ones."""
SMALL = 1e-3
"""Scale at which a pooler's activation passes a linear map through."""
OFFSET = "(offset)"
"""Name of what a first map without a bias adds along the mean vector instead (outputs,)."""

_REMEMBERED: dict[str, FittedHead] = {}


@dataclass(frozen=True)
class FittedHead:
    """A head of the model's own architecture, tuned on one layer."""

    scale: Scale
    standardised: Parameters
    """By their names in the model, for standardised vectors."""
    first: str
    """Name of the first map."""
    linear: bool
    """The pooler passes a linear map through: tuning the model's own did not do better on the rows held out."""
    converged: bool

    @property
    def parameters(self) -> dict[str, Tensor]:
        """By the names they have in the model; with these in place it reads the layer's vectors as they are."""
        parameters = _assembled(self.standardised, self.scale, self.first)
        weight = parameters[f"{self.first}.weight"].double() / self.scale.spread
        bias = parameters.get(f"{self.first}.bias")
        if bias is not None:
            parameters[f"{self.first}.bias"] = (bias.double() - weight @ self.scale.mean).float()
        return {**parameters, f"{self.first}.weight": weight.float()}

    def scores(self, module: Any, vectors: Tensor, *, choices: int = 1) -> Floats:
        """Scores (examples, k) for the layer's vectors (texts, width)."""
        x, own = _features(vectors, self.scale, self.standardised), self.standardised
        with evaluating(module), reading(module) as head, torch.no_grad():
            out: Floats = head(x, _assembled(own, self.scale, self.first)).double().cpu().numpy()
        return out.reshape(-1, choices) if choices > 1 else out


def fit_head(module: Any, vectors: Tensor, goal: Goal, *, start: Scale, seed: int = 0) -> FittedHead:
    """Tune the head of `module` on `vectors` (texts, width); the model stays as it is, and the answer is remembered.

    `start` is the scale of the vectors the head was made for: it begins by reading this layer as if it were that one.
    A head with a pooler is also made from the best linear map, which no pooler needs to lose to: that one is kept
    unless the other errs less on held-out training rows by more than a standard error.
    Objective: mean loss + penalty / (2 rows) * the squared weights in standardised units (biases are free).
    """
    key = _key(module, vectors, goal, start, seed)
    if key not in _REMEMBERED:
        while len(_REMEMBERED) >= MOST:
            del _REMEMBERED[next(iter(_REMEMBERED))]
        _REMEMBERED[key] = _fit(module, vectors, goal, start, seed)
    return _REMEMBERED[key]


def _key(module: Any, vectors: Tensor, goal: Goal, start: Scale, seed: int) -> str:
    """Digest of all that a fit depends on."""
    held = hashlib.sha256(f"{type(module).__name__} {goal.choices} {goal.regression} {seed}".encode())
    for t in (vectors, torch.from_numpy(goal.targets), start.mean, start.spread):
        held.update(t.contiguous().numpy().tobytes())
    for name, p in head_parameters(module):
        held.update(name.encode() + p.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return held.hexdigest()


def _fit(module: Any, vectors: Tensor, goal: Goal, start: Scale, seed: int) -> FittedHead:
    scale, first = scale_of(vectors), first_map(module)
    if scale.constant:
        raise StratoscopeError("no head can be tuned on a layer that gives the same vector for every text")
    begin = _beginning(module, first, start)
    x = _features(vectors, scale, begin)
    n = len(goal.targets)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    with evaluating(module), reading(module) as head, few_threads(len(x) * x.shape[1] ** 2):

        def call(parameters: Parameters, rows: Tensor) -> Tensor:
            return head(rows, _assembled(parameters, scale, first)).to("cpu")

        fitting = Fitting(call, goal, x)
        if sum(p.dim() > 1 for p in begin.values()) == 1:
            fitted, converged = fitting.run(begin, order, _linear_penalty(begin[f"{first}.weight"]), LINEAR_STEPS)
            return FittedHead(scale, fitted, first, linear=True, converged=converged)
        share = max(2, round(HELD_OUT * n))
        held, rest = order[:share], order[share:]
        own, _ = fitting.run(begin, rest, PENALTY * len(rest) ** 0.5, TRIAL)
        z = _across(scale(vectors), scale) if OFFSET in begin else x
        plain = Fitting(lambda line, rows: rows @ line["weight"].T + line["bias"], goal, z)
        outputs = len(begin[_last_weight(begin, first)])
        zero = {"weight": torch.zeros(outputs, x.shape[1]), "bias": torch.zeros(outputs)}
        line, _ = plain.run(zero, rest, _linear_penalty(zero["weight"]), LINEAR_STEPS)
        gain = plain.errors(line, held) - fitting.errors(own, held)
        if gain.mean() <= gain.std() / len(held) ** 0.5:
            line, converged = plain.run(line, order, _linear_penalty(zero["weight"]), LINEAR_STEPS)
            passing = _passing(fitting, begin, first, line, z)
            if passing is not None:
                return FittedHead(scale, passing, first, linear=True, converged=converged)
        fitted, converged = fitting.run(own, order, PENALTY * n**0.5, STEPS)
    return FittedHead(scale, fitted, first, linear=False, converged=converged)


def first_map(module: Any) -> str:
    """Name of the linear map a head sends its vector through first."""
    names = {name.rpartition(".")[0] for name, _ in head_parameters(module)}
    called: list[str] = []
    with ExitStack() as hooks, evaluating(module), torch.no_grad(), reading(module) as head:
        for name, m in module.named_modules():
            if name in names:
                hooks.enter_context(m.register_forward_pre_hook(lambda m, given, name=name: called.append(name)))
        head(torch.zeros(1, module.config.get_text_config().hidden_size).to(next(module.parameters())))
    if not called or not isinstance(module.get_submodule(called[0]), nn.Linear):
        raise StratoscopeError(
            f"the head of {type(module).__name__} does not begin with a linear map, so it cannot be tuned on"
            " standardised features"
        )
    return called[0]


def _linear_penalty(weight: Tensor) -> float:
    """Two classes have two opposite rows here and one in scikit-learn, whose square is twice that of both."""
    return LINEAR_PENALTY * (2.0 if len(weight) == 2 else 1.0)


def _last_weight(begin: Parameters, first: str) -> str:
    return [name for name, p in begin.items() if p.dim() > 1 and name != f"{first}.weight"][-1]


def _passing(fitting: Fitting, begin: Parameters, first: str, line: Parameters, z: Tensor) -> dict[str, Tensor] | None:
    """The head as this linear map: each output has two opposite units, whose difference is odd whatever the activation.

    None if the head cannot be one, for want of room or of a last bias, or as the map does not come out of it.
    """
    last, rows = _last_weight(begin, first), line["weight"]
    bias, k = last.replace("weight", "bias"), len(rows)
    if 2 * k >= begin[last].shape[1] - 2 or bias not in begin:
        return None
    # Norms are left without weights; the idle units, told apart, give one after the pooler a spread that stays.
    passing = {name: torch.full_like(p, float(p.dim() == 1 and "bias" not in name)) for name, p in begin.items()}
    idle = torch.arange(len(passing[f"{first}.weight"])) % 2.0
    idle[: 2 * k] = 0
    passing[f"{first}.weight"][: 2 * k] = SMALL * torch.cat([rows, -rows])
    passing[OFFSET if OFFSET in begin else f"{first}.bias"] = idle
    passing[last][:, : 2 * k] = torch.cat([torch.eye(k), -torch.eye(k)], dim=1)
    with torch.no_grad():
        target, got = z @ rows.T, fitting.call(passing, fitting.features)
        factor = (got * target).sum() / got.square().sum().clamp_min(1e-30)
        faithful = (factor * got - target).abs().max() <= 1e-2 * target.abs().max()
    passing[last] *= factor
    passing[bias] += line["bias"]
    return passing if bool(faithful) else None


def _beginning(module: Any, first: str, start: Scale) -> dict[str, Tensor]:
    """The model's own head for vectors standardised as `start` would have it, with an offset where it has no bias."""
    beginning = {name: p.detach().to("cpu", torch.float32) for name, p in head_parameters(module)}
    weight = beginning[f"{first}.weight"].double()
    shift = (weight @ start.mean).float()
    beginning[f"{first}.weight"] = (weight * start.spread).float()
    bias = beginning.get(f"{first}.bias")
    return {**beginning, OFFSET: shift} if bias is None else {**beginning, f"{first}.bias": bias + shift}


def _features(vectors: Tensor, scale: Scale, parameters: Parameters) -> Tensor:
    """Standardised rows; for a first map without bias they keep their mean, which then stands in for the bias."""
    z = scale(vectors)
    return z + (scale.mean / scale.spread).float() if OFFSET in parameters else z


def _across(z: Tensor, scale: Scale) -> Tensor:
    """Standardised rows without their part along the mean, which a first map without bias needs for its offset."""
    m = nn.functional.normalize(scale.mean / scale.spread, dim=0).float()
    return z - torch.outer(z @ m, m)


def _assembled(parameters: Parameters, scale: Scale, first: str) -> dict[str, Tensor]:
    """Parameters as the module takes them.

    Without a bias the map is v (I - m m^T / |m|^2) + offset m^T / |m|^2, with m the mean in units of the spread: it
    adds `offset` at the mean, and v acts on what is left.
    """
    assembled = dict(parameters)
    offset = assembled.pop(OFFSET, None)
    if offset is None:
        return assembled
    m = (scale.mean / scale.spread).float()
    size = m.square().sum().clamp_min(1e-12)
    v = assembled[f"{first}.weight"]
    return {**assembled, f"{first}.weight": v + torch.outer((offset - v @ m) / size, m)}
