"""Made-up results of alignment, for the tests of records and of pages."""

from __future__ import annotations

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Value
from stratoscope.results.alignment import (
    IDENTITY,
    SHUFFLED,
    Alignment,
    Fit,
    Injected,
    Injection,
    LayerFit,
    Recovered,
    Recovery,
)

METHODS = {SHUFFLED: 1.01, IDENTITY: 0.7, "ridge": 0.1, "inn": 0.08}


def fit(method: str, error: float) -> Fit:
    def around(v: float) -> Value:
        return Value(v, v - 0.01, v + 0.01)

    inversion = 3e-8 if method == "inn" else float("nan")
    return Fit(
        method, around(error / 20), around(error), around(1 - error), inversion, error + np.linspace(-0.01, 0.01, 5)
    )


def alignment(layers: int = 7, models: int = 4) -> Alignment:
    """Pairs of seeds, worse with depth, the first two also before fine-tuning; layer 0 is constant."""
    names = [f"seed-{k}" for k in range(models)]
    pairs = [("models", a, b) for a in names for b in names if a < b] + [("before", names[0], names[1])]
    fits = tuple(
        LayerFit(Layer(a, k), Layer(b, k), group, fit(method, level * (1 + 0.2 * k + 0.05 * n) / 2))
        for n, (group, a, b) in enumerate(pairs)
        for k in range(1, layers)
        for method, level in METHODS.items()
    )
    axis = tuple(Layer(names[0], k) for k in range(layers))
    apart = np.abs(np.subtract.outer(np.arange(layers), np.arange(layers))) / layers
    apart[0] = apart[:, 0] = np.nan
    curve = Curve(names[0], tuple(range(layers)), np.linspace(1, 0.4, layers))
    return Alignment(
        models=tuple(ModelInfo(n, f"org/{n}", "bert", layers, 384, f"sha256:{n}") for n in names),
        data={"name": "sst2", "unit": "mean", "train": 1600, "test": 1600},
        fits=fits,
        matrices=(Matrix("ridge error, seed-0 to itself", axis, axis, apart),),
        norms=(curve,),
        warnings=("inn is missing for 1 of 14 pairs of layers",),
    )


def injection() -> Injection:
    """Two maps and all baselines."""

    def read(name: str, value: float, *, baseline: bool = False) -> Injected:
        return Injected(name, Value(value, value - 0.02, value + 0.02), np.full(5, value), baseline)

    floor = {SHUFFLED: 0.52, IDENTITY: 0.61, "random labels": 0.5, "random head": 0.49}
    return Injection(
        models=tuple(ModelInfo(n, f"org/{n}", "bert", 7, 384, f"sha256:{n}") for n in ("seed-0", "seed-1")),
        task={"name": "sst2", "metric": "accuracy", "majority": 0.51, "rows": 1600},
        own=(read("seed-0", 0.91), read("seed-1", 0.92)),
        injected=(read("ridge", 0.9), read("inn", 0.905), *(read(n, v, baseline=True) for n, v in floor.items())),
        fits=(fit("ridge", 0.2), fit("inn", 0.21), fit(SHUFFLED, 1.02)),
    )


def recovery() -> Recovery:
    """Two widths, two truths."""
    every = [(d, truth, m) for d in (8, 32) for truth in (0, 1) for m in METHODS]
    found = tuple(
        Recovered(d, 1600, t, fit(m, METHODS[m] * (d / 64 if m == "inn" else 1) + 0.01 * t)) for d, t, m in every
    )
    data = {"rows": "minilm:6", "train": 1600, "test": 1600}
    return Recovery(data, found)
