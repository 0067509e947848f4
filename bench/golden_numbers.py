"""Every number of a result as plain nested data, so that two versions of the code can be held against each other.

Keys that begin with ~ are words, shown when they change but not counted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import stratoscope as ss

if TYPE_CHECKING:
    from stratoscope.core.matrix import Matrix
    from stratoscope.core.value import Value
    from stratoscope.results.comparison import Comparison
    from stratoscope.results.cutting.cut import Cut
    from stratoscope.results.cutting.depth import Depth
    from stratoscope.results.cutting.perplexity import Perplexity
    from stratoscope.results.finetuned import Finetuned
    from stratoscope.results.study import Study

Facts = dict[str, Any]
CUT_KEYS = (
    "metric",
    "budget",
    "confidence",
    "rows",
    "whole_on_choice_rows",
    "baselines",
    "head",
    "length",
    "parameters",
)


def of_matrix(m: Matrix) -> Facts:
    """Axes, scores and intervals."""
    return {
        "rows": [f"{r.model}:{r.index}" for r in m.rows],
        "columns": [f"{c.model}:{c.index}" for c in m.columns],
        "values": m.values,
        "low": m.low,
        "high": m.high,
        "level": None if m.interval is None else m.interval.level,
        "method": None if m.interval is None else m.interval.method,
    }


def of_comparison(c: Comparison) -> Facts:
    """Every measure, and what was found and recorded."""
    return {
        "measures": {name: of_matrix(c[name]) for name in c},
        "models": {m.name: {"family": m.family, "layers": m.layers, "width": m.width} for m in c.models},
        "controls": [m.name for m in c.models if m.is_control],
        "findings": dict(c.findings),
        "data": {k: c.data[k] for k in ("sentences", "rows", "dropped", "blank")},
        "arrays": {name: of_array(a) for name, a in sorted(c.arrays.items())},
        "~warnings": list(c.warnings),
    }


def of_array(a: np.ndarray) -> Facts:
    """Sums that see values and order, instead of the thousands of values."""
    flat = np.nan_to_num(np.asarray(a, dtype=np.float64).ravel(), nan=-7.0)
    weights = np.cos(np.arange(len(flat)))
    scale = max(1.0, float(np.abs(flat).sum()))
    return {"shape": list(a.shape), "mean": flat.sum() / scale, "weighted": (flat * weights).sum() / scale}


def of_neurons(c: Comparison, name: str, layer: int) -> Facts:
    """The first neurons of a layer in both orders."""
    return {by: [asdict(n) for n in ss.rank_neurons(c, name, layer, by=by)[:8]] for by in ("max", "min")}


def of_finetuned(f: Finetuned) -> Facts:
    """How the training went and what came of it."""
    s = f.score
    return {
        "seed": f.seed,
        "score": s.value,
        "interval": [s.low, s.high],
        "metric": {"name": f.metric, "value": s.value, "low": s.low, "high": s.high, "parts": dict(f.parts)},
        "baselines": f.baselines,
        "loss": [list(w) for w in f.loss],
        "early": f.early,
        "parameters": f.parameters,
        "recipe": {k: v for k, v in f.recipe.items() if not isinstance(v, str)},
        "rows": {k: f.task[j] for k, j in (("train", "train"), ("validation", "validation"), ("cut", "truncated"))},
        "head": f.head,
    }


def of_depth(d: Depth) -> Facts:
    """Every curve and the skip matrix."""
    return {
        "layers": d.model.layers,
        "full": [*of_value(d.full).values()],
        "majority": d.majority,
        "bag_of_words": d.bag_of_words,
        "curves": {c.name: [[*of_value(p).values()] for p in c.points] for c in d.curves},
        "skip": d.skip,
        "skip_agreement": d.skip_agreement,
        "rows": [d.task["n_train"], d.task["n_validation"]],
        "~warnings": list(d.warnings),
    }


def of_cut(c: Cut) -> Facts:
    """What was chosen and how it was confirmed."""
    exact = next(t.exact for t in reversed(c.tested) if t.confirmed)
    return {name: getattr(c, name) for name in CUT_KEYS} | {
        "class": c.loads_with,
        "kept": list(c.kept),
        "dropped": list(c.dropped),
        "candidates": [{"kept": list(x.kept), "value": x.value} for x in c.candidates],
        "tested": [
            {"kept": list(t.kept), "confirmed": t.confirmed, **of_value(t.loss), "exact": t.exact} for t in c.tested
        ],
        "before": of_value(c.before),
        "after": of_value(c.after),
        "difference": of_value(c.difference) | {"exact": exact},
        "reload": {k: c.reload[k] for k in ("rows", "apart")},
        "~warnings": list(c.warnings),
    }


def of_study(s: Study) -> Facts:
    """Every part of a study."""
    return {
        "comparisons": {unit: of_comparison(c) for unit, c in s.comparisons.items()},
        "localization": None if s.localization is None else of_comparison(s.localization),
        "depth": None if s.depth is None else of_depth(s.depth),
        "labels": [s.base, *s.tuned, *s.across, s.control],
    }


def of_points(points: Iterable[Perplexity]) -> list[Facts]:
    """Perplexities, depth by depth."""
    return [asdict(p) for p in points]


def of_value(v: Value) -> Facts:
    """A number with its interval."""
    return {"value": v.value, "low": v.low, "high": v.high}


def of_weights(folder: Path) -> Facts:
    """Sha256 over names, shapes and bytes of all tensors, whatever the file is called and its header says."""
    from safetensors.torch import load_file

    files = [f for f in sorted(folder.glob("*.safetensors")) if "arrays" not in f.name]
    tensors = {k: v for f in files for k, v in load_file(f).items()}
    h = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        h.update(f"{name} {t.dtype} {tuple(t.shape)}\n".encode())
        h.update(t.view(torch.uint8).numpy().tobytes() if t.dim() else t[None].view(torch.uint8).numpy().tobytes())
    return {"sha256": h.hexdigest(), "tensors": len(tensors)}


def of_logits(folder: Path, texts: list[str]) -> np.ndarray:
    """What plain transformers makes of a checkpoint, text by text."""
    import transformers

    net = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        return np.stack([net(**tokens(t, return_tensors="pt")).logits[0].double().numpy() for t in texts])


def lines(path: Path, column: str | None = None) -> list[str]:
    """Lines of a file, or one column of a JSONL file."""
    given = path.read_text(encoding="utf-8").splitlines()
    return given if column is None else [json.loads(g)[column] for g in given]


def plain(value: Any) -> Any:
    """As JSON gives it back; NaN is null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return None if math.isnan(value) else str(value) if math.isinf(value) else value
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} in a result")
