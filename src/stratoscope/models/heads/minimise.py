"""Parameters fitted to vectors with known targets: standardised features, a loss, and L-BFGS until it is flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stratoscope.models.text.examples import Floats

CHUNK = 10
"""Steps between two looks at the objective."""
ROUNDING = 8 * torch.finfo(torch.float32).eps
"""A feature that varies by less than this part of its size does not vary."""

SMALL_WORK = 5e8
"""Multiplications of a product up to which a second thread costs more than it gives."""


@contextmanager
def few_threads(work: float) -> Iterator[None]:
    """One thread for products of so many multiplications, if they are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if work < SMALL_WORK else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Steps(NamedTuple):
    """How long to go on."""

    most: int
    flat: float
    """Converged when `CHUNK` steps lower the objective by less than this part of it."""


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


Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Fitting:
    """A function of parameters and features, to be fitted to a goal."""

    call: Callable[[Parameters, Tensor], Tensor]
    goal: Goal
    features: Tensor

    def errors(self, parameters: Parameters, examples: Tensor) -> Tensor:
        """What the head gets wrong of each example."""
        with torch.no_grad():
            return self.goal.errors(self.call(parameters, self._texts(examples)), examples).double()

    def run(self, begin: Parameters, examples: Tensor, penalty: float, steps: Steps) -> tuple[dict[str, Tensor], bool]:
        """L-BFGS on all examples at once until the objective is flat; whether it became so."""
        free, x = {k: v.clone().requires_grad_() for k, v in begin.items()}, self._texts(examples)
        optimiser: Any = torch.optim.LBFGS(
            free.values(), max_iter=CHUNK, history_size=CHUNK, line_search_fn="strong_wolfe", tolerance_change=0.0
        )

        def objective() -> Tensor:
            optimiser.zero_grad()
            size = torch.stack([p.square().sum() for p in free.values() if p.dim() > 1]).sum()
            loss = self.goal.losses(self.call(free, x), examples).mean()
            total = loss + penalty / (2 * len(examples)) * size
            total.backward()  # type: ignore[no-untyped-call]
            return total

        before, converged = float("inf"), False
        for _ in range(steps.most // CHUNK):
            after = float(optimiser.step(objective).detach())  # what it was before these steps
            converged = before - after < steps.flat * before
            if converged:
                break
            before = after
        return {k: v.detach() for k, v in free.items()}, converged

    def _texts(self, examples: Tensor) -> Tensor:
        """Features of all texts of these examples."""
        c = self.goal.choices
        return self.features[(examples[:, None] * c + torch.arange(c)).flatten()]
