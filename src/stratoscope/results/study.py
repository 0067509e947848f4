"""A study of fine-tuning: a base model, what was tuned from it, and everything measured of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.model import ModelInfo
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.cut import Cut
from stratoscope.results.cutting.depth import Depth
from stratoscope.results.result import Result

LOCALIZATION = "localization"


@dataclass(frozen=True)
class Study(Result):
    """A base model, what was tuned from it, and everything that was measured; `study["cls"]` is a comparison."""

    KIND = "study"

    comparisons: Mapping[str, Comparison]
    """By unit: the base, the tuned models, those across and the control."""
    base: str
    tuned: tuple[str, ...]
    """At least one; the first is FT, and with the second FT[1] and FT[2]."""
    control: str | None = None
    """The base's architecture with fresh weights."""
    depth: Depth | None = None
    """Of the first tuned model."""
    cut: Cut | None = None
    """Of the first tuned model, where one was made."""
    refused: str = ""
    """Why nothing was cut, where it was tried."""
    across: tuple[str, ...] = ()
    """Other models, of any family: compared with the first tuned one, never said to be made from the base."""
    localization: Comparison | None = None
    """Of words under neuronsim and svsim, without those across."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tuned:
            raise StratoscopeError("expected at least one fine-tuned model, got none; name it after the base model")

    def __getitem__(self, unit: str) -> Comparison:
        if unit not in self.compared:
            raise unknown_name("part of this study", unit, self.compared)
        return self.compared[unit]

    @property
    def models(self) -> tuple[ModelInfo, ...]:
        """Every model of the comparisons, once."""
        return tuple(dict.fromkeys(m for c in self.compared.values() for m in c.models))

    @property
    def compared(self) -> dict[str, Comparison]:
        """All comparisons, by unit, and that of words for localization."""
        return {**self.comparisons, **({LOCALIZATION: self.localization} if self.localization else {})}
