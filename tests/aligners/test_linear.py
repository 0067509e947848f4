"""Linear maps against closed forms and scipy / scikit-learn: exact recovery, least norm, λ, canonical directions."""

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.linear_model import Ridge

from stratoscope.aligners.fit import METHODS, fit_map, spaces
from stratoscope.aligners.linear import LAMBDAS, VARIANCE_KEPT, ridge
from stratoscope.aligners.texts import held_out
from stratoscope.core.errors import StratoscopeError

N, D = 300, 6
RNG = np.random.default_rng(0)


def spread_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.logspace(0, -2, d) @ rng.normal(size=(d, d)) + 5 * rng.normal(size=d)


def relative(found: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(found - y).sum() / np.square(y - y.mean(0)).sum())


@pytest.mark.parametrize("method", ["linreg", "cca", "pwcca"])
def test_an_exact_linear_bijection_is_recovered_with_means_and_scales(method: str) -> None:
    x, test = spread_rows(N, D), spread_rows(N, D, seed=1)
    a, b = RNG.normal(size=(D, D)) * 100, RNG.normal(size=D)
    g = fit_map(x, x @ a + b, method=method)
    y = test @ a + b
    assert np.abs(g(test) - y).max() < 1e-8 * np.abs(y).max()
    assert np.abs(g.inverse(y) - test).max() < 1e-8 * np.abs(test).max()


def test_procrustes_recovers_a_scaled_rotation_and_a_mean() -> None:
    x = spread_rows(N, D)
    turn = np.linalg.qr(RNG.normal(size=(D, D)))[0]
    g = fit_map(x, 3 * x @ turn + 7, method="procrustes")
    np.testing.assert_allclose(g.weight.numpy(), 3 * turn, atol=1e-9)
    np.testing.assert_allclose(g(x), 3 * x @ turn + 7, atol=1e-8)
    y = RNG.normal(size=(N, D))
    rotation, scale = scipy.linalg.orthogonal_procrustes(x - x.mean(0), y - y.mean(0))
    scale /= np.square(x - x.mean(0)).sum()
    np.testing.assert_allclose(fit_map(x, y, method="procrustes").weight.numpy(), scale * rotation, atol=1e-9)


def test_procrustes_of_a_deficient_space_is_still_a_rotation() -> None:
    x = spread_rows(N, D)
    x[:, 0] = x[:, 1]
    g = fit_map(x, RNG.normal(size=(N, D)), method="procrustes")
    assert g.condition == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("n", [N, 40])
def test_linreg_is_least_squares_of_least_norm(n: int) -> None:
    d = 60  # with 40 rows there are many exact solutions
    x, y = RNG.normal(size=(n, d)), RNG.normal(size=(n, 4))
    a = np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0]
    np.testing.assert_allclose(fit_map(x, y, method="linreg").weight.numpy(), a, atol=1e-9)


@pytest.mark.parametrize("doubled", [0, 10])
def test_ridge_is_the_penalised_solution_with_the_lambda_of_least_held_out_error(doubled: int) -> None:
    x = spread_rows(60, 30)
    x[:, :doubled] = x[:, 10 : 10 + doubled]  # λ is in units of a feature's variance, whatever the rank
    y = x @ RNG.normal(size=(30, 5)) + RNG.normal(size=(60, 5))
    g, held = fit_map(x, y, method="ridge"), held_out(60).numpy()
    unit = np.square(x - x.mean(0)).sum() / 60 / 30
    mx, my = x.mean(0), y.mean(0)

    def error(lam: float) -> float:
        kept = ~held
        model = Ridge(alpha=lam * kept.sum(), fit_intercept=False, solver="svd").fit(x[kept] - mx, y[kept] - my)
        return float(np.square(model.predict(x[held] - mx) - (y[held] - my)).sum())

    errors = [error(float(lam) * unit) for lam in LAMBDAS]
    best = float(LAMBDAS[int(np.argmin(errors))]) * unit
    assert 0 < np.argmin(errors) < len(LAMBDAS) - 1
    assert g.chosen["lambda"] == pytest.approx(best, rel=1e-6)
    whole = Ridge(alpha=best * 60, solver="svd").fit(x, y)
    np.testing.assert_allclose(g(x), whole.predict(x), atol=1e-7)


def test_cca_sends_canonical_variates_to_their_partners() -> None:
    x, y = spread_rows(N, 4), RNG.normal(size=(N, 4))
    y[:, 0] += 3 * x[:, 1]
    g = fit_map(x, y, method="cca")
    qx, qy = (np.linalg.qr(v - v.mean(0))[0] for v in (x, y))
    p, rho, q = np.linalg.svd(qx.T @ qy)
    np.testing.assert_allclose(g(x) - y.mean(0), (qx @ p) @ (q @ qy.T @ (y - y.mean(0))), atol=1e-9)
    assert rho[0] > 2 * rho[1]
    # Regression shrinks every variate by its ρ; the map of canonical correlations does not.
    assert np.square(g(x) - y.mean(0)).sum() == pytest.approx(np.square(y - y.mean(0)).sum(), rel=1e-9)


