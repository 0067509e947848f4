"""A wrong command line in one sentence, as any other bad input: what was expected, what was got, where to look."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from stratoscope.core.errors import StratoscopeError, unknown_name

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""Click's class, or that of the copy of click which newer versions of typer bring."""
CHOSEN = f"{__name__}.chosen"
"""Where a context keeps the command that runs."""


class Commands(TyperGroup):
    """A group of commands: without a name it shows its help, and for an unknown one it names the nearest.

    An error on its way out is told what the command has: it advises no option of another.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise unknown_name("command", args[0], self.list_commands(ctx))
        resolved = super().resolve_command(ctx, args)
        ctx.meta[CHOSEN] = resolved[1]  # shared by the contexts of nested groups: the innermost is the last to say
        return resolved

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StratoscopeError as e:
            if CHOSEN not in ctx.meta:
                raise
            options = _options(ctx.meta[CHOSEN])
            raise e.where(lambda option: option in options) from e


def usage_sentence(error: Any, words: Sequence[str]) -> str:
    """What is wrong with `words`, the command line that gave this `UsageError`."""
    see = "" if error.ctx is None else f"; see '{error.ctx.command_path} --help'"
    # Kinds are told apart by what they carry, since their classes have no public name.
    if hasattr(error, "possibilities"):
        return f"unknown option '{error.option_name}'; {_nearest(error)}see '{error.ctx.command_path} --help'"
    if hasattr(error, "option_name"):
        given = _given(words, [error.option_name])
        if given is None:
            return f"expected a value after {error.option_name}, got none{see}"
        return f"expected {error.option_name} without a value, got '{given}'; leave the value out"
    param = getattr(error, "param", None)
    if param is not None and hasattr(error, "param_type"):
        return f"expected {_name(param)} ({str(param.help).rstrip('.')}), got none{see}"
    if param is not None and (given := _given(words, param.opts)) is not None:
        return f"expected {_name(param)} as {_number(given)}, got '{given}'{see}"
    if param is not None and (said := _configured(error)) is not None:
        return f"expected {param.name} as {_number(said)}, got '{said}' in --config{see}"
    if extra := re.search(r"extra arguments?(?:\(s\))? \((.*)\)", error.message):
        return f"expected no further argument, got '{extra[1]}'{see}"
    said = error.format_message().rstrip(".")
    return f"{said[:1].lower()}{said[1:]}{see}"


def _nearest(error: Any) -> str:
    """The option most like the one given; all begin with dashes, so these do not count as likeness."""
    options = {option.lstrip("-"): option for option in _options(error.ctx.command)}
    near = difflib.get_close_matches(error.option_name.lstrip("-"), options, n=1)
    return f"did you mean '{options[near[0]]}'? " if near else ""


def _options(command: Any) -> list[str]:
    return [o for param in command.params for o in param.opts + param.secondary_opts if o.startswith("-")]


def _given(words: Sequence[str], options: Sequence[str]) -> str | None:
    """The value that the last of these options has on the command line."""
    for k in range(len(words) - 1, -1, -1):
        name, equals, value = words[k].partition("=")
        if name in options:
            return value if equals else next(iter(words[k + 1 :]), None)
    return None


def _configured(error: Any) -> str | None:
    """The value of a parameter that `--config` gave."""
    value = ((error.ctx and error.ctx.default_map) or {}).get(error.param.name)
    return None if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def _name(param: Any) -> str:
    """A parameter as its command's help shows it."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name)
    return str(max(param.opts, key=len))


def _number(given: str) -> str:
    """What an option takes that refused a value: numbers alone can, so a value that is one had to be whole."""
    try:
        float(given)
    except ValueError:
        return "a number"
    return "a whole number"
