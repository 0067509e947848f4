"""neuronsim: does each neuron have a twin in the other layer?"""

from __future__ import annotations

import torch
from torch import Tensor

from stratoscope.measures import chance
from stratoscope.measures.measure import NEURONS, Measure, Scores, best_mean
from stratoscope.measures.pair import Pair
from stratoscope.statistics.layer import LayerBasis


def _compare(pair: Pair, top: float) -> Scores:
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
    bounds=(0, 1),
    invariant_x=NEURONS,
    invariant_y=NEURONS,
    compare=_compare,
    averages=True,
    chance=chance.neuronsim,
)
