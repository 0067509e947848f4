"""A known bijection to recover: Y is a random invertible network of X (Ren et al. 2023, §4.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from stratoscope.aligners.networks import PaperFlow, xavier_


def random_bijection(features: int, *, seed: int = 0) -> PaperFlow:
    """The published truth: two couplings with Xavier weights, in float64."""
    truth = PaperFlow(features).double()
    xavier_(truth, torch.Generator().manual_seed(seed))
    return truth.eval().requires_grad_(False)


def principal_components(rows: Tensor, features: int) -> Tensor:
    """The first principal components of rows, in units of the largest one's deviation: what a truth is applied to."""
    centred = rows.double() - rows.double().mean(0)
    _, _, v = torch.linalg.svd(centred, full_matrices=False)
    components = centred @ v[:features].T
    scaled: Tensor = components / components[:, 0].std()
    return scaled