def test_svcca_is_cca_of_the_leading_principal_components() -> None:
    x, y = spread_rows(N, D), np.random.default_rng(3).normal(size=(N, D - 1))  # of which all components are kept
    y[:, :3] += x[:, :3]
    g = fit_map(x, y, method="svcca")

    def leading(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, s, w = np.linalg.svd(v - v.mean(0), full_matrices=False)
        k = int(np.searchsorted(np.cumsum(s**2) / np.sum(s**2), VARIANCE_KEPT)) + 1
        return u[:, :k], s[:k, None] * w[:k]

    (ux, _), (uy, back) = leading(x), leading(y)
    p, _, q = np.linalg.svd(ux.T @ uy, full_matrices=False)
    assert ux.shape[1] < uy.shape[1]
    assert (g.chosen["kept_x"], g.chosen["kept_y"]) == (ux.shape[1], uy.shape[1])
    np.testing.assert_allclose(g(x), y.mean(0) + ux @ p @ q @ back, atol=1e-8)
    assert not g.invertible


def test_constant_and_deficient_spaces_are_handled() -> None:
    x, y = spread_rows(N, D), spread_rows(N, D, seed=1)
    constant = np.ones((N, D))
    for method in ("linreg", "ridge", "shrunk", "cca", "svcca", "pwcca", "procrustes"):
        np.testing.assert_allclose(fit_map(constant, y, method=method)(constant), np.tile(y.mean(0), (N, 1)), atol=1e-9)
        np.testing.assert_allclose(fit_map(x, constant, method=method)(x), constant, atol=1e-9)
        x2 = np.concatenate([x, x[:, :2]], axis=1)  # depends on itself
        assert np.isfinite(fit_map(x2, y, method=method)(x2)).all()
    twice = fit_map(np.concatenate([x, x], axis=1), y, method="linreg")
    np.testing.assert_allclose(twice(np.concatenate([x, x], axis=1)), fit_map(x, y, method="linreg")(x), atol=1e-8)
    for method in ("inn", "mlp"):
        with pytest.raises(StratoscopeError, match="first space does not vary"):
            fit_map(constant, y, method=method)


def test_a_map_that_is_not_square_or_is_singular_has_no_inverse() -> None:
    x = spread_rows(N, D)
    for y in (x[:, :3], np.tile(x[:, :1], (1, D))):
        g = fit_map(x, y, method="linreg")
        assert not g.invertible
        with pytest.raises(StratoscopeError, match="has no inverse") as e:
            g.inverse(y)
        assert ("method='inn'" in str(e.value)) == (y.shape[1] == D)  # a bijection needs spaces of one width


@pytest.mark.parametrize("method", METHODS)
def test_rows_must_be_paired_finite_matrices_and_enough(method: str) -> None:
    x = spread_rows(N, D)
    bad = x.copy()
    bad[3, 2] = np.nan
    for a, b, word in [
        (x, x[:-1], "300 of x and 299"),
        (x, bad, "not finite"),
        (x[:, 0], x, "matrix of rows"),
        (x, x + 1j, "real numbers, .* complex128"),
        (torch.tensor(x) + 1j, x, "real numbers, .* complex128"),
        (x.astype(object), x, "real numbers, .* object"),
        ([[1.0], [1.0, 2.0]], x, "real numbers"),
        (x[:10], x[:10], "at least 20"),
    ]:
        with pytest.raises(StratoscopeError, match=word):
            fit_map(a, b, method=method)


def test_too_few_rows_for_canonical_correlations_and_unknown_methods() -> None:
    x = RNG.normal(size=(30, 40))
    with pytest.raises(StratoscopeError, match="30 rows that vary along 29"):
        fit_map(x, x, method="cca")
    with pytest.raises(StratoscopeError, match="did you mean 'ridge'"):
        fit_map(x, x, method="rigde")
    with pytest.raises(StratoscopeError, match="solved exactly"):
        fit_map(x, x, method="ridge", paper=True)
    with pytest.raises(StratoscopeError, match="one width"):
        fit_map(x, x[:, :5], method="inn")
    with pytest.raises(StratoscopeError, match="at least 2 features"):
        fit_map(x[:, :1], x[:, :1], method="inn")
    with pytest.raises(StratoscopeError, match=r"\(n, 40\), got \(30, 3\)"):
        fit_map(x, x, method="ridge")(x[:, :3])


def test_float32_rows_lose_nothing_to_an_outlier_feature() -> None:
    x = torch.randn(400, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 3] = 1e3 * x[:, 3] + 1e4
    y = x @ torch.randn(20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    g = fit_map(x.float(), y.float(), method="linreg")
    assert relative(g(x.numpy()), y.numpy()) < 1e-10


def test_one_row_in_five_is_held_out_by_the_seed() -> None:
    held = held_out(100)
    assert int(held.sum()) == 20
    assert not torch.equal(held, held_out(100, seed=1))


def test_ridge_from_products_does_not_depend_on_units() -> None:
    x, y = spread_rows(N, D), RNG.normal(size=(N, 3))
    a, b = spaces(x, y), spaces(1000 * x, y)
    (m, one), (n, two) = (ridge(s, t.centred) for s, t in (a, b))
    assert two == pytest.approx(one * 1e6, rel=1e-6)
    torch.testing.assert_close((a[0].w @ m), (b[0].w @ n), atol=1e-8, rtol=0)


@pytest.mark.parametrize("method", ["linreg", "ridge", "shrunk", "cca", "svcca", "pwcca", "procrustes", "inn"])
def test_neurons_that_weight_decay_left_at_nothing_do_not_spoil_a_map(method: str) -> None:
    """As MiniLM's layer 6 has them: two of spread 1e-33 beside one of 1e-9, and one direction that LayerNorm takes."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((200, 12)).astype(np.float32)
    x[:, 2:5] *= np.array([8e-33, 1e-32, 2e-9], dtype=np.float32)
    x[:, 11] = -x[:, 5:11].sum(1)
    y = (x[:, [5, 6, 7, 8]] @ rng.standard_normal((4, 12))).astype(np.float32) + rng.standard_normal(12)
    y = (y + 0.01 * rng.standard_normal(y.shape)).astype(np.float32)
    found = np.asarray(fit_map(x[:150], y[:150], method=method)(x[150:]))
    assert np.isfinite(found).all()
    if method in ("linreg", "ridge", "cca", "pwcca"):
        assert np.square(found - y[150:]).sum() < 0.01 * np.square(y[150:] - y[150:].mean(0)).sum()


def test_pwcca_shrinks_a_variate_the_less_of_x_it_explains() -> None:
    """As `cca`, each variate times 1 - (1 - α/max α)(1 - ρ), α the summed |⟨variate, feature of x⟩|."""
    x, y = spread_rows(N, 4), RNG.normal(size=(N, 5))
    y[:, :2] += x[:, :2]
    cx, cy = x - x.mean(0), y - y.mean(0)
    qx, qy = (np.linalg.qr(v)[0] for v in (cx, cy))
    p, rho, q = np.linalg.svd(qx.T @ qy, full_matrices=False)
    alpha = np.abs((qx @ p).T @ cx).sum(1)
    size = 1 - (1 - alpha / alpha.max()) * (1 - rho)
    assert size.min() < 0.7
    np.testing.assert_allclose(fit_map(x, y, method="pwcca")(x), y.mean(0) + qx @ p * size @ q @ qy.T @ cy, atol=1e-8)


def copied(n: int, d: int, times: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts of one row each, said `times` over: rows x and y, and their texts."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = x @ rng.normal(size=(d, 5)) + 3 * rng.normal(size=(n, 5))
    return np.repeat(x, times, axis=0), np.repeat(y, times, axis=0), np.repeat(np.arange(n), times)


def test_rows_of_one_text_are_held_out_together() -> None:
    texts = np.repeat(np.random.default_rng(0).permutation(50), 4)
    held = held_out(200, texts=texts).reshape(50, 4)
    assert bool((held.all(1) == held.any(1)).all())
    assert int(held.any(1).sum()) == 10
    assert torch.equal(held_out(100, texts=np.arange(100)), held_out(100))


def test_lambda_is_chosen_on_texts_that_the_map_has_not_seen() -> None:
    """Copies of a row say no more than the row: with them held out together, the map is that of the rows alone."""
    x, y, texts = copied(60, 30, 10)
    alone, g = fit_map(x[::10], y[::10]), fit_map(x, y, texts=texts)
    assert g.chosen["lambda"] == pytest.approx(alone.chosen["lambda"], rel=1e-9)
    torch.testing.assert_close(g.weight, alone.weight, rtol=0, atol=1e-9)
    assert fit_map(x, y).chosen["lambda"] < 0.5 * g.chosen["lambda"]  # chosen on copies of what it was fitted on


def test_texts_must_be_those_of_the_rows_and_enough_to_hold_some_out() -> None:
    x, y, texts = copied(4, 3, 10)
    with pytest.raises(StratoscopeError, match=r"at least 5 texts .* got 4"):
        fit_map(x, y, texts=texts)
    with pytest.raises(StratoscopeError, match=r"texts of 40 rows, got shape \(39,\)"):
        fit_map(x, y, texts=texts[1:])
