"""The metric of every tag is the second derivative of the loss, and a step goes to the minimum it stands for."""

from __future__ import annotations

import pytest
import torch
from probe_cases import planted

from stratoscope.probes import metric as module
from stratoscope.probes.metric import Metric, of_tags


def test_metric_of_a_tag_is_the_second_derivative_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CERTAIN", 0.0)
    case, generator = planted(n=200, d=5, classes=3, seed=0), torch.Generator().manual_seed(1)
    weight, bias = torch.randn(5, 3, generator=generator), torch.randn(3, generator=generator)
    mean = case.x.mean(0)
    got = of_tags(case.features, weight, bias, mean=mean, common=torch.eye(5), factor=torch.zeros(3))

    def loss(flat: torch.Tensor) -> torch.Tensor:
        w, b = flat[:15].view(5, 3), flat[15:]
        return torch.nn.functional.cross_entropy((case.x - mean).double() @ w + b, case.y)

    bent = torch.autograd.functional.hessian(loss, torch.cat([weight.flatten(), bias]).double())
    for k in range(3):
        torch.testing.assert_close(
            got.matrices[k].double(), bent[:15, :15].view(5, 3, 5, 3)[:, k, :, k], atol=1e-5, rtol=0
        )
        assert float(got.bias[k, 0]) == pytest.approx(float(bent[15 + k, 15 + k]), abs=1e-5)


@pytest.mark.parametrize("matrices", [1, 3], ids=["one for all tags", "one for every tag"])
def test_a_step_of_many_sweeps_leaves_no_slope(matrices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEPS", 300)
    monkeypatch.setattr(module, "SWEEPS_OF_TAGS", 300)
    d, classes, pairs, generator = 70, 3, 2, torch.Generator().manual_seed(0)
    half = torch.randn(matrices, 2 * d, d, generator=generator) / (2 * d) ** 0.5
    metric = Metric(half.transpose(1, 2) @ half, torch.ones(classes, 1))
    start, slope = (torch.randn(d, classes, pairs, generator=generator) for _ in range(2))
    l1, l2 = torch.full((1, classes, pairs), 0.3), torch.full((1, classes, pairs), 0.05)
    forbidden = torch.arange(d) == 5
    l1 = torch.where(forbidden[:, None, None], torch.inf, l1)
    end = metric.step(start, slope, l1, l2)
    left = slope + metric.times(end - start) + 2 * l2 * end
    zero = end == 0
    assert zero[5].all()
    assert 0.05 < zero.float().mean() < 0.95
    assert (left.abs() <= l1 + 1e-4)[zero].all()
    torch.testing.assert_close(left[~zero], (-l1 * end.sign())[~zero], atol=1e-4, rtol=0)
