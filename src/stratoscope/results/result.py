"""What every result has: statements, warnings and provenance; how it is saved, loaded, drawn and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from stratoscope.core import record
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.statement import Statement
from stratoscope.runs.kinds import KINDS, Kind, kind_in, kind_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP = "map.json"
"""What a saved map is known by (`aligners.maps.Map`): no result of a run, so it has no kind."""


class Statements(tuple[Statement, ...]):
    """Statements that show themselves: a line each at a prompt, a table in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "no statements"

    def _repr_html_(self) -> str:
        html: str = import_module("stratoscope.report.page").statement_table(self)
        return html


@dataclass(frozen=True, kw_only=True)
class Result:
    """The common part of all results."""

    KIND: ClassVar[str]
    """Name of the row of `runs.kinds.KINDS`."""

    statements: tuple[Statement, ...] = ()
    """Published claims judged on this result."""
    warnings: tuple[str, ...] = ()
    """What a reader should know before trusting the numbers."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Request, code, versions, devices, seeds and options: how to run it again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "statements", Statements(self.statements))

    @classmethod
    def kind(cls) -> Kind:
        """The row of this kind."""
        return kind_named(cls.KIND)

    def save(self, folder: str | Path) -> None:
        """Write the result into a folder, whole or not at all, with its own checksum."""
        kind = self.kind()
        record.save(self, Path(folder) / kind.file, kind=kind.name, format=kind.format)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a saved result; a missing, foreign or damaged one is an error that says which. Needs no model."""
        kind = cls.kind()
        path = Path(folder) / kind.file
        if not path.is_file():
            raise kind.missing(folder)
        result = record.load(cls, path, kind=kind.name, format=kind.format)
        own: dict[str, Any] = {"folder": Path(folder)} if hasattr(result, "folder") else {}
        return replace(result, **own)

    def plot(self) -> Figure:
        """The first picture of the result's page."""
        figure: Figure = import_module("stratoscope.report.draw").first_figure(self)
        return figure

    def _repr_html_(self) -> str:
        html: str = import_module("stratoscope.report.page").notebook(self)
        return html


def load(folder: str | Path) -> Any:
    """The result that a folder holds, of any kind, or the map that was saved to it; needs no model."""
    folder = Path(folder)
    if (folder / MAP).is_file():
        return import_module("stratoscope.aligners.maps").Map.load(folder)
    kind = kind_in(folder)
    if kind is not None:
        return kind.load_class().load(folder)
    files = ", ".join(k.file for k in KINDS)
    inside = [f.name for f in sorted(folder.iterdir()) if f.is_dir() and kind_in(f)] if folder.is_dir() else []
    hint = f"; give a folder inside it, such as {folder / inside[0]}" if inside else ""
    raise StratoscopeError(f"{folder} holds no result (expected one of {files}){hint or '; check the path'}")
