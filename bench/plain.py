"""The obvious way: one SVD of every layer's rows, then every pair of layers on its own.

In float32, without a thought for rank, this is how the papers' code works (with its mistakes mended), and the peer the
engine is measured against. In float64, with the directions that only rounding fills cut off, it is the reference for
accuracy. It shares nothing with the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.stats
import torch
from torch import Tensor

Floats = npt.NDArray[np.floating]
Both = tuple[float, float]
"""Score with the first layer as first argument, and the other way round."""

SHARE = 0.99
"""Part of the variance that SVCCA and PWCCA keep."""
GAP = 30.0
"""Two neighbouring singular values this far apart divide signal from rounding; real spectra fall smoothly."""
RBF_FRACTION = 0.5
"""Bandwidth over median distance."""


@dataclass(frozen=True)
class Layer:
    """One layer's centred rows and their SVD."""

    x: Tensor
    u: Tensor
    s: Tensor
    varies: Tensor
    """Which neurons count; the others score 0."""

    @classmethod
    def of(cls, rows: Tensor, *, cut: bool = False) -> Layer:
        """Centre and decompose in the precision the rows come in; `cut` leaves out directions of rounding.

        Those are told on standardised neurons: weight decay leaves neurons that vary by 1e-32 and still count where a
        measure does not see scale.
        """
        x = rows - rows.mean(0)
        sd = x.square().sum(0).sqrt()
        if not cut:
            u, s, _ = torch.linalg.svd(x, full_matrices=False)
            return cls(x, u, s, torch.ones_like(sd, dtype=torch.bool))
        u, s, vh = torch.linalg.svd(torch.where(sd > 0, x / sd, 0), full_matrices=False)
        r = rank(s)
        turn, s, _ = torch.linalg.svd(s[:r, None] * vh[:r] * sd, full_matrices=False)
        return cls(x, u[:, :r] @ turn, s, sd > 0)

    @property
    def kept(self) -> int:
        """Fewest components that reach `SHARE` of the variance."""
        part = torch.cumsum(self.s.square(), 0)
        return int((part < SHARE * part[-1]).sum()) + 1


def rank(s: Tensor) -> int:
    """Singular values above the first wide gap in the lower half of the spectrum; all of them if no gap is wide."""
    half = len(s) // 2
    wide = (s[half:-1] > GAP * s[half + 1 :]).nonzero().flatten()
    return half + int(wide[0]) + 1 if len(wide) else len(s)


def scores(a: Layer, b: Layer) -> dict[str, Both]:
    """Every linear measure of SPEC §2 for one pair of layers, in both directions."""
    cross = a.x.T @ b.x
    overlap = a.u.T @ b.u
    a_sd, b_sd = a.x.square().sum(0).sqrt(), b.x.square().sum(0).sqrt()
    correlation = torch.where(a.varies[:, None] & b.varies, (cross / a_sd[:, None] / b_sd).abs(), 0)
    a_on_b, b_on_a = (b.u.T @ a.x).square().sum(0).sqrt(), (a.u.T @ b.x).square().sum(0).sqrt()
    u, rho, vh = torch.linalg.svd(overlap[: a.kept, : b.kept], full_matrices=False)
    return {
        "neuronsim": (_mean(correlation.max(1).values), _mean(correlation.max(0).values)),
        "mixedsim": (_mean(torch.where(a.varies, a_on_b / a_sd, 0)), _mean(torch.where(b.varies, b_on_a / b_sd, 0))),
        "svsim": _same(rho.mean()),
        "pwsim": (_weighted(a, u, rho), _weighted(b, vh.T, rho)),
        "ckasim": _same(cross.square().sum() / (_fourth(a) * _fourth(b)).sqrt()),
        "ckasim-debiased": _same(_unbiased(a, b, cross) / (_unbiased(a, a) * _unbiased(b, b)).sqrt()),
        "cca": _same(torch.linalg.svdvals(overlap).mean()),
        "linreg": (_ratio(b_on_a, b_sd), _ratio(a_on_b, a_sd)),
        "procrustes": _same(torch.linalg.svdvals(cross).sum() / (a_sd.square().sum() * b_sd.square().sum()).sqrt()),
    }


WU2020 = ("neuronsim", "mixedsim", "svsim", "pwsim", "ckasim")
"""The linear measures of Wu et al. 2020."""
SIX = (*WU2020, "procrustes")
"""The linear measures of the prototype whose figures the goals were set from."""


