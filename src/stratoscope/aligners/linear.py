"""Linear maps solved exactly from whitened coordinates: regression, ridge, canonical correlations, rotation.

With x - mean = w L, w of covariance 1 over the rows, L Lᵀ the variances along the principal axes (`fit_basis`), every
map is y = mean + w M: regression has M = E[wᵀ(y - mean)], canonical correlations turn M in both bases. Directions that
vary by no more than rounding have no coordinate, which gives the solution of least norm where the rank is deficient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from stratoscope.aligners.maps import Map
from stratoscope.aligners.texts import IntArray, held_out
from stratoscope.core.errors import StratoscopeError
from stratoscope.statistics.layer import LayerBasis, fit_basis
from stratoscope.statistics.products import gram
from stratoscope.statistics.rows import MemoryRows

LAMBDAS = torch.logspace(-10, 3, 53, dtype=torch.float64)
"""Ridge penalties tried, in units of the mean variance of a feature."""
SHARES = (1.0, 0.5, 0.25, 0.1)
"""Of the rotation that `shrunk` is shrunk towards."""
MOST_CONDITION = 1e3
"""Condition number of `shrunk`, from which networks start: an inverse in float32 then keeps four digits."""
VARIANCE_KEPT = 0.99
"""Share of the variance that SVCCA keeps (Raghu et al. 2017)."""


@dataclass(frozen=True)
class Space:
    """One space as its training rows show it."""

    rows: Tensor
    """(n, d), in the precision that products are made in."""
    basis: LayerBasis
    held: Tensor
    """Which rows choose λ, (n,) bool."""
    texts: IntArray | None = None
    """The text of every row, (n,), where texts have several."""

    @classmethod
    def of(cls, rows: Tensor, *, texts: IntArray | None = None, seed: int = 0) -> Space:
        """Fit the principal axes of all rows, and draw texts to hold out."""
        basis = fit_basis(MemoryRows([rows]), 0, whiten=True, dtype=torch.float64)
        return cls(rows, basis, held_out(len(rows), texts=texts, seed=seed), texts)

    def without_held(self, seed: int) -> Space:
        """The space as the rows that are not held out show it."""
        kept = ~self.held
        return Space.of(self.rows[kept], texts=None if self.texts is None else self.texts[kept.numpy()], seed=seed)

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    @cached_property
    def centred(self) -> Tensor:
        """Rows about their mean."""
        return (self.rows - self.basis.mean).to(self.rows.dtype)

    @cached_property
    def w(self) -> Tensor:
        """Whitened coordinates of the rows, (n, r)."""
        return self.basis.transform(self.rows)

    @cached_property
    def drop(self) -> Tensor:
        """(d, r): w = (x - mean) @ drop; directions without a coordinate are orthogonal to it, for the least norm.

        Axes far below the largest, as those of a neuron that weight decay left with a spread of 1e-33, are no longer
        orthogonal: what float64 cannot tell from zero then predicts nothing and has no part in the map.
        """
        if self.basis.rank < self.width:
            eps = torch.finfo(torch.float64).eps
            if bool((self.variance > eps * self.variance.sum()).all()):
                return self.lift.T / self.variance
            back: Tensor = torch.linalg.pinv(self.lift, rtol=eps * self.width)
            return back
        assert self.basis.to is not None
        sd = self.basis.sd
        return torch.where(sd > 0, 1 / sd, 0.0)[:, None] * self.basis.to

    @cached_property
    def lift(self) -> Tensor:
        """(r, d): x - mean = w @ lift."""
        assert self.basis.unit is not None
        return self.basis.unit.double() * self.basis.sd

    @property
    def variance(self) -> Tensor:
        return self.basis.variance

    @cached_property
    def penalised(self) -> Penalised:
        """What ridge needs of this space alone."""
        fit, held = (self.w[part] for part in self.parts)
        root = self.variance.sqrt()
        values, vectors = torch.linalg.eigh(gram(fit.T) * torch.outer(root, root) / len(fit))
        axes = root[:, None] * vectors
        turned = held.double() @ axes
        square = gram(turned.T) / len(held)
        return Penalised(values.clamp_min(0), axes.to(self.rows.dtype), turned.to(self.rows.dtype), square)

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        return ~self.held, self.held


@dataclass(frozen=True)
class Penalised:
    """The axes in which the covariance of the fitting rows is diagonal, and the held-out rows seen along them.

    The latter are turned once for a space, so that each pair of spaces costs one product of width³ less.
    """

    values: Tensor
    """Eigenvalues of that covariance, (r,)."""
    axes: Tensor
    """(r, r): from whitened coordinates to these axes, in the rows' precision."""
    held: Tensor
    """Coordinates of the held-out rows, (h, r), in the rows' precision."""
    square: Tensor
    """Their mean product, (r, r)."""


