"""What long work reports while it runs; the CLI draws it, library calls stay silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Progress(Protocol):
    """Somewhere to show how far a long step is."""

    def step(self, label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Open a step of `total` units; the context yields `advance(n)`."""
        ...

    def note(self, message: str) -> None:
        """Tell the user one fact worth knowing."""
        ...


class Silent:
    """Progress that shows nothing."""

    @contextmanager
    def step(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda n: None

    def note(self, message: str) -> None:
        pass


_inside: ContextVar[Callable[[int], None] | None] = ContextVar("inside", default=None)


def advanced(n: int) -> None:
    """Report `n` units of the item that is being worked on; in another process nobody listens."""
    if (advance := _inside.get()) is not None:
        advance(n)


@contextmanager
def inside(advance: Callable[[int], None]) -> Iterator[None]:
    """Listen to what items that are worked on in this process report."""
    token = _inside.set(advance)
    try:
        yield
    finally:
        _inside.reset(token)
