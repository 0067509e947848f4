"""What is computed for a pair of layers: top-level functions of plain data, which run on any engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.aligners.fit import METHODS, NETWORK, check_method, fit_spaces, spaces
from stratoscope.aligners.linear import Space, ridge
from stratoscope.aligners.scores import INTERVAL, around_mean, inversion_error, resamples, row_errors, shuffled
from stratoscope.aligners.texts import IntArray
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.value import BOOTSTRAP, Interval, Values
from stratoscope.results.alignment import IDENTITY, SHUFFLED
from stratoscope.runs.run import Item, Tensors
from stratoscope.statistics.rows import LayerRows, gather

ALL = "all"
NORM_RESAMPLES = 30


def chosen_methods(asked: Sequence[str], *, paper: bool = False) -> tuple[str, ...]:
    """The methods to fit: those asked for, and the exact linear ones beside any network, that it starts from too."""
    names = METHODS if ALL in asked else tuple(asked)
    for name in names:
        check_method(name, paper=paper and name in NETWORK)
    if not names:
        raise StratoscopeError("expected at least one --method, got none")
    if paper and not set(names) & set(NETWORK):
        raise StratoscopeError(f"--paper gives the published networks, got --method {' '.join(names)}; add inn or mlp")
    baselines = ("linreg", "ridge", "shrunk") if any(name in NETWORK for name in names) else ()
    return tuple(m for m in METHODS if m in (*names, *baselines))


def fit_items(x: int, y: int, methods: Sequence[str], **more: Any) -> list[Item]:
    """One item for all exact methods of a pair of layers, and one for each network: what a killed run loses."""
    groups = [[m for m in methods if m not in NETWORK], *([m] for m in methods if m in NETWORK)]
    return [{"x": x, "y": y, "methods": group, **more} for group in groups if group]


def fit_layers(shared: Mapping[str, Any], item: Item) -> Tensors:
    """Squared errors of maps between two layers on the test rows, by method."""
    rows: LayerRows = shared["rows"]
    (x, y), (tx, ty) = ([gather(rows, item[k], shared[part]) for k in "xy"] for part in ("train", "test"))
    return fit_rows(x, y, tx, ty, item, texts=fitted_texts(shared))


def fitted_texts(shared: Mapping[str, Any]) -> IntArray:
    """The text of every row that maps are fitted on."""
    texts: IntArray = shared["texts"][: len(shared["train"])]
    return texts


def fit_rows(x: Tensor, y: Tensor, tx: Tensor, ty: Tensor, item: Item, *, texts: IntArray | None = None) -> Tensors:
    """The same from rows; `item` has methods, seed, whether as published, and whether to keep the map."""
    seed, tensors = item["seed"], dict[str, Tensor]()
    tensors["around"] = torch.from_numpy(around_mean(ty))
    try:
        pair = spaces(x, y, texts=texts, seed=seed)
    except StratoscopeError as e:
        raise StratoscopeError(f"layer {item['x']}: {e}") from e
    constant = not (pair[0].basis.rank and pair[1].basis.rank)
    for method in item["methods"]:
        inversion = float("nan")
        if constant:
            tensors[f"missing.{method}"] = _bytes("a layer that does not vary over the rows has no map")
            continue
        if method == IDENTITY:
            if x.shape[1] != y.shape[1]:
                continue
            out = tx
        elif method == SHUFFLED:
            disorder = Space.of(shuffled(y.double(), seed=seed), texts=texts, seed=seed)
            out = fit_spaces(pair[0], disorder, "ridge")(tx)
        else:
            try:
                g = fit_spaces(*pair, method, paper=item["paper"] and method in NETWORK, seed=seed)
            except StratoscopeError as e:  # one method that these spaces rule out
                tensors[f"missing.{method}"] = _bytes(str(e))
                continue
            out = g(tx)
            inversion = inversion_error(g, tx, out)
            if item.get("keep"):
                tensors |= {f"map.{k}": v for k, v in g.tensors.items()}
                tensors["record"] = _bytes(json.dumps(g.record))
        tensors[f"squares.{method}"] = torch.from_numpy(row_errors(out, ty))
        tensors[f"inversion.{method}"] = torch.tensor(inversion, dtype=torch.float64)
    return tensors


def _bytes(text: str) -> Tensor:
    """A text as parts keep it."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def read_bytes(kept: Tensor) -> str:
    """The text that `_bytes` kept."""
    return bytes(kept.tolist()).decode()


