"""Networks: bijections at any weights, recovery of a known one, best on held-out rows, the published recipe."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stratoscope.aligners import training
from stratoscope.aligners.fit import METHODS, fit_map, fit_spaces, spaces
from stratoscope.aligners.linear import LAMBDAS, MOST_CONDITION, SHARES, shrunk_ridge
from stratoscope.aligners.maps import RECORD, WEIGHTS, Map
from stratoscope.aligners.networks import BOUND, Coupling, Flow, Free, PaperFlow
from stratoscope.aligners.recovery import principal_components, random_bijection
from stratoscope.aligners.training import (
    NARROW,
    PAPER_LAST,
    PAPER_STEPS,
    Dense,
    Schedule,
    fit_network,
    fit_paper,
    recipe,
    train,
)
from stratoscope.core.errors import DamagedResultError, StratoscopeError


def normal(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("d", [2, 5, 8])
@pytest.mark.parametrize("kind", [Flow, PaperFlow])
def test_networks_are_bijections_at_any_weights(kind: type[Flow] | type[PaperFlow], d: int) -> None:
    network = kind(d).double()
    for p in network.parameters():
        torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(1))
    x = normal(50, d)
    with torch.no_grad():
        y = network(x)
        assert float((y - x).abs().max()) > 0.05
        assert float((network.inverse(y) - x).abs().max()) < 1e-9 * float(y.abs().max())
    # Every output depends on every input: couplings alternate over all features.
    jacobian = torch.autograd.functional.jacobian(lambda v: network(v[None])[0], x[0])
    assert bool((jacobian.abs() > 1e-9).all() or kind is PaperFlow)


def test_couplings_take_turns_over_two_ways_to_halve_the_features() -> None:
    kept = [c.order[: c.number].tolist() for c in Flow(6).couplings]
    assert kept == [[0, 2, 4], [1, 3, 5], [0, 1, 2], [3, 4, 5], [0, 2, 4], [1, 3, 5]]


def test_a_flow_is_the_identity_before_training() -> None:
    x = normal(5, 6)
    torch.testing.assert_close(Flow(6).double()(x), x, rtol=0, atol=0)


def test_a_random_bijection_is_recovered_far_below_ridge_and_inverts() -> None:
    x = normal(1200, 4) @ torch.diag(torch.tensor([1.0, 0.7, 0.5, 0.3], dtype=torch.float64))
    y = random_bijection(4)(x)
    (train, test), (target, truth) = x.split(600), y.split(600)

    def error(g: Map) -> float:
        return float((g(test) - truth).square().sum() / (truth - truth.mean(0)).square().sum())

    pair = spaces(train, target)
    inn, ridge = (fit_spaces(*pair, method) for method in ("inn", "ridge"))
    assert error(ridge) > 1e-3
    assert error(inn) < error(ridge) / 5
    assert float((inn.inverse(inn(test)) - test).norm() / test.norm()) < 1e-9
    single = test.float()
    assert inn(single).dtype == torch.float32
    assert float((inn.inverse(inn(single)) - single).norm() / single.norm()) < 1e-4


def test_a_network_is_never_worse_than_its_start_on_held_out_rows() -> None:
    x, y = normal(100, 6), normal(100, 6, seed=1)  # nothing to learn
    g = fit_map(x, y, method="inn")
    assert g.chosen["held_out"] <= g.chosen["held_out_start"]
    again = fit_map(x, y, method="inn")
    torch.testing.assert_close(again(x), g(x), rtol=0, atol=0)
    assert g.chosen["best_step"] == 0  # then the map is linear, and knows all rows
    assert g.network is not None
    torch.testing.assert_close(g.network(x), x, rtol=0, atol=0)
    assert g.chosen["held_out_start"] > 0.9  # rows that the start has not seen


@pytest.mark.parametrize("method", ["inn", "mlp"])
def test_a_network_starts_and_stops_by_texts_that_it_has_not_seen(method: str) -> None:
    """Copies of rows with nothing to learn: held out row by row, learning them by heart would look like a gain."""
    x, y, schedule = normal(50, 6), normal(50, 6, seed=1), Schedule(steps=120)
    alone = fit_network(method, *spaces(x, y), schedule=schedule).chosen
    pair = spaces(x.repeat(4, 1), y.repeat(4, 1), texts=list(range(50)) * 4)
    chosen = fit_network(method, *pair, schedule=schedule).chosen
    assert chosen["best_step"] == alone["best_step"] == 0
    for name in set(chosen) & {"lambda", "rotation", "held_out_start"}:
        assert chosen[name] == pytest.approx(alone[name], rel=1e-5)
    naive = fit_network(method, *spaces(x.repeat(4, 1), y.repeat(4, 1)), schedule=schedule).chosen
    assert naive["best_step"] > 0


@pytest.mark.parametrize("method", ["inn", "mlp"])
def test_what_is_trained_again_is_the_start_of_all_rows_for_the_steps_that_were_best(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first training starts without the held-out rows; the second, with all of them, ends after the best step."""
    x = normal(200, 6) * 3
    y = (x + 0.3 * x.roll(1, dims=1).square()) * 40  # in other units
    pair, schedule, seen = spaces(x, y), Schedule(steps=60, every=10), []

    def spied(model: Dense, *args: Any, **how: Any) -> dict[str, float | int]:
        with torch.no_grad():
            seen.append((model(args[0]).double(), how))
        return train(model, *args, **how)

    monkeypatch.setattr(training, "train", spied)
    g = fit_network(method, *pair, schedule=schedule)
    (first, choosing), (second, last) = seen
    part = tuple(s.without_held(0) for s in pair)
    scale = float(torch.cov(y.T, correction=0).trace() / 6) ** 0.5
    for start, known in ((first, part), (second, pair)):
        slope = fit_spaces(known[0], known[1], "shrunk").weight
        torch.testing.assert_close(start * scale, (x - x.mean(0)) @ slope, rtol=0, atol=1e-4 * scale)
    assert torch.equal(choosing["held"], pair[0].held)
    assert "stop" not in choosing
    assert 0 < g.chosen["best_step"] == last["stop"]
    assert "held" not in last


