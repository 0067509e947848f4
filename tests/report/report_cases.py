"""A made-up comparison with everything a report must cope with: three models of two depths, asymmetric and negative
values, intervals, and a constant layer 0 (as CLS rows have)."""

from __future__ import annotations

import numpy as np

from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.results.comparison import Comparison

Names = tuple[str, str, str]


def best_split(values: np.ndarray) -> dict[str, float | int]:
    """The two-block split with the largest within-minus-between contrast, by trying all of them."""
    found = []
    for start in range(2, len(values) - 1):
        low, high = np.arange(1, start), np.arange(start, len(values))
        within = np.concatenate([values[np.ix_(low, low)].ravel(), values[np.ix_(high, high)].ravel()]).mean()
        between = values[np.ix_(low, high)].mean()
        found.append((within - between, start, within, between))
    contrast, start, within, between = max(found)
    return {"start": start, "contrast": float(contrast), "within": float(within), "between": float(between)}


def build(names: Names = ("base", "tuned", "mini"), *, constant: bool = True) -> Comparison:
    depths = dict(zip(names, (13, 13, 7), strict=True))
    axis = tuple(Layer(name, k) for name in names for k in range(depths[name]))
    depth = np.array([layer.index / (depths[layer.model] - 1) for layer in axis])
    who = np.array([names.index(layer.model) for layer in axis])
    late = 1 / (1 + np.exp(-25 * (depth - 0.62))) * (who == 1)
    place = np.stack([depth * 1.1, late * 1.5, (who == 2) * (0.45 + 0.7 * depth)], axis=1)
    distance = np.linalg.norm(place[:, None] - place[None], axis=2)
    cka = np.exp(-(distance**1.3))
    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 0.05, cka.shape)
    raw = {
        "ckasim": cka,
        "ckasim-debiased": cka * 1.15 - 0.15,
        "svsim": 0.3 + 0.7 * cka**0.6,
        "neuronsim": np.where(who[:, None] == who[None], 0.25 + 0.75 * cka**2, 0.1 + noise)
        + 0.1 * (depth[:, None] - 0.5),
        "neuronsim@0.1": np.where(who[:, None] == who[None], 0.6 + 0.4 * cka**2, 0.35 + noise) - 0.04 * depth[None],
    }
    matrices = []
    for measure, scores in raw.items():
        values = np.where(np.eye(len(axis), dtype=bool), 1.0, np.minimum(scores, 1.0))
        if constant:
            for k, layer in enumerate(axis):
                if layer.index == 0:
                    values[k], values[:, k] = np.nan, np.nan
        width = 0.03 * (1.05 - np.clip(values, 0, 1))
        with_interval = measure != "svsim"
        matrices.append(
            Matrix(
                measure,
                axis,
                axis,
                values,
                values - width if with_interval else None,
                np.minimum(values + width, 1.0) if with_interval else None,
            )
        )
    by_name = {m.measure: m for m in matrices}

    def own(measure: str, name: str) -> np.ndarray:
        return by_name[measure].between(name, name).values

    def same_layer(measure: str) -> list[float | None]:
        diagonal = np.diag(by_name[measure].between(names[0], names[1]).values)
        return [None if np.isnan(v) else float(v) for v in diagonal]

    def localization(name: str, slope: float) -> list[float | None]:
        steps = np.arange(depths[name]) / (depths[name] - 1)
        scores: list[float | None] = [float(v) for v in -0.35 + slope * steps + 0.02 * np.sin(9 * steps)]
        return [None, *scores[1:]] if constant else scores

    return Comparison(
        tuple(matrices),
        (
            ModelInfo(
                names[0], "sentence-transformers/base", "bert", 13, 384, "c5f93f70e82c3ba9be0d2d4fcc4a7e1f4fb7f40d"
            ),
            ModelInfo(names[1], "./runs/tuned", "bert", 13, 384, "sha256:9a1f0c2b7de0b1f4a3d5c6e7f8091a2b3c4d5e6f"),
            ModelInfo(names[2], "org/mini", "distilbert", 7, 256, "random-init seed 0 of 1f2e3d4c5b6a7988", "control"),
        ),
        {
            "name": "reviews",
            "fingerprint": "4d6f2c0e9b1a8d7c6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b",
            "unit": "cls",
            "sentences": 1600,
            "rows": 1600,
            "dropped": {"sentences longer than mini's window (128 tokens)": 3},
        },
        {
            "blocks": {m: {n: best_split(own(m, n)) for n in names} for m in raw},
            "localization": {n: localization(n, s) for n, s in zip(names, (0.22, -0.05, 0.14), strict=True)},
            "drift": {m: [{"first": names[0], "second": names[1], "same_layer": same_layer(m)}] for m in raw},
        },
        ("layer 0 of base, tuned, mini is constant on these rows: no similarity exists there",),
        {"stratoscope": "0.1.0", "torch": "2.13.0", "seed": 0, "options": {"unit": "cls", "bootstrap": 200}},
    )
