"""One layer's own statistics: mean, covariance, principal axes, and the coordinates its rows are compared in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import scipy.linalg
import torch
from torch import Tensor

from stratoscope.statistics.products import gram, padded
from stratoscope.statistics.rows import LayerRows, chunks, count, gather

EPS = torch.finfo(torch.float64).eps
ROUNDING = 4.0
"""How many units of rounding a direction's standard deviation must exceed to count as signal.

LayerNorm makes a layer exactly rank d-1; along the lost direction only the rounding of the forward pass is left. Half
precisions are computed in float32 and rounded once, to a third of a unit at most: one unit is enough for them.
"""
GENTLE = 300.0
"""Ratio of standard deviations up to which whitening products in float32 move a score by less than 1e-6."""
EVEN = 10.0
"""Ratio of the neurons' standard deviations up to which the layer's own principal axes resolve every direction."""
FINE = 1e-6
"""Rounding below which directions of signal stand clear of it in any unit."""
NOISE_MARGIN = 100.0
"""Variance, in units of the noisiest neuron's rounding variance, above which a direction is signal beyond doubt.

Not examining such directions moves the line between signal and rounding by at most 1 % of the variance there.
"""
HEAD = 16
"""Number of coordinates, those of the largest variance, whose products are made in float64 as well.

