"""Errors a user can act on: each says what was expected, what was got, and what to do."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

OPTION = re.compile(r"--[a-z][a-z-]*")


class StratoscopeError(Exception):
    """Bad input or a state the user can mend; the CLI prints it as one sentence and exits with code 2.

    `ways` are what to do about it, any of which will do; advice that names an option belongs here rather than into the
    fact, so that it is left out where there is no such option.
    """

    tables: Mapping[str, Sequence[Mapping[str, Any]]] = {}
    """Plain rows that show why, by name: printed above the sentence."""

    def __init__(self, fact: str, *ways: str) -> None:
        super().__init__(fact, *ways)
        self.fact = fact
        self.ways = ways

    def __str__(self) -> str:
        *others, last = self.ways or ("",)
        advice = f"{', '.join(others)} or {last}" if others else last
        return f"{self.fact}; {advice}" if advice else self.fact

    def where(self, has: Callable[[str], bool]) -> Self:
        """The same error for a place that `has` some options only: what names another is no way there."""
        error = copy.copy(self)
        error.ways = tuple(way for way in self.ways if all(map(has, OPTION.findall(way))))
        return error


class ForeignResultError(StratoscopeError):
    """A result this version cannot read though nothing is wrong with it; never taken for a damaged one."""


class DamagedResultError(StratoscopeError):
    """A result of ours whose checksum or content is wrong; the run that made it makes it again."""


class AnotherResultError(StratoscopeError):
    """A folder holds the result of another request, which is not replaced unasked."""

    digest = ""
    """Of the request that was made."""


class InUseError(StratoscopeError):
    """A folder that another run holds; it ends by itself."""


class UnknownNameError(StratoscopeError, KeyError):
    """A name that is not in a table; also a KeyError, so that mappings behave (`in`, `get`)."""


def unknown_name(kind: str, got: str, choices: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that is not in a table, with the nearest name and all choices."""
    names = list(choices)
    near = [n for n in names if n.lower() == got.lower()] or difflib.get_close_matches(got, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UnknownNameError(f"unknown {kind} '{got}'; {hint}choose from: {', '.join(names)}")
