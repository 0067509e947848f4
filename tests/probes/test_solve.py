"""The solved probe against scikit-learn, its gap against the optimum, and what it must not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from probe_cases import features_of, planted
from sklearn.linear_model import LogisticRegression

from stratoscope.probes.features import Features
from stratoscope.probes.objective import Penalties, accuracy, predict, slope, softmax_errors_
from stratoscope.probes.solve import solve
from stratoscope.statistics.rows import MemoryRows


def objective(x: torch.Tensor, y: torch.Tensor, w: np.ndarray, b: np.ndarray, l1: float, l2: float) -> float:
    """F as it is written, in float64."""
    scores = x.double().numpy() @ w + b
    scores -= scores.max(1, keepdims=True)
    loss = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y.numpy()]
    return float(loss.mean() + l1 * np.abs(w).sum() + l2 * np.square(w).sum())


@pytest.mark.parametrize(("l1", "l2"), [(1e-3, 1e-3), (1e-2, 1e-4), (1e-3, 0.0), (0.0, 1e-3)])
def test_agrees_with_saga(l1: float, l2: float) -> None:
    case, test = planted(n=900, d=24, classes=4, seed=0), planted(n=4000, d=24, classes=4, seed=0)
    fit = solve(case.features, Penalties.one(l1, l2), gap=1e-4)
    saga = LogisticRegression(
        solver="saga", C=1 / ((l1 + 2 * l2) * len(case.y)), l1_ratio=l1 / (l1 + 2 * l2), max_iter=20000, tol=1e-8
    )
    mean = case.x.mean(0)  # saga converges on centred rows; its bias is not penalised, so F is the same
    saga.fit((case.x - mean).double().numpy(), case.y.numpy())
    w, b = saga.coef_.T, saga.intercept_ - mean.double().numpy() @ saga.coef_.T
    reference = objective(case.x, case.y, w, b, l1, l2)
    assert float(fit.objective[0]) == pytest.approx(reference, abs=1e-3)
    own = objective(case.x, case.y, fit.weight[:, :, 0].double().numpy(), fit.bias[:, 0].numpy(), l1, l2)
    assert own == pytest.approx(float(fit.objective[0]), abs=1e-5)  # also at raw features
    right = float(accuracy(test.features, fit.weight, fit.bias)[0])
    assert right == pytest.approx(saga.score((test.x - mean).double().numpy(), test.y.numpy()), abs=0.005)


def test_every_gap_of_the_grid_holds() -> None:
    case = planted(n=3000, d=20, classes=5, seed=1)
    loose, tight = (solve(case.features, Penalties.grid(), gap=gap) for gap in (1e-2, 1e-4))
    assert (loose.gap <= 1e-2).all()
    assert loose.passes < tight.passes
    above = loose.objective - torch.minimum(tight.objective, loose.objective)
    assert (above <= loose.gap + tight.gap + 1e-6).all()
    certified = loose.certified
    assert certified.any()
    assert (loose.objective - loose.gap <= tight.objective + 1e-6)[certified].all()  # a bound, not an estimate


def test_weak_penalties_share_a_solution_only_within_the_gap() -> None:
    case = planted(n=2000, d=20, classes=5, seed=2)
    fit = solve(case.features, Penalties.grid(), gap=1e-2)
    alone = solve(case.features, Penalties.one(0.0, 1e-7), gap=1e-4)
    assert fit.objective[7] - alone.objective[0] <= fit.gap[7] + 1e-6
    for k in range(64):
        l1, l2 = float(Penalties.grid().l1[k]), float(Penalties.grid().l2[k])
        own = objective(case.x, case.y, fit.weight[..., k].double().numpy(), fit.bias[:, k].numpy(), l1, l2)
        assert own == pytest.approx(float(fit.objective[k]), abs=1e-4)


def test_gradient_is_that_of_autograd() -> None:
    case = planted(n=300, d=6, classes=3, seed=3)
    penalties = Penalties.one(0, 0)
    w, b = torch.randn(6, 3, 2), torch.randn(3, 2)
    mean = case.x.mean(0)
    got = slope(case.features, w, b, mean=mean)
    assert len(penalties) == 1
    for p in range(2):
        v, c = w[..., p].clone().requires_grad_(), b[:, p].clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy((case.x - mean) @ v + c, case.y)
        loss.backward()
        assert float(got.loss[p]) == pytest.approx(loss.item(), rel=1e-5)
        torch.testing.assert_close(got.weight[..., p], v.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(got.bias[:, p], c.grad, rtol=1e-4, atol=1e-6)


def test_errors_are_those_of_a_softmax_without_denormal_numbers() -> None:
    scores = torch.tensor([[[0.0, 300.0]], [[95.0, 0.0]], [[-60.0, 299.0]]])  # (K, P, n)
    tags = torch.tensor([1, 1])
    errors, entropy = softmax_errors_(scores.clone(), tags)
    exact = torch.softmax(scores.double(), 0)
    exact[1] -= 1
    assert torch.allclose(errors.double(), exact, atol=1e-7)
    assert torch.allclose(entropy.double(), -torch.log_softmax(scores.double(), 0)[1].sum(-1), rtol=1e-6)
    assert (errors == 0).logical_or(errors.abs() > torch.finfo(torch.float32).tiny).all()


def test_chunks_of_the_store_do_not_matter() -> None:
    case = planted(n=5000, d=10, classes=3, seed=4)

    class Cut(MemoryRows):
        sizes = (700, 2000, 300, 2000)  # type: ignore[assignment]

        def chunk(self, layer: int, index: int) -> torch.Tensor:
            start = sum(self.sizes[:index])
            return self.matrices[layer][start : start + self.sizes[index]]

    cut = Features(Cut([case.x]), (0,), case.y, 3)
    one, two = (solve(f, Penalties.one(1e-3, 1e-3), gap=1e-5) for f in (case.features, cut))
    torch.testing.assert_close(one.weight, two.weight, atol=2e-2, rtol=0)
    assert float(one.objective[0]) == pytest.approx(float(two.objective[0]), abs=2e-5)
    part = cut.between(650, 3100)
    assert torch.equal(torch.cat([x for x, _ in part.chunks()]), case.x[650:3100])
    assert torch.equal(torch.cat([y for _, y in part.chunks(100)]), case.y[650:3100])


def test_scale_of_the_features_is_seen_but_not_their_mean() -> None:
    case = planted(n=800, d=8, classes=3, seed=5)
    penalties = Penalties.one(1e-2, 1e-2)
    plain = solve(case.features, penalties, gap=1e-5)
    moved = solve(features_of(case.x + 50, case.y, 3), penalties, gap=1e-5)
    scaled = solve(features_of(case.x * 0.1, case.y, 3), penalties, gap=1e-5)
    assert float(moved.objective[0]) == pytest.approx(float(plain.objective[0]), abs=1e-4)
    assert scaled.objective[0] > plain.objective[0] + 0.05  # raw features: a small one needs large weights


def test_a_constant_neuron_and_a_tag_without_rows() -> None:
    case = planted(n=600, d=6, classes=3, seed=6)
    x = torch.cat([case.x, torch.full((600, 1), 7.0)], dim=1)
    fit = solve(features_of(x, case.y, 4), Penalties.grid((0.0, 1e-3)), gap=1e-2)
    assert torch.isfinite(fit.weight).all()
    assert torch.isfinite(fit.objective).all()
    assert not (predict(features_of(x, case.y, 4), fit.weight, fit.bias) == 3).any()


def test_forbidden_neurons_stay_at_zero_as_if_they_were_not_there() -> None:
    case = planted(n=1500, d=12, classes=3, seed=7)
    l1 = torch.tensor([1e-3, 1e-3])
    forbidden = torch.arange(12)[:, None] >= torch.tensor([5, 9])
    both = solve(case.features, Penalties(l1, l1), gap=1e-5, forbidden=forbidden)
    assert (both.weight[5:, :, 0] == 0).all()
    assert (both.weight[9:, :, 1] == 0).all()
    for column, size in enumerate((5, 9)):
        alone = solve(case.features.select(torch.arange(size)), Penalties.one(1e-3, 1e-3), gap=1e-5)
        assert float(both.objective[column]) == pytest.approx(float(alone.objective[0]), abs=2e-5)


def test_no_pass_gives_the_start_of_every_pair() -> None:
    case = planted(n=3000, d=20, classes=5, seed=1)
    start, solved = (solve(case.features, Penalties.grid(), passes=passes) for passes in (0, 200))
    value = slope(case.features, start.weight, start.bias, mean=torch.zeros(20)).loss + Penalties.grid().of(
        start.weight
    )
    assert start.passes == 0
    assert (value - solved.objective < 0.2).all()
    assert not torch.isfinite(start.objective).any()


def test_without_penalties_the_loss_bounds_the_gap_where_tags_can_be_told_apart() -> None:
    """The optimum is at infinity and 0: what steps gained says too little of what is left."""
    case = planted(n=120, d=60, classes=4, seed=3)
    fit = solve(case.features, Penalties.one(0.0, 0.0), gap=1e-3)
    assert bool(fit.certified[0])
    assert 0 < float(fit.objective[0]) == float(fit.gap[0]) <= 1e-3
    assert float(accuracy(case.features, fit.weight, fit.bias)[0]) == 1


def test_without_penalties_where_tags_overlap() -> None:
    case, both = planted(n=900, d=12, classes=4, seed=4), Penalties(torch.tensor([0.0, 1e-3]), torch.zeros(2))
    mean = case.x.mean(0)
    free = LogisticRegression(C=np.inf, tol=1e-8, max_iter=5000).fit((case.x - mean).double().numpy(), case.y.numpy())
    best = objective(case.x - mean, case.y, free.coef_.T, free.intercept_, 0, 0)
    fit = solve(case.features, both, gap=1e-4)
    assert best - 1e-6 <= float(fit.objective[0]) <= best + float(fit.gap[0]) + 1e-6
    assert float(fit.gap[0]) <= 1e-4
    own = objective(case.x, case.y, fit.weight[..., 0].double().numpy(), fit.bias[:, 0].numpy(), 0, 0)
    assert own == pytest.approx(float(fit.objective[0]), abs=1e-5)  # at raw features
    alone = solve(case.features, both[[1]], gap=1e-4)
    assert float(fit.objective[1]) == pytest.approx(float(alone.objective[0]), abs=1e-4)  # whatever stands beside it


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_without_penalties_a_layer_may_be_constant_or_have_one_massive_neuron(scale: float) -> None:
    case = planted(n=200, d=30, classes=3, seed=5)
    x = case.x * scale
    x[:, 0] *= 1e6
    fit = solve(features_of(x, case.y, 3), Penalties.one(0.0, 0.0), gap=1e-2)
    shares = case.y.bincount() / len(case.y)
    assert torch.isfinite(fit.weight).all()
    assert float(fit.objective[0]) <= float(-(shares * shares.log()).sum()) + 1e-6  # no worse than the tags' shares
