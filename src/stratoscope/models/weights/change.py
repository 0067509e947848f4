"""How large a change of weights is and how many directions it has."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Factors:
    """A change in factors, `left @ right`, as a LoRA adapter stores it: its rank is at most the width between them."""

    left: Tensor
    """(rows, r)."""
    right: Tensor
    """(r, columns)."""

    def whole(self) -> Tensor:
        """(rows, columns)."""
        return self.left @ self.right


Change = Tensor | Factors


def square_sum(change: Change) -> float:
    """Squared Frobenius norm; that of factors is tr((LᵀL)(RRᵀ)), without the product."""
    if isinstance(change, Factors):
        left, right = change.left.double(), change.right.double()
        return max(float(((left.T @ left) * (right @ right.T)).sum()), 0.0)
    return float(change.double().square().sum())  # float32's norm() is off by 1e-3 on large tensors


def energies(change: Change) -> Tensor:
    """Squared singular values of a matrix: eigenvalues of the smaller Gram matrix, in float64.

    Those of factors L R are those of the small matrix T_L T_Rᵀ, where L = Q_L T_L and Rᵀ = Q_R T_R. What rounding makes
    negative is 0.
    """
    if isinstance(change, Factors):
        left, right = (torch.linalg.qr(x.double(), mode="r").R for x in (change.left, change.right.T))
        sigma: Tensor = torch.linalg.svdvals(left @ right.T)
        return sigma.square()
    x = change.double()
    gram = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    eigenvalues: Tensor = torch.linalg.eigvalsh(gram)
    return eigenvalues.clamp_min(0.0)


def effective_rank(change: Change) -> float:
    """exp(−Σ p ln p), p = σ²/Σσ²: the number of directions that share the change; NaN where nothing changed.

    Roy and Vetterli 2007, with the energies σ² in place of the singular values σ. 1 for a rank-one change, k for k
    equal directions.
    """
    spectrum = energies(change)
    total = float(spectrum.sum())
    if not total > 0:
        return math.nan
    p = spectrum / total
    return float(torch.special.entr(p).sum().exp())
