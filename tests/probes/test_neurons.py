"""Rankings find planted neurons, whatever their place; subsets and ablation."""

from __future__ import annotations

import pytest
import torch
from probe_cases import features_of, planted

from stratoscope.probes.neurons import RANKINGS, entry_shares, masked, nested, rank_by_weight, subset
from stratoscope.probes.objective import Penalties, accuracy
from stratoscope.probes.solve import solve


def with_planted(place: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (1500,), generator=generator)
    x = torch.randn(1500, 12, generator=generator)
    x[:, place] = y.float()
    return x, y


@pytest.mark.parametrize("name", list(RANKINGS))
@pytest.mark.parametrize("place", [0, 7, 11])
def test_a_planted_neuron_is_first(name: str, place: int) -> None:
    x, y = with_planted(place)
    features = features_of(x, y, 2)
    fit = solve(features, Penalties.one(1e-3, 1e-3))
    assert int(RANKINGS[name](features, fit.weight[..., 0], None)[0]) == place


@pytest.mark.parametrize("name", list(RANKINGS))
def test_permuting_neurons_permutes_the_ranking(name: str) -> None:
    case = planted(n=1200, d=15, classes=4, seed=3)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))
    fit = solve(case.features, Penalties.one(1e-3, 1e-3), gap=1e-3)
    plain = RANKINGS[name](case.features, fit.weight[..., 0], None)
    permuted = RANKINGS[name](features_of(case.x[:, order], case.y, 4), fit.weight[order][..., 0], None)
    assert torch.equal(order[permuted], plain)


def test_entry_is_the_mass_of_stronger_neurons() -> None:
    weight = torch.tensor([[0.5, 0.0], [0.3, 0.1], [-0.2, 0.9], [0.0, 0.0]])
    expected = torch.tensor([[0.0, 1.0], [0.5, 0.9], [0.8, 0.0], [1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(entry_shares(weight), expected, atol=1e-6, rtol=0)
    assert rank_by_weight(weight).tolist() == [2, 0, 1, 3]  # both first ones enter at 0: by their share of a class


def test_neurons_without_weight_go_by_their_pull_and_then_by_index() -> None:
    weight = torch.tensor([[0.0], [0.0], [1.0], [0.0]])
    assert rank_by_weight(weight).tolist() == [2, 0, 1, 3]
    assert rank_by_weight(weight, torch.tensor([[0.1], [0.3], [0.0], [0.2]])).tolist() == [2, 1, 3, 0]


def test_subsets() -> None:
    ranking = torch.tensor([4, 2, 0, 1, 3, 9, 8, 7, 6, 5])
    assert subset(ranking, 0.3, "top").tolist() == [4, 2, 0]
    assert subset(ranking, 0.2, "bottom").tolist() == [6, 5]
    drawn = subset(ranking, 0.5, "random", seed=1)
    assert len(set(drawn.tolist())) == 5
    assert torch.equal(drawn, subset(ranking, 0.5, "random", seed=1))
    assert nested(4, [1, 3]).tolist() == [[False, False], [True, False], [True, False], [True, True]]


def test_ablation_keeps_or_zeroes_without_retraining() -> None:
    x, y = with_planted(5)
    features = features_of(x, y, 2)
    fit = solve(features, Penalties.one(1e-3, 1e-4))
    keep = masked(fit.weight[..., 0], torch.tensor([5]))
    drop = masked(fit.weight[..., 0], torch.tensor([k for k in range(12) if k != 5]))
    assert float(accuracy(features, keep[..., None], fit.bias)[0]) == 1.0
    assert float(accuracy(features, drop[..., None], fit.bias)[0]) < 0.7
