"""The whole contract of an engine.

Work is a top-level function of what all items share and of one item of plain data, and gives back what it makes, so
that an engine on another machine only has to implement `map`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Out = TypeVar("Out")


class Engine(Protocol):
    """Runs a pure function over items."""

    @property
    def workers(self) -> int:
        """How many items run at once."""
        ...

    def map(
        self, work: Callable[[Any, Item], Out], items: Sequence[Item], shared: Any = None
    ) -> Iterator[tuple[int, Out]]:
        """Yield (position of the item, `work(shared, item)`) as results arrive, in any order."""
        ...

    def close(self) -> None:
        """Let go of the workers."""
        ...
