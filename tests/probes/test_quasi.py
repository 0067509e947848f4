"""Smoothed penalties, the inverse of a metric with ridges, and L-BFGS against minima found elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch
from probe_cases import Problem, planted

from stratoscope.probes import quasi
from stratoscope.probes.metric import Metric
from stratoscope.probes.objective import Penalties, Point, Slope
from stratoscope.probes.quasi import Inverse, QuasiNewton, Smoothing
from stratoscope.probes.solve import _Batch, solve

D, CLASSES = 6, 3
PENALTIES = Penalties(torch.tensor([0.0, 1e-2, 1e-3]), torch.tensor([1e-2, 0.0, 1e-3]))


def weights(seed: int = 0) -> torch.Tensor:
    return torch.randn(D, CLASSES, len(PENALTIES), generator=torch.Generator().manual_seed(seed))


def metric_of_tags(size: float = 1.0) -> Metric:
    half = torch.randn(CLASSES, 3 * D, D, generator=torch.Generator().manual_seed(1))
    return Metric(size * half.transpose(1, 2) @ half / (3 * D), torch.linspace(0.5, 1.5, CLASSES)[:, None])


def test_slope_and_ridge_of_smoothed_penalties_are_their_derivatives() -> None:
    smoothing, weight = Smoothing(0.1, D * CLASSES), weights().double().requires_grad_()
    assert (smoothing.round(PENALTIES.l1)[1:] > 0.05).all()  # else the kink is all there is
    (got,) = torch.autograd.grad(smoothing.of(PENALTIES, weight).sum(), weight, create_graph=True)
    torch.testing.assert_close(smoothing.slope(PENALTIES, weight), got, atol=1e-7, rtol=1e-5)
    (bent,) = torch.autograd.grad(got.sum(), weight)  # each weight's own: the penalties do not couple them
    torch.testing.assert_close(smoothing.ridge(PENALTIES, weight), bent.mean((0, 1)), atol=1e-7, rtol=1e-5)


def test_smoothing_takes_no_more_than_its_share_of_the_gap() -> None:
    gap = 1e-2
    smoothing, weight = Smoothing(gap, D * CLASSES), weights()
    taken = PENALTIES.of(weight) - smoothing.of(PENALTIES, weight)
    assert (taken >= -1e-7).all()
    assert (taken <= quasi.SMOOTHED * gap + 1e-7).all()
    assert taken[1] > 0.5 * quasi.SMOOTHED * gap  # weights far from 0 lose all of it
    assert smoothing.stiffness(PENALTIES.l1)[1] == pytest.approx(100 * float(smoothing.stiffness(PENALTIES.l1)[2]))


@pytest.mark.parametrize("most", [100, 1], ids=["ridges of their own", "one ridge for all"])
def test_inverse_is_that_of_the_metric_and_ridge(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = metric_of_tags()
    monkeypatch.setattr(quasi, "LARGEST", most * metric.matrices.numel())
    ridge = torch.tensor([1e-3, 1.0, 1.1])
    inverse = Inverse(metric, ridge)
    value = torch.cat([weights(), torch.ones(1, CLASSES, 3)])
    got = inverse.times(value)
    for p, r in enumerate([1e-3, (1.0 * 1.1) ** 0.5, (1.0 * 1.1) ** 0.5] if most > 1 else [1.1e-3 ** (1 / 3)] * 3):
        for k in range(CLASSES):
            exact = torch.linalg.solve(metric.matrices[k] + r * torch.eye(D), value[:-1, k, p])
            torch.testing.assert_close(got[:-1, k, p], exact, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got[-1], 1 / metric.bias.expand(-1, 3))


def test_inverse_is_made_anew_for_other_ridges_only() -> None:
    inverse = Inverse(metric_of_tags(), torch.tensor([1e-3, 1.0, 1.0]))
    before = inverse.roots
    inverse.fit(inverse.metric, torch.tensor([1.5e-3, 1.0, 1.0]))
    assert inverse.roots is before
    inverse.fit(inverse.metric, torch.tensor([1e-1, 1.0, 1.0]))
    assert inverse.roots is not before


def test_lbfgs_reaches_the_minimum_of_quadratic_losses_from_a_wrong_metric() -> None:
    """Loss 1/2 <w - t, S (w - t)> + 1/2 <b, b> and penalties, each probe with a target of its own."""
    metric, target = metric_of_tags(), weights(2)
    smoothing = Smoothing(1.0, D * CLASSES)

    def point(weight: torch.Tensor, bias: torch.Tensor) -> Point:
        pull = metric.times(weight - target)
        loss = ((weight - target) * pull).sum((0, 1)).double() / 2 + bias.square().sum(0).double() / 2
        return Point(weight, bias, loss + smoothing.of(PENALTIES, weight), Slope(loss, pull, bias))

    best = point(torch.zeros_like(target), torch.ones(CLASSES, len(PENALTIES)))
    steps = QuasiNewton(metric_of_tags(0.2), smoothing, best, PENALTIES)
    for _ in range(40):
        tried = point(*steps.next(best, PENALTIES))
        risen = steps.judge(best, tried)
        best = tried.replaced(risen, best)
    left = best.slope.weight + smoothing.slope(PENALTIES, best.weight)
    assert float(left.abs().max()) < 2e-3
    assert float(best.bias.abs().max()) < 2e-3
    assert (best.weight.abs().sum((0, 1)) > 0.1).all()


@pytest.mark.parametrize(("power", "first"), [(2.5, 8), (2.0, 8), (1.5, 8), (1.0, 8), (0.6, 16)])
def test_what_is_left_to_gain_is_no_less_than_what_is_left(power: float, first: int) -> None:
    """Errors that fall as passes^-a, after many passes also slower than 1 / passes."""
    passes = torch.arange(1, 61, dtype=torch.float64)
    point = Point(*(torch.zeros(1) for _ in range(3)), Slope(*(torch.zeros(1) for _ in range(3))))
    batch = _Batch([[0]], Penalties.one(0, 0), point, None)  # type: ignore[arg-type]
    batch.trace = (passes**-power)[:, None]
    for count in range(first, 61):
        left = float(batch._left(torch.tensor([count]))[0])
        true = float(passes[count - 1] ** -power)
        assert 0.85 * true <= left <= 10 * true


def least(case: Problem, l1: float, l2: float) -> float:
    """The optimum by L-BFGS-B in float64 over W = U - V with U, V >= 0, which makes |W|_1 smooth."""
    x, y = case.x.double().numpy(), case.y.numpy()
    x, rows, classes = x - x.mean(0), np.arange(len(x)), case.features.classes
    size = x.shape[1] * classes

    def value(v: np.ndarray) -> tuple[float, np.ndarray]:
        up, down, bias = v[:size], v[size : 2 * size], v[2 * size :]
        w = (up - down).reshape(-1, classes)
        scores = x @ w + bias
        log = scores - scipy.special.logsumexp(scores, axis=1, keepdims=True)
        errors = np.exp(log)
        errors[rows, y] -= 1
        g = (x.T @ errors / len(x) + 2 * l2 * w).ravel()
        total = -log[rows, y].mean() + l1 * (up + down).sum() + l2 * (w**2).sum()
        return total, np.concatenate([g + l1, l1 - g, errors.mean(0)])

    bounds = [(0, None)] * (2 * size) + [(None, None)] * classes
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 100}
    start = np.zeros(2 * size + classes)
    return float(scipy.optimize.minimize(value, start, jac=True, bounds=bounds, options=options).fun)


def test_weak_pairs_with_l1_are_within_their_gap_of_the_optimum() -> None:
    case = planted(n=1200, d=40, classes=4, seed=3)
    l1, l2 = torch.tensor([1e-4, 1e-4, 1e-5, 0.0]), torch.tensor([0.0, 1e-4, 1e-6, 1e-6])
    best = torch.tensor([least(case, float(a), float(b)) for a, b in zip(l1, l2, strict=True)], dtype=torch.float64)
    for gap in (1e-2, 1e-3, 1e-4):
        fit = solve(case.features, Penalties(l1, l2), gap=gap, passes=2000)
        assert (fit.gap <= gap).all()
        assert (fit.objective - best <= fit.gap).all()
        assert (fit.objective - best >= -3e-5).all()  # the reference itself ends near its optimum
