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
from scipy.linalg.lapack import dsterf, dsytrd, ssterf, ssytrd
from torch import Tensor

from stratoscope.statistics.layer import LayerBasis
from stratoscope.statistics.products import padded, upper_gram

TINY = 1e-6
"""Below this canonical correlation, right vectors recovered from left ones are inexact: take a full SVD."""
FAINT = 1e-3
"""Above this canonical correlation its square is well above float32's rounding."""
WEAK = 0.3
"""Below this canonical correlation, float32's rounding of its square, eps / (2 rho), may move it by more than 2e-7."""
NEAR = 1e-4
"""Squared correlations this near to each other have vectors that float32 mixes; they are told apart in float64."""
BLOCK = 32
"""Columns that LAPACK reduces at once; workspace is so many columns."""
NOISE = 7e-7
"""How far a score may be moved by taking eigenvalues in float32."""


@dataclass(frozen=True)
class Pair:
    """Layers x and y, and the mean outer product of their coordinates over the same rows."""

    x: LayerBasis
    y: LayerBasis
    product: Tensor
    """Float64: correlations of the coordinates of x (rows) with those of y (columns)."""
    norms: Tensor
    """Sums over rows of products of ‖x - mean‖² and ‖y - mean‖² (2 × 2), for debiased CKA."""

    @classmethod
    def itself(cls, x: LayerBasis, norms: Tensor) -> Pair:
        """A whitened layer and itself: its coordinates are uncorrelated by construction."""
        pair = cls(x, x, torch.eye(x.rank, dtype=torch.float64), norms)
        pair.__dict__.update(x_on_y=pair.x_unit.T, y_on_x=pair.y_unit)  # known without a product
        return pair

    @cached_property
    def working(self) -> Tensor:
        """The product in the precision of the coordinates and padded, for large matrix products."""
        return padded(self.product.to(self.x_unit.dtype), 0, 1)

    @cached_property
    def x_unit(self) -> Tensor:
        """Neurons of x, standardised, over its coordinates (rx, padded, × dx)."""
        return _unit(self.x)

    @cached_property
    def y_unit(self) -> Tensor:
        """Neurons of y, standardised, over its coordinates (ry, padded, × dy)."""
        return _unit(self.y)

    @cached_property
    def scaled(self) -> Tensor:
        """Cross-covariance up to rotations of either layer."""
        return (self.product * self.x.variance.sqrt()[:, None]).mul_(self.y.variance.sqrt())

    @cached_property
    def shares(self) -> Tensor:
        """Share of each coordinate's variance that one coordinate of the other layer explains (rx × ry)."""
        return self.product.square()

    @cached_property
    def overlap(self) -> float:
        """‖XᵀY‖²_F / n² of the centred layers."""
        return float(self.x.variance @ (self.shares @ self.y.variance))

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
        return self._correlations(self.product)

    @cached_property
    def _truncated(self) -> Tensor:
        return self.product[: self.x.kept(), : self.y.kept()]

    @cached_property
    def canonical(self) -> tuple[Tensor, Tensor, Tensor]:
        """Canonical correlations of the truncated layers (SVCCA), largest first, and what their variates are like.

        That is the correlation of each layer's variates (rows) with its own neurons: of x, of y.
        """
        m = self._truncated
        x, y = self.x_unit[: m.shape[0]], self.y_unit[: m.shape[1]]
        if _diagonal(m) is not None:  # each coordinate is a variate, but for its sign
            rho, order = m.diagonal().abs().sort(descending=True)
            return rho, x[order], y[order]
        wide = m.shape[0] <= m.shape[1]
        a, near, far = (m, x, y) if wide else (m.T, y, x)
        rho = torch.empty(0)
        if near.dtype != m.dtype:
            narrow = self.working[: m.shape[0], : m.shape[1]]
            u, rho = _vectors(narrow if wide else narrow.T)
            _separate_(u, rho, a)
            products = self._far_seen_by_near(wide)
        if not len(rho) or rho[-1] < FAINT:
            u, rho = _vectors(a)
            near, far = near.double(), far.double()
            products = a @ far
        if rho[-1] < TINY:
            u, rho, vh = torch.linalg.svd(a, full_matrices=False)
            directions = u.T @ near, vh @ far
        else:
            directions = u.T @ near, (u.T @ products).div_(rho[:, None])
        return (rho, *(directions if wide else directions[::-1]))

    def _far_seen_by_near(self, wide: bool) -> Tensor:
        """Neurons of the layer with more components, through the truncated product: what is cut off is taken away."""
        kx, ky = self._truncated.shape
        if wide:
            return self.y_on_x[:kx] - self.working[:kx, ky:] @ self.y_unit[ky:]
        return self.x_on_y.T[:ky] - self.working[kx:, :ky].T @ self.x_unit[kx:]

    @cached_property
    def correlations(self) -> Tensor:
        """Canonical correlations of the truncated layers, in [0, 1], largest first."""
        return self.canonical[0].clamp(0, 1) if "canonical" in self.__dict__ else self._correlations(self._truncated)

    @cached_property
    def nuclear(self) -> float:
        """Sum of the singular values of the cross-covariance, relative to the layers' total variances."""
        relative = self.scaled / (self.x.scale * self.y.scale) ** 0.5  # at most 1: its squares fit into float32
        # Taken from the faintest axis upwards, eigenvalues keep digits in proportion to their own row's size.
        return float(self._values(relative, per=1.0, even=False).sum())

    def _correlations(self, m: Tensor) -> Tensor:
        return self._values(m, per=min(m.shape), even=True).clamp(0, 1)

    def _values(self, m: Tensor, *, per: float, even: bool) -> Tensor:
        """Singular values whose sum over `per` is wanted: in float32 if rounding moves it by less than `NOISE`.

        Rounding is that of the largest row, or of each value's own row where rows are sorted by size and not `even`.
        """
        if self.x.unit is None or self.x.unit.dtype == m.dtype or not m.numel() or _diagonal(m) is not None:
            return singular_values(m)
        sizes, values = _spectrum(m.to(self.x.unit.dtype))
        rounding = torch.finfo(self.x.unit.dtype).eps * (2 * sizes[0] if even else 50 * sizes)  # as seen, with room
        noise = torch.minimum(rounding.sqrt(), rounding / (2 * values)).norm()
        return values if noise < NOISE * per else singular_values(m)


