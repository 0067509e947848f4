"""See how fine-tuning reshapes a Transformer, layer by layer, and cut the layers it no longer needs.

>>> import stratoscope as ss
>>> m = ss.compare(["path/base", "path/tuned"], data="reviews.jsonl", unit="cls", measures=["ckasim"])  # doctest: +SKIP
>>> m["ckasim"].between("base", "tuned").plot()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratoscope.core.errors import StratoscopeError

if TYPE_CHECKING:
    from stratoscope.data.corpus import Corpus
    from stratoscope.data.tasks.read import read_task
    from stratoscope.measures.structure import Neuron
    from stratoscope.models.open.loading import ModelSpec
    from stratoscope.results.comparison import Comparison
    from stratoscope.studies.callback import StratoscopeCallback
    from stratoscope.studies.cut.study import cut
    from stratoscope.studies.depth.study import depth
    from stratoscope.studies.finetune.study import finetune
    from stratoscope.studies.finetuned.study import study_finetuned
    from stratoscope.studies.prune import prune

__all__ = [
    "StratoscopeCallback",
    "StratoscopeError",
    "compare",
    "cut",
    "depth",
    "finetune",
    "load",
    "localization",
    "prune",
    "rank_neurons",
    "read_task",
    "similarity",
    "study_finetuned",
]

LATER = {
    "StratoscopeCallback": "stratoscope.studies.callback",
    "cut": "stratoscope.studies.cut.study",
    "depth": "stratoscope.studies.depth.study",
    "finetune": "stratoscope.studies.finetune.study",
    "prune": "stratoscope.studies.prune",
    "read_task": "stratoscope.data.tasks.read",
    "study_finetuned": "stratoscope.studies.finetuned.study",
}
"""Public names taken as they are from where they live, imported when first asked for."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in LATER:
        raise AttributeError(f"module 'stratoscope' has no attribute '{name}'")
    return getattr(import_module(LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def similarity(x: Any, y: Any, measure: str = "ckasim", *, seed: int = 0) -> float:
    """Similarity of the rows of two arrays (n×p and n×q, numpy or torch) under one measure."""
    from stratoscope.measures.similarity import similarity as run
    from stratoscope.measures.table import ALL

    if measure == ALL:
        raise StratoscopeError("similarity gives one number, so it takes one measure, got 'all'; name one")
    return run(x, y, measure, seed=seed)


def compare(
    models: str | Path | ModelSpec | Sequence[str | Path | ModelSpec],
    *,
    data: str | Path | Corpus,
    unit: str = "word",
    measures: Sequence[str] = ("ckasim",),
    out: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Compare every layer of every model; further options are the fields of its `Options`.

    Among them are `text`, `pair` and `label`, the columns of a table, and `columns` and `split`, as `--data` has them.
    """
    from dataclasses import fields

    from stratoscope.core.errors import unknown_name
    from stratoscope.models.open.loading import ModelSpec
    from stratoscope.studies.compare.options import CompareOptions as Options
    from stratoscope.studies.compare.study import compare as run

    known = [f.name for f in fields(Options)]
    if strange := next((name for name in options if name not in known), None):
        raise unknown_name("option", strange, known)
    chosen = (measures,) if isinstance(measures, str) else tuple(measures)
    several = [models] if isinstance(models, str | Path | ModelSpec) else models
    return run(several, data=data, out=out, options=Options(unit=unit, measures=chosen, **options))


def localization(comparison: Comparison, *, standardise: bool = False) -> dict[str, list[float | None]]:
    """Localization score of every layer, by model (Wu et al. 2020); needs neuronsim and svsim in the result."""
    from stratoscope.measures.structure import localization as run

    return run(comparison, standardise=standardise)


def rank_neurons(comparison: Comparison, model: str, layer: int, *, by: str = "max") -> list[Neuron]:
    """Neurons of a layer by their strongest (`max`) or weakest (`min`) counterpart in other layers, but controls'."""
    from stratoscope.measures.structure import rank_neurons as run

    return run(comparison, model, layer, by=by)


def load(folder: str | Path) -> Comparison:
    """Read the result of an earlier comparison from its run folder; needs no model."""
    from stratoscope.results.comparison import Comparison

    return Comparison.load(folder)
