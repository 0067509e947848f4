"""Fit a map from paired rows: one call for every method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from stratoscope.aligners.linear import Space, fit_linear
from stratoscope.aligners.maps import Map, as_tensor
from stratoscope.aligners.texts import IntArray, check_texts
from stratoscope.aligners.training import fit_network, fit_paper
from stratoscope.core.errors import StratoscopeError, unknown_name

LINEAR = ("linreg", "ridge", "shrunk", "cca", "svcca", "pwcca", "procrustes")
"""`shrunk` is ridge towards a share of the rotation, from which `inn` starts."""
NETWORK = ("inn", "mlp")
METHODS = LINEAR + NETWORK
Texts = Sequence[int] | IntArray
FEWEST_ROWS = 20
"""Below, the rows held out to choose λ or to stop a network say nothing."""


def fit_map(
    x: Any, y: Any, *, method: str = "ridge", paper: bool = False, texts: Texts | None = None, seed: int = 0
) -> Map:
    """Fit y ≈ g(x) on paired rows (numpy or torch, n×d and n×q); give it rows it has not seen to judge it.

    `texts` says which text each row is of, where texts have several rows (words, word pairs): what is held out to
    choose λ and to stop a network are whole texts then. `paper` takes the network and schedule that Ren et al. 2023
    published, for `inn` and `mlp`.
    """
    return fit_spaces(*spaces(x, y, texts=texts, seed=seed), method, paper=paper, seed=seed)


def spaces(x: Any, y: Any, *, texts: Texts | None = None, seed: int = 0) -> tuple[Space, Space]:
    """Both spaces with their principal axes, for maps of several methods."""
    x, y = checked(x, y)
    of = None if texts is None else np.asarray(texts)
    if of is not None:
        check_texts(len(x), of)
    return Space.of(x, texts=of, seed=seed), Space.of(y, texts=of, seed=seed)


def fit_spaces(x: Space, y: Space, method: str, *, paper: bool = False, seed: int = 0) -> Map:
    """Fit the map of a method from spaces whose axes are known."""
    check_method(method, paper=paper)
    if method in LINEAR:
        return fit_linear(method, x, y)
    if method == "inn" and x.width != y.width:
        raise StratoscopeError(f"a bijection needs spaces of one width, got {x.width} and {y.width}; use ridge or mlp")
    if method == "inn" and x.width < 2:
        raise StratoscopeError("the couplings of 'inn' need at least 2 features, got 1; use ridge or mlp")
    return fit_paper(method, x, y, seed=seed) if paper else fit_network(method, x, y, seed=seed)


def check_method(method: str, *, paper: bool = False) -> None:
    """Refuse a method that does not exist, or that was not published as it is asked for."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if paper and method in LINEAR:
        raise StratoscopeError(f"paper=True gives the published networks, 'inn' and 'mlp'; {method} is solved exactly")


def checked(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Two matrices of as many finite rows, in float64."""
    tensors = [as_tensor(rows) for rows in (x, y)]
    for rows, name in zip(tensors, "xy", strict=True):
        if rows.ndim != 2 or not rows.shape[1]:
            raise StratoscopeError(f"expected {name} as a matrix of rows, got shape {tuple(rows.shape)}")
        if not bool(rows.double().sum().isfinite()):
            raise StratoscopeError(f"{name} has values that are not finite; check where its rows come from")
    x, y = tensors
    if len(x) != len(y):
        raise StratoscopeError(
            f"expected paired rows, got {len(x)} of x and {len(y)} of y; row i of both must be the same text"
        )
    if len(x) < FEWEST_ROWS:
        raise StratoscopeError(
            f"expected at least {FEWEST_ROWS} paired rows to fit a map, got {len(x)}; give more rows"
        )
    return x.double(), y.double()