@dataclass(frozen=True)
class Products:
    """All that ridge needs of a pair: mean products of a space's coordinates with centred targets, (r, q) each."""

    m: Tensor
    """Over all rows, of whitened coordinates: M of least squares."""
    held: Tensor
    """Over the held-out rows, along the axes of `Penalised`."""

    def less(self, other: Products, times: float) -> Products:
        """Products with targets from which `times` others are taken."""
        return Products(self.m - times * other.m, self.held - times * other.held)


def products(x: Space, targets: Tensor) -> Products:
    """One pass over the rows."""
    held = targets[x.held]
    return Products(regression(x, targets), x.penalised.held.T @ held / len(held))


def regression(x: Space, targets: Tensor) -> Tensor:
    """M of least squares: E[wᵀ y]."""
    m: Tensor = x.w.T @ targets / len(x.rows)
    return m


def ridge(x: Space, targets: Tensor) -> tuple[Tensor, float]:
    """M of argmin ‖y - x A‖²/n + λ‖A‖², and λ with the least error on held-out rows (Hoerl & Kennard 1970).

    With the fitting rows' covariance Q e Qᵀ, A(λ) = Q (e + λ)⁻¹ B: one eigendecomposition, and a sum over r² numbers
    for each λ. The map is then fitted on all rows.
    """
    p = products(x, targets)
    best, _ = penalty(x, p)
    return penalised(x, p.m, best), best


def penalised(x: Space, m: Tensor, penalty: float) -> Tensor:
    """M of ridge from that of least squares."""
    return (x.variance / (x.variance + penalty)).to(m.dtype)[:, None] * m if penalty else m


def penalty(x: Space, p: Products) -> tuple[float, float]:
    """λ with the least error on held-out rows, and by how much that is below the error of nothing, ‖y‖² per row.

    Errors are compared in the precision of the rows.
    """
    if not x.basis.rank:
        return 0.0, 0.0
    of, n, held = x.penalised, len(x.rows), len(x.penalised.held)
    b = (n * (of.axes.T @ p.m) - held * p.held) / (n - held)
    square, cross = of.square * gram(b), (p.held * b).double().sum(1)
    lambdas = LAMBDAS * float(x.variance.sum() / x.width)
    shrink = 1 / (of.values + lambdas[:, None])
    errors = ((shrink @ square) * shrink).sum(1) - 2 * shrink @ cross
    return float(lambdas[errors.argmin()]), -float(errors.min())


def canonical(x: Space, y: Space, *, kept: tuple[int, int] | None = None, weighted: bool = False) -> Tensor:
    """M of a map that sends each canonical variate of x to its partner: P Qᵀ L_y, with E[wxᵀ wy] = P ρ Qᵀ.

    The matrix Wx Wy⁻¹ of Ren et al. 2023, eq. 6, with means and scales undone. SVCCA keeps the first principal
    components of either space. PWCCA, for whose map they give no formula, shrinks a direction as regression does, by
    ρ, the less of x it explains: by 1 - (1 - α/max α)(1 - ρ) with α of their eq. 8.
    """
    kx, ky = kept or (x.basis.rank, y.basis.rank)
    c = (x.w[:, :kx].T @ y.w[:, :ky]).double() / len(x.rows)
    p, rho, q = torch.linalg.svd(c, full_matrices=False)
    size = torch.ones_like(rho)
    if weighted and len(rho):
        alpha = (p.T @ x.lift[:kx]).abs().sum(1)  # of each variate with the features, up to the factor n
        size = 1 - (1 - alpha / alpha.max()) * (1 - rho.clamp_max(1))
    m = torch.zeros(x.basis.rank, y.width, dtype=torch.float64)
    m[:kx] = (p * size) @ q @ y.lift[:ky]
    return m