def singular_values(m: Tensor) -> Tensor:
    """Singular values from the eigenvalues of m mᵀ, largest first: half an SVD's time, in float64 the same to 1e-8."""
    plain = _diagonal(m)
    return _spectrum(m)[1] if plain is None else plain


def _spectrum(m: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norms of the rows of m (or of the columns, if fewer) and its singular values, float64, largest first."""
    upper = upper_gram((m if m.shape[0] <= m.shape[1] else m.T).flip(0))
    own = np.sort(upper.diagonal().astype(np.float64))[::-1].copy()
    if len(upper) < 2:
        return torch.from_numpy(own), torch.from_numpy(np.sqrt(own))
    # What scipy's eigh would call, without its search for a NaN in every value.
    reduce, values_of = (dsytrd, dsterf) if upper.dtype == np.float64 else (ssytrd, ssterf)
    _, diagonal, beside, _, _ = reduce(upper, lower=0, lwork=BLOCK * len(upper), overwrite_a=1)
    values, failed = values_of(diagonal, beside)
    if failed:
        raise np.linalg.LinAlgError("the eigenvalues of a cross-covariance did not converge")
    return torch.from_numpy(own), torch.from_numpy(np.sqrt(np.clip(values[::-1], 0, None).astype(np.float64)))


def _vectors(a: Tensor) -> tuple[Tensor, Tensor]:
    """Left vectors and singular values (float64), largest first, of a wide matrix from the eigenvectors of a aᵀ."""
    values, left = scipy.linalg.eigh(upper_gram(a), lower=False, overwrite_a=True, driver="evd", check_finite=False)
    rho = np.sqrt(np.clip(values[::-1], 0, None).astype(np.float64))
    return torch.from_numpy(left[:, ::-1].copy()), torch.from_numpy(rho)


def _separate_(u: Tensor, rho: Tensor, exact: Tensor) -> None:
    """Mend in float64 what float32 cannot tell: faint values, and neighbouring vectors of values near to each other.

    Neighbours are turned, in their own plane, to where they belong.
    """
    near = (rho.square().diff().abs() < NEAR).nonzero().flatten()
    members = torch.unique(torch.cat([near, near + 1, (rho < WEAK).nonzero().flatten()]))
    left = u[:, members].double()
    right = exact.T @ left  # turned along with the left ones
    for first in (near[near % 2 == 0], near[near % 2 == 1]):
        both = torch.searchsorted(members, torch.stack([first, first + 1]))
        (p, q), (s, t) = left[:, both].unbind(1), right[:, both].unbind(1)
        size = p.norm(dim=0)
        p, s = p / size, s / size
        along = (p * q).sum(0)
        q, t = q - along * p, t - along * s
        size = q.norm(dim=0)
        q, t = q / size, t / size
        angle = torch.atan2(2 * (s * t).sum(0), s.square().sum(0) - t.square().sum(0)) / 2
        cos, sin = angle.cos(), angle.sin()
        left[:, both] = torch.stack([cos * p + sin * q, cos * q - sin * p], 1)
        right[:, both] = torch.stack([cos * s + sin * t, cos * t - sin * s], 1)
    rho[members] = right.norm(dim=0) / left.norm(dim=0)
    u[:, members] = left.to(u.dtype)


def _diagonal(m: Tensor) -> Tensor | None:
    """Singular values of a matrix that is zero off its diagonal, as of a whitened layer with itself."""
    d = m.diagonal()
    if m[:1, 1:].any() or m.count_nonzero() != d.count_nonzero():  # the first row tells most matrices
        return None
    return d.abs().sort(descending=True).values


def _unit(basis: LayerBasis) -> Tensor:
    if basis.unit is None:
        raise ValueError("this view needs a whitened basis")
    return padded(basis.unit, 0)
