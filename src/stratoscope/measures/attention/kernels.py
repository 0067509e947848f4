"""Loops over pairs of heads: compiled where numba is installed, and shared among threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

import torch


@cache
def _module() -> Any:
    try:
        return import_module("stratoscope.measures.attention.compiled")
    except ImportError:
        return None


def kernel(name: str, compiled: bool | None = None) -> Callable[..., None] | None:
    """A compiled loop by name; None without numba, or where numpy is asked for (`compiled` False)."""
    module = None if compiled is False else _module()
    if compiled and module is None:
        raise ValueError("numba is not installed")
    return getattr(module, name, None)


def in_threads(fill: Callable[[int, int], None], threads: int | None = None) -> None:
    """Call `fill` with the first row and the step of each thread's share; as many threads as torch has unless given."""
    threads = threads or torch.get_num_threads()
    if threads == 1:
        fill(0, 1)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, range(threads), [threads] * threads))
