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
ILL_CONDITIONED = 3e3
"""Ratio of standard deviations above which one float64 eigendecomposition does not whiten to 1e-8."""


@dataclass(frozen=True)
class LayerMoments:
    """Mean and scatter of rows, added up in float64 around some shift; `a + b` merges shards.

    The shift, by default the chunk's own mean, keeps neurons whose mean is thousands of times their spread from
    cancelling to nothing.
    """

    count: int
    shift: Tensor
    total: Tensor
    """Sum of the shifted rows."""
    scatter: Tensor
    """Sum of outer products of the shifted rows, or of their squares where only variances are wanted."""

    @classmethod
    def of(cls, chunk: Tensor, *, full: bool = True, shift: Tensor | None = None) -> LayerMoments:
        """Moments of one chunk of rows: the whole scatter matrix, or only its diagonal."""
        shift = chunk.double().mean(0) if shift is None else shift
        c = chunk - shift
        return cls(len(c), shift, c.sum(0), gram(c.T) if full else c.square().sum(0))

    def __add__(self, other: LayerMoments) -> LayerMoments:
        """Merge two shards, whatever each was shifted by (Chan et al. 1983)."""
        if self.scatter.shape != other.scatter.shape:
            raise ValueError(
                f"expected moments of one kind and width, got shapes {tuple(self.scatter.shape)} and"
                f" {tuple(other.scatter.shape)}"
            )
        move = other.shift - self.shift
        scatter = self.scatter + other.scatter
        if move.any():
            cross, step = (torch.outer, move) if scatter.ndim == 2 else (torch.mul, move)
            twice = cross(other.total, step)
            scatter = scatter + twice + (twice.T if scatter.ndim == 2 else twice) + other.count * cross(step, step)
        total = self.total + other.total + other.count * move
        return LayerMoments(self.count + other.count, self.shift, total, scatter)

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
    def width(self) -> int:
        """Number of neurons."""
        return len(self.mean)

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

    def transform(self, chunk: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Rows in this basis, in the rows' own precision unless told; the mean is taken off in float64."""
        dtype = dtype or chunk.dtype
        u = standardise(chunk, self.mean, self.sd)
        if self.to is None:
            return u.to(dtype)
        # A float32 product adds noise of condition·eps to coordinates of size 1, and its square to their products.
        gentle = self.condition < GENTLE
        w = u.to(dtype) @ padded(self.to.to(dtype), 1) if gentle else (u @ padded(self.to, 1)).to(dtype)
        return w[:, : self.rank]

    def squared_norms(self, w: Tensor) -> Tensor:
        """‖x - mean‖² of rows given in this basis, in float64: debiased CKA takes large ones from each other."""
        return torch.mv(w.double().square(), self.variance)


def layer_moments(rows: LayerRows, layer: int, *, full: bool = True) -> LayerMoments:
    """Moments of one layer in one pass over its rows."""
    moments = LayerMoments.of(rows.chunk(layer, 0), full=full)
    for k in range(1, len(rows.sizes)):
        moments = moments + LayerMoments.of(rows.chunk(layer, k), full=full, shift=moments.shift)
    return moments


def standardise(chunk: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """Rows about their mean in units of each neuron's deviation, in float64; a constant neuron is 0."""
    return (chunk - mean).mul_(torch.where(sd > 0, 1 / sd, 0.0))


def deviations(moments: LayerMoments, eps: float) -> tuple[Tensor, Tensor]:
    """Standard deviation of each neuron, 0 where only rounding moves it, and what rounding amounts to."""
    rounding = (ROUNDING if eps < FINE else 1.0) * eps * (moments.variance + moments.mean.square()).sqrt()
    sd = moments.variance.sqrt()
    return torch.where(sd > rounding, sd, 0.0), rounding


def fit_basis(rows: LayerRows, layer: int, *, whiten: bool, dtype: torch.dtype | None = None) -> LayerBasis:
    """Fit the basis one layer's rows are compared in; `dtype` is that of the coordinates, the rows' own by default.

    More rows than neurons: eigenvectors of the covariance, streamed. Otherwise the n×n dual of the same rows, which fit
    in memory because they are fewer than the neurons. Neurons of very different size are standardised first, so that
    one that weight decay left with a spread of 1e-32 counts as any other where a measure does not see scale.
    """
    first = rows.chunk(layer, 0)
    dual = count(rows) <= first.shape[1]
    moments = layer_moments(rows, layer, full=not dual)
    mean, (sd, rounding) = moments.mean, deviations(moments, rows.eps(layer))
    variance = sd.square()
    inverse = torch.where(sd > 0, 1 / sd, 0.0)
    if not whiten:
        varies = sd > 0
        if dual:
            own = gram((gather(rows, layer).double() - mean) * varies) / moments.count
        else:
            own = moments.covariance * torch.outer(varies, varies)
        return LayerBasis(moments.count, mean, sd, float(own.square().sum().sqrt()), variance)
    even = not dual and rows.eps(layer) < FINE and bool(sd.any()) and float(sd.max() / sd[sd > 0].min()) < EVEN
    size = (sd > 0).double() if even else sd
    per = torch.where(sd > 0, 1 / size, 0.0)
    u = standardise(gather(rows, layer), mean, size) if dual else None
    own = moments.covariance * torch.outer(per, per) if u is None else gram(u) / len(u)
    values, axes = _principal(own, u)
    signal = values > (rounding * per).square() @ axes.square()
    values, axes = values[signal], axes[:, signal]
    root = values.sqrt()
    condition = float(root[0] / root[-1]) if len(root) else 1.0
    variance, to, unit = values, (sd * per)[:, None] * (axes / root), (axes * root).T * (size * inverse)
    if not even:  # the layer's own principal axes, among those of its standardised neurons
        variance, turn = _eigh(gram(unit * sd))
        variance, to, unit = variance.clamp_min(0), to @ turn, turn.T @ unit
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
