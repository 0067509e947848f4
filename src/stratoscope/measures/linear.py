"""Measures of covariances: neurons, regressions, canonical correlations, and overlaps with nothing whitened.

Each reduces the cross-covariance of two layers, mapped as it needs; see `pair`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratoscope.measures import chance
from stratoscope.measures.measure import INVERTIBLE, NEURONS, ORTHOGONAL, SCALING, Measure, Scores, best, best_mean
from stratoscope.measures.pair import Pair
from stratoscope.statistics.layer import LayerBasis


def _neuronsim(pair: Pair, top: float) -> Scores:
    """mean_k max_k' |Pearson(x_k, y_k')| (Bau et al. 2019; Wu et al. 2020, A.1); constant neurons score 0.

    `neuronsim.match` names the neuron k' of each k, -1 for a constant one, which has none.
    """
    strength = pair.correlation.abs().clamp_max_(1)
    x_best, x_match = strength.max(1)
    y_best, y_match = strength.max(0)
    return Scores(
        best_mean(x_best.double(), top),
        best_mean(y_best.double(), top),
        {
            "neuronsim.correlation": (x_best.float(), y_best.float()),
            "neuronsim.match": (_varying(x_match, pair.x), _varying(y_match, pair.y)),
        },
    )


def _varying(match: Tensor, of: LayerBasis) -> Tensor:
    return torch.where(of.sd > 0, match, -1).to(torch.int32)


NEURONSIM = Measure(
    name="neuronsim",
    summary="mean over neurons of the strongest |correlation| with a neuron of the other layer",
    reference="Wu et al. 2020, A.1; Bau et al. 2019",
    symmetric=False,
    invariant_x=NEURONS,
    invariant_y=NEURONS,
    compare=_neuronsim,
    averages=True,
    chance=chance.neuronsim,
)


def _r(coefficients: Tensor, *, axis: int) -> Tensor:
    """r-value of every neuron: norm of its fitted values over its own, which is 1 (0 for a constant neuron)."""
    return coefficients.square().sum(axis, dtype=torch.float64).sqrt().clamp_max(1)


def _mixedsim(pair: Pair, top: float) -> Scores:
    """mean_k ‖ŷ‖/‖y‖, regressing neuron k of x on all of y (Wu et al. 2020, A.2)."""
    return Scores(best_mean(_r(pair.x_on_y, axis=1), top), best_mean(_r(pair.y_on_x, axis=0), top))


def _linreg(pair: Pair, top: float) -> Scores:
    """R² = ‖Qxᵀ Y‖²_F / ‖Y‖²_F, regressing all of y on x (Kornblith et al. 2019, eq. 7)."""
    return Scores(
        float((pair.shares.sum(0) @ pair.y.variance) / pair.y.variance.sum()),
        float((pair.shares.sum(1) @ pair.x.variance) / pair.x.variance.sum()),
    )


MIXEDSIM = Measure(
    name="mixedsim",
    summary="mean over neurons of the r-value of regressing the neuron on the whole other layer",
    reference="Wu et al. 2020, A.2; Bau et al. 2019",
    symmetric=False,
    invariant_x=NEURONS,
    invariant_y=INVERTIBLE,
    whitens=True,
    compare=_mixedsim,
    averages=True,
    repeats=False,
    saturates=True,
    chance=chance.mixedsim,
)

LINREG = Measure(
    name="linreg",
    summary="R² of regressing the second layer on the first",
    reference="Kornblith et al. 2019, eq. 7",
    symmetric=False,
    invariant_x=INVERTIBLE,
    invariant_y=ORTHOGONAL,
    whitens=True,
    compare=_linreg,
    repeats=False,
    saturates=True,
    chance=chance.linreg,
)


def _svsim(pair: Pair, top: float) -> Scores:
    """Mean singular value of Uxᵀ Uy, both cut to 99 % of the variance (Raghu et al. 2017; Wu et al. 2020, A.3)."""
    return Scores.symmetric(best_mean(pair.correlations, top))


def _pwsim(pair: Pair, top: float) -> Scores:
    """Σ α ρ / Σ α with α = Σ_neurons |Hxᵀ X|, Hx = X' u (Morcos et al. 2018; Wu et al. 2020, A.3)."""
    _, x, y = pair.canonical
    return Scores(_weighted(x, pair.x.sd, pair.correlations, top), _weighted(y, pair.y.sd, pair.correlations, top))


