"""Made-up depth results and studies with everything their pages must cope with."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from report_cases import best_split

from stratoscope.TODO.depth import ABSENT, Point
from stratoscope.core.curve import Curve
from stratoscope.results.depth import TUNED, TUNEDORIG, UNTUNED, Depth
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.results.comparison import Comparison
from stratoscope.results.study import Study


def info(name: str, layers: int = 13) -> ModelInfo:
    return ModelInfo(name, f"./runs/{name}", "bert", layers, 384, f"sha256:{name}")


def make_depth(blocks: int = 12, *, name: str = "tuned", half_width: float = 0.004, **changes: Any) -> Depth:
    """Top half flat in UNTUNED and TUNED, TUNEDORIG far behind; layer 0 absent; upper spans free, block 1 dear."""

    def curve(which: str, values: np.ndarray) -> Curve:
        return Curve(which, (ABSENT, *(Point(float(v), float(v) - half_width, float(v) + half_width) for v in values)))

    at = np.arange(1, blocks + 1) / blocks
    rise = 1 / (1 + np.exp(-14 * (at - 0.45)))
    first, last = np.meshgrid(np.arange(1, blocks + 1), np.arange(1, blocks + 1), indexing="ij")
    reach = np.clip((blocks / 2 + 1 - first) / (blocks / 2), 0, 1)
    span = np.maximum(last - first + 1, 0)
    loss = np.minimum(0.42, 0.0015 * span + 0.09 * reach * span**0.7 + 0.12 * (first == 1))
    skip = np.where(last >= first, 0.912 - loss, np.nan)
    values: dict[str, Any] = {
        "model": info(name, blocks + 1),
        "base": info("base", blocks + 1),
        "task": {
            "name": "sst2",
            "metric": "accuracy",
            "labels": ["negative", "positive"],
            "format": "single",
            "fingerprint": "4d6f2c0e9b1a",
            "n_train": 8000,
            "n_validation": 872,
        },
        "full": Point(0.912, 0.912 - half_width, 0.912 + half_width),
        "majority": 0.509,
        "bag_of_words": 0.804,
        "curves": (
            curve(UNTUNED, 0.5 + (0.9125 - 0.5) * rise / rise[-1]),
            curve(TUNED, 0.62 + (0.913 - 0.62) * np.sqrt(rise / rise[-1])),
            curve(TUNEDORIG, 0.60 + 0.2 * at**0.7),
        ),
        "skip": skip,
        "skip_agreement": np.where(last >= first, 1 - 1.4 * loss, np.nan),
        "warnings": ("the validation rows are few",),
        "provenance": {"stratoscope": "0.1.0", "seed": 0},
    }
    return Depth(**{**values, **changes})


def make_comparison(
    names: tuple[str, ...] = ("base", "ft-1", "ft-2", "random"),
    *,
    unit: str = "cls",
    layers: int = 13,
    rows: int = 300,
    bias: float = 0.08,
    sharp: float = 1.5,
    intervals: bool = True,
) -> Comparison:
    """Base, two tuned models with an upper block of their own, and a random initialisation unlike all of them."""
    axis = tuple(Layer(name, k) for name in names for k in range(layers))
    depth = np.array([layer.index / (layers - 1) for layer in axis])
    who = np.array([names.index(layer.model) for layer in axis])
    late = 1 / (1 + np.exp(-25 * (depth - 0.6))) * np.isin(who, (1, 2))
    apart = 0.25 * late * (who == 2)
    late = late * np.where(who == 2, 0.75, 1.0)
    place = np.stack([depth * 0.9, late * sharp, apart, (who == 3) * (1.2 + 0.1 * depth)], axis=1)
    true = np.exp(-(np.linalg.norm(place[:, None] - place[None], axis=2) ** 1.3)) * 1.04 - 0.04
    matrices = []
    for measure, values in (("ckasim", bias + (1 - bias) * true), ("ckasim-debiased", true)):
        values = np.where(np.eye(len(axis), dtype=bool), 1.0, values)
        if unit == "cls":
            gone = [k for k, layer in enumerate(axis) if layer.index == 0]
            values[gone], values[:, gone] = np.nan, np.nan
        width = 0.05 * (1.02 - values)
        low, high = (values - width, np.minimum(values + width, 1)) if intervals else (None, None)
        matrices.append(Matrix(measure, axis, axis, values, low, high))
    fingerprints = ["c5f93f70", "sha256:1", "sha256:2", "random-init seed 0 of 1f2e"]
    return Comparison(
        tuple(matrices),
        tuple(
            ModelInfo(n, f"./{n}", "bert", layers, 384, f)
            for n, f in zip(names, fingerprints[: len(names)], strict=True)
        ),
        {"name": "sst2/validation", "unit": unit, "sentences": rows, "rows": rows, "fingerprint": "4d6f2c0e"},
        {"blocks": {m.measure: {n: best_split(m.between(n, n).values) for n in names} for m in matrices}},
        (f"only {rows} rows",),
        {"stratoscope": "0.1.0", "seed": 0},
    )


CUT: dict[str, Any] = {
    "model": {"name": "ft-1", "blocks": 12},
    "kept": list(range(1, 8)),
    "metric": "accuracy",
    "before": {"value": 0.912, "low": 0.892, "high": 0.931},
    "after": {"value": 0.907, "low": 0.886, "high": 0.926},
    "rows": {"choose": 436, "confirm": 436},
    "confidence": 0.95,
    "budget": 0.02,
    "parameters": {"before": 33_360_000, "after": 24_490_000},
    "latency": {"ratio": 0.612},
}


def make_study(names: tuple[str, ...] = ("base", "ft-1", "ft-2", "random"), *, layers: int = 13, **how: Any) -> Study:
    """Two units, two restarts, the control, depth and a cut."""
    units = {unit: make_comparison(names, unit=unit, layers=layers, **how) for unit in ("cls", "mean")}
    control = names[3] if len(names) > 3 else None
    return Study(units, names[0], names[1:3], control, make_depth(layers - 1, name=names[1]), CUT)


def add_other(parts: Study, block: np.ndarray, *, name: str = "other", control: float = 0.0) -> Study:
    """The study with one more model, which need not have the base's depth: `block` is FT by OTHER in both measures.

    FT has `control` as its score with every layer of the control.
    """
    units = {}
    for unit, comparison in parts.comparisons.items():
        matrices = []
        for m in comparison.matrices:
            axis = (*m.rows, *(Layer(name, k) for k in range(block.shape[1])))
            n = len(m.rows)
            values = np.eye(len(axis))
            values[:n, :n] = m.values
            ft, random = ([k for k, r in enumerate(axis) if r.model == who] for who in (parts.tuned[0], parts.control))
            values[np.ix_(ft, range(n, len(axis)))] = block
            values[np.ix_(ft, random)] = control
            constant = [k for k in range(n) if np.isnan(m.values[k]).all()]
            values[constant], values[:, constant] = np.nan, np.nan
            matrices.append(Matrix(m.measure, axis, axis, values))
        models = (*comparison.models, ModelInfo(name, f"./{name}", "roberta", block.shape[1], 768, "sha256:3"))
        units[unit] = dataclasses.replace(comparison, matrices=tuple(matrices), models=models)
    return dataclasses.replace(parts, comparisons=units, across=(*parts.across, name))


def quartered(early: float, late: float, crossed: float, *, rows: int = 13, columns: int = 7) -> np.ndarray:
    """Scores of two models with an even number of blocks each, half by half; layer 0 has 0.9, which must not count."""
    low, left = (np.arange(n) <= (n - 1) // 2 for n in (rows, columns))
    values = np.where(low[:, None] != left, crossed, np.where(low[:, None], early, late))
    values[0], values[:, 0] = 0.9, 0.9
    return values


def add_localization(parts: Study, *, top: float = 0.1, chance: float = 0.01) -> Study:
    """The study with localization: base rises from 0 to 1.2, ft-1 is at `top` in its upper half, ft-2 as base."""
    scores = {name: np.arange(13) / 10 for name in ("base", "ft-1", "ft-2", "random")}
    scores["ft-1"] = np.where(np.arange(13) > 6, top, scores["ft-1"])
    axis = tuple(Layer(name, k) for name in scores for k in range(13))
    plain = {name: series.tolist() for name, series in scores.items()}
    found = {
        "localization_alone": {"random": plain.pop("random")},
        "localization": plain,
        "localization_chance": chance,
    }
    infos = parts.comparisons["cls"].models
    models = tuple(dataclasses.replace(m, role="control" if m.name == "random" else "model") for m in infos)
    comparison = Comparison(
        tuple(Matrix(measure, axis, axis, np.eye(len(axis))) for measure in ("neuronsim", "svsim")),
        models,
        {"name": "sst2/validation", "unit": "word", "rows": 20_000},
        found,
        ("left out: 3 words",),
    )
    return dataclasses.replace(parts, localization=comparison)
