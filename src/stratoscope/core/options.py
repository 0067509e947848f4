"""Options of an analysis: one dataclass that flags, YAML and keywords share, so that each is spelled once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from stratoscope.core.errors import unknown_name
from stratoscope.core.record import to_plain

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What is known of a field besides its type and default."""

    help: str
    """One line for `--help`."""
    flag: str | None = None
    """Name on the command line where it is not the field's own, such as `--measure` for `measures`."""
    short: str | None = None
    answer: bool = True
    """Whether the answer depends on it; how many workers compute it does not."""
    parse: Callable[[str], Any] | None = None
    """From the text typed on the command line or in YAML to the value."""
    hidden: bool = False
    """For Python only."""


def option(default: Any, help: str, **known: Any) -> Any:
    """A field of a dataclass of options, with one line of help; `known` as in `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(help, **known)})


def described(options: type) -> dict[str, tuple[dataclasses.Field[Any], Option]]:
    """The fields of a dataclass of options that users may set, by name."""
    known = {f.name: (f, f.metadata["option"]) for f in dataclasses.fields(options) if "option" in f.metadata}
    return {name: (f, o) for name, (f, o) in known.items() if not o.hidden}


def answering(options: Any) -> dict[str, Any]:
    """The options an answer depends on, as plain data: what two requests differ in."""
    fields = [f for f in dataclasses.fields(options) if "option" in f.metadata and f.metadata["option"].answer]
    return {f.name: to_plain(getattr(options, f.name)) for f in fields}


def changed(options: Any) -> dict[str, Any]:
    """The options that are not at their default, as plain data."""
    now = {f.name: (getattr(options, f.name), f.default) for f in dataclasses.fields(options)}
    return {name: to_plain(value) for name, (value, default) in now.items() if value != default}


def read_options(cls: type[T], given: Mapping[str, Any]) -> T:
    """Options from keywords; an unknown one is an error that names the nearest."""
    known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if strange := next((name for name in given if name not in known), None):
        raise unknown_name("option", strange, known)
    return cls(**given)
