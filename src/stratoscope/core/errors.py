"""Errors a user can act on: each says what was expected, what was got, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StratoscopeError(Exception):
    """Bad input or a state the user can mend; the CLI prints it as one sentence and exits with code 2."""


class ForeignResultError(StratoscopeError):
    """A result this version cannot read though nothing is wrong with it; never taken for a damaged one."""


class UnknownNameError(StratoscopeError, KeyError):
    """A name that is not in a table; also a KeyError, so that mappings behave (`in`, `get`)."""

    def __str__(self) -> str:  # KeyError would show its message in quotes
        return Exception.__str__(self)


def unknown_name(kind: str, got: str, choices: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that is not in a table, with the nearest name and all choices."""
    names = list(choices)
    near = difflib.get_close_matches(got, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UnknownNameError(f"unknown {kind} '{got}'; {hint}choose from: {', '.join(names)}")