@pytest.mark.parametrize("kind", [Flow, Free])
def test_the_rate_of_every_step_is_that_of_the_schedule(kind: type[Flow] | type[Free]) -> None:
    """One weight with a constant gradient: AdamW moves it by the rate, times its sign, and does not let it decay."""
    network = Flow(2, couplings=2, width=3) if kind is Flow else Free(2, 2, width=3)
    model = Dense(torch.eye(2), network)
    for p in network.parameters():
        p.requires_grad_(False)
    weight: Tensor = model.weight
    if isinstance(network, Free):
        weight = network.linear.weight.requires_grad_(True)
        weight.data = torch.eye(2)
        model.weight.requires_grad_(False)
    schedule, x = Schedule(steps=10, warmup=0.2, linear_lr=1e-4, decay=10.0), torch.eye(2)
    train(model, x, x + 100, schedule, seed=0)
    moved = float(weight.detach()[0, 0]) - 1
    assert moved == pytest.approx(1e-4 * sum(schedule.rate(k) for k in range(10)), rel=1e-2)


def test_a_network_that_need_not_be_a_bijection_gains_over_its_start() -> None:
    """In a space too wide for the narrow recipe: its steps are not so large that rows are only learnt by heart."""
    d = NARROW + 2
    x = normal(900, d) @ torch.logspace(0, -2, d, dtype=torch.float64).diag()
    y = x @ normal(d, 20, seed=1) / 4 + x[:, :2].square() @ normal(2, 20, seed=3) / 12 + normal(900, 20, seed=4) / 10
    (fitted, judged), (target, truth) = x.split(600), y.split(600)
    pair = spaces(fitted, target)
    schedule, _ = recipe("mlp", d)

    def error(g: Map) -> float:
        return float((g(judged) - truth).square().sum() / (truth - truth.mean(0)).square().sum())

    free = fit_network("mlp", *pair, schedule=replace(schedule, steps=80))
    assert free.chosen["best_step"] >= 40
    assert error(free) < 0.45 * error(fit_spaces(*pair, "shrunk"))


