"""Chance levels: what unrelated layers are expected to score with n independent rows for `width` neurons each.

All are those of independent Gaussian layers of full rank and equal variances, the worst case: layers whose variance
lies along fewer directions score less by chance. Centring takes one row. Rows of one sentence are not independent:
their levels come from permuting sentences (`permuted`).
"""

from __future__ import annotations

import math
from statistics import NormalDist

GUMBEL = math.exp(-0.5772156649)
"""exp(-γ): the mean of a maximum is its quantile at exp(-exp(-γ)/number)."""


def linreg(n: int, width: int) -> float:
    """Mean R² of a regression on noise, d/n."""
    return min(1.0, width / (n - 1))


def mixedsim(n: int, width: int) -> float:
    """Root of the mean R² of a regression on noise."""
    return math.sqrt(linreg(n, width))


def cca(n: int, width: int) -> float:
    """Mean canonical correlation of two noises, c = d/n (mean of ρ under the law of Wachter 1980).

    (a - b arctan(a/b)) / (π c) + max(0, 2 - 1/c), with a = 2 sqrt(c (1-c)) the largest below 1 and b = |1 - 2c|.
    """
    c = linreg(n, width)
    a, b = 2 * math.sqrt(c * (1 - c)), abs(1 - 2 * c)
    return (a - b * math.atan2(a, b)) / (math.pi * c) + max(0.0, 2 - 1 / c)


def ckasim(n: int, width: int) -> float:
    """Tr K Tr L / (n ‖K‖ ‖L‖) of two kernels of noise."""
    return width / (n - 1 + width)


def ckasim_rbf(n: int, width: int) -> float:
    """1 / (1 + n V / D²): V the variance of the centred kernel between rows, D its mean on the diagonal.

    Exact Gaussian moments of exp(-b/2 ‖x-y‖²); the median squared distance is 2 d (1 - 2/(9d))³ (Wilson & Hilferty).
    """
    b = 1 / (width * (1 - 2 / (9 * width)) ** 3)
    mean, square = (1 + 4 * b) ** (-width / 2), (1 + 8 * b) ** (-width / 2)
    shared = ((1 + 2 * b) * (1 + 6 * b)) ** (-width / 2)  # mean of k(x, y) k(x, z)
    return float(1 / (1 + (n - 1) * (square - 2 * shared + mean**2) / (1 - mean) ** 2))


def procrustes(n: int, width: int) -> float:
    """8/(3π) sqrt(d/n) for many rows, which bends to 1 for few; the bend is fitted to simulated noise (within 0.02)."""
    many = 8 / (3 * math.pi) * math.sqrt(width / (n - 1))
    return float(many / (1 + many**3.4) ** (1 / 3.4))


def neuronsim(n: int, width: int) -> float:
    """Mean of the largest of d absolute correlations of noise, near sqrt(2 ln d / n)."""
    z = NormalDist().inv_cdf((1 + math.exp(-GUMBEL / width)) / 2)
    return min(1.0, z / math.sqrt(n - 1 + z * z / 2))
