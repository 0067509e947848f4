"""Two layers and their cross-products, seen the ways the linear measures need.

Every linear measure is one idea: a map made from each layer's own covariance, then a reduction of the cross-covariance
between the mapped layers. The maps are whitening (CCA), standardising neurons (neuronsim), one of each (mixedsim) or
none (CKA, Procrustes); this class computes each mapped cross-covariance once, when first asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from stratoscope.statistics.layer import LayerBasis, upper_gram

TINY = 1e-6
"""Below this canonical correlation, right vectors recovered from left ones are inexact: take a full SVD."""
FAINT = 0.03
"""Above this canonical correlation, float32 loses less than 1e-6 of it or of its vectors."""


@dataclass(frozen=True)
class Pair:
    """Layers x and y, and the mean outer product of their coordinates over the same rows."""

    x: LayerBasis
    y: LayerBasis
    product: Tensor
    """Float64: correlations of the coordinates of x (rows) with those of y (columns)."""
    norms: float
    """Sum over rows of ‖x - mean‖² ‖y - mean‖²."""

    @classmethod
    def itself(cls, x: LayerBasis) -> Pair:
        """A whitened layer and itself: its coordinates are uncorrelated by construction."""
        return cls(x, x, torch.eye(x.rank, dtype=torch.float64), x.norms)

    @cached_property
    def working(self) -> Tensor:
        """The product in the precision of the coordinates, for large matrix products."""
        return self.product.to(self.x_unit.dtype)

    @cached_property
    def x_unit(self) -> Tensor:
        """Neurons of x, standardised, over its coordinates (rx × dx)."""
        return _unit(self.x)

    @cached_property
    def y_unit(self) -> Tensor:
        """Neurons of y, standardised, over its coordinates (ry × dy)."""
        return _unit(self.y)

    @cached_property
    def scaled(self) -> Tensor:
        """Cross-covariance up to rotations of either layer: all that CKA and Procrustes see."""
        return (self.product * self.x.variance.sqrt()[:, None]).mul_(self.y.variance.sqrt())

    @cached_property
    def overlap(self) -> float:
        """‖XᵀY‖²_F / n² of the centred layers."""
        flat = self.scaled.flatten()
        return float(flat @ flat)

    @cached_property
    def x_on_y(self) -> Tensor:
        """Standardised neurons of x (rows) over y's whitened components: coefficients of regressing x on y."""
        return self.x_unit.T @ self.working

    @cached_property
    def y_on_x(self) -> Tensor:
        """Standardised neurons of y (columns) over x's whitened components: coefficients of regressing y on x."""
        return self.working @ self.y_unit

    @cached_property
    def correlation(self) -> Tensor:
        """Pearson correlation of every neuron of x with every neuron of y; 0 where one is constant."""
        return self.x_unit.T @ self.y_on_x if self.x.whitened else self.product

    @cached_property
    def full_correlations(self) -> Tensor:
        """Canonical correlations of the whole layers, in [0, 1], largest first."""
        rho = singular_values(self.working)
        if self.working.dtype != self.product.dtype and rho[-1] < FAINT:  # its square is next to float32's rounding
            rho = singular_values(self.product)
        return rho.double().clamp(0, 1)

    @cached_property
    def _truncated(self) -> Tensor:
        return self.product[: self.x.kept(), : self.y.kept()]

    @cached_property
    def canonical(self) -> tuple[Tensor, Tensor, Tensor]:
        """Left vectors, correlations and right vectors of the truncated layers (SVCCA), largest first."""
        m = self._truncated
        if _diagonal(m) is not None:
            return torch.eye(len(m), dtype=m.dtype), m.diagonal(), torch.eye(m.shape[1], dtype=m.dtype)
        wide = m.shape[0] <= m.shape[1]
        a = m if wide else m.T
        values, left = scipy.linalg.eigh(upper_gram(a), lower=False, overwrite_a=True, driver="evd", check_finite=False)
        rho = torch.from_numpy(np.sqrt(np.clip(values[::-1], 0, None)).copy())
        if not len(rho) or rho[-1] < TINY:
            u, s, vh = torch.linalg.svd(m, full_matrices=False)
            return u, s, vh.T
        u = torch.from_numpy(left[:, ::-1].copy())
        # A right vector recovered in float32 is exact to eps/ρ, enough for a weight.
        dtype = self.working.dtype if rho[-1] > FAINT else m.dtype
        v = (a.to(dtype).T @ u.to(dtype)) / rho.to(dtype)
        return (u, rho, v) if wide else (v, rho, u)

    @cached_property
    def correlations(self) -> Tensor:
        """Canonical correlations of the truncated layers, in [0, 1], largest first."""
        rho = self.canonical[1] if "canonical" in self.__dict__ else singular_values(self._truncated)
        return rho.clamp(0, 1)


def singular_values(m: Tensor) -> Tensor:
    """Singular values from the eigenvalues of m mᵀ, largest first: half an SVD's time, in float64 the same to 1e-8."""
    plain = _diagonal(m)
    if plain is not None:
        return plain
    upper = upper_gram(m if m.shape[0] <= m.shape[1] else m.T)
    values = scipy.linalg.eigh(
        upper, lower=False, overwrite_a=True, eigvals_only=True, driver="evd", check_finite=False
    )
    return torch.from_numpy(np.sqrt(np.clip(values[::-1], 0, None)).copy())


def _diagonal(m: Tensor) -> Tensor | None:
    """Singular values of a matrix that is zero off its diagonal, as of a whitened layer with itself."""
    d = m.diagonal()
    return d.abs().sort(descending=True).values if m.count_nonzero() == d.count_nonzero() else None


def _unit(basis: LayerBasis) -> Tensor:
    if basis.unit is None:
        raise ValueError("this view needs a whitened basis")
    return basis.unit
