"""neuronsim: does each neuron have a twin in the other layer?"""

from __future__ import annotations

import torch

from stratoscope.measures.measure import NEURONS, Measure, Scores, best_mean
from stratoscope.measures.pair import Pair


def _compare(pair: Pair, top: float) -> Scores:
    """mean_k max_k' |Pearson(x_k, y_k')| (Bau et al. 2019; Wu et al. 2020, A.1); constant neurons score 0."""
    strength = pair.correlation.abs().clamp_max_(1)
    x_best, x_match = strength.max(1)
    y_best, y_match = strength.max(0)
    return Scores(
        best_mean(x_best.double(), top),
        best_mean(y_best.double(), top),
        {
            "neuronsim.correlation": (x_best.float(), y_best.float()),
            "neuronsim.match": (x_match.to(torch.int32), y_match.to(torch.int32)),
        },
    )


NEURONSIM = Measure(
    name="neuronsim",
    summary="mean over neurons of the strongest |correlation| with a neuron of the other layer",
    reference="Wu et al. 2020, A.1",
    symmetric=False,
    bounds=(0, 1),
    invariant_x=NEURONS,
    invariant_y=NEURONS,
    compare=_compare,
    averages=True,
)
