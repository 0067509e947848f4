"""Every measure as its definition reads: float64, the data themselves, nothing streamed, nothing of the package's.

`rank` says how many directions of a layer are real where its rows alone cannot: float32 rows of a layer with an exact
null direction hold rounding along it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import numpy.typing as npt
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import cdist, pdist
from scipy.stats import spearmanr

Rows = npt.NDArray[np.float64]
Kernel = npt.NDArray[np.float64]


def centred(x: npt.ArrayLike) -> Rows:
    """Columns about their means."""
    x = np.asarray(x, dtype=np.float64)
    out: Rows = x - x.mean(0)
    return out - out.mean(0)


def varying(x: Rows) -> npt.NDArray[np.bool_]:
    """Which columns of the rows as given are not one and the same value."""
    out: npt.NDArray[np.bool_] = np.array([len(set(x[:, k].tolist())) > 1 for k in range(x.shape[1])])
    return out


def left_vectors(x: npt.ArrayLike, rank: int | None = None) -> tuple[Rows, Rows]:
    """Left singular vectors of the centred rows, and the singular values.

    Which directions are real is judged on standardised neurons, because a neuron's scale is no sign of noise.
    """
    x = np.asarray(x, dtype=np.float64)
    vary = varying(x)
    c = centred(x)[:, vary]
    sd = np.sqrt((c**2).mean(0))
    u, s, vt = np.linalg.svd(c / sd, full_matrices=False)
    rank = int((s > s[0] * max(x.shape) * np.finfo(np.float64).eps).sum()) if rank is None else rank
    turn, s, _ = np.linalg.svd((s[:rank, None] * vt[:rank]) * sd, full_matrices=False)
    return u[:, :rank] @ turn, s


def pearson(x: Rows, y: Rows) -> Rows:
    """|Pearson| of every column of x with every column of y, one pair at a time; 0 where one does not vary."""
    a, b = centred(x), centred(y)
    out = np.zeros((x.shape[1], y.shape[1]))
    for i in np.flatnonzero(varying(x)):
        for j in np.flatnonzero(varying(y)):
            p, q = a[:, i] / np.abs(a[:, i]).max(), b[:, j] / np.abs(b[:, j]).max()
            out[i, j] = abs(p @ q) / np.sqrt((p @ p) * (q @ q))
    return out


def neuronsim(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    return float(pearson(x, y).max(1).mean())


def r_values(x: Rows, y: Rows, rank_y: int | None = None) -> Rows:
    """‖fitted‖/‖own‖ of every neuron of x regressed on all of y; 0 for a neuron that does not vary."""
    q, _ = left_vectors(y, rank_y)
    out = np.zeros(x.shape[1])
    for k in np.flatnonzero(varying(x)):
        column = centred(x)[:, k]
        out[k] = np.linalg.norm(q @ (q.T @ column)) / np.linalg.norm(column)
    return out


def mixedsim(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    return float(r_values(x, y, rank_y).mean())


def linreg(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    q, _ = left_vectors(x, rank_x)
    c = centred(y)
    return float(1 - ((c - q @ (q.T @ c)) ** 2).sum() / (c**2).sum())


def canonical(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> Rows:
    """All canonical correlations."""
    qx, _ = left_vectors(x, rank_x)
    qy, _ = left_vectors(y, rank_y)
    return np.linalg.svd(qx.T @ qy, compute_uv=False)


def cca(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    return float(canonical(x, y, rank_x, rank_y).mean())


def components(x: Rows, rank: int | None = None) -> Rows:
    """Principal components that reach 99 % of the variance, the crossing one kept."""
    u, s = left_vectors(x, rank)
    share, kept = 0.0, 0
    while share < 0.99 * (s**2).sum() * (1 - 1e-12):
        share += s[kept] ** 2
        kept += 1
    return u[:, :kept]


def truncated(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> tuple[Rows, Rows, Rows]:
    """Canonical vectors Hx of the truncated layers, the correlations, and Hy."""
    ux, uy = components(x, rank_x), components(y, rank_y)
    u, rho, vt = np.linalg.svd(ux.T @ uy, full_matrices=False)
    return ux @ u, rho, uy @ vt.T


def svsim(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    return float(truncated(x, y, rank_x, rank_y)[1].mean())


def pwsim(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    h, rho, _ = truncated(x, y, rank_x, rank_y)
    alpha = np.abs(h.T @ centred(x)).sum(1)
    return float((alpha * rho).sum() / alpha.sum())


def linear_kernel(x: Rows) -> Kernel:
    c = centred(x)
    return c @ c.T


def rbf_kernel(x: Rows, fraction: float = 0.5) -> Kernel:
    """exp(-d² / (2 (fraction · median)²)) with the median over all pairs of rows, a row with itself included."""
    squared = cdist(x, x, "sqeuclidean")
    return np.exp(-squared / (2 * fraction**2 * np.median(squared)))


def kernel_cka(k: Kernel, l: Kernel) -> float:  # noqa: E741
    """tr KHLH over the root of tr KHKH tr LHLH."""
    n = len(k)
    h = np.eye(n) - np.ones((n, n)) / n
    inner = [np.trace(a @ h @ b @ h) for a, b in ((k, l), (k, k), (l, l))]
    return float(inner[0] / np.sqrt(inner[1] * inner[2]))


def ckasim(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    return kernel_cka(linear_kernel(x), linear_kernel(y))


def ckasim_rbf(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    return kernel_cka(rbf_kernel(x), rbf_kernel(y))


def hsic1(k: Kernel, l: Kernel) -> float:  # noqa: E741
    """Unbiased HSIC, Song et al. 2012, eq. 5."""
    n = len(k)
    k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))  # noqa: E741
    one = np.ones(n)
    total = (
        np.trace(k @ l) + (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ k @ l @ one)
    )
    return float(total / (n * (n - 3)))


def hsic_u_statistic(k: Kernel, l: Kernel) -> float:  # noqa: E741
    """The same by its meaning: k_ij l_ij + k_ij l_qr - 2 k_ij l_iq averaged over all distinct i, j, q, r."""
    terms = [
        k[i, j] * l[i, j] + k[i, j] * l[q, r] - 2 * k[i, j] * l[i, q] for i, j, q, r in permutations(range(len(k)), 4)
    ]
    return float(np.mean(terms))


def ckasim_debiased(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    k, l = linear_kernel(x), linear_kernel(y)  # noqa: E741
    return hsic1(k, l) / float(np.sqrt(hsic1(k, k) * hsic1(l, l)))


def procrustes(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    """1 - ½ ‖A - B R‖² of layers of unit norm with the best orthogonal R, the narrower padded with zeros."""
    a, b = centred(x), centred(y)
    a, b = a / np.sqrt((a**2).sum()), b / np.sqrt((b**2).sum())
    width = max(a.shape[1], b.shape[1])
    a, b = (np.pad(m, ((0, 0), (0, width - m.shape[1]))) for m in (a, b))
    rotation, _ = orthogonal_procrustes(b, a)
    return float(1 - ((a - b @ rotation) ** 2).sum() / 2)


def rsa(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    """Spearman correlation of the 1 - Pearson dissimilarities of all pairs of rows, columns centred first."""
    distances = [np.round(pdist(centred(m), "correlation"), 12) for m in (x, y)]
    return float(spearmanr(*distances).statistic)


def heldout_r_values(x: Rows, y: Rows, rank_y: int | None = None, block: int = 64) -> Rows:
    """Pearson, at least 0, of every neuron of x with its prediction from y: even blocks of rows fit, odd ones judge."""
    n = len(x)
    block = min(block, n // 2)
    fit = np.array([k // block % 2 == 0 for k in range(n)])
    y = y[:, varying(y[fit])]
    y = (y - y[fit].mean(0)) / y[fit].std(0)
    mean = y[fit].mean(0)
    u, s, vt = np.linalg.svd(y[fit] - mean, full_matrices=False)
    rank = min(int((s > s[0] * max(y.shape) * 2.3e-16).sum()) if rank_y is None else rank_y, int(fit.sum()) - 1)
    inverse = vt[:rank].T @ np.diag(1 / s[:rank]) @ u[:, :rank].T
    predicted = (y[~fit] - mean) @ inverse @ (x[fit] - x[fit].mean(0))
    out = np.zeros(x.shape[1])
    for k in np.flatnonzero(varying(x[fit]) & varying(x[~fit])):
        out[k] = max(0, np.corrcoef(predicted[:, k], x[~fit][:, k])[0, 1])
    return out


def mixedsim_heldout(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    return float(heldout_r_values(x, y, rank_y).mean())


def neighbours(x: Rows, k: int = 10) -> list[list[int]]:
    """The k nearest rows of every row by cosine, columns centred first; ties in the order of the rows."""
    c = centred(x)
    norms = np.linalg.norm(c, axis=1)
    found = []
    for i in range(len(c)):
        cosine = [
            round(float(c[i] @ c[j] / (norms[i] * norms[j])), 12) if norms[i] and norms[j] else 0 for j in range(len(c))
        ]
        found.append(sorted((j for j in range(len(c)) if j != i), key=lambda j: (-cosine[j], j))[:k])
    return found


def knn(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    pairs = zip(neighbours(x), neighbours(y), strict=True)
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in pairs]))


def knn_jaccard(x: Rows, y: Rows, rank_x: int | None = None, rank_y: int | None = None) -> float:
    pairs = zip(neighbours(x), neighbours(y), strict=True)
    return float(np.mean([len(set(a) & set(b)) / len(set(a) | set(b)) for a, b in pairs]))


REFERENCES: dict[str, Callable[..., float]] = {
    "neuronsim": neuronsim,
    "mixedsim": mixedsim,
    "svsim": svsim,
    "pwsim": pwsim,
    "ckasim": ckasim,
    "ckasim-debiased": ckasim_debiased,
    "ckasim-rbf": ckasim_rbf,
    "ckasim-minibatch": ckasim_debiased,  # the same as long as one minibatch holds all rows
    "cca": cca,
    "linreg": linreg,
    "procrustes": procrustes,
    "rsa": rsa,
    "knn": knn,
    "knn-jaccard": knn_jaccard,
    "mixedsim-heldout": mixedsim_heldout,
}
