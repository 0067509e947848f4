"""The probe without penalties, by L-BFGS in coordinates of variance 1.

Where words can be told apart its optimum is at infinity: proximal steps then gain less than 1 / passes, and what they
gained says too little of what is left. No loss is below 0, so that the loss itself bounds the gap.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stratoscope.probes.features import Features
from stratoscope.probes.objective import slope

HISTORY = 20
FEWEST_PASSES = 7


@dataclass
class Unpenalised:
    """The best probe so far, at features less `mean`."""

    weight: Tensor
    """(d, K)"""
    bias: Tensor
    """(K,)"""
    losses: list[float] = field(default_factory=list)
    """The lowest after every pass."""

    @property
    def gap(self) -> tuple[float, bool]:
        """The loss, which is a bound, or what the second half of the passes gained; and whether it is the bound."""
        loss, count = self.losses[-1], len(self.losses)
        gained = self.losses[max(0, count // 2 - 1)] - loss
        return (gained, False) if count >= FEWEST_PASSES and gained < loss else (loss, True)


class _EnoughError(Exception):
    pass


def unpenalised(
    features: Features, bias: Tensor, *, mean: Tensor, covariance: Tensor, gap: float, passes: int
) -> Unpenalised:
    """Begin with these biases and weights of 0, and stop within the gap or after so many passes."""
    root = _root(covariance)
    turned, bias = torch.zeros(len(mean), len(bias)), bias.clone()
    best = Unpenalised(turned, bias)

    def loss() -> Tensor:
        if len(best.losses) == passes or (best.losses and best.gap[0] <= gap):
            raise _EnoughError
        weight = torch.linalg.solve_triangular(root.T, turned, upper=True).contiguous()
        at = slope(features, weight[:, :, None], bias[:, None], mean=mean)
        turned.grad = torch.linalg.solve_triangular(root, at.weight[:, :, 0], upper=False).contiguous()
        bias.grad = at.bias[:, 0].contiguous()
        value = float(at.loss)
        if not best.losses or value < best.losses[-1]:
            best.weight, best.bias = weight, bias.clone()
        best.losses.append(min([value, *best.losses[-1:]]))
        return at.loss[0]

    how: dict[str, Any] = {"line_search_fn": "strong_wolfe", "tolerance_grad": 0, "tolerance_change": 0}
    with suppress(_EnoughError):
        while True:  # rounding may end it sooner
            steps: Any = torch.optim.LBFGS([turned, bias], max_iter=passes, history_size=HISTORY, **how)
            steps.step(loss)
    return best


def _root(covariance: Tensor) -> Tensor:
    """Cholesky's factor; with more on the diagonal where layers are constant, or rounding leaves them no variance."""
    size = covariance.diagonal().max().clamp(min=1e-30)
    root: Tensor = covariance
    for more in (0.0, 1e-6, 1e-4, 1e-2):
        root, failed = torch.linalg.cholesky_ex(covariance + more * size * torch.eye(len(covariance)))
        if not int(failed):
            break
    return root
