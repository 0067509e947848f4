"""The references themselves, held against scipy, scikit-learn and brute force: else two equal mistakes would agree."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import procrustes as scipy_procrustes
from scipy.stats import pearsonr
from sklearn.cross_decomposition import CCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from measures import reference
from measures.layer_cases import related

X, Y = related(60, 5, 4)


def test_neuronsim_is_scipys_pearson() -> None:
    table = [[abs(pearsonr(X[:, i], Y[:, j]).statistic) for j in range(4)] for i in range(5)]
    np.testing.assert_allclose(reference.pearson(X, Y), table, atol=1e-12)
    assert reference.neuronsim(X, Y) == pytest.approx(np.mean([max(row) for row in table]), abs=1e-12)


def test_mixedsim_and_linreg_are_scikit_learns_regressions() -> None:
    fitted = LinearRegression().fit(Y, X).predict(Y)
    r = [pearsonr(fitted[:, k], X[:, k]).statistic for k in range(5)]
    assert reference.mixedsim(X, Y) == pytest.approx(np.mean(r), abs=1e-12)
    assert reference.linreg(Y, X) == pytest.approx(r2_score(X, fitted, multioutput="variance_weighted"), abs=1e-12)


def test_heldout_is_scikit_learns_regression_on_other_rows() -> None:
    x, y = related(200, 5, 4)
    fit = [*range(64), *range(128, 192)]
    judge = [*range(64, 128), *range(192, 200)]
    predicted = LinearRegression().fit(y[fit], x[fit]).predict(y[judge])
    r = [max(0, pearsonr(predicted[:, k], x[judge][:, k]).statistic) for k in range(5)]
    assert reference.mixedsim_heldout(x, y) == pytest.approx(np.mean(r), abs=1e-12)


def test_cca_is_scikit_learns() -> None:
    a, b = CCA(n_components=4, max_iter=100_000, tol=1e-14).fit_transform(X, Y)
    rho = [pearsonr(a[:, k], b[:, k]).statistic for k in range(4)]
    np.testing.assert_allclose(reference.canonical(X, Y), rho, atol=1e-6)


def test_unbiased_hsic_is_the_u_statistic() -> None:
    k, other = reference.linear_kernel(X[:9]), reference.linear_kernel(Y[:9])
    assert reference.hsic1(k, other) == pytest.approx(reference.hsic_u_statistic(k, other), rel=1e-10)


def test_linear_cka_with_kernels_is_the_formula_with_features() -> None:
    a, b = reference.centred(X), reference.centred(Y)
    ratio = (np.square(a.T @ b).sum()) / np.sqrt(np.square(a.T @ a).sum() * np.square(b.T @ b).sum())
    assert reference.ckasim(X, Y) == pytest.approx(ratio, abs=1e-12)


def test_procrustes_is_scipys_disparity() -> None:
    *_, disparity = scipy_procrustes(X, np.pad(Y, ((0, 0), (0, 1))))  # optimal scale: 1 - similarity²
    assert reference.procrustes(X, Y) == pytest.approx(np.sqrt(1 - disparity), abs=1e-12)


def test_the_component_that_crosses_99_percent_is_kept() -> None:
    rng = np.random.default_rng(0)
    u = np.linalg.qr(reference.centred(rng.standard_normal((50, 4))))[0]
    for variances, kept in (
        ([0.97, 0.01, 0.015, 0.005], 3),
        ([0.995, 0.003, 0.001, 0.001], 1),
        ([0.6, 0.39, 0.01, 0], 2),
    ):
        assert reference.components(u * np.sqrt(variances)).shape[1] == kept
