"""Pairs of layers that have broken similarity code before, each with the ranks it was built to have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Layers:
    """Two layers on the same rows, and how many directions each really has."""

    x: Array
    y: Array
    rank_x: int | None = None
    """None: whatever an SVD in float64 sees."""
    rank_y: int | None = None


def related(n: int, p: int, q: int, *, seed: int = 0) -> tuple[Array, Array]:
    """Two layers that share a few directions; float64."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((n, 4))
    x = shared @ rng.standard_normal((4, p)) + rng.standard_normal((n, p)) + rng.standard_normal(p)
    y = shared @ rng.standard_normal((4, q)) + rng.standard_normal((n, q)) * rng.uniform(0.5, 2, q)
    return x, y


def rotation(d: int, seed: int) -> Array:
    """A random orthogonal matrix."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


def layer_norm(x: Array, *, seed: int) -> Array:
    """LayerNorm with gain and bias in float32: one direction is lost exactly, but for rounding."""
    rng = np.random.default_rng(seed)
    x = x.astype(np.float32)
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-12))
    gain, bias = rng.uniform(0.2, 2, x.shape[1]), rng.standard_normal(x.shape[1])
    return x * gain.astype(np.float32) + bias.astype(np.float32)


def duplicated() -> Layers:
    """Columns repeated: rank 9 of 14 and rank 6 of 11."""
    x, y = related(120, 9, 6)
    return Layers(np.hstack([x, x[:, :5]]), np.hstack([y, 2 * y[:, :5] + 1]), 9, 6)


def normed() -> tuple[Array, Array]:
    """As every Transformer layer after LayerNorm: rank d - 1, in float32."""
    x, y = related(300, 24, 17)
    return layer_norm(x, seed=1), layer_norm(y, seed=2)


def constant_columns(dtype: type[np.floating] = np.float32) -> Layers:
    """Neurons that do not vary, at 0, at 1/3 and far from 0."""
    x, y = (m.astype(dtype) for m in related(90, 12, 9))
    x[:, 3], x[:, 7], y[:, 2], y[:, 5] = 0, 1 / 3, 4321.123, -0.1
    return Layers(x, y, 10, 7)


def outliers(ratio: float = 3000) -> Layers:
    """Float32 with outlier dimensions: two neurons whose mean is `ratio` times their spread, one far wider neuron."""
    x, y = related(400, 32, 20)
    x[:, 5] += ratio * x[:, 5].std()
    y[:, 3] -= ratio * y[:, 3].std()
    x[:, 9] *= 200
    return Layers(x.astype(np.float32), y.astype(np.float32), 32, 20)


NEAR_CONSTANT = 3
"""Which neuron of `near_constant` hardly varies."""


def near_constant(seed: int = 0, *, ratio: float = 3e5) -> Layers:
    """As the first layers' [CLS], float32: one neuron's mean is `ratio` times its spread, and rows are scarce.

    Rounding then is a tenth of that neuron's spread, and none of any other's.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((105, 100)) / np.arange(1, 101) @ np.linalg.qr(rng.standard_normal((100, 100)))[0]
    x[:, NEAR_CONSTANT] += ratio * x[:, NEAR_CONSTANT].std()
    y = x[:, ::-1][:, :40] - x[:, :40].mean(0) + 0.2 * rng.standard_normal((105, 40))
    return Layers(x.astype(np.float32), y.astype(np.float32), 99, 40)


def ill_conditioned(condition: float, *, n: int = 300, rotated: bool = True, dtype: type = np.float32) -> Layers:
    """Singular values falling evenly over `condition`, in rotated axes or along the neurons."""
    layers, ranks = [], []
    for k, m in enumerate(related(n, 28, 21)):
        d = m.shape[1]
        rank = min(n - 1, d)
        u = np.linalg.svd(m - m.mean(0), full_matrices=False)[0][:, :rank]
        axes = rotation(d, 5 + k)[:rank] if rotated else np.eye(rank, d)
        layers.append(u @ rotation(rank, 3 + k) * np.sqrt(n) * np.geomspace(1, 1 / condition, rank) @ axes + 0.3)
        ranks.append(rank)
    return Layers(layers[0].astype(dtype), layers[1].astype(dtype), *ranks)


def dominated(seed: int) -> Layers:
    """One direction holds more than 99 % of each layer's variance, as massive activations do: one component is kept.

    Whether the two components correlate positively is up to the decomposition.
    """
    rng = np.random.default_rng(seed)
    wide, other = 300 * rng.standard_normal((2, 120))
    x, y = related(120, 9, 6)
    x += np.outer(wide, rng.standard_normal(9))
    return Layers(x, y + np.outer(wide + other / 3, rng.standard_normal(6)))


CASES: dict[str, Callable[[], Layers]] = {
    "more rows than neurons": lambda: Layers(*related(200, 16, 16)),
    "unequal widths": lambda: Layers(*related(150, 7, 23)),
    "fewer rows than neurons": lambda: Layers(*related(20, 31, 24)),
    "rows between the widths": lambda: Layers(*related(20, 12, 31)),
    "as many rows as neurons": lambda: Layers(*related(24, 24, 24)),
    "one neuron": lambda: Layers(*related(60, 1, 5)),
    "float32": lambda: Layers(*(m.astype(np.float32) for m in related(250, 40, 30)), 40, 30),
    "float32, fewer rows": lambda: Layers(*(m.astype(np.float32) for m in related(30, 64, 48)), 29, 29),
    "duplicated columns": duplicated,
    "LayerNorm in float32": lambda: Layers(*normed(), 23, 16),
    "LayerNorm in float16": lambda: Layers(*(m.astype(np.float16) for m in normed()), 23, 16),
    "LayerNorm beside float64": lambda: Layers(normed()[0], related(300, 24, 17, seed=9)[1], 23, 17),
    "constant columns": constant_columns,
    "constant columns in float64": lambda: constant_columns(np.float64),
    "outlier dimensions": outliers,
    "one direction": lambda: dominated(0),
    "another direction": lambda: dominated(2),
    "condition 290": lambda: ill_conditioned(290, n=60),
    "condition 1e3": lambda: ill_conditioned(1e3),
    "condition 1e5": lambda: ill_conditioned(1e5),
    "condition 1e5 along neurons": lambda: ill_conditioned(1e5, rotated=False),
    "condition 2e6": lambda: ill_conditioned(2e6),
    "condition 1e5, fewer rows": lambda: ill_conditioned(1e5, n=18),
    "condition 2e6 in float64": lambda: ill_conditioned(2e6, dtype=np.float64),
}