@pytest.mark.parametrize("method", ["inn", "mlp"])
def test_the_published_schedule_changes_nothing_after_the_steps_that_are_taken(method: str) -> None:
    x, y = normal(64, 4), normal(64, 4, seed=1)
    pair = spaces(x, y)
    early, whole = (fit_paper(method, *pair, last=k) for k in (PAPER_LAST, PAPER_STEPS))
    torch.testing.assert_close(early(x), whole(x), rtol=0, atol=1e-6)
    assert early.chosen == {"paper": True, "steps": 3000, "left_out": 2000}
    half = fit_paper(method, *pair, last=PAPER_LAST // 10)  # which would not have been enough
    assert float((half(x) - whole(x)).abs().max()) > 1e-5


def test_the_warm_start_is_well_conditioned_where_ridge_is_not() -> None:
    x = normal(300, 8)  # sent to a line, almost
    y = x[:, :1] @ normal(1, 8, seed=2) + 1e-6 * normal(300, 8, seed=3)
    pair = spaces(x, y)
    weight, _ = shrunk_ridge(*pair)
    assert float(torch.linalg.cond(weight)) > 10
    assert float(torch.linalg.cond(weight)) <= MOST_CONDITION * 1.01
    assert fit_spaces(*pair, "ridge").condition > 1e4


def test_the_start_is_the_ridge_of_least_held_out_error_towards_a_share_of_the_rotation() -> None:
    """Against a loop over γ and λ; the rotation that they are chosen with does not know the held-out rows."""
    x = normal(90, 12) @ torch.diag(torch.logspace(0, -1, 12, dtype=torch.float64))
    y = x @ (normal(12, 12, seed=1) + 2 * torch.eye(12)) + normal(90, 12, seed=2)
    a, b = spaces(x, y)
    cx, cy, held = x - x.mean(0), y - y.mean(0), a.held
    unit = float(cx.square().sum()) / 90 / 12

    def solved(rows: Tensor, share: float, penalty: float) -> Tensor:
        fx, fy, n = cx[rows], cy[rows], int(rows.sum())
        u, s, v = torch.linalg.svd(fx.T @ fy)
        r = share * s.sum() / fx.square().sum() * (u @ v)
        return r + torch.linalg.solve(fx.T @ fx / n + penalty * torch.eye(12), fx.T @ (fy - fx @ r) / n)

    errors = {
        (share, float(lam) * unit): float(
            (cy[held] - cx[held] @ solved(~held, share, float(lam) * unit)).square().sum()
        )
        for share in SHARES
        for lam in LAMBDAS
    }
    share, penalty = min(errors, key=lambda k: errors[k])
    assert SHARES[-1] < share < SHARES[0]
    weight, chosen = shrunk_ridge(a, b)
    g = fit_map(x, y, method="shrunk")  # a linear map of its own, beside the network that starts from it
    assert (g.chosen, g.network) == (chosen, None)
    torch.testing.assert_close(g(x), y.mean(0) + cx @ weight)
    assert chosen == {"lambda": pytest.approx(penalty, rel=1e-6), "rotation": share}
    torch.testing.assert_close(weight, solved(torch.ones(90, dtype=torch.bool), share, penalty), rtol=0, atol=1e-7)


def test_a_coupling_is_its_formula() -> None:
    kept = torch.tensor([True, False, True, False, False])
    coupling, x = Coupling(kept, width=7).double(), normal(9, 5)
    for p in coupling.parameters():
        torch.nn.init.normal_(p, std=0.8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        s, t = coupling.net(x[:, kept]).chunk(2, dim=1)
        y = coupling(x)
    assert float(s.abs().max()) > BOUND  # so that the bound is at work
    torch.testing.assert_close(y[:, kept], x[:, kept], rtol=0, atol=0)
    torch.testing.assert_close(y[:, ~kept], x[:, ~kept] * torch.exp(BOUND * torch.tanh(s / BOUND)) + t)


def test_the_published_flow_is_two_couplings_that_share_their_networks() -> None:
    flow, x = random_bijection(4, seed=3), normal(9, 4)
    even = torch.tensor([1.0, 0, 1, 0]).double()
    with torch.no_grad():
        kept = x * even
        first = kept + (1 - even) * (x * flow.s(kept).tanh().exp() + flow.t(kept))
        moved = first * (1 - even)
        second = moved + even * (first * flow.s(moved).tanh().exp() + flow.t(moved))
        torch.testing.assert_close(flow(x), second)
    assert [tuple(p.shape) for p in flow.s.parameters()] == [(16, 4), (16,), (16, 16), (16,), (4, 16), (4,)]


def test_the_learning_rate_rises_then_falls_by_half_a_cosine() -> None:
    rate = Schedule(steps=300, warmup=0.1).rate
    assert (rate(0), rate(14), rate(29), rate(30)) == (1 / 30, 0.5, 1, 1)
    assert rate(165) == pytest.approx(0.5)
    assert rate(300) == pytest.approx(0)


def test_training_ends_where_held_out_rows_gain_no_more_and_starts_again_with_all_rows() -> None:
    x, y = normal(200, 4), normal(200, 4, seed=1)
    g = fit_map(x, y, method="inn")  # nothing to learn: the start, fitted on all rows
    start, chosen = shrunk_ridge(*spaces(x, y))
    assert g.chosen["best_step"] == 0
    assert {k: g.chosen[k] for k in chosen} == chosen
    expected = y.mean(0) + (x - x.mean(0)) @ start
    torch.testing.assert_close(g(x), expected, rtol=0, atol=1e-5)


def test_the_published_recipe_barely_moves_its_weights() -> None:
    x, y = normal(64, 4), normal(64, 4, seed=1)
    pair = spaces(x, y)
    before, after = (fit_paper("inn", *pair, last=k).network for k in (0, 40))
    assert isinstance(before, PaperFlow)
    assert isinstance(after, PaperFlow)
    moved = max(float((a - b).abs().max()) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert 0 < moved < 1e-4
    g = fit_paper("mlp", *pair, last=2)
    assert not g.invertible


@pytest.mark.parametrize("method", METHODS)
def test_numpy_and_torch_in_the_same_out_and_saved_as_a_folder(method: str, tmp_path: Path) -> None:
    x, y = normal(60, 3), normal(60, 3, seed=1)
    g = fit_map(x.numpy(), y, method=method)
    assert isinstance(g(x.numpy()), np.ndarray)
    assert g(x.float().numpy()).dtype == np.float32
    assert isinstance(g(x), Tensor)
    np.testing.assert_allclose(g(x.numpy()), g(x).numpy(), atol=0)
    g.save(tmp_path / "map")
    again = Map.load(tmp_path / "map")
    assert (again.method, again.chosen, again.invertible) == (g.method, g.chosen, g.invertible)
    torch.testing.assert_close(again(x), g(x), rtol=0, atol=0)
    if g.invertible:
        torch.testing.assert_close(again.inverse(y), g.inverse(y), rtol=0, atol=0)


def test_a_map_is_its_formula_both_ways() -> None:
    network = random_bijection(4, seed=1)
    a, mx, my, x = normal(4, 4), normal(1, 4, seed=2)[0], normal(1, 4, seed=3)[0], normal(7, 4, seed=4)
    g = Map("inn", mx, my, a, network, 3.0, 0.2)
    with torch.no_grad():
        torch.testing.assert_close(g(x), my + 0.2 * network((x - mx) / 3.0 @ a))
    torch.testing.assert_close(g.inverse(g(x)), x)
    assert repr(g) == "Map('inn', 4 to 4 features, paper-flow, invertible)"
    assert repr(fit_map(x.repeat(4, 1), x.repeat(4, 1)[:, :2])) == "Map('ridge', 4 to 2 features, not invertible)"


def test_a_damaged_or_missing_map_is_an_error(tmp_path: Path) -> None:
    x = normal(60, 3)
    fit_map(x, x, method="ridge").save(tmp_path)
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(DamagedResultError, match="checksum"):
        Map.load(tmp_path)
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(StratoscopeError, match="damaged"):
        Map.load(tmp_path)
    with pytest.raises(StratoscopeError, match=f"no {RECORD}"):
        Map.load(tmp_path / "elsewhere")


def test_principal_components_are_uncorrelated_and_largest_first() -> None:
    rows = normal(400, 10) * torch.logspace(0, -1, 10, dtype=torch.float64) @ normal(10, 10, seed=2)
    found = principal_components(rows, 4)
    covariance = torch.cov(found.T)
    assert float(covariance[0, 0]) == pytest.approx(1)
    assert float((covariance - covariance.diagonal().diag()).abs().max()) < 1e-9
    assert bool((covariance.diagonal().diff() < 0).all())
    largest = torch.linalg.eigvalsh(torch.cov(rows.T)).flip(0)[:4]
    torch.testing.assert_close(covariance.diagonal(), largest / largest[0])