def _weighted(variates: Tensor, sd: Tensor, rho: Tensor, top: float) -> float:
    weight = (variates.abs() @ (sd / sd.max()).to(variates.dtype)).double()
    k = len(best(rho, top))  # ρ is sorted: the best fraction comes first
    return float((weight[:k] @ rho[:k]) / weight[:k].sum())


def _cca(pair: Pair, top: float) -> Scores:
    """Mean canonical correlation without truncation; companion R²-CCA = mean ρ² (Kornblith et al. 2019, table 1)."""
    rho = pair.full_correlations
    return Scores.symmetric(float(rho.mean()), **{"cca.r2": rho.square().mean()})


SVSIM = Measure(
    name="svsim",
    summary="SVCCA: mean canonical correlation of the principal components that hold 99 % of the variance",
    reference="Wu et al. 2020, A.3; Raghu et al. 2017",
    symmetric=True,
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    whitens=True,
    compare=_svsim,
    averages=True,
    chance=chance.cca,
)

PWSIM = Measure(
    name="pwsim",
    summary="PWCCA: canonical correlations weighted by how much of the first layer each explains",
    reference="Wu et al. 2020, A.3; Morcos et al. 2018",
    symmetric=False,
    invariant_x=SCALING,
    invariant_y=ORTHOGONAL,
    whitens=True,
    compare=_pwsim,
    averages=True,
    chance=chance.cca,
)

CCA = Measure(
    name="cca",
    summary="mean canonical correlation, no truncation (R²-CCA is kept beside it)",
    reference="Kornblith et al. 2019, table 1",
    symmetric=True,
    invariant_x=INVERTIBLE,
    invariant_y=INVERTIBLE,
    whitens=True,
    compare=_cca,
    repeats=False,
    saturates=True,
    chance=chance.cca,
)


def _ckasim(pair: Pair, top: float) -> Scores:
    """‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) (Kornblith et al. 2019, eq. 4 with a linear kernel)."""
    return Scores.symmetric(pair.overlap / (pair.x.spread * pair.y.spread))


def _debiased(pair: Pair, top: float) -> Scores:
    """CKA from the unbiased HSIC of Song et al. 2012 (eq. 5), streamed; may be below 0, is about 0 for noise.

    Only of independent rows: unrelated layers that both see the words of a sentence score 0.1 (`permuted`).
    """
    (xx, xy), (_, yy) = pair.norms.tolist()
    x, y, n = pair.x, pair.y, pair.x.n
    own = unbiased_hsic(x.spread**2, xx, x.scale, x.scale, n) * unbiased_hsic(y.spread**2, yy, y.scale, y.scale, n)
    hsic = unbiased_hsic(pair.overlap, xy, x.scale, y.scale, n)
    return Scores.symmetric(hsic / own**0.5 if own > 0 else 0.0)


def unbiased_hsic(product: float, norms: float, x_scale: float, y_scale: float, n: int) -> float:
    """HSIC₁ · (n-3)/n of centred rows, whose kernel rows sum to zero.

    With K̃ the kernel without its diagonal: tr K̃L̃ + 1ᵀK̃1 1ᵀL̃1/((n-1)(n-2)) - 2·1ᵀK̃L̃1/(n-2); centring makes
    K̃1 = -diag K, so everything follows from ‖XᵀY‖² and the rows' squared norms.
    """
    traces = x_scale * y_scale * n**2
    return (product * n**2 - norms + traces / ((n - 1) * (n - 2)) - 2 * norms / (n - 2)) / n**2


def _procrustes(pair: Pair, top: float) -> Scores:
    """‖XᵀY‖_* / (‖X‖_F ‖Y‖_F): 1 - half the squared orthogonal Procrustes distance of layers of unit norm."""
    return Scores.symmetric(pair.nuclear)


CKASIM = Measure(
    name="ckasim",
    summary="centred kernel alignment with a linear kernel",
    reference="Wu et al. 2020, A.3; Kornblith et al. 2019",
    symmetric=True,
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    compare=_ckasim,
    chance=chance.ckasim,
)

CKASIM_DEBIASED = Measure(
    name="ckasim-debiased",
    summary="linear CKA without the bias of few rows: about 0 for unrelated layers of independent rows",
    reference="Song et al. 2012; Kornblith et al. 2019",
    symmetric=True,
    bounds=(-1, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    compare=_debiased,
)

PROCRUSTES = Measure(
    name="procrustes",
    summary="overlap after the best rotation of one layer onto the other",
    reference="Schönemann 1966; Williams et al. 2021",
    symmetric=True,
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    compare=_procrustes,
    chance=chance.procrustes,
)
