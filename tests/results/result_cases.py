"""One small result of every kind, with everything a record may hold: gaps, intervals, resamples, arrays, statements."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from alignment_cases import alignment, injection, recovery
from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.record import stored
from stratoscope.core.statement import HOLDS, OPEN, Statement
from stratoscope.core.value import Interval, Value
from stratoscope.results.attention import Attention, Pattern
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.cut import Candidate, Cut, Tested
from stratoscope.results.cutting.decoder import CutDecoder, Tried
from stratoscope.results.cutting.depth import Depth
from stratoscope.results.cutting.perplexity import Perplexities, Perplexity, Skipped
from stratoscope.results.cutting.pruned import Pruned
from stratoscope.results.diff import Diff, Example, Language
from stratoscope.results.finetuned import Finetuned
from stratoscope.results.probing import LayerProbes, Layers, Neuron, NeuronProbes, Probing
from stratoscope.results.reproduction import Done, Reproduction
from stratoscope.results.result import Result
from stratoscope.results.study import Study
from stratoscope.results.weights import ParameterChange, TokenChange, Weights

BASE = tuple(Layer("base", k) for k in range(3))
TUNED = tuple(Layer("tuned", k) for k in range(2))
AXES = (*BASE, *TUNED)
SQUARE = np.arange(25.0).reshape(5, 5) / 7
"""Asymmetric on purpose: row i, column j holds (5i + j) / 7."""
RESAMPLES = SQUARE + np.linspace(-0.1, 0.1, 4)[:, None, None]

STATEMENTS = (
    Statement(
        "wu2020-top-changes-more:base:tuned",
        "Upper layers change more.",
        "Wu et al. 2020",
        about={"base": "base", "measure": "ckasim"},
        value=Value(0.25, 0.125, 0.375),
        margin=0.0,
        verdict=HOLDS,
        numbers={"upper": 0.5, "lower": 0.25},
        text="They do.",
    ),
    Statement("x:y", "Claim.", "Paper", about={}, value=Value(math.nan), margin=0.1, verdict=OPEN, reason="too few"),
)


def square(*, intervals: bool = False) -> Matrix:
    if not intervals:
        return Matrix("linreg", AXES, AXES, SQUARE)
    interval = Interval(0.95, "bootstrap", 40)
    return Matrix("linreg", AXES, AXES, SQUARE, SQUARE - 0.1, SQUARE + 0.2, interval, RESAMPLES)


def gappy() -> Matrix:
    """Without values for the first layer."""
    values = SQUARE.copy()
    values[0] = values[:, 0] = math.nan
    return Matrix("ckasim", AXES, AXES, values)


COMPARISON = Comparison(
    matrices=(square(intervals=True), gappy()),
    models=(
        ModelInfo("base", "path/base", "bert", 3, 8, "sha256:1"),
        ModelInfo("tuned", "org/tuned", "bert", 2, 8, "c0ffee", role="control", base="base"),
    ),
    data={"name": "süß.txt", "rows": 90, "dropped": {"words": 2}},
    findings={"localization": {"base": [0.1, None, 0.2]}},
    statements=STATEMENTS,
    warnings=("few rows",),
    provenance={"seed": 3, "versions": {"torch": "2"}},
    arrays={"neuronsim.match": np.arange(6).reshape(2, 3), "neuronsim.correlation": np.ones((2, 3), np.float32)},
)

ATTENTION = Attention(
    matrices=(Matrix("js", AXES[1:], AXES[1:], SQUARE[1:, 1:]),),
    models=COMPARISON.models,
    data={"name": "süß.txt", "rows": 90, "sentences": 9, "causal": True},
    arrays={"js": np.arange(64, dtype=np.float32).reshape(8, 8) / 64},
    heads_of=(2, 2, 2, 2),
    patterns=(Pattern(("süß", "!"), ("süß", "!"), np.arange(32, dtype=np.uint8).reshape(8, 2, 2)),),
    statements=STATEMENTS,
)

DEPTH = Depth(
    model=ModelInfo("tuned", "/m/tuned", "bert", 3, 32, "abc"),
    base=ModelInfo("base", "/m/base", "bert", 3, 32, "def"),
    task={"name": "toy", "metric": "accuracy", "labels": ["a", "b"], "n_train": 8, "n_validation": 4},
    full=Value(0.75, 0.5, 1.0),
    majority=0.5,
    bag_of_words=0.625,
    curves=(
        Curve(
            "untuned",
            (0, 1, 2),
            np.array([math.nan, 0.5, 0.75]),
            np.array([math.nan, 0.25, 0.5]),
            np.array([math.nan, 0.75, 1.0]),
            Interval(0.95, "percentiles"),
            np.array([[math.nan, 0.5, 0.75], [math.nan, 0.25, 1.0]]),
        ),
        Curve("tunedorig", (0, 1, 2), np.array([math.nan, 0.5, 0.5])),
    ),
    skip=np.array([[0.5, 0.25], [math.nan, 0.75]]),
    skip_agreement=np.array([[0.5, 0.5], [math.nan, 1.0]]),
    full_replicates=np.array([0.75, 1.0]),
    skip_replicates=np.array([[[0.5, 0.25], [math.nan, 0.75]]] * 2),
    warnings=("mind the gap",),
    provenance={"seed": 3},
)

CUT = Cut(
    model={"name": "m", "source": "/m", "hub": False, "family": "bert", "fingerprint": "f", "blocks": 3},
    loads_with="AutoModelForSequenceClassification",
    kept=(1, 3),
    dropped=(2,),
    task={"name": "toy", "note": None},
    metric="accuracy",
    budget=0.01,
    confidence=0.95,
    rows={"choose": 10, "confirm": 10, "seed": 0},
    whole_on_choice_rows=0.9,
    candidates=(Candidate((1, 3), 0.9), Candidate((1,), math.nan)),
    tested=(Tested((1, 3), Value(-0.001, -0.009, math.inf), confirmed=True, exact=True),),
    before=Value(0.9, 0.8, 1.0),
    after=Value(0.899),
    difference=Value(-0.001, -math.inf),
    baselines={"majority": 0.5, "bag_of_words": math.nan},
    head={"tuned": True, "converged": False},
    length=128,
    parameters={"before": 300, "after": 200},
    latency={"ratio": 0.7},
    reload={"weights": "w", "apart": 1e-300},
)

FINETUNED = Finetuned(
    seed=2**62,
    base={"name": "b"},
    task={"labels": None},
    metric="accuracy",
    score=Value(0.9, 0.8, 1.0),
    parts={"accuracy": 0.9},
    baselines={"majority": 0.5},
    recipe={"lr": 2e-5},
    freeze=None,
    parameters={"frozen": 0, "trained": 10},
    head="fresh",
    loss=((10.0, 0.7), (20.0, math.nan)),
    early={"rows": 4, "scores": [[1, 0.5]]},
    seconds=1.25,
    weights="w",
    pruned={"drop": "top:1"},
)

PRUNED = Pruned(what={"source": "/m", "drop": "top:1", "blocks": 3, "kept": [1, 2]}, weights="w")

PERPLEXITIES = Perplexities(
    model=ModelInfo("gpt", "/g", "gpt2", 2, 8, "f"),
    corpus={"name": "c", "fingerprint": "x", "texts": 3},
    points=(Perplexity(math.inf, 10.0, math.inf, 30, 3, 1), Perplexity(12.5, 11.0, 14.0, 30, 3, 1)),
    spans=(Skipped(1, 1, Value(math.inf), 0.25),),
    span_texts=3,
)

DECODER = CutDecoder(
    model={"name": "gpt", "source": "/g", "hub": False, "family": "gpt2", "fingerprint": "f", "blocks": 3},
    kept=(1, 3),
    dropped=(2,),
    patched=(1,),
    corpus={"name": "c", "fingerprint": "x", "texts": 30},
    max_ppl=1.1,
    confidence=0.95,
    texts={"choose": 6, "fit": 12, "confirm": 12, "seed": 0},
    tried=(
        Tried((2,), Value(1.1, 1.0, 1.2), Value(1.05, 1.0, 1.1), True, 0.75, (3,), Value(math.inf), (2,), Value(1.1)),
    ),
    spans=(Skipped(2, 2, Value(1.1, 1.0, 1.2), 0.5),),
    before=Value(10.0, 9.0, 11.0),
    after=Value(10.5, 9.5, 11.5),
    ratio=Value(1.05, 1.02, 1.08),
    agreement=Value(0.75, 0.5, 1.0),
    length=64,
    parameters={"before": 30, "after": 20},
    latency={"ratio": 0.75, "low": 0.5, "high": 1.0, "device": "cpu"},
    reload={"rows": 4, "apart": 0.0, "weights": "w"},
)

PROBED = Curve("base", (0, 1), np.array([0.5, 0.75]), np.array([0.4, 0.7]), np.array([0.6, 0.8]),
               Interval(0.95, "percentiles"), np.full((3, 2), 0.5))  # fmt: skip
PROBING = Probing(
    models=(ModelInfo("base", "/b", "bert", 2, 8, "f"),),
    data={"corpus": "ud", "property": "upos", "words": {"train": 10, "dev": 4, "test": 4}, "sentences": {"train": 5}},
    tags=("NOUN", "VERB"),
    tag_words=(6, 4),
    majority=Value(0.5, 0.4, 0.6),
    by_word=Value(0.7, 0.6, 0.8),
    layers=Layers(
        (
            LayerProbes("base", "solved", PROBED, PROBED, PROBED, *(np.array([0.1, math.nan]) for _ in range(8))),
            LayerProbes("base", "published", PROBED, PROBED, PROBED, *(np.array([0.2, 0.3]) for _ in range(8))),
        )
    ),
    neuron_probes=(
        NeuronProbes(
            "base", 8, (0, 1), np.arange(16.0), np.arange(32.0).reshape(16, 2), np.tile([0.0, 1.0], 8),
            (Neuron(0, 3, "NOUN", 0.25, ("a [word] here",)),), 0.001, 0.0,
            *(Value(0.8, 0.7, 0.9) for _ in range(2)), 0.05, *(Value(0.6, 0.5, 0.7) for _ in range(3)), 0.4, 0.3, 0.2,
            np.array([0.01, 0.02]), np.array([0.5, 0.6]), 0.9, 0.01, 0, Value(0.6), Value(0.1, 0.0, 0.2),
            np.array([[1.0, 0.0], [2.0, 3.0]]),
            np.array([[2.0, 4.0], [1.0, 5.0]]), np.array([0.5, 0.55]), np.array([0.0]),
        ),
    ),
    statements=STATEMENTS[:1],
)  # fmt: skip

WEIGHTS = Weights(
    models=(ModelInfo("b", "/b", "bert", 2, 8, "f"), ModelInfo("t", "/t", "bert", 2, 8, "g")),
    parameters=(
        ParameterChange("emb.weight", 0, "emb", (9, 8), 2.0, 0.0, math.nan),
        ParameterChange("layer.0.query.weight", 1, "query", (8, 8), 2.0, 0.5, 3.25),
        ParameterChange("pooler.bias", None, "pooler", (8,), 0.0, 0.25, math.nan),
    ),
    missing={"t": ("classifier.weight",)},
    adapter={"r": 4},
    tokens=(TokenChange(3, "##ing", 0.5),),
    moved_tokens=1,
    all_tokens=9,
)

STUDY = Study(
    {"cls": COMPARISON, "mean": dataclasses.replace(COMPARISON, arrays={}, matrices=(gappy(),))},
    "base",
    ("tuned", "other"),
    control="random",
    depth=DEPTH,
    cut=CUT,
    across=("far",),
    localization=dataclasses.replace(COMPARISON, arrays={"neuronsim.match": np.zeros((1, 2), np.int64)}),
    statements=STATEMENTS[:1],
)

REPRODUCTION = Reproduction(
    "wu2020",
    "fig5",
    "Layers of base and fine-tuned models",
    "Penn Treebank",
    ("similarity-ckasim",),
    (
        Done("tune/base/sst2/seed-0", "stratoscope finetune base", "accuracy", Value(0.9, 0.8, 1.0)),
        Done("compare", "c"),
    ),
    statements=STATEMENTS,
)

BARE = {
    "a comparison without arrays": dataclasses.replace(COMPARISON, arrays={}, matrices=(gappy(),), statements=()),
    "an empty comparison": Comparison((), (), {}),
    "a depth without base": dataclasses.replace(
        DEPTH, base=None, skip=None, skip_agreement=None, full_replicates=None, skip_replicates=None, curves=()
    ),
    "a study of one": Study({"cls": COMPARISON}, "base", ("tuned",), refused="all blocks matter"),
    "tuned from a whole base": dataclasses.replace(FINETUNED, pruned=None, freeze="embeddings", loss=()),
}
DIFF = Diff(
    STUDY,
    {"name": "my.csv", "rows": 8},
    weights=WEIGHTS,
    language=Language(Value(9.0, 8.0, 10.0), Value(8.0), Value(0.9), DECODER.spans[:1], 3),
    unjudged="no head",
    layer=2,
    examples=(Example(3, "a \u2028 text", 0.5, "a", "b", (0, 1)), Example(1, "<b>", 0.25, loss_before=1.5)),
)
RESULTS: dict[str, Result] = {
    r.KIND: r
    for r in (
        *(COMPARISON, ATTENTION, DEPTH, CUT, FINETUNED, PRUNED, PERPLEXITIES, PROBING, STUDY, REPRODUCTION),
        *(alignment(), injection(), recovery(), WEIGHTS, DECODER, DIFF),
    )
}


def assert_same(got: Any, want: Any, where: str = "result") -> None:
    """Both hold the same in every stored field: types, values, dtypes of arrays, NaN where the other has NaN."""
    if dataclasses.is_dataclass(want):
        assert type(got) is type(want), where
        for f in stored(want):
            assert_same(getattr(got, f.name), getattr(want, f.name), f"{where}.{f.name}")
    elif isinstance(want, np.ndarray):
        assert got.dtype == want.dtype, where
        np.testing.assert_array_equal(got, want, where)
    elif isinstance(want, Mapping):
        assert set(got) == set(want), where
        for k, v in want.items():
            assert_same(got[k], v, f"{where}[{k!r}]")
    elif isinstance(want, tuple | list):
        assert type(got) is type(want), where
        assert len(got) == len(want), where
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{where}[{k}]")
    elif isinstance(want, float) and math.isnan(want):
        assert math.isnan(got), where
    else:
        assert type(got) is type(want), where
        assert got == want, where