def apart(a: Layer, b: Layer) -> dict[str, Both]:
    """`WU2020` for one pair with the work the authors' code does (github.com/johnmwu/contextual-corr-analysis).

    Each measure starts from the rows or from the singular vectors its class has made of every layer (two of them make
    one each); nothing passes from one measure to another but svsim's correlations to pwsim, as there.
    """
    a_sd, b_sd = a.x.square().sum(0).sqrt(), b.x.square().sum(0).sqrt()
    correlation = (a.x.T @ b.x / a_sd[:, None] / b_sd).abs()
    a_on_b, b_on_a = (b.u.T @ a.x).square().sum(0).sqrt(), (a.u.T @ b.x).square().sum(0).sqrt()
    u, rho, vh = torch.linalg.svd(a.u[:, : a.kept].T @ b.u[:, : b.kept], full_matrices=False)
    own = [(x.T @ x).square().sum().sqrt() for x in (a.x, b.x)]
    return {
        "neuronsim": (_mean(correlation.max(1).values), _mean(correlation.max(0).values)),
        "mixedsim": (_mean(a_on_b / a_sd), _mean(b_on_a / b_sd)),
        "svsim": _same(rho.mean()),
        "pwsim": (_weighted(a, u, rho), _weighted(b, vh.T, rho)),
        "ckasim": _same((b.x.T @ a.x).square().sum() / (own[0] * own[1])),
    }


def apart_all(a: Layer, b: Layer) -> dict[str, Both]:
    """All linear measures in the manner of `apart`: the four that Wu et al. do not have start from rows or vectors too.

    Their singular vectors are taken from the two SVDs a layer that `apart` has, not made once more.
    """
    sizes = [x.square().sum() for x in (a.x, b.x)]
    return apart(a, b) | {
        "ckasim-debiased": _same(_unbiased(a, b, a.x.T @ b.x) / (_unbiased(a, a) * _unbiased(b, b)).sqrt()),
        "cca": _same(torch.linalg.svdvals(a.u.T @ b.u).mean()),
        "linreg": (_share(a.u.T @ b.x, sizes[1]), _share(b.u.T @ a.x, sizes[0])),
        "procrustes": _same(torch.linalg.svdvals(a.x.T @ b.x).sum() / (sizes[0] * sizes[1]).sqrt()),
    }


def _weighted(layer: Layer, vectors: Tensor, rho: Tensor) -> float:
    variates = layer.u[:, : layer.kept] @ vectors
    weight = (variates.T @ layer.x).abs().sum(1)
    return float((weight * rho).sum() / weight.sum())


def _fourth(layer: Layer) -> Tensor:
    return layer.s.square().square().sum()


def _unbiased(a: Layer, b: Layer, cross: Tensor | None = None) -> Tensor:
    """Unbiased HSIC (Song et al. 2012) from features, up to a factor that the ratio loses."""
    n = len(a.x)
    product = _fourth(a) if cross is None else cross.square().sum()
    a_norm, b_norm = a.x.square().sum(1), b.x.square().sum(1)
    corner = a_norm.sum() * b_norm.sum() / ((n - 1) * (n - 2))
    return product - n / (n - 2) * (a_norm * b_norm).sum() + corner


def rbf_cka(x: Tensor, y: Tensor) -> float:
    """CKA with RBF kernels, both n×n kernels made for this pair."""
    k, m = _kernel(x - x.mean(0)), _kernel(y - y.mean(0))
    return float((k * m).sum() / (k.square().sum() * m.square().sum()).sqrt())


def published_rbf_cka(x: Floats, y: Floats) -> float:
    """CKA with RBF kernels with the work of the code that came with Kornblith et al. 2019, which others carry on.

    Numpy in the rows' own precision: rows as they are, a median of all n² distances, kernels checked for symmetry and
    centred in a copy.
    """
    k, m = (_published_centred(_published_kernel(rows)) for rows in (x, y))
    return float(k.ravel() @ m.ravel() / (np.linalg.norm(k) * np.linalg.norm(m)))


def _published_kernel(x: Floats) -> Floats:
    products = x @ x.T
    squares = np.diag(products)
    distances = squares[:, None] + squares[None, :] - 2 * products
    kernel: Floats = np.exp(-distances / (2 * RBF_FRACTION**2 * np.median(distances)))
    return kernel


def _published_centred(kernel: Floats) -> Floats:
    if not np.allclose(kernel, kernel.T):
        raise ValueError("a kernel is symmetric")
    means = kernel.mean(0, dtype=np.float64)
    means -= means.mean() / 2
    centred = kernel.copy()
    centred -= means[:, None]
    centred -= means
    return centred


def _kernel(x: Tensor) -> Tensor:
    norms = x.square().sum(1)
    distances = torch.addmm(norms[:, None] + norms, x, x.T, alpha=-2).clamp_min_(0)
    width = 2 * RBF_FRACTION**2 * float(distances.median())
    kernel = distances.div_(-width).exp_()
    means = kernel.mean(0)
    return kernel.sub_(means[:, None]).sub_(means).add_(means.mean())


def rsa(x: Tensor, y: Tensor) -> float:
    """Spearman correlation of the rows' correlation distances; columns are centred by the caller."""
    upper = np.triu_indices(len(x), 1)
    a, b = (1 - np.corrcoef(rows.double().numpy())[upper] for rows in (x, y))
    return float(scipy.stats.spearmanr(a, b).statistic)


def _same(value: Tensor) -> Both:
    return float(value), float(value)


def _mean(values: Tensor) -> float:
    return float(values.mean())


def _ratio(fitted: Tensor, own: Tensor) -> float:
    return _share(fitted, own.square().sum())


def _share(fitted: Tensor, whole: Tensor) -> float:
    return float(fitted.square().sum() / whole)
