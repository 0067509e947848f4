"""Commands from functions: a parameter that is a dataclass of options stands for a flag per field.

Every command also gets `--config`, `--json`, `--quiet` and `--verbose`. A command takes `progress` and `verbose` if
it has use for them, and hands back an `Answer`; how that is shown is decided here.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from stratoscope.cli.answer import Answer
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import Option, check_names, described, flag_of, read_options

CONFIG = f"{__name__}.config"
"""Where a context keeps the path of `--config`."""
OUT = "out"
"""The parameter that is a run folder; where a command has no default of its own, `default_folder` names one."""
COMMON = ("config", "json", "quiet", "verbose")
"""Parameters of every command, which no YAML sets."""
KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Command(TyperCommand):
    """A command whose arguments, too, may come from `--config`."""

    def make_parser(self, ctx: Any) -> Any:
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> tuple[dict[str, Any], list[str], Any]:
            opts, rest, order = parse(args)
            # An argument that takes several values and got none counts as given otherwise, and no default is asked for.
            return {name: value for name, value in opts.items() if value != ()}, rest, order

        parser.parse_args = parse_args
        return parser


def command(function: Callable[..., Answer]) -> Callable[..., None]:
    """A function as typer takes it: groups of options become flags, and the answer is shown."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    parsed: set[str] = set()
    signature = inspect.signature(function, eval_str=True)
    for parameter in signature.parameters.values():
        if parameter.name in ("progress", "verbose"):
            continue
        if parameter.name == OUT and parameter.default is parameter.empty:
            parameters += [_optional(parameter), inspect.Parameter("context", KEYWORD, annotation=typer.Context)]
            continue
        if not dataclasses.is_dataclass(parameter.annotation):
            parameters.append(parameter.replace(kind=KEYWORD))
            continue
        group: Any = parameter.annotation
        groups[parameter.name] = group
        hints = get_type_hints(group)
        parameters += [_flag(f, hints[name], known) for name, (f, known) in described(group).items()]
        parsed |= {name for name, (_, known) in described(group).items() if known.parse}
    parameters += _common(parsed)
    if twice := {p.name for p in parameters if [q.name for q in parameters].count(p.name) > 1}:
        raise ValueError(f"{function.__name__}: expected every option once, got {', '.join(sorted(twice))} twice")

    @wraps(function)
    def call(**given: Any) -> None:
        from stratoscope.cli.console import Console, show

        shown = {name: given.pop(name) for name in COMMON}
        if shown["quiet"] and shown["verbose"]:
            raise StratoscopeError("expected --quiet or --verbose, got both")
        made: dict[str, Any] = {
            name: read_options(group, {field: given.pop(field) for field in described(group)})
            for name, group in groups.items()
        }
        for options in made.values():
            check_names(options)
        context = given.pop("context", None)
        with Console(quiet=shown["quiet"], verbose=shown["verbose"]) as console:
            own = {"progress": console, "verbose": shown["verbose"]}
            given |= {name: own[name] for name in own if name in signature.parameters} | made
            if context is not None and given[OUT] is None:
                from stratoscope.cli.folders import default_folder, in_free_folder

                first = default_folder(context.command_path.partition(" ")[2], *_named(signature, given))
                answer = in_free_folder(lambda out: function(**{**given, OUT: out}), first, console)
            else:
                answer = function(**given)
        show(answer, as_json=shown["json"], quiet=shown["quiet"])

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _optional(out: inspect.Parameter) -> inspect.Parameter:
    """The run folder as a flag that may be left out."""
    kind, option = get_args(out.annotation)
    option = copy.copy(option)
    option.help = f"{option.help.rstrip('.')}; by default runs/<command>-<names>."
    return _parameter(OUT, kind | None, None, option)


def _named(signature: inspect.Signature, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """All arguments in the order of the command, those of groups too, and the labels given to the models."""
    ordered: dict[str, Any] = {}
    for name in signature.parameters:
        value = given[name]
        ordered |= vars(value) if dataclasses.is_dataclass(value) else {name: value}
    return ordered, ordered.get("name", ())


def _flag(f: dataclasses.Field[Any], hint: Any, known: Option) -> inspect.Parameter:
    """The parameter of an option."""
    flag, kind = flag_of(f.name, known), hint
    default: Any = f.default
    if known.parse is not None:  # the default is text as well: it is parsed like what is typed
        kind, default = str | None, ",".join(map(str, default)) if isinstance(default, tuple) else default
    elif get_origin(hint) is tuple:
        kind, default = list[str], list(default)
    elif default is True:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    spellings = [flag] if known.short is None else [flag, known.short]
    completion = _completion(known.choices) if known.choices else None
    return _parameter(f.name, kind, default, typer.Option(*spellings, help=known.help, autocompletion=completion))


def _completion(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """What a shell offers for the beginning of a name."""

    def offered(incomplete: str) -> list[str]:
        return [name for name in choices if name.startswith(incomplete)]

    return offered


def _parameter(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, KEYWORD, default=default, annotation=Annotated[kind, option])


def _common(parsed: set[str]) -> list[inspect.Parameter]:
    """What every command has; `parsed` are options read from text, for which a YAML list is joined."""

    def configure(ctx: typer.Context, value: Path | None) -> Path | None:
        if value is not None:
            ctx.meta[CONFIG] = value
            ctx.default_map = _defaults(ctx, value, parsed)
        return value

    config = typer.Option("--config", help="YAML with arguments and options, such as a run's run.yaml; flags win.",
                          is_eager=True, callback=configure)  # fmt: skip
    texts = {
        "json": "Print one JSON document and nothing else.",
        "quiet": "Print the answer only: no progress, no notes.",
        "verbose": "Report all details, warnings of libraries and the time of every step too.",
    }
    flags = [_parameter(name, bool, False, typer.Option(f"--{name}", help=text)) for name, text in texts.items()]
    return [_parameter("config", Path | None, None, config), *flags]


def _defaults(ctx: Any, path: Path, parsed: set[str]) -> dict[str, Any]:
    """What `--config` says, as if it were typed, by the name of the parameter."""
    from stratoscope.runs.protocol import read_protocol

    known = {p.name: p for p in ctx.command.params if p.name not in (*COMMON, "help")}
    given: Mapping[str, Any] = read_protocol(path, command=ctx.command_path.partition(" ")[2], known=known)
    return {
        name: _typed(known[name], value, joined=name in parsed, where=f"--config {path}")
        for name, value in given.items()
        if value is not None
    }


def _typed(param: Any, value: Any, *, joined: bool, where: str) -> Any:
    """A value from YAML as the command line would give it; what cannot be meant is refused."""
    if getattr(param, "is_flag", False):
        if not isinstance(value, bool):
            raise StratoscopeError(f"{where}: expected {param.name} as true or false, got '{value}'")
        return value
    several = param.multiple if param.param_type_name == "option" else param.nargs != 1
    values = value if isinstance(value, list) else [value]
    if not (several or joined or not isinstance(value, list)):
        raise StratoscopeError(f"{where}: expected {param.name} as one value, got a list of {len(values)}")
    for one in values:
        if isinstance(one, bool | dict | list) or one is None:
            raise StratoscopeError(f"{where}: expected {param.name} as text or a number, got '{one}'; quote a text")
    texts = [str(one) for one in values]
    return texts if several else ",".join(texts)
