"""Protocols: every figure and table of a paper as one YAML file, read and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from importlib.resources import files
from typing import Any

from stratoscope.claims import CLAIMS
from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.options import read_options

PLACE = "protocols"
TASK = "task"


@dataclass(frozen=True)
class Analysis:
    """What a step may run, through its Python function."""

    function: str
    """Name in `stratoscope`."""
    options: str
    """`module:Class` of its options."""
    on: str
    """`text`, compared by several models; `tags`, words to probe; `task`; `rows`, random ones unless text is given."""
    trains: bool = False
    """Whether it makes models, one per seed, and draws nothing."""
    needs: tuple[str, ...] = ()
    """Arguments besides models and task."""
    pairwise: bool = False
    """Whether it takes two models, and so runs for every pair of those that a step names."""

    def options_class(self) -> Any:
        """The dataclass of its options."""
        module, _, name = self.options.partition(":")
        return getattr(import_module(f"stratoscope.studies.{module}"), name)


ANALYSES: Mapping[str, Analysis] = {
    "compare": Analysis("compare", "compare.options:CompareOptions", "text"),
    "attention": Analysis("attention", "attention.options:AttentionOptions", "text"),
    "probe": Analysis("probe", "probing.options:ProbeOptions", "tags", needs=("property",)),
    "finetune": Analysis("finetune", "finetune.options:FinetuneOptions", "task", trains=True),
    "prune": Analysis("prune", "finetune.options:TrainingOptions", "task", trains=True, needs=("drop",)),
    "study finetuned": Analysis("study_finetuned", "finetuned.options:StudyOptions", "task"),
    "depth": Analysis("depth", "depth.options:DepthOptions", "task"),
    "cut": Analysis("cut", "cut.options:CutOptions", "task", needs=("budget",)),
    "study alignment": Analysis("align", "align.options:AlignOptions", "text"),
    "study recovery": Analysis("recovery", "align.options:RecoveryOptions", "rows"),
    "inject": Analysis("inject", "align.options:InjectOptions", "task", pairwise=True),
}
"""By the words of the command."""


@dataclass(frozen=True)
class Step:
    """One analysis, run once for every combination of what it is for."""

    name: str
    run: str
    """One of `ANALYSES`."""
    each: tuple[str, ...] = ()
    """Roles, `task` or what `vary` names."""
    models: tuple[str, ...] = ()
    """Roles, earlier steps (the models they made), or `random ROLE`, in the order that the analysis takes them."""
    across: str = ""
    """Earlier step whose models of other bases, made for the same task, are compared with this one's."""
    before: str = ""
    """Role whose models are those before fine-tuning."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """How one figure or table was made."""

    paper: str
    item: str
    title: str
    models: Mapping[str, tuple[str, ...]]
    """By role: the paper's."""
    data: str
    """What the paper used."""
    steps: tuple[Step, ...]
    pictures: tuple[str, ...]
    """Ids of what the pages of the steps show."""
    claims: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    unit: str | None = None
    measures: tuple[str, ...] = ()
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Options that are varied, with their values."""
    note: str = ""

    def analyses(self) -> list[Analysis]:
        """What its steps run."""
        return [ANALYSES[step.run] for step in self.steps]


def protocols() -> list[tuple[str, str]]:
    """Paper and item of every protocol there is, figures before tables, in the order of their numbers."""
    root = files("stratoscope") / PLACE
    items = [(p.name, f.name.removesuffix(".yaml")) for p in root.iterdir() if p.is_dir() for f in p.iterdir()]
    return sorted(items, key=lambda known: (known[0], known[1].rstrip("0123456789"), len(known[1]), known[1]))


def read_protocol(paper: str, item: str) -> Protocol:
    """The protocol of an item; an unknown paper or item is an error that names the nearest."""
    import yaml

    known = protocols()
    if paper not in {p for p, _ in known}:
        raise unknown_name("paper", paper, sorted({p for p, _ in known}))
    if (paper, item) not in known:
        raise unknown_name(f"item of {paper}", item, [i for p, i in known if p == paper])
    file = files("stratoscope") / PLACE / paper / f"{item}.yaml"
    return parse_protocol(yaml.safe_load(file.read_text(encoding="utf-8")), f"{paper}/{item}.yaml")


def parse_protocol(plain: Mapping[str, Any], where: str) -> Protocol:
    """A protocol from plain data; keys, analyses, options, roles and claims that do not exist are errors."""
    _known(plain, Protocol, where)
    steps = []
    for given in plain["steps"]:
        _known(given, Step, f"a step of {where}")
        steps.append(Step(**_frozen(given)))
    several: dict[str, Any] = {k: _frozen(plain.get(k, {})) for k in ("models", "vary")}
    protocol = Protocol(**{**_frozen(plain), **several, "steps": tuple(steps)})
    if f"{protocol.paper}/{protocol.item}.yaml" != where:
        raise StratoscopeError(f"{where} says that it is {protocol.item} of {protocol.paper}; rename one")
    _check(protocol, where)
    return protocol


def _frozen(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}


def _known(plain: Mapping[str, Any], cls: type, where: str) -> None:
    names = [f.name for f in fields(cls)]
    if strange := next((k for k in plain if k not in names), None):
        raise unknown_name(f"key in {where}", str(strange), names)


def _check(protocol: Protocol, where: str) -> None:
    _names(protocol.claims, [c.id for c in CLAIMS], f"claim in {where}")
    roles, earlier = [*protocol.models, TASK, *protocol.vary], list[str]()
    for step in protocol.steps:
        if step.run not in ANALYSES:
            raise unknown_name(f"analysis in {where}", step.run, ANALYSES)
        needs = ANALYSES[step.run].needs
        read_options(ANALYSES[step.run].options_class(), {k: v for k, v in step.options.items() if k not in needs})
        _names(step.each, roles, f"'each' of {where}")
        named = [m.removeprefix("random ") for m in (*step.models, *filter(None, [step.across, step.before]))]
        _names(named, [*protocol.models, *earlier], f"models of a step of {where}")
        earlier.append(step.name)


def _names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            raise unknown_name(what, name, known)
