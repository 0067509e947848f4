"""Networks that maps are made of: affine couplings (RealNVP), those of Ren et al. as published, and a free MLP.

The couplings are forty lines of our own: those of zuko (MIT) take 47 ms a step at 768 features against 37-40, their
last layers would have to be set to zero from outside, and the determinants of a flow library are not needed here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

WIDTH = 256
COUPLINGS = 6
BOUND = 2.0
"""Largest |log scale| of one coupling: exp(2) is steep enough, and the inverse stays as accurate as the map."""


def mlp(*sizes: int, activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    """Linear layers of these sizes with an activation between."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


class Network(nn.Module):
    """The non-linear part of a map."""

    name: ClassVar[str]
    invertible: ClassVar[bool] = True

    def __init__(self, **shape: Any) -> None:
        super().__init__()
        self.shape: dict[str, Any] = shape
        """What it is built again from."""

    @property
    def started(self) -> list[nn.Parameter]:
        """Parameters that an exact linear map gives it to start with."""
        return []

    def inverse(self, y: Tensor) -> Tensor:
        """The rows that it sends to `y`."""
        raise NotImplementedError


class Coupling(nn.Module):
    """y_a = x_a, y_b = x_b · exp(s(x_a)) + t(x_a), |s| < BOUND (Dinh et al. 2017, eq. 7); the identity at first."""

    def __init__(self, kept: Tensor, *, width: int) -> None:
        """`kept` says which features are a."""
        super().__init__()
        self.order: Tensor
        self.back: Tensor
        self.number = int(kept.sum())
        order = torch.cat([kept.nonzero().flatten(), (~kept).nonzero().flatten()])
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("back", order.argsort(), persistent=False)
        self.net = mlp(self.number, width, width, 2 * (len(kept) - self.number))
        for p in self.net[-1].parameters():
            nn.init.zeros_(p)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        kept, moved = x[:, self.order].tensor_split([self.number], dim=1)
        s, t = self.net(kept).chunk(2, dim=1)
        return kept, moved, BOUND * torch.tanh(s / BOUND), t

    def forward(self, x: Tensor) -> Tensor:
        kept, moved, s, t = self._split(x)
        return torch.cat([kept, moved * s.exp() + t], dim=1)[:, self.back]

    def inverse(self, y: Tensor) -> Tensor:
        kept, moved, s, t = self._split(y)
        return torch.cat([kept, (moved - t) * (-s).exp()], dim=1)[:, self.back]


class Flow(Network):
    """Affine couplings in turn on either half of the features: the first and the last, or every other one.

    Which features make a half matters for few rows: a bijection made of such halves is fitted far more closely when
    they are the same, so both ways take turns.
    """

    name = "flow"

    def __init__(self, features: int, couplings: int = COUPLINGS, width: int = WIDTH) -> None:
        super().__init__(features=features, couplings=couplings, width=width)
        place = torch.arange(features)
        ways = place % 2 == 0, place < features // 2
        kept = [ways[k // 2 % 2] ^ (k % 2 == 1) for k in range(couplings)]
        self.couplings = nn.ModuleList(Coupling(k, width=width) for k in kept)

    def forward(self, x: Tensor) -> Tensor:
        for coupling in self.couplings:
            x = coupling(x)
        return x

    def inverse(self, y: Tensor) -> Tensor:
        for coupling in reversed(self.couplings):
            y = coupling.inverse(y)  # type: ignore[operator]
        return y


class PaperFlow(Network):
    """Two couplings on every other feature that share one pair of networks d → 4d → 4d → d, |s| < 1.

    As in the code of Ren et al. 2023, `INN.Nonlinear(d, 'RealNVP')`; Xavier weights and biases.
    """

    name = "paper-flow"

    def __init__(self, features: int) -> None:
        super().__init__(features=features)
        sizes = (features, 4 * features, 4 * features, features)
        self.s, self.t = mlp(*sizes, activation=nn.SELU), mlp(*sizes, activation=nn.SELU)
        self.mask: Tensor
        self.register_buffer("mask", (torch.arange(features) % 2 == 0).float(), persistent=False)

    def _scale_and_shift(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.s(kept)), self.t(kept)

    def forward(self, x: Tensor) -> Tensor:
        for mask in (self.mask, 1 - self.mask):
            s, t = self._scale_and_shift(mask * x)
            x = mask * x + (1 - mask) * (x * s.exp() + t)
        return x

    def inverse(self, y: Tensor) -> Tensor:
        for mask in (1 - self.mask, self.mask):
            s, t = self._scale_and_shift(mask * y)
            y = mask * y + (1 - mask) * ((y - t) * (-s).exp())
        return y


class Free(Network):
    """A linear map plus a network that is 0 at first: no bijection, so that nothing limits how well it fits."""

    name = "free"
    invertible = False

    def __init__(self, features: int, targets: int, width: int) -> None:
        super().__init__(features=features, targets=targets, width=width)
        self.linear, self.net = nn.Linear(features, targets, bias=False), mlp(features, width, width, targets)
        for p in self.net[-1].parameters():
            nn.init.zeros_(p)

    @property
    def started(self) -> list[nn.Parameter]:
        return list(self.linear.parameters())

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = self.linear(x) + self.net(x)
        return mapped


class PaperFree(Network):
    """Four linear layers with GELU between, as published (Ren et al. 2023, utils/MLP.py)."""

    name = "paper-free"
    invertible = False

    def __init__(self, features: int, targets: int) -> None:
        super().__init__(features=features, targets=targets)
        self.net = mlp(features, features, features, features, targets)

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = self.net(x)
        return mapped


def xavier_(network: nn.Module, generator: torch.Generator) -> None:
    """Draw weights as Ren et al. do: Xavier normal for weights, and for biases as if columns."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, generator=generator)
            nn.init.xavier_normal_(layer.bias.data.unsqueeze(1), generator=generator)


NETWORKS: dict[str, type[Any]] = {n.name: n for n in (Flow, PaperFlow, Free, PaperFree)}