def missing(methods: Sequence[str], parts: Sequence[Tensors]) -> list[str]:
    """A warning for each method that could not be fitted somewhere, with the first reason."""
    notes = []
    for method in methods:
        reasons = [read_bytes(p[f"missing.{method}"]) for p in parts if f"missing.{method}" in p]
        of = len(reasons) + sum(f"squares.{method}" in p for p in parts)
        if reasons:
            notes.append(f"{method} is missing for {len(reasons)} of {of} pairs of layers: {reasons[0]}")
    return notes


def check_fitted(asked: Sequence[str], parts: Sequence[Tensors]) -> None:
    """Refuse a result without a single map of those asked for."""
    names = METHODS if ALL in asked else tuple(asked)
    if not any(f"squares.{method}" in p for p in parts for method in names):
        raise StratoscopeError(f"no map could be fitted: {missing(names, parts)[0]}")


def cross_layer(shared: Mapping[str, Any], item: Item) -> Tensors:
    """Squared errors of ridge from one layer to several on the test rows: the layer's axes are found once.

    A study has as many pairs of layers as its models have layers, squared: all a pair costs beyond matrix products is
    kept from it.
    """
    rows: LayerRows = shared["rows"]
    x = Space.of(gather(rows, item["x"], shared["train"]).float(), texts=fitted_texts(shared), seed=item["seed"])
    w = x.basis.transform(gather(rows, item["x"], shared["test"]).float())
    squares = []
    for k in item["ys"]:
        y, ty = (gather(rows, k, shared[part]).float() for part in ("train", "test"))
        mean = y.mean(0, dtype=torch.float64).float()
        m, _ = ridge(x, y - mean)
        squares.append((w @ m - (ty - mean)).double().square_().sum(1))
    return {"squares": torch.stack(squares)}


def nuclear_norm(shared: Mapping[str, Any], item: Item) -> Tensors:
    """Σ singular values of the centred rows over √n, on the rows and on resamples of them."""
    rows = gather(shared["rows"], item["layer"], torch.cat([shared["train"], shared["test"]])).double()
    drawn = torch.from_numpy(resamples(len(rows), texts=shared["texts"], seed=item["seed"], number=NORM_RESAMPLES))
    weights = torch.cat([torch.ones(1, len(rows), dtype=torch.float64), drawn])
    return {"norm": torch.stack([_nuclear(rows, w) for w in weights])}


def _nuclear(rows: Tensor, weight: Tensor) -> Tensor:
    n = weight.sum()
    centred = (rows - weight @ rows / n) * weight.sqrt()[:, None]
    total: Tensor = torch.linalg.eigvalsh(centred.T @ centred / n).clamp_min(0).sqrt().sum()
    return total


def norm_interval(n: int) -> Interval:
    """How the interval of a nuclear norm is made: a resample has fewer distinct rows, so only its spread counts."""
    return Interval(INTERVAL.level, BOOTSTRAP, n)


def split_rows(sentence: Values | Any, train: int, test: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to judge on, as many as asked for or half of all each; a sentence is on one side."""
    texts, first, sizes = np.unique(sentence, return_index=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(texts))
    ends = np.cumsum(sizes[order])
    if train + test > len(sentence):
        train = len(sentence) * train // (train + test)
    cut = int(np.searchsorted(ends, train)) + 1
    last = int(np.searchsorted(ends, ends[cut - 1] + test)) + 1
    sides = [
        torch.cat([torch.arange(first[s], first[s] + sizes[s]) for s in sorted(part)]) if len(part) else torch.empty(0)
        for part in (order[:cut], order[cut:last])
    ]
    return sides[0][: max(train, 1)] if len(texts) == len(sentence) else sides[0], sides[1]
