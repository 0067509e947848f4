"""mixedsim and linreg: how well one layer's neurons are linear functions of the other layer."""

from __future__ import annotations

import torch
from torch import Tensor

from stratoscope.measures import chance
from stratoscope.measures.measure import INVERTIBLE, NEURONS, ORTHOGONAL, Measure, Scores, best_mean
from stratoscope.measures.pair import Pair


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
    bounds=(0, 1),
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
    bounds=(0, 1),
    invariant_x=INVERTIBLE,
    invariant_y=ORTHOGONAL,
    whitens=True,
    compare=_linreg,
    repeats=False,
    saturates=True,
    chance=chance.linreg,
)
