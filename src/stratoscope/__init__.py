"""See how fine-tuning reshapes a Transformer, layer by layer, and cut the layers it no longer needs.

>>> import stratoscope as ss
>>> m = ss.compare(["path/base", "path/tuned"], data="reviews.jsonl", unit="cls", measures=["ckasim"])  # doctest: +SKIP
>>> m["ckasim"].between("base", "tuned").plot()  # doctest: +SKIP

Every analysis takes its options as keywords, named as its flags and the keys of `run.yaml` are, or as one dataclass
(`options=`); where `out` may be left out, the result stays in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratoscope.core.errors import StratoscopeError

if TYPE_CHECKING:
    from stratoscope.aligners.fit import fit_map
    from stratoscope.data.tasks.read import read_task
    from stratoscope.measures.similarity import similarity
    from stratoscope.measures.structure import localization, rank_neurons
    from stratoscope.results.result import load
    from stratoscope.studies.align.inject import inject
    from stratoscope.studies.align.recovery import recovery
    from stratoscope.studies.align.study import align
    from stratoscope.studies.attention.study import attention
    from stratoscope.studies.callback import StratoscopeCallback
    from stratoscope.studies.compare.study import compare, study_similarity
    from stratoscope.studies.cut.study import cut
    from stratoscope.studies.decoder.study import cut_decoder
    from stratoscope.studies.depth.study import depth
    from stratoscope.studies.diff.study import diff
    from stratoscope.studies.finetune.study import finetune
    from stratoscope.studies.finetuned.study import study_finetuned
    from stratoscope.studies.perplexity.study import perplexity
    from stratoscope.studies.probing.study import probe
    from stratoscope.studies.prune import prune
    from stratoscope.studies.reproduce.study import reproduce
    from stratoscope.studies.weights.study import weights

__all__ = [
    "StratoscopeCallback",
    "StratoscopeError",
    "align",
    "attention",
    "compare",
    "cut",
    "cut_decoder",
    "depth",
    "diff",
    "finetune",
    "fit_map",
    "inject",
    "load",
    "localization",
    "perplexity",
    "probe",
    "prune",
    "rank_neurons",
    "read_task",
    "recovery",
    "reproduce",
    "similarity",
    "study_finetuned",
    "study_similarity",
    "weights",
]

LATER = {
    "StratoscopeCallback": "studies.callback",
    "attention": "studies.attention.study",
    "align": "studies.align.study",
    "compare": "studies.compare.study",
    "cut": "studies.cut.study",
    "cut_decoder": "studies.decoder.study",
    "depth": "studies.depth.study",
    "diff": "studies.diff.study",
    "finetune": "studies.finetune.study",
    "fit_map": "aligners.fit",
    "inject": "studies.align.inject",
    "load": "results.result",
    "localization": "measures.structure",
    "perplexity": "studies.perplexity.study",
    "probe": "studies.probing.study",
    "prune": "studies.prune",
    "rank_neurons": "measures.structure",
    "read_task": "data.tasks.read",
    "reproduce": "studies.reproduce.study",
    "recovery": "studies.align.recovery",
    "similarity": "measures.similarity",
    "study_finetuned": "studies.finetuned.study",
    "study_similarity": "studies.compare.study",
    "weights": "studies.weights.study",
}
"""Where public names live: each is imported when first asked for, so that `import stratoscope` takes no time."""


def __getattr__(name: str) -> Any:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("stratoscope")
    if name not in LATER:
        raise AttributeError(f"module 'stratoscope' has no attribute '{name}'")
    return getattr(import_module(f"stratoscope.{LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
