"""Every layer of every model under every measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratoscope.core.errors import unknown_name
from stratoscope.core.matrix import Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Array
from stratoscope.results.result import Result


@dataclass(frozen=True)
class Comparison(Result, Mapping[str, Matrix]):
    """Every layer of every model under every measure asked for; behaves as a mapping from measure name to matrix."""

    KIND = "comparison"

    matrices: tuple[Matrix, ...]
    models: tuple[ModelInfo, ...]
    data: Mapping[str, Any]
    """Name, fingerprint, columns and split asked for, unit, numbers of sentences and rows, and what was dropped."""
    findings: Mapping[str, Any] = field(default_factory=dict)
    """Numbers derived from the matrices: block structure and localization scores."""
    arrays: Mapping[str, Array] = field(default_factory=dict, metadata={"stored": "arrays"})
    """Large companions, such as the matched neuron of every neuron."""

    def __getitem__(self, measure: str) -> Matrix:
        for m in self.matrices:
            if m.measure == measure:
                return m
        raise unknown_name("measure in this result", measure, self)

    def __iter__(self) -> Iterator[str]:
        return (m.measure for m in self.matrices)

    def __len__(self) -> int:
        return len(self.matrices)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self)} of {', '.join(m.name for m in self.models)})"
