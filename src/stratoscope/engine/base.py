"""The whole contract of an engine.

Work is a top-level function of what all items share and of one item of plain data, and gives back what it makes, so
that an engine on another machine only has to implement `map`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from stratoscope.core.progress import Progress

Item = TypeVar("Item")
Out = TypeVar("Out")


@dataclass(frozen=True)
class Resources:
    """What one item takes of the machine it runs on."""

    cpus: float = 1
    """Cores, and so many threads."""
    gpus: float = 0
    memory: float = 0
    """Bytes that are set aside for it; 0 where it keeps to the share of a worker."""
    model: bool = False
    """Opens a model, which the worker keeps for the next item that asks for it."""
    threaded: bool = False
    """Makes good use of all threads of a machine: a pool of processes on one machine leaves it to this process."""
    here: bool = False
    """Needs what only this process has, such as a model in its memory."""


class Engine(Protocol):
    """Runs a pure function over items."""

    @property
    def workers(self) -> int:
        """How many items run at once."""
        ...

    @property
    def memory(self) -> float | None:
        """Bytes that all workers' machines have; None for those of this one."""
        ...

    def attach(self, folder: Path, progress: Progress) -> None:
        """Before the first map: refuse a folder of parts that a worker cannot read."""
        ...

    def map(
        self,
        work: Callable[[Any, Item], Out],
        items: Iterable[Item],
        shared: Any = None,
        resources: Resources = Resources(),
    ) -> Iterator[tuple[int, Out]]:
        """Yield (position of the item, `work(shared, item)`) as results arrive, in any order.

        Items are taken one by one, as workers get free.
        """
        ...

    def close(self) -> None:
        """Let go of the workers."""
        ...


kept: dict[str, Any] = {}
"""What items with `Resources.model` left for the next, by a name that says all it was made from: in a worker for any
map, in this process for the same one."""
