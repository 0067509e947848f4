"""The published schedule against torch, one probe at a time; streamed probes against solved ones."""

from __future__ import annotations

import pytest
import torch
from probe_cases import planted

from stratoscope.probes import published
from stratoscope.probes.objective import Penalties, accuracy, slope
from stratoscope.probes.published import BUFFER_CHUNKS, Schedule, shuffled, train
from stratoscope.probes.solve import solve
from stratoscope.probes.streamed import stream


def one_at_a_time(case, l1, l2, seed, schedule):  # type: ignore[no-untyped-def]
    """nn.Linear and autograd, the same start and batches."""
    generator = torch.Generator().manual_seed(seed)
    d, k = case.x.shape[1], case.features.classes
    linear = torch.nn.Linear(d, k)
    with torch.no_grad():
        start = [torch.empty(shape).uniform_(-(d**-0.5), d**-0.5, generator=generator) for shape in ((d, k), (k,))]
        linear.weight.copy_(start[0].T)
        linear.bias.copy_(start[1])
    adam = torch.optim.Adam(linear.parameters(), lr=schedule.rate)
    for _ in range(schedule.epochs):
        for x, y in shuffled(case.features, schedule.batch, generator):
            adam.zero_grad()
            w = linear.weight
            loss = torch.nn.functional.cross_entropy(linear(x), y) + l1 * w.abs().sum() + l2 * w.square().sum()
            loss.backward()
            adam.step()
    return linear.weight.detach().T, linear.bias.detach()


def test_side_by_side_is_one_at_a_time() -> None:
    case, schedule = planted(n=1300, d=7, classes=3, seed=0), Schedule(epochs=3, batch=100, rate=1e-2)
    grid = Penalties(torch.tensor([0.0, 1e-2, 1e-3]), torch.tensor([1e-2, 0.0, 1e-1]))
    together = train(case.features, grid, seed=5, schedule=schedule)
    for k in range(3):
        w, b = one_at_a_time(case, float(grid.l1[k]), float(grid.l2[k]), 5, schedule)
        torch.testing.assert_close(together.weight[..., k], w, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(together.bias[:, k], b, atol=2e-5, rtol=1e-4)


def test_batches_hold_every_row_once_and_another_seed_shuffles_anew() -> None:
    case = planted(n=5000, d=2, classes=2, seed=1)
    first, second = (
        torch.cat([x.clone() for x, _ in shuffled(case.features, 512, torch.Generator().manual_seed(s))])
        for s in (0, 1)
    )
    assert torch.equal(first[:, 0].sort().values, case.x[:, 0].sort().values)
    assert not torch.equal(first, second)
    assert BUFFER_CHUNKS * 2048 > 5000


def test_batches_are_the_same_however_little_of_them_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three chunks cut in pieces, against rows taken out of all of them at once."""
    case = planted(n=5000, d=6, classes=3, seed=3)
    columns = torch.tensor([4, 0, 2])
    features = case.features.between(1000, 4900).select(columns)
    generator = torch.Generator().manual_seed(7)
    pieces = [slice(1000, 2048), slice(2048, 4096), slice(4096, 4900)]
    order = torch.randperm(3, generator=generator).tolist()
    x, y = (torch.cat([v[pieces[k]] for k in order]) for v in (case.x[:, columns], case.y))
    want = torch.split(torch.randperm(len(x), generator=generator), 64)
    for held in (1e9, 4 * 3 * 64 * 5, 1):
        monkeypatch.setattr(published, "BUFFER_BYTES", held)
        got = [(x.clone(), y) for x, y in shuffled(features, 64, torch.Generator().manual_seed(7))]
        assert len(got) == len(want)
        assert all(torch.equal(a, x[w]) and torch.equal(b, y[w]) for (a, b), w in zip(got, want, strict=True))


def test_streamed_probe_comes_near_the_optimum_with_exact_zeros() -> None:
    case = planted(n=6000, d=30, classes=4, seed=2)
    grid = Penalties(torch.tensor([1e-2, 1e-3]), torch.tensor([1e-4, 1e-3]))
    weight, bias = stream(case.features, grid, seed=0, schedule=Schedule(epochs=40, batch=128, rate=8e-3))
    best = solve(case.features, grid, gap=1e-4)
    value = slope(case.features, weight, bias, mean=torch.zeros(30)).loss + grid.of(weight)
    assert (value - best.objective < 0.02).all()
    assert (weight[..., 0] == 0).float().mean() > 0.5 * (best.weight[..., 0] == 0).float().mean() > 0
    difference = accuracy(case.features, weight, bias) - accuracy(case.features, best.weight, best.bias)
    assert difference.abs().max() < 0.02
