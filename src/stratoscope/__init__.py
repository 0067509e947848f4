"""See how fine-tuning reshapes a Transformer, layer by layer, and cut the layers it no longer needs.

>>> import stratoscope as ss
>>> m = ss.compare(["path/base", "path/tuned"], data="reviews.jsonl", unit="cls", measures=["ckasim"])  # doctest: +SKIP
>>> m["ckasim"].between("base", "tuned").plot()  # doctest: +SKIP

Every analysis takes its options as keywords, named as its flags and the keys of `run.yaml` are, or as one dataclass
(`options=`); where `out` may be left out, the result stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from stratoscope.core.errors import StratoscopeError

if TYPE_CHECKING:
    from stratoscope.core.progress import Progress
    from stratoscope.data.corpus import Corpus
    from stratoscope.data.tagged import Tagged
    from stratoscope.data.tasks.data import TaskData
    from stratoscope.data.tasks.read import read_task
    from stratoscope.measures.structure import Neuron
    from stratoscope.models.open.loading import ModelSpec
    from stratoscope.results.comparison import Comparison
    from stratoscope.results.cut import Cut
    from stratoscope.results.depth import Depth
    from stratoscope.results.finetuned import Finetuned
    from stratoscope.results.perplexity import Perplexities
    from stratoscope.results.probing import Probing
    from stratoscope.results.study import Study
    from stratoscope.studies.callback import StratoscopeCallback
    from stratoscope.studies.compare.options import CompareOptions
    from stratoscope.studies.cut.options import CutOptions
    from stratoscope.studies.depth.options import DepthOptions
    from stratoscope.studies.finetune.options import FinetuneOptions, TrainingOptions
    from stratoscope.studies.finetuned.options import StudyOptions
    from stratoscope.studies.perplexity.options import PerplexityOptions
    from stratoscope.studies.probing.options import ProbeOptions

    Model: TypeAlias = str | Path | ModelSpec

__all__ = [
    "StratoscopeCallback",
    "StratoscopeError",
    "compare",
    "cut",
    "depth",
    "finetune",
    "load",
    "localization",
    "perplexity",
    "probe",
    "prune",
    "rank_neurons",
    "read_task",
    "similarity",
    "study_finetuned",
]

LATER = {"StratoscopeCallback": "stratoscope.studies.callback", "read_task": "stratoscope.data.tasks.read"}
"""Public names taken as they are from where they live, imported when first asked for."""

Draw: TypeAlias = Callable[[Path, Any], Any]
"""Writes figures and page of a finished result into its folder."""
Chosen = TypeVar("Chosen")


def __getattr__(name: str) -> Any:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("stratoscope")
    if name not in LATER:
        raise AttributeError(f"module 'stratoscope' has no attribute '{name}'")
    return getattr(import_module(LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _options(cls: type[Chosen], options: Chosen | None, keywords: dict[str, Any]) -> Chosen:
    """The options of an analysis: keywords, a dataclass, or a dataclass with keywords in place of some fields."""
    from stratoscope.core.options import read_options

    if options is None:
        return read_options(cls, keywords)
    if not isinstance(options, cls):
        raise StratoscopeError(f"expected options as {cls.__name__}, got {type(options).__name__}")
    return read_options(type(options), {**vars(options), **keywords})


def similarity(x: Any, y: Any, measure: str = "ckasim", *, seed: int = 0) -> float:
    """Similarity of the rows of two arrays (n×p and n×q, numpy or torch) under one measure."""
    from stratoscope.measures.similarity import similarity as run
    from stratoscope.measures.table import ALL

    if measure == ALL:
        raise StratoscopeError("similarity gives one number, so it takes one measure, got 'all'; name one")
    return run(x, y, measure, seed=seed)


def compare(
    models: Model | Sequence[Model],
    *,
    data: str | Path | Corpus,
    out: str | Path | None = None,
    options: CompareOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Comparison:
    """Compare every layer of every model; further keywords are the fields of `CompareOptions`.

    Among them are `unit`, `measures` and `bootstrap`, and how to read `data`: `text`, `pair`, `label`, `columns`.
    """
    from stratoscope.studies.compare.options import CompareOptions
    from stratoscope.studies.compare.study import compare as run

    several = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    chosen = _options(CompareOptions, options, keywords)
    return run(several, data=data, out=out, options=chosen, progress=progress, draw=draw)


def depth(
    tuned: Model,
    task: TaskData,
    *,
    base: Model | None = None,
    out: str | Path,
    options: DepthOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Depth:
    """Judge a fine-tuned model at every depth; further keywords are the fields of `DepthOptions`."""
    from stratoscope.studies.depth.options import DepthOptions
    from stratoscope.studies.depth.study import depth as run

    chosen = _options(DepthOptions, options, keywords)
    return run(tuned, task, base=base, out=out, options=chosen, progress=progress, draw=draw)


def cut(
    tuned: Model,
    task: TaskData,
    *,
    budget: float,
    out: str | Path,
    options: CutOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Cut:
    """Write the smallest model whose loss is confirmed to stay within `budget` of the metric, or refuse.

    Further keywords are the fields of `CutOptions`.
    """
    from stratoscope.studies.cut.options import CutOptions
    from stratoscope.studies.cut.study import cut as run

    chosen = _options(CutOptions, options, keywords)
    return run(tuned, task, budget=budget, out=out, options=chosen, progress=progress, draw=draw)


def finetune(
    base: Model,
    task: TaskData,
    *,
    out: str | Path,
    options: FinetuneOptions | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> list[Finetuned]:
    """Fine-tune a model on a task, once per seed; further keywords are the fields of `FinetuneOptions`."""
    from stratoscope.studies.finetune.options import FinetuneOptions
    from stratoscope.studies.finetune.study import finetune as run

    return run(base, task, out=out, options=_options(FinetuneOptions, options, keywords), progress=progress)


def prune(
    base: Model,
    task: TaskData,
    *,
    drop: str,
    out: str | Path,
    options: TrainingOptions | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> list[Finetuned]:
    """Drop blocks (`top:k` or `bottom:k`), then fine-tune; further keywords are the fields of `TrainingOptions`."""
    from stratoscope.studies.finetune.options import TrainingOptions
    from stratoscope.studies.prune import prune as run

    chosen = _options(TrainingOptions, options, keywords)
    return run(base, task, drop=drop, out=out, options=chosen, progress=progress)


def study_finetuned(
    base: Model,
    tuned: Model | Sequence[Model],
    task: TaskData,
    *,
    out: str | Path,
    across: Sequence[Model] = (),
    options: StudyOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Study:
    """Study what fine-tuning changed in a model; further keywords are the fields of `StudyOptions`."""
    from stratoscope.studies.finetuned.options import StudyOptions
    from stratoscope.studies.finetuned.study import study_finetuned as run

    several = tuned if isinstance(tuned, Sequence) and not isinstance(tuned, str) else [tuned]
    chosen = _options(StudyOptions, options, keywords)
    return run(base, several, task, out=out, options=chosen, across=across, progress=progress, draw=draw)


def perplexity(
    model: Model,
    data: str | Path | Corpus,
    *,
    out: str | Path | None = None,
    options: PerplexityOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Perplexities:
    """Perplexity of a decoder at every depth; further keywords are the fields of `PerplexityOptions`."""
    from stratoscope.studies.perplexity.options import PerplexityOptions
    from stratoscope.studies.perplexity.study import perplexity as run

    chosen = _options(PerplexityOptions, options, keywords)
    return run(model, data, out=out, options=chosen, progress=progress, draw=draw)


def probe(
    models: Model | Sequence[Model],
    *,
    corpus: str | Path | Tagged,
    property: str,
    out: str | Path | None = None,
    options: ProbeOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Probing:
    """Probe every layer for a property of words, such as `upos`; further keywords are the fields of `ProbeOptions`.

    The first model is the base of the others. With `neurons=True` the neurons of all layers are ranked too.
    """
    from stratoscope.studies.probing.options import ProbeOptions
    from stratoscope.studies.probing.study import probe as run

    several = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    chosen = _options(ProbeOptions, options, keywords)
    return run(several, corpus=corpus, property=property, out=out, options=chosen, progress=progress, draw=draw)


def load(folder: str | Path) -> Any:
    """Read the result of an earlier run, of any kind, from its folder; needs no model."""
    from stratoscope.results.result import load as run

    return run(folder)


def localization(comparison: Comparison, *, standardise: bool = False) -> dict[str, list[float | None]]:
    """Localization score of every layer, by model (Wu et al. 2020); needs neuronsim and svsim in the result."""
    from stratoscope.measures.structure import localization as run

    return run(comparison, standardise=standardise)


def rank_neurons(comparison: Comparison, model: str, layer: int, *, by: str = "max") -> list[Neuron]:
    """Neurons of a layer by their strongest (`max`) or weakest (`min`) counterpart in other layers, but controls'."""
    from stratoscope.measures.structure import rank_neurons as run

    return run(comparison, model, layer, by=by)
