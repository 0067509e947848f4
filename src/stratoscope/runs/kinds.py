"""The kinds of thing a folder may hold, one row each: its file, its class, its command and what its page shows."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError


@dataclass(frozen=True)
class Kind:
    """One kind of folder. Classes and functions are named, not imported: a row costs nothing until it is used."""

    name: str
    file: str
    """A folder with this file is of this kind."""
    what: str
    """What such a folder holds, for sentences."""
    command: str
    """The command that makes it."""
    format: int = 1
    """Raised when an older reader would misunderstand; fields that are only added do not raise it."""
    result: str = ""
    """`module:Class` of the result, a dataclass."""
    sections: str = ""
    """`module:function` from a result to the sections of its page; empty for a kind without one."""

    def load_class(self) -> Any:
        """The class of the result."""
        return _named(self.result)

    def load_sections(self) -> Any:
        """The function that makes the sections."""
        return _named(self.sections)

    def missing(self, folder: str | Path) -> StratoscopeError:
        """The error for a folder that should be of this kind and is not."""
        return StratoscopeError(
            f"no {self.file} in {folder}; run 'stratoscope {self.command} ... --out {folder}' first"
        )


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _row(
    name: str, file: str, what: str, command: str, cls: str, *, at: str = "", format: int = 1, page: str = "sections"
) -> Kind:
    """A row whose class and sections stand in modules of the same name, `at` or the kind's own."""
    sections = f"stratoscope.report.sections.{at or name}:{page}" if page else ""
    return Kind(name, file, what, command, format, f"stratoscope.results.{at or name}:{cls}", sections)


KINDS: tuple[Kind, ...] = (
    _row("study", "study.json", "a study", "study finetuned", "Study", format=2),
    _row("diff", "diff.json", "what fine-tuning changed", "diff", "Diff"),
    _row("depth", "depth.json", "a model judged at every depth", "depth", "Depth", format=2, at="cutting.depth"),
    _row("reproduction", "reproduction.json", "a reproduction", "reproduce", "Reproduction"),
    _row("comparison", "result.json", "a comparison", "compare", "Comparison", format=3),
    _row("attention", "attention.json", "a comparison of attention", "attention", "Attention"),
    _row(
        "perplexity", "perplexity.json", "perplexities", "perplexity", "Perplexities", format=2, at="cutting.perplexity"
    ),
    _row("alignment", "alignment.json", "maps between models", "align", "Alignment"),
    _row(
        "injection",
        "injection.json",
        "injected states",
        "inject",
        "Injection",
        at="alignment",
        page="injection_sections",
    ),
    _row(
        "recovery",
        "recovery.json",
        "a recovered bijection",
        "study recovery",
        "Recovery",
        at="alignment",
        page="recovery_sections",
    ),
    _row("probing", "probing.json", "probes of layers", "probe", "Probing", format=2),
    _row("weights", "weights.json", "a comparison of weights", "weights", "Weights"),
    _row("cut", "cut.json", "a cut model", "cut", "Cut", format=2, at="cutting.cut"),
    _row("decoder", "decoder.json", "a cut decoder", "cut", "CutDecoder", at="cutting.decoder"),
    _row("finetuned", "finetune.json", "a fine-tuned model", "finetune", "Finetuned", format=2, page=""),
    _row("pruned", "prune.json", "a pruned model", "prune", "Pruned", format=2, page="", at="cutting.pruned"),
)
"""Every kind; where a folder has the files of two, as a study with a cut has, the first tells what it is."""


def kind_named(name: str) -> Kind:
    """The row with this name."""
    return next(kind for kind in KINDS if kind.name == name)


def kind_in(folder: Path) -> Kind | None:
    """What a folder of ours holds; None when it holds nothing of ours."""
    return next((kind for kind in KINDS if (folder / kind.file).is_file()), None)