CKA weights each product by both variances: a few of them decide it, and their float32 rounding (1e-6 where one row
outweighs all others) does not average out.
"""
ILL_CONDITIONED = 3e3
"""Ratio of standard deviations above which one float64 eigendecomposition does not whiten to 1e-8."""


@dataclass(frozen=True)
class LayerMoments:
    """Mean and scatter of rows, added up in float64 around a shift near their mean.

    The shift keeps neurons whose mean is thousands of times their spread from cancelling to nothing.
    """

    count: int
    shift: Tensor
    total: Tensor
    """Sum of the shifted rows."""
    scatter: Tensor
    """Sum of outer products of the shifted rows, or of their squares where only variances are wanted."""

    @property
    def mean(self) -> Tensor:
        """Mean of the rows."""
        return self.shift + self.total / self.count

    @property
    def covariance(self) -> Tensor:
        """Biased covariance; every ratio of covariances is free of the factor n/(n-1)."""
        m = self.total / self.count
        return self.scatter / self.count - torch.outer(m, m)

    @property
    def variance(self) -> Tensor:
        """Biased variance of each neuron, at least 0."""
        squares = self.scatter.diagonal() if self.scatter.ndim == 2 else self.scatter
        return (squares / self.count - (self.total / self.count).square()).clamp_min(0)


@dataclass(frozen=True)
class LayerBasis:
    """The coordinates a layer's rows are compared in; each has variance 1.

    With u = (x - mean) / sd, whitened coordinates are w = u @ to, the principal components scaled to variance 1,
    largest first and noise directions left out; u = w @ unit. Cross-products of w are canonical correlations' raw
    material, and float32 products lose nothing to outlier dimensions. Otherwise w = u, for measures that never invert
    a covariance.
    """

    n: int
    mean: Tensor
    sd: Tensor
    """Standard deviation of each neuron (biased); exactly 0 for a neuron that only rounding moves."""
    spread: float
    """‖Σ‖_F, the Frobenius norm of the covariance."""
    variance: Tensor
    """The layer's variance along each coordinate: of principal axes, largest first, or of neurons."""
    condition: float = 1.0
    """Ratio of the extreme standard deviations along the axes the layer was decomposed in."""
    to: Tensor | None = None
    unit: Tensor | None = None
    """Correlation of each coordinate (rows) with each neuron (columns), in the precision of the coordinates."""

    @property
    def whitened(self) -> bool:
        """Whether the coordinates are whitened principal components."""
        return self.unit is not None

    @property
    def rank(self) -> int:
        """Number of coordinates."""
        return len(self.variance)

    @property
    def lost(self) -> int:
        """Directions left out because they vary by no more than rounding, of those so many rows and neurons can have.

        One is what LayerNorm takes. More are neurons that depend on each other, rows that repeat while they are few, or
        signal too faint for the rows' precision (about 2e6 times weaker than the strongest in float32).
        """
        return min(int((self.sd > 0).sum()), self.n - 1) - self.rank if self.whitened else 0

    @property
    def constant(self) -> bool:
        """Whether the layer does not vary over these rows at all."""
        return not bool(self.sd.any())

    @property
    def scale(self) -> float:
        """Total variance, tr Σ."""
        return float(self.sd.square().sum())

    @property
    def dropped_share(self) -> float:
        """Share of the total variance along the directions left out."""
        return max(0.0, 1 - float(self.variance.sum()) / self.scale) if self.rank else 0.0

    def kept(self, share: float = 0.99) -> int:
        """The fewest principal components that reach a share of the variance; the crossing one is kept."""
        cumulative = torch.cumsum(self.variance, 0)
        reached = int((cumulative < share * cumulative[-1] * (1 - 1e-12)).sum()) + 1 if self.rank else 0
        return min(reached, self.rank)

    def to_tensors(self) -> dict[str, Tensor]:
        """Plain named tensors, for a file or another process; `to` is needed for transforming rows only."""
        scalars = torch.tensor([self.n, self.spread, self.condition], dtype=torch.float64)
        named = {"mean": self.mean, "sd": self.sd, "variance": self.variance, "scalars": scalars}
        maps = {"to": self.to, "unit": self.unit}
        return named | {name: t for name, t in maps.items() if t is not None}

    @classmethod
    def from_tensors(cls, t: Mapping[str, Tensor]) -> LayerBasis:
        """Inverse of `to_tensors`; without `to` it transforms no further rows."""
        n, spread, condition = t["scalars"].tolist()
        return cls(int(n), t["mean"], t["sd"], spread, t["variance"], condition, t.get("to"), t.get("unit"))

    @property
    def head(self) -> Tensor:
        """Which coordinates have the largest variance, `HEAD` of them at most."""
        return self.variance.topk(min(HEAD, self.rank)).indices

    def coordinates(self, chunk: Tensor, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Rows in this basis (`rows`, padded), and what of them is needed in float64 whatever their precision.

        That is ‖x - mean‖² of each row (`norms`; debiased CKA takes large ones from each other) and, unless all columns
        are in float64, those of `head` (`heads`).
        """
        dtype = dtype or chunk.dtype
        u = standardise(chunk, self.mean, self.sd)
        coordinates = {"rows": padded(self._mapped(u, dtype), 1), "norms": torch.mv(u.square(), self.sd.square())}
        if dtype != torch.float64:
            coordinates["heads"] = u[:, self.head] if self.to is None else u @ self.to[:, self.head]
        return coordinates

    def transform(self, chunk: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Rows in this basis, in the rows' own precision unless told; the mean is taken off in float64."""
        return self._mapped(standardise(chunk, self.mean, self.sd), dtype or chunk.dtype)

    def _mapped(self, u: Tensor, dtype: torch.dtype) -> Tensor:
        if self.to is None:
            return u.to(dtype)
        # A float32 product adds noise of condition·eps to coordinates of size 1, and its square to their products.
        gentle = self.condition < GENTLE
        w = u.to(dtype) @ padded(self.to.to(dtype), 1) if gentle else (u @ padded(self.to, 1)).to(dtype)
        return w[:, : self.rank]


def layer_moments(rows: LayerRows, layer: int, *, full: bool = True) -> LayerMoments:
    """Moments of one layer in one pass over its rows, with the whole scatter matrix or only its diagonal."""
    shift = rows.chunk(layer, 0).double().mean(0)
    total = torch.zeros_like(shift)
    scatter = torch.zeros((len(shift),) * (2 if full else 1), dtype=torch.float64)
    for chunk in chunks(rows, layer):
        c = chunk - shift
        total += c.sum(0)
        scatter += gram(c.T) if full else c.square().sum(0)
    return LayerMoments(count(rows), shift, total, scatter)


def standardise(chunk: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """Rows about their mean in units of each neuron's deviation, in float64; a constant neuron is 0."""
    return (chunk - mean).mul_(torch.where(sd > 0, 1 / sd, 0.0))


def deviations(moments: LayerMoments, eps: float, loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """Standard deviation of each neuron, 0 where only rounding moves it, and what rounding amounts to.

    `eps` and `loss` are those of the rows (`LayerRows`).
    """
    rounding = (ROUNDING if eps < FINE else 1.0) * eps * (moments.variance + moments.mean.square()).sqrt()
    sd = moments.variance.sqrt()
    varies = sd > rounding
    return torch.where(varies, sd, 0.0), torch.hypot(rounding, loss * sd) if loss else rounding


def fit_basis(
    rows: LayerRows, layer: int, *, whiten: bool, inverts: bool = True, dtype: torch.dtype | None = None
) -> LayerBasis:
    """Fit the basis one layer's rows are compared in; `dtype` is that of the coordinates, the rows' own by default.

    Whitened coordinates leave out directions of rounding, unless no measure `inverts` the variance along them.

    More rows than neurons: eigenvectors of the covariance, streamed. Otherwise the n×n dual of the same rows, which fit
    in memory because they are fewer than the neurons. Neurons of very different size are standardised first, so that
    one that weight decay left with a spread of 1e-32 counts as any other where a measure does not see scale.
    """
    first = rows.chunk(layer, 0)
    dual = count(rows) <= first.shape[1]
    moments = layer_moments(rows, layer, full=not dual)
    mean, (sd, rounding) = moments.mean, deviations(moments, rows.eps(layer), rows.loss(layer))
    variance = sd.square()
    inverse = torch.where(sd > 0, 1 / sd, 0.0)
    if not whiten:
        varies = sd > 0
        if dual:
            own = gram((gather(rows, layer).double() - mean) * varies) / moments.count
        else:
            own = moments.covariance * torch.outer(varies, varies)
        return LayerBasis(moments.count, mean, sd, float(own.square().sum().sqrt()), variance)
    fine = max(rows.eps(layer), rows.loss(layer)) < FINE
    even = not dual and fine and bool(sd.any()) and float(sd.max() / sd[sd > 0].min()) < EVEN
    size = (sd > 0).double() if even else sd
    per = torch.where(sd > 0, 1 / size, 0.0)
    u = standardise(gather(rows, layer), mean, size) if dual else None
    own = moments.covariance * torch.outer(per, per) if u is None else gram(u) / len(u)
    values, axes = _principal(own, u)
    to, unit, clear = _signal(values, axes, rounding * per if inverts else torch.zeros_like(per))
    condition = float(values[0].sqrt() * to.square().sum(0).max().sqrt()) if to.shape[1] else 1.0
    to, unit = (sd * per)[:, None] * to, unit * (size * inverse)
    first_turned = clear if even else 0  # those before it are the layer's own principal axes already
    variance = values[:first_turned]
    if first_turned < len(unit):
        others, turn = _eigh(gram(unit[first_turned:] * sd))
        variance = torch.cat([variance, others.clamp_min(0)])
        to = torch.cat([to[:, :first_turned], to[:, first_turned:] @ turn], 1)
        unit = torch.cat([unit[:first_turned], turn.T @ unit[first_turned:]])
    spread = float(variance.square().sum().sqrt())
    basis = LayerBasis(moments.count, mean, sd, spread, variance, condition, to, unit)
    if condition > ILL_CONDITIONED:
        basis = _sharpen(basis, rows, layer)
    assert basis.unit is not None
    return replace(basis, unit=basis.unit.to(dtype or first.dtype).contiguous())


def _eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, largest first, and eigenvectors of a symmetric matrix."""
    values, vectors = scipy.linalg.eigh(a.numpy(), driver="evd", check_finite=False)
    return torch.from_numpy(values[::-1].copy()), torch.from_numpy(vectors[:, ::-1].copy())


def _principal(own: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """Variances, largest first, and axes from the correlation matrix or, given the rows u, from their Gram matrix."""
    variance, vectors = _eigh(own)
    resolved = variance > max(len(own), 8) * EPS * variance[0]
    variance, vectors = variance[resolved], vectors[:, resolved]
    return variance, vectors if u is None else (u.T @ vectors) / (variance * len(u)).sqrt()


def _signal(values: Tensor, axes: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, int]:
    """Maps to and from the whitened coordinates that are more than rounding; how many of the first are `axes`.

    Rounding of deviation `noise` in each neuron leaves whitened coordinates, fitted by least squares with weights
    1/noise², uncertain by a covariance M. They are turned until M is diagonal and dropped where it is 1 or more: all
    that varies there may be rounding. A neuron more never adds to M, so a noisy one costs its own direction at most;
    axes judged one by one would each be charged for it.
    """
    root = values.sqrt()
    to, unit = axes / root, (axes * root).T
    clear = int((values > NOISE_MARGIN * noise.max().square()).sum())
    if clear == len(values):
        return to, unit, clear
    weighted = axes * torch.where(noise > 0, 1 / noise, 0.0)[:, None]
    corner = torch.linalg.qr(weighted, mode="r").R[clear:, clear:] * root[clear:]  # M⁻¹ is cornerᵀ corner
    ratio, turn = _eigh(gram(corner.T))
    turn = turn[:, ratio > 1]
    if turn.shape[1] == len(ratio):
        return to, unit, len(values)
    to, unit = torch.cat([to[:, :clear], to[:, clear:] @ turn], 1), torch.cat([unit[:clear], turn.T @ unit[clear:]])
    return to, unit, clear


def _sharpen(basis: LayerBasis, rows: LayerRows, layer: int) -> LayerBasis:
    """Whiten the whitened rows once more, as CholeskyQR2 does: squares the condition number's reach."""
    assert basis.to is not None
    assert basis.unit is not None
    scatter = torch.zeros(basis.rank, basis.rank, dtype=torch.float64)
    for chunk in chunks(rows, layer):
        scatter += gram((standardise(chunk, basis.mean, basis.sd) @ basis.to).T)
    values, vectors = torch.linalg.eigh(scatter / basis.n)
    half = (vectors * values.sqrt()) @ vectors.T
    inverse = (vectors / values.sqrt()) @ vectors.T
    return replace(basis, to=basis.to @ inverse, unit=half @ basis.unit)
