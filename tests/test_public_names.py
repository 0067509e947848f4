"""What a user sees of the package: the public names, whether they are loaded yet or not, and nothing else."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stratoscope as ss
from stratoscope.core.options import described
from stratoscope.models.open.loading import ModelSpec
from stratoscope.studies.align.options import AlignOptions, InjectOptions, RecoveryOptions
from stratoscope.studies.asked import chosen
from stratoscope.studies.attention.options import AttentionOptions
from stratoscope.studies.compare.options import CompareOptions, SimilarityOptions
from stratoscope.studies.cut.options import CutOptions
from stratoscope.studies.decoder.options import CutDecoderOptions
from stratoscope.studies.depth.options import DepthOptions
from stratoscope.studies.finetune.options import FinetuneOptions, TrainingOptions
from stratoscope.studies.finetuned.options import StudyOptions
from stratoscope.studies.perplexity.options import PerplexityOptions
from stratoscope.studies.probing.options import ProbeOptions
from stratoscope.studies.reproduce.options import ReproduceOptions
from stratoscope.studies.weights.options import WeightsOptions

STUDIES: dict[str, tuple[str, type, tuple[Any, ...], dict[str, Any]]] = {
    "attention": ("attention.study", AttentionOptions, (["a"],), {"data": "t.txt"}),
    "compare": ("compare.study", CompareOptions, (["a"],), {"data": "t.txt"}),
    "depth": ("depth.study", DepthOptions, ("a", "task"), {"base": "b", "out": "o"}),
    "cut": ("cut.study", CutOptions, ("a", "task"), {"budget": 0.1, "out": "o"}),
    "cut_decoder": ("decoder.study", CutDecoderOptions, ("a", "t.txt"), {"max_ppl": "1.1x", "out": "o"}),
    "finetune": ("finetune.study", FinetuneOptions, ("a", "task"), {"out": "o"}),
    "prune": ("prune", TrainingOptions, ("a", "task"), {"drop": "top:1", "out": "o"}),
    "study_finetuned": ("finetuned.study", StudyOptions, ("a", ["b"], "task"), {"out": "o", "across": ["c"]}),
    "align": ("align.study", AlignOptions, ("a", "b"), {"data": "t.txt"}),
    "inject": ("align.inject", InjectOptions, ("a", "b", "task"), {"out": "o"}),
    "recovery": ("align.recovery", RecoveryOptions, ("a", "t.txt"), {"out": "o"}),
    "weights": ("weights.study", WeightsOptions, ("a", "b"), {"out": "o"}),
    "perplexity": ("perplexity.study", PerplexityOptions, ("a", "t.txt"), {"out": "o"}),
    "study_similarity": ("compare.study", SimilarityOptions, (["a"],), {"data": "t.txt"}),
    "reproduce": ("reproduce.study", ReproduceOptions, ("wu2020", "fig1"), {"out": "o"}),
    "probe": ("probing.study", ProbeOptions, (["a"],), {"corpus": "t.jsonl", "property": "upos"}),
}
"""Where a public analysis lives, its options, and arguments it takes besides."""


class StopError(Exception):
    """Ends a study once its options are known."""


@pytest.fixture
def options_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The options that a study works with when it is called so."""
    seen: list[Any] = []

    def stop(*given: Any) -> None:
        seen.append(chosen(*given))
        raise StopError

    for module, *_ in STUDIES.values():
        monkeypatch.setattr(import_module(f"stratoscope.studies.{module}"), "chosen", stop)

    def call(name: str, *args: Any, **known: Any) -> Any:
        seen.clear()
        with pytest.raises(StopError):
            getattr(ss, name)(*args, **known)
        return seen.pop()

    return call


def test_only_public_names_are_listed_before_and_after_use() -> None:
    script = (
        "import sys, stratoscope\n"
        "before = dir(stratoscope)\n"
        "stratoscope.StratoscopeError, stratoscope.__version__\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'a list of names loads nothing'\n"
        "stratoscope.read_task, stratoscope.depth\n"
        "assert dir(stratoscope) == before\n"
        "print(*before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(ss.__all__)


def test_a_star_import_gives_just_those() -> None:
    names: dict[str, object] = {}
    exec("from stratoscope import *", names)
    assert names.keys() - {"__builtins__"} == set(ss.__all__)
    assert all(names[name] is getattr(ss, name) for name in ss.__all__)


def test_the_version_is_the_package_s() -> None:
    assert ss.__version__ == version("stratoscope")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ss.nonsense


@pytest.mark.parametrize("name", STUDIES)
def test_options_are_keywords_or_a_dataclass_or_both(name: str, options_of: Callable[..., Any]) -> None:
    _, options, args, known = STUDIES[name]
    assert options_of(name, *args, **known) == options()
    assert options_of(name, *args, **known, overwrite=True) == options(overwrite=True)
    assert options_of(name, *args, **known, options=options(overwrite=True)) == options(overwrite=True)
    some = options(length=7) if "length" in described(options) else options()
    assert options_of(name, *args, **known, options=some, overwrite=True) == replace(some, overwrite=True)


@pytest.mark.parametrize("name", STUDIES)
def test_an_unknown_option_names_the_nearest(name: str) -> None:
    _, _, args, known = STUDIES[name]
    with pytest.raises(ss.StratoscopeError, match=r"'overwrit'.*'overwrite'"):
        getattr(ss, name)(*args, **known, overwrit=True)
    with pytest.raises(ss.StratoscopeError, match="SimpleNamespace"):
        getattr(ss, name)(*args, **known, options=SimpleNamespace())


@pytest.mark.parametrize("name", STUDIES)
def test_no_argument_has_the_name_of_an_option(name: str) -> None:
    """It would never reach the options."""
    _, options, *_ = STUDIES[name]
    assert not set(inspect.signature(getattr(ss, name)).parameters) & set(described(options))


def test_one_measure_needs_no_list(options_of: Callable[..., Any]) -> None:
    made = options_of("compare", "a", data="t.txt", measures="cca", layers="0,2-3", memory="1GB")
    assert made == CompareOptions(measures=("cca",), layers=(0, 2, 3), memory=1e9)
    assert options_of("study_finetuned", "a", "b", "task", out="o", units=["cls"]) == StudyOptions(units=("cls",))


def test_one_model_needs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(given: list[ModelSpec], *_: object, **__: object) -> None:
        raise StopError([spec.source for spec in given])

    monkeypatch.setattr(import_module("stratoscope.studies.compare.plan"), "named", stop)
    monkeypatch.setattr(import_module("stratoscope.studies.finetuned.study"), "named", stop)
    for model in ("a", Path("a"), ModelSpec("a"), ["a"]):
        with pytest.raises(StopError, match=r"\['a'\]"):
            ss.compare(model, data="t.txt")
        with pytest.raises(StopError, match=r"\['b', 'a', 'c'\]"):
            ss.study_finetuned("b", model, "task", out="o", across=["c"])  # type: ignore[arg-type]
