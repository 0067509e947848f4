"""Matrix products in the shapes BLAS is fast at."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import torch
from torch import Tensor

ALIGNED = 16
"""Products of matrices whose sides are multiples of this are a sixth to a third faster."""


def padded(w: Tensor, *dims: int) -> Tensor:
    """The matrix with zeros up to a size that products like along these dimensions; a layer often has one too few."""
    down, right = (-w.shape[k] % ALIGNED if k in dims else 0 for k in (0, 1))
    return torch.nn.functional.pad(w, (0, right, 0, down))


def upper_gram(a: Tensor) -> npt.NDArray[Any]:
    """a aᵀ at half the cost of a general product; zeros below the diagonal."""
    product = scipy.linalg.blas.dsyrk if a.dtype == torch.float64 else scipy.linalg.blas.ssyrk
    if not a.numel():  # a constant layer has no direction; BLAS complains on stdout
        return np.zeros((len(a), len(a)))
    # BLAS reads columns: whichever of a and aᵀ is contiguous goes in without a copy.
    if a.T.is_contiguous():
        upper: npt.NDArray[Any] = product(1.0, a.T.numpy().T)
    else:
        upper = product(1.0, a.contiguous().numpy().T, trans=1)
    return upper


def gram(a: Tensor) -> Tensor:
    """a aᵀ in float64."""
    upper = torch.from_numpy(upper_gram(a))
    full = upper + upper.T
    full.diagonal().mul_(0.5)
    return full
