"""Mixing finds the fixed point of a linear map once its images span the space, for each probe by itself."""

from __future__ import annotations

import torch

from stratoscope.probes.metric import Metric
from stratoscope.probes.mixing import Mixing

D, PAIRS = 4, 2


def run(steps: int, *, forget: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Distance to the fixed points of x -> A_p x + v_p: (P,) mixed, and of as many plain steps."""
    generator = torch.Generator().manual_seed(0)
    a = 0.9 * torch.linalg.qr(torch.randn(PAIRS, D, D, generator=generator))[0]
    v = torch.randn(PAIRS, D, generator=generator)
    fixed = torch.linalg.solve(torch.eye(D) - a, v[..., None])[..., 0].T[:, None]
    apply = lambda x: torch.einsum("pij,jkp->ikp", a, x) + v.T[:, None]  # noqa: E731
    mixing, mixed, plain = Mixing(PAIRS), torch.zeros(D, 1, PAIRS), torch.zeros(D, 1, PAIRS)
    bias = torch.zeros(1, PAIRS)
    for step in range(steps):
        if forget and step == steps - 1:
            mixing.forget(torch.tensor([True, False]))
        mixing.add((mixed, bias), (apply(mixed), bias), Metric.common(torch.eye(D), 1))
        last, (mixed, _) = mixed, mixing.mixed()
        plain = apply(plain)
    if forget:
        torch.testing.assert_close(mixed[..., 0], apply(last)[..., 0], atol=1e-5, rtol=1e-5)  # its own image
    return (mixed - fixed).norm(dim=(0, 1)), (plain - fixed).norm(dim=(0, 1))


def test_as_many_images_as_dimensions_and_one_give_the_fixed_point() -> None:
    mixed, plain = run(D + 2)
    assert (mixed < 0.02 * plain).all()


def test_a_probe_that_forgets_takes_a_plain_step_and_the_other_does_not() -> None:
    mixed, plain = run(D + 2, forget=True)
    assert mixed[1] < 0.02 * plain[1]
