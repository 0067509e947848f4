"""svsim, pwsim and cca: canonical correlations, truncated, weighted or plain."""

from __future__ import annotations

from torch import Tensor

from stratoscope.measures import chance
from stratoscope.measures.measure import INVERTIBLE, ORTHOGONAL, SCALING, Measure, Scores, best, best_mean
from stratoscope.measures.pair import Pair


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
    bounds=(0, 1),
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
    bounds=(0, 1),
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
    bounds=(0, 1),
    invariant_x=INVERTIBLE,
    invariant_y=INVERTIBLE,
    whitens=True,
    compare=_cca,
    repeats=False,
    saturates=True,
    chance=chance.cca,
)