def rotation(x: Space, y: Space, rows: Tensor | None = None) -> Tensor:
    """A = s U Vᵀ with X'Y = U S Vᵀ, s = tr S / ‖X‖² (Schönemann 1966); orthogonal also where the rank is deficient.

    `rows` chooses some of the training rows.
    """
    a, b = (x.centred, y.centred) if rows is None else (x.centred[rows], y.centred[rows])
    u, s, v = torch.linalg.svd((a.T @ b).double(), full_matrices=False)
    total = float(a.double().square().sum())
    scale = float(s.sum()) / total if total > 0 else 0.0
    turned: Tensor = scale * (u @ v)
    return turned


def shrunk_ridge(x: Space, y: Space) -> tuple[Tensor, dict[str, float]]:
    """A = argmin ‖y - x A‖²/n + λ‖A - γR‖², with γ and λ; R the scaled rotation of x onto y: ridge on what γR leaves.

    γ and λ are those with the least error on held-out rows, which R does not know then; or the least λ from there on
    that gives a well-conditioned A: plain ridge, γ = 0, sends directions of little variance almost to nothing, which no
    inverse brings back. A whole rotation is an overfit of its own where rows are few.
    """
    fit, held = x.parts
    known = rotation(x, y, fit)
    turned = x.centred @ known.to(x.centred.dtype)
    to_y, to_r, lost = products(x, y.centred), products(x, turned), dict[float, tuple[float, float]]()
    for share in SHARES:
        best, won = penalty(x, to_y.less(to_r, share))
        left = (y.centred[held] - share * turned[held]).double().square().sum() / int(held.sum())
        lost[share] = float(left) - won, best
    share = min(lost, key=lambda s: lost[s])
    best, r = lost[share][1], share * rotation(x, y)
    m = regression(x, y.centred - x.centred @ r.to(x.centred.dtype))
    floor = float(x.variance.sum() / x.width) * 1e-10
    while True:
        weight = r + x.drop @ penalised(x, m, best)
        values = torch.linalg.svdvals(weight)
        if float(values[0]) <= MOST_CONDITION * float(values[-1]):
            return weight, {"lambda": best, "rotation": share}
        best = max(best, floor) * 3


def fit_linear(method: str, x: Space, y: Space) -> Map:
    """The linear map of a method."""
    chosen: dict[str, float] = {}
    if method == "procrustes":
        weight = rotation(x, y)
    elif method == "shrunk":
        weight, chosen = shrunk_ridge(x, y)
    else:
        if method == "linreg":
            m = regression(x, y.centred)
        elif method == "ridge":
            m, chosen["lambda"] = ridge(x, y.centred)
        elif method == "svcca":
            kept = x.basis.kept(VARIANCE_KEPT), y.basis.kept(VARIANCE_KEPT)
            chosen |= {"kept_x": kept[0], "kept_y": kept[1]}
            _check_number(method, len(x.rows), max(kept))
            m = canonical(x, y, kept=kept)
        else:
            _check_number(method, len(x.rows), max(x.basis.rank, y.basis.rank))
            m = canonical(x, y, weighted=method == "pwcca")
        weight = x.drop @ m
    return Map(method, x.basis.mean, y.basis.mean, weight, chosen=chosen)


def _check_number(method: str, n: int, rank: int) -> None:
    """Canonical correlations of as many directions as rows are all 1, whatever the rows are."""
    if rank >= n - 1:
        raise StratoscopeError(
            f"{method} needs more rows than directions, got {n} rows that vary along {rank}; give more, or use ridge"
        )
