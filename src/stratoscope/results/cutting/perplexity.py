"""A decoder's perplexity at every depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Value
from stratoscope.results.result import Result

MOST = 1e6
"""Perplexities, and ratios of them, beyond this are all alike: nothing is predicted any more."""


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
class Skipped:
    """Perplexity with blocks first..last skipped, over the whole model's."""

    first: int
    """From 1."""
    last: int
    ratio: Value
    """With its interval over the texts, both models on the same ones."""
    agreement: float
    """Share of tokens of which both models say the same first."""


@dataclass(frozen=True)
class Perplexities(Result, Sequence[Perplexity]):
    """Perplexity with 0, 1, ..., L blocks; behaves as a sequence of them."""

    KIND = "perplexity"

    model: ModelInfo
    corpus: Mapping[str, Any]
    """Name, fingerprint and number of texts."""
    points: tuple[Perplexity, ...]
    spans: tuple[Skipped, ...] = ()
    """Every span that was skipped, shortest first."""
    span_texts: int = 0
    """Texts on which spans were skipped."""

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


def times(value: Value) -> str:
    """A ratio of perplexities as it is said: `1.07x [1.05, 1.09]`; one beyond all use is `>1e6x`."""
    if not value.value <= MOST:
        return ">1e6x"

    def said(x: float) -> str:
        return ">1e6" if x > MOST else f"{x:,.0f}" if x >= 100 else f"{x:.{2 if x >= 10 else 3}f}"

    return f"{said(value.value)}x{f' [{said(value.low)}, {said(value.high)}]' if value.has_interval else ''}"
