"""Made-up results of every kind with everything a report must cope with: models of two depths, asymmetric and negative
values, intervals, constant layers, controls, statements of every verdict, warnings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import alignment_cases
from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.statement import FAILS, HOLDS, OPEN, Statement
from stratoscope.core.value import MISSING, Interval, Value
from stratoscope.results.alignment import Alignment, Injection, Recovery
from stratoscope.results.attention import Attention, Pattern
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.cut import Candidate, Cut, Tested
from stratoscope.results.cutting.decoder import CutDecoder, Tried
from stratoscope.results.cutting.depth import TUNED, TUNEDORIG, UNTUNED, Depth
from stratoscope.results.cutting.perplexity import Perplexities, Perplexity, Skipped
from stratoscope.results.diff import Diff, Example
from stratoscope.results.study import Study
from stratoscope.results.weights import ParameterChange, Weights

BOOTSTRAP = Interval(0.95, "bootstrap", 1600)
PROVENANCE = {"stratoscope": "0.1.0", "torch": "2.13.0", "seed": 0, "options": {"unit": "cls", "bootstrap": 200}}


def statements(base: str = "base", tuned: str = "tuned", unit: str = "cls") -> tuple[Statement, ...]:
    """One of each verdict, and one without a number."""
    about = {"base": base, "tuned": tuned, "measure": "ckasim", "unit": unit}
    return (
        Statement(
            f"wu2020-top-changes-more:{base}:{tuned}:{unit}",
            "Top layers change more than bottom layers in fine-tuning.",
            "Wu et al. 2020, section 6",
            about,
            Value(0.441, 0.412, 0.472),
            0.02,
            HOLDS,
            numbers={"lower half": 0.0123, "upper half": 0.4533},
            text=f"{tuned} drifts 0.453 from {base} in the upper half and 0.012 in the lower half.",
        ),
        Statement(
            f"phang2021-two-blocks:{base}:{tuned}:{unit}",
            "Fine-tuned models show two blocks of similar layers.",
            "Phang et al. 2021, section 3",
            about,
            Value(-0.031, -0.052, -0.008),
            0.02,
            FAILS,
            numbers={"contrast before": 0.231, "contrast after": 0.2},
            text=f"{tuned} splits less sharply than {base}.",
        ),
        Statement(
            f"phang2021-restarts-agree:{base}:{tuned}:{unit}",
            "Two restarts reach similar top layers.",
            "Phang et al. 2021, Fig. 6",
            about,
            Value(0.019, -0.004, 0.043),
            0.02,
            OPEN,
            reason="The interval of D includes the margin.",
        ),
        Statement(
            f"wu2020-localized-top:{base}:{tuned}:{unit}",
            "Higher layers are more localized.",
            "Wu et al. 2020, section 5.1",
            {"model": tuned, "unit": unit},
            MISSING,
            0.0,
            OPEN,
            reason="Differences are within the chance level of svsim (0.39).",
        ),
    )


def split(values: np.ndarray) -> dict[str, float | int]:
    """The two-block split with the largest within-minus-between contrast, by trying all of them."""
    found = []
    for start in range(2, len(values) - 1):
        low, high = np.arange(1, start), np.arange(start, len(values))
        within = np.concatenate([values[np.ix_(low, low)].ravel(), values[np.ix_(high, high)].ravel()]).mean()
        between = values[np.ix_(low, high)].mean()
        found.append((within - between, start, within, between))
    contrast, start, within, between = max(found)
    return {"start": start, "contrast": float(contrast), "within": float(within), "between": float(between)}


def comparison(
    names: tuple[str, str, str] = ("base", "tuned", "mini"),
    *,
    depths: tuple[int, int, int] = (13, 13, 7),
    **changes: Any,
) -> Comparison:
    """A model, what was tuned from it, and a control of another depth; layer 0 is constant, as CLS rows have it."""
    deep = dict(zip(names, depths, strict=True))
    axis = tuple(Layer(name, k) for name in names for k in range(deep[name]))
    depth = np.array([layer.index / (deep[layer.model] - 1) for layer in axis])
    who = np.array([names.index(layer.model) for layer in axis])
    late = 1 / (1 + np.exp(-25 * (depth - 0.62))) * (who == 1)
    place = np.stack([depth * 1.1, late * 1.5, (who == 2) * (0.45 + 0.7 * depth)], axis=1)
    cka = np.exp(-(np.linalg.norm(place[:, None] - place[None], axis=2) ** 1.3))
    noise = np.random.default_rng(0).uniform(0, 0.05, cka.shape)
    same = who[:, None] == who[None]
    raw = {
        "ckasim": cka,
        "ckasim-debiased": cka * 1.15 - 0.15,
        "svsim": 0.3 + 0.7 * cka**0.6,
        "neuronsim": np.where(same, 0.25 + 0.75 * cka**2, 0.1 + noise) + 0.1 * (depth[:, None] - 0.5),
        "neuronsim@0.1": np.where(same, 0.6 + 0.4 * cka**2, 0.35 + noise) - 0.04 * depth[None],
    }
    matrices = []
    for measure, scores in raw.items():
        values = np.where(np.eye(len(axis), dtype=bool), 1.0, np.minimum(scores, 1.0))
        gone = [k for k, layer in enumerate(axis) if layer.index == 0]
        values[gone], values[:, gone] = np.nan, np.nan
        width = 0.03 * (1.05 - np.clip(values, 0, 1))
        ends = (None, None) if measure == "svsim" else (values - width, np.minimum(values + width, 1.0))
        matrices.append(Matrix(measure, axis, axis, values, *ends, None if measure == "svsim" else BOOTSTRAP))

    def localization(name: str, slope: float) -> list[float | None]:
        steps = np.arange(deep[name]) / (deep[name] - 1)
        return [None, *(float(v) for v in (-0.35 + slope * steps + 0.02 * np.sin(9 * steps))[1:])]

    made: dict[str, Any] = {
        "matrices": tuple(matrices),
        "models": (
            ModelInfo(
                names[0], "sentence-transformers/base", "bert", depths[0], 384, "c5f93f70e82c3ba9be0d2d4fcc4a7e1f"
            ),
            ModelInfo(names[1], "./runs/tuned", "bert", depths[1], 384, "sha256:9a1f0c2b7de0b1f4", base=names[0]),
            ModelInfo(names[2], "org/mini", "distilbert", depths[2], 256, "random-init seed 0 of 1f2e3d4c", "control"),
        ),
        "data": {
            "name": "reviews",
            "fingerprint": "4d6f2c0e9b1a8d7c6e5f4a3b2c1d0e9f",
            "unit": "cls",
            "sentences": 1600,
            "rows": 1600,
            "dropped": {"sentences longer than mini's window (128 tokens)": 3},
        },
        "findings": {
            "blocks": {m.measure: {n: split(m.between(n, n).values) for n in names} for m in matrices},
            "localization": {n: localization(n, s) for n, s in zip(names[:2], (0.22, -0.05), strict=True)},
            "localization_alone": {names[2]: localization(names[2], 0.14)},
            "localization_chance": 0.21,
        },
        "statements": statements(names[0], names[1]),
        "warnings": ("With 1,600 rows and 384 neurons, unrelated layers already score up to 0.39 (svsim).",),
        "provenance": PROVENANCE,
    }
    return Comparison(**{**made, **changes})


def pair(similarity: Any, *, measure: str = "ckasim", half_width: float | None = None) -> Comparison:
    """Models `base` and `tuned` whose same layers have these similarities and nothing else is alike."""
    diagonal = np.asarray(similarity, dtype=np.float64)
    n = len(diagonal)
    axis = tuple(Layer(name, k) for name in ("base", "tuned") for k in range(n))
    values = np.eye(2 * n)
    values[:n, n:], values[n:, :n] = np.diag(diagonal), np.diag(diagonal)
    ends = (None, None) if half_width is None else (values - half_width, values + half_width)
    models = tuple(ModelInfo(name, f"./{name}", "bert", n, 64, f"sha256:{name}") for name in ("base", "tuned"))
    return Comparison((Matrix(measure, axis, axis, values, *ends),), models, {"name": "made-up", "rows": 2000})


def depth(blocks: int = 12, *, name: str = "tuned", half_width: float = 0.004, **changes: Any) -> Depth:
    """Top half flat in UNTUNED and TUNED, TUNEDORIG far behind; no value at layer 0; upper spans free, block 1 dear."""
    layers, percentiles = tuple(range(blocks + 1)), Interval(0.95, "percentiles")

    def curve(which: str, values: np.ndarray) -> Curve:
        whole = np.concatenate([[np.nan], values])
        return Curve(which, layers, whole, whole - half_width, whole + half_width, percentiles)

    at = np.arange(1, blocks + 1) / blocks
    rise = 1 / (1 + np.exp(-14 * (at - 0.45)))
    first, last = np.meshgrid(np.arange(1, blocks + 1), np.arange(1, blocks + 1), indexing="ij")
    reach = np.clip((blocks / 2 + 1 - first) / (blocks / 2), 0, 1)
    span = np.maximum(last - first + 1, 0)
    loss = np.minimum(0.42, 0.0015 * span + 0.09 * reach * span**0.7 + 0.12 * (first == 1))
    made: dict[str, Any] = {
        "model": ModelInfo(name, f"./runs/{name}", "bert", blocks + 1, 384, f"sha256:{name}", base="base"),
        "base": ModelInfo("base", "./base", "bert", blocks + 1, 384, "sha256:base"),
        "task": {
            "name": "sst2",
            "metric": "accuracy",
            "labels": ["negative", "positive"],
            "format": "single",
            "fingerprint": "4d6f2c0e9b1a",
            "n_train": 8000,
            "n_validation": 872,
        },
        "full": Value(0.912, 0.912 - half_width, 0.912 + half_width),
        "majority": 0.509,
        "bag_of_words": 0.804,
        "curves": (
            curve(UNTUNED, 0.5 + (0.9125 - 0.5) * rise / rise[-1]),
            curve(TUNED, 0.62 + (0.913 - 0.62) * np.sqrt(rise / rise[-1])),
            curve(TUNEDORIG, 0.60 + 0.2 * at**0.7),
        ),
        "skip": np.where(last >= first, 0.912 - loss, np.nan),
        "skip_agreement": np.where(last >= first, 1 - 1.4 * loss, np.nan),
        "statements": statements()[1:3],
        "warnings": ("The validation rows are few.",),
        "provenance": PROVENANCE,
    }
    return Depth(**{**made, **changes})


def cut(**changes: Any) -> Cut:
    """Five of twelve blocks gone for half a point."""
    made: dict[str, Any] = {
        "model": {"name": "ft-1", "source": "./runs/ft-1", "family": "bert", "fingerprint": "sha256:1", "blocks": 12},
        "loads_with": "AutoModelForSequenceClassification",
        "kept": tuple(range(1, 8)),
        "dropped": tuple(range(8, 13)),
        "task": {"name": "sst2", "format": "single"},
        "metric": "accuracy",
        "budget": 0.02,
        "confidence": 0.95,
        "rows": {"choose": 436, "confirm": 436, "seed": 0},
        "whole_on_choice_rows": 0.915,
        "candidates": (
            Candidate(tuple(range(1, 10)), 0.913, Value(-0.002, -0.012, 0.008), 28_030_000, "confirmed"),
            Candidate(tuple(range(1, 8)), 0.906, Value(-0.009, -0.02, 0.003), 24_490_000, "chosen"),
        ),
        "tested": (
            Tested(tuple(range(1, 10)), Value(-0.001, -0.009, 0.007), True),
            Tested(tuple(range(1, 8)), Value(-0.005, -0.018, 0.008), True),
        ),
        "before": Value(0.912, 0.892, 0.931),
        "after": Value(0.907, 0.886, 0.926),
        "difference": Value(-0.005, -0.018, 0.008),
        "baselines": {"majority": 0.509, "bag_of_words": 0.804},
        "head": {"tuned": True, "converged": True},
        "length": 128,
        "parameters": {"before": 33_360_000, "after": 24_490_000},
        "latency": {
            "ratio": 0.612,
            "low": 0.597,
            "high": 0.63,
            "rounds": 21,
            "device": "cpu",
            "threads": 2,
            "by_blocks": {"7": 0.61, "9": 0.77},
        },
        "reload": {"rows": 64, "apart": 1e-6},
        "provenance": PROVENANCE,
    }
    return Cut(**{**made, **changes})


def perplexities(blocks: int = 6) -> Perplexities:
    """Falls with depth."""
    values = 22.0 * 3.1 ** np.linspace(blocks, 0, blocks + 1)
    points = tuple(Perplexity(float(v), float(0.93 * v), float(1.07 * v), 4812, 200, 3) for v in values)
    model = ModelInfo("gpt", "org/gpt", "gpt2", blocks + 1, 256, "sha256:gpt")
    corpus = {"name": "wikitext", "fingerprint": "77aa", "texts": 200}
    more: dict[str, Any] = {"statements": statements()[2:3], "provenance": PROVENANCE}
    return Perplexities(model, corpus, points, skipped(blocks), 32, **more)


def skipped(blocks: int) -> tuple[Skipped, ...]:
    """Spans of one or two blocks: the first cannot be spared at all, those in the middle best."""
    found = []
    for length in (1, 2):
        for first in range(1, blocks - length + 2):
            r = 7.1e48 if first == 1 else 1.03 ** (length * abs(2 * first - blocks)) + 0.02 * length
            found.append(Skipped(first, first + length - 1, Value(r, 0.97 * r, 1.03 * r), 0.9 / length))
    return tuple(found)


def decoder(blocks: int = 6) -> CutDecoder:
    """Two blocks were tried, one was confirmed, with a patch."""
    spans = skipped(blocks)
    one, two = Value(1.071, 1.05, 1.09), Value(1.197, 1.15, 1.24)
    tried = (
        Tried((3,), one, Value(1.045, 1.03, 1.06), True, 0.88, (2,), Value(1.09), (3,), one,
              held_out=Value(1.048, 1.03, 1.066), verdict="confirmed"),
        Tried((3, 4), two, Value(1.3, 1.2, 1.4), False, 0.8, (1, 2), Value(7.1e48), (2, 4), Value(1.21),
              verdict="above the limit"),
    )  # fmt: skip
    return CutDecoder(
        model={"name": "gpt", "source": "org/gpt", "hub": True, "family": "gpt2", "fingerprint": "f", "blocks": blocks},
        kept=tuple(k for k in range(1, blocks + 1) if k != 3),
        dropped=(3,),
        patched=(2,),
        corpus={"name": "wikitext", "fingerprint": "77aa", "texts": 300},
        max_ppl=1.1,
        confidence=0.95,
        texts={"choose": 32, "fit": 120, "confirm": 148, "seed": 0},
        tried=tried,
        spans=spans,
        before=Value(22.0, 20.0, 24.0),
        after=Value(23.1, 21.0, 25.1),
        ratio=tried[0].held_out,
        agreement=Value(0.87, 0.85, 0.89),
        length=96,
        parameters={"before": 33_360_000, "after": 30_490_000},
        latency={"ratio": 0.88, "low": 0.85, "high": 0.9, "rounds": 7, "texts": 8, "device": "cpu", "threads": 2},
        reload={"rows": 4, "apart": 1e-6, "weights": "w"},
        provenance=PROVENANCE,
    )


def alignment(layers: int = 7, models: int = 4) -> Alignment:
    return replace(alignment_cases.alignment(layers, models), statements=statements(), provenance=PROVENANCE)


def injection() -> Injection:
    return replace(alignment_cases.injection(), statements=statements()[:1], provenance=PROVENANCE)


def recovery() -> Recovery:
    return replace(alignment_cases.recovery(), statements=statements()[1:2], provenance=PROVENANCE)


def weights(blocks: int = 6) -> Weights:
    """The upper blocks, and of them the feed-forward parts, change most; the embeddings are frozen."""
    models = tuple(ModelInfo(n, f"/{n}", "bert", blocks + 1, 64, f"sha256:{n}") for n in ("base", "tuned"))
    parameters = [ParameterChange("embeddings.word.weight", 0, "embeddings.word", (900, 64), 30.0, 0.0, np.nan)]
    for k in range(1, blocks + 1):
        for j, module in enumerate(("attention.query", "output.dense")):
            name = f"layer.{k - 1}.{module}.weight"
            parameters.append(ParameterChange(name, k, module, (64, 64), 10.0, 0.1 * k * (1 + j), 4.0 + k + j))
        norm = f"layer.{k - 1}.output.LayerNorm.weight"
        parameters.append(ParameterChange(norm, k, "output.LayerNorm", (64,), 8.0, 0.01 * k, np.nan))
    parameters.append(ParameterChange("pooler.dense.weight", None, "pooler.dense", (64, 64), 9.0, 0.9, 31.5))
    return Weights(models, tuple(parameters), missing={"tuned": ("classifier.weight",)}, provenance=PROVENANCE)


def study_unit(names: tuple[str, ...], *, unit: str, layers: int, rows: int = 300, other: int = 0) -> Comparison:
    """Base, two tuned models with an upper block of their own, a random initialisation, and perhaps another model."""
    depths = dict.fromkeys(names[:4], layers) | dict.fromkeys(names[4:], other)
    axis = tuple(Layer(name, k) for name, n in depths.items() for k in range(n))
    at = np.array([layer.index / (depths[layer.model] - 1) for layer in axis])
    who = np.array([names.index(layer.model) for layer in axis])
    late = 1 / (1 + np.exp(-25 * (at - 0.6))) * np.isin(who, (1, 2, 4))
    apart = 0.25 * late * (who == 2)
    late = late * np.where(who == 2, 0.75, 1.0)
    place = np.stack([at * 0.9, late * 1.5, apart, (who == 3) * (1.2 + 0.1 * at) + (who == 4) * 0.5], axis=1)
    true = np.exp(-(np.linalg.norm(place[:, None] - place[None], axis=2) ** 1.3)) * 1.04 - 0.04
    matrices = []
    for measure, values in (("ckasim", 0.08 + 0.92 * true), ("ckasim-debiased", true)):
        values = np.where(np.eye(len(axis), dtype=bool), 1.0, values)
        if unit == "cls":
            gone = [k for k, layer in enumerate(axis) if layer.index == 0]
            values[gone], values[:, gone] = np.nan, np.nan
        width = 0.05 * (1.02 - values)
        matrices.append(Matrix(measure, axis, axis, values, values - width, np.minimum(values + width, 1), BOOTSTRAP))
    roles = ("model", "model", "model", "control", "model")
    models = tuple(
        ModelInfo(n, f"./{n}", "bert", depths[n], 384, f"sha256:{k}", roles[k], names[0] if k in (1, 2) else None)
        for k, n in enumerate(names)
    )
    blocks = {m.measure: {n: split(m.between(n, n).values) for n in names} for m in matrices}
    data = {"name": "sst2/validation", "unit": unit, "sentences": rows, "rows": rows, "fingerprint": "4d6f2c0e"}
    return Comparison(tuple(matrices), models, data, {"blocks": blocks}, warnings=(f"Only {rows} rows.",))


def study(
    names: tuple[str, ...] = ("base", "ft-1", "ft-2", "random"), *, layers: int = 13, other: int = 0, **changes: Any
) -> Study:
    """Two units, two restarts, the control, localization, depth and a cut; perhaps a model of `other` layers."""
    across = ("other",) if other else ()
    units = {u: study_unit((*names, *across), unit=u, layers=layers, other=other) for u in ("cls", "mean")}
    words = comparison(names[:3], depths=(layers, layers, layers), models=units["mean"].models[:3])
    made: dict[str, Any] = {
        "comparisons": units,
        "base": names[0],
        "tuned": names[1:3],
        "control": names[3],
        "depth": depth(layers - 1, name=names[1]),
        "cut": cut(),
        "across": across,
        "localization": words,
        "statements": (*statements(names[0], names[1]), *statements(names[0], names[2], "mean")),
        "provenance": PROVENANCE,
    }
    return Study(**{**made, **changes})


def attention(blocks: int = 4) -> Attention:
    """Two models of two and three heads a layer; the first head of the second model has no correlation."""
    layers = [Layer("base", k + 1) for k in range(blocks)] + [Layer("<tuned>", k + 1) for k in range(blocks)]
    heads = (2,) * blocks + (3,) * blocks
    rng = np.random.default_rng(3)
    similar = rng.uniform(0.4, 1, (sum(heads), sum(heads)))
    similar = (similar + similar.T) / 2
    np.fill_diagonal(similar, 1)
    similar[2 * blocks] = similar[:, 2 * blocks] = np.nan
    values = rng.uniform(0.4, 1, (2 * blocks, 2 * blocks))
    drawn = values + rng.normal(0, 0.01, (20, 2 * blocks, 2 * blocks))
    matrix = Matrix("js", tuple(layers), tuple(layers), values, values - 0.02, values + 0.02,
                    Interval(0.95, "bootstrap", 20, "sentence group"), drawn)  # fmt: skip
    words = ("Birds", "sing", "<b>", "sing")
    weights = rng.integers(0, 255, (sum(heads), 4, 4)).astype(np.uint8)
    return Attention(
        matrices=(matrix, replace(matrix, measure="ckasim", low=None, high=None, interval=None, replicates=None)),
        models=(ModelInfo("base", "base", "bert", blocks + 1, 8, "1"),
                ModelInfo("<tuned>", "tuned", "bert", blocks + 1, 8, "2", base="base")),
        data={"name": "text", "rows": 40, "sentences": 20, "causal": False},
        arrays={"js": similar.astype(np.float32)},
        heads_of=heads,
        patterns=(Pattern(words, words, weights),),
        warnings=("a row is empty",),
        provenance=PROVENANCE,
    )  # fmt: skip


def diff(layers: int = 13) -> Diff:
    """With a task: examples whose texts are hostile, weights and a depth."""
    made = study(layers=layers)
    texts = ("=HYPERLINK(1)", "<script>alert(1)</script>", 'plain, "quoted"')
    return Diff(
        replace(made, cut=None, tuned=made.tuned[:1]),
        {"name": "my.csv", "rows": 872},
        weights=weights(layers - 1),
        layer=layers - 1,
        examples=tuple(Example(k, t, 0.9 - 0.1 * k, "a", "b", (1, 2)) for k, t in enumerate(texts)),
        statements=made.statements,
        provenance=PROVENANCE,
    )


KINDS = {
    "diff": diff,
    "attention": attention,
    "comparison": comparison,
    "depth": depth,
    "study": study,
    "perplexity": perplexities,
    "weights": weights,
    "cut": cut,
    "alignment": alignment,
    "injection": injection,
    "recovery": recovery,
    "decoder": decoder,
}
SMALL = {
    "diff": lambda: diff(5),
    "attention": lambda: attention(2),
    "comparison": lambda: comparison(depths=(5, 5, 4)),
    "depth": lambda: depth(4),
    "study": lambda: study(layers=5, other=4),
    "perplexity": lambda: perplexities(3),
    "weights": lambda: weights(3),
    "cut": cut,
    "alignment": lambda: alignment(3, 3),
    "injection": injection,
    "recovery": recovery,
    "decoder": lambda: decoder(4),
}
"""The same, small enough that a golden file can be read."""
