"""What a user sees of the package: the public names, whether they are loaded yet or not, and nothing else."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest

import stratoscope as ss
from stratoscope.core.options import described
from stratoscope.studies.align.options import InjectOptions, RecoveryOptions
from stratoscope.studies.compare.options import CompareOptions
from stratoscope.studies.cut.options import CutOptions
from stratoscope.studies.depth.options import DepthOptions
from stratoscope.studies.finetune.options import FinetuneOptions, TrainingOptions
from stratoscope.studies.finetuned.options import StudyOptions
from stratoscope.studies.perplexity.options import PerplexityOptions

STUDIES: dict[str, tuple[str, type, tuple[Any, ...], dict[str, Any]]] = {
    "compare": ("compare.study", CompareOptions, (["a"],), {"data": "t.txt"}),
    "depth": ("depth.study", DepthOptions, ("a", "task"), {"base": "b", "out": "o"}),
    "cut": ("cut.study", CutOptions, ("a", "task"), {"budget": 0.1, "out": "o"}),
    "finetune": ("finetune.study", FinetuneOptions, ("a", "task"), {"out": "o"}),
    "prune": ("prune", TrainingOptions, ("a", "task"), {"drop": "top:1", "out": "o"}),
    "study_finetuned": ("finetuned.study", StudyOptions, ("a", ["b"], "task"), {"out": "o", "across": ["c"]}),
    "inject": ("align.inject", InjectOptions, ("a", "b", "task"), {"out": "o"}),
    "recovery": ("align.recovery", RecoveryOptions, ("a", "t.txt"), {"out": "o"}),
    "perplexity": ("perplexity.study", PerplexityOptions, ("a", "t.txt"), {"out": "o"}),
}
"""Where a public analysis lives, its options, and arguments it takes besides."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """How studies were called, which do nothing."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for name, (module, *_) in STUDIES.items():
        study = SimpleNamespace(**{name: lambda *args, **known: seen.append((args, known))})
        monkeypatch.setitem(sys.modules, f"stratoscope.studies.{module}", study)
    return seen


def test_only_public_names_are_listed_before_and_after_use() -> None:
    script = (
        "import sys, stratoscope\n"
        "before = dir(stratoscope)\n"
        "stratoscope.depth, stratoscope.__version__\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'a list of names loads nothing'\n"
        "stratoscope.read_task\n"
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
def test_options_are_keywords_or_a_dataclass_or_both(name: str, calls: list[Any]) -> None:
    _, options, args, known = STUDIES[name]
    analysis = getattr(ss, name)
    field = "overwrite"
    analysis(*args, **known)
    analysis(*args, **known, overwrite=True)
    analysis(*args, **known, options=options(overwrite=True))
    analysis(*args, **known, options=options(length=7) if "length" in described(options) else options(), overwrite=True)
    assert [getattr(k["options"], field) for _, k in calls] == [False, True, True, True]
    assert "length" not in described(options) or calls[-1][1]["options"].length == 7
    for positional, passed in calls:
        assert positional == args
        assert known.items() <= passed.items()


@pytest.mark.parametrize("name", STUDIES)
def test_an_unknown_option_names_the_nearest(name: str, calls: list[Any]) -> None:
    _, _, args, known = STUDIES[name]
    with pytest.raises(ss.StratoscopeError, match=r"'overwrit'.*'overwrite'"):
        getattr(ss, name)(*args, **known, overwrit=True)
    with pytest.raises(ss.StratoscopeError, match="SimpleNamespace"):
        getattr(ss, name)(*args, **known, options=SimpleNamespace())
    assert not calls


@pytest.mark.parametrize("name", STUDIES)
def test_no_argument_has_the_name_of_an_option(name: str) -> None:
    """It would never reach the options."""
    _, options, *_ = STUDIES[name]
    assert not set(inspect.signature(getattr(ss, name)).parameters) & set(described(options))


def test_one_model_and_one_measure_need_no_list(calls: list[Any]) -> None:
    ss.compare("a", data="t.txt", measures="cca", layers="0,2-3", memory="1GB")
    ((models,), passed) = calls[-1]
    assert models == ["a"]
    assert passed["options"] == CompareOptions(measures=("cca",), layers=(0, 2, 3), memory=1e9)
    ss.study_finetuned("a", "b", "task", out="o", units=["cls"])  # type: ignore[arg-type]
    (positional, passed) = calls[-1]
    assert positional == ("a", ["b"], "task")
    assert passed["options"] == StudyOptions(units=("cls",))
