"""A decoder's perplexity at every depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Value
from stratoscope.results.result import Result


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of one depth on a text, with its interval over the texts."""

    value: float
    low: float
    high: float
    tokens: int
    """Tokens that were predicted."""
    texts: int
    cut: int
    """Texts of which only the first tokens were read."""

    @property
    def point(self) -> Value:
        """The number with its interval."""
        return Value(self.value, self.low, self.high)


@dataclass(frozen=True)
class Perplexities(Result, Sequence[Perplexity]):
    """Perplexity with 0, 1, ..., L blocks; behaves as a sequence of them."""

    KIND = "perplexity"

    model: ModelInfo
    corpus: Mapping[str, Any]
    """Name, fingerprint and number of texts."""
    points: tuple[Perplexity, ...]

    @overload
    def __getitem__(self, k: int) -> Perplexity: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Perplexity]: ...
    def __getitem__(self, k: int | slice) -> Perplexity | Sequence[Perplexity]:
        return self.points[k]

    def __iter__(self) -> Iterator[Perplexity]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)
