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


def slow_scores(name: str, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """How salient each neuron is, one at a time, by the definition."""
    classes = sorted(set(y.tolist()))
    scores = []
    for j in range(x.shape[1]):
        v = x[:, j].double()
        of = [v[y == c] for c in classes]
        if name == "probeless":
            scores.append(sum(abs(float(a.mean() - b.mean())) for a in of for b in of))
        elif name == "gaussian":
            within = sum(len(c) / len(v) * float(c.var(correction=0).log()) for c in of)
            scores.append(0.5 * (float(v.var(correction=0).log()) - within))
        else:
            sides = [v > v.mean(), v <= v.mean()]
            overlaps = [(int((s & (y == c)).sum()), int((s | (y == c)).sum())) for s in sides for c in classes]
            scores.append(max(both / either for both, either in overlaps))
    return scores


@pytest.mark.parametrize("name", ["probeless", "gaussian", "iou"])
def test_rankings_without_weights_are_those_of_their_definition(name: str) -> None:
    case = planted(n=5000, d=12, classes=4, seed=9)
    got = RANKINGS[name](case.features, torch.zeros(12, 4), None).tolist()
    scores = slow_scores(name, case.x, case.y)
    assert got == sorted(range(12), key=lambda j: -scores[j])
    assert len({round(s, 9) for s in scores}) == 12


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
    assert len({tuple(sorted(subset(ranking, 0.5, "random", seed=k).tolist())) for k in range(20)}) > 10
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
