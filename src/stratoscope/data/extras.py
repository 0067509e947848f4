"""Packages only some sources need, imported when they do, and what they say when they fail."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from stratoscope.core.errors import StratoscopeError


def optional_module(name: str, *, extra: str, wanted_for: str) -> Any:
    """Import a module of an optional dependency, or say which extra of ours installs it."""
    try:
        return import_module(name)
    except ImportError as e:
        package = name.partition(".")[0]
        raise StratoscopeError(
            f"{wanted_for} needs the package {package}, which is not installed; run: pip install 'stratoscope[{extra}]'"
        ) from e


def first_line(error: Exception) -> str:
    """What another package's error says, in short."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
