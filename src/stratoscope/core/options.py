"""Options of an analysis: one dataclass that flags, YAML and keywords share, so that each is spelled once.

Kept free of heavy imports, as are the dataclasses themselves: `--help` reads them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.names import ALIASES

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
    """Whether the answer depends on it; on the column of the text it does through the rows only."""
    work: bool = False
    """Whether it is only about how the work is done, as the number of workers is."""
    parse: Callable[[str], Any] | None = None
    """From the text typed on the command line or in YAML to the value."""
    hidden: bool = False
    """For Python only."""
    least: float | None = None
    """Smallest value allowed."""
    most: float | None = None
    """Largest value allowed: what is beyond it would never end."""
    choices: tuple[str, ...] = ()
    """The names there are, where it takes one or several of them; a measure may have `@fraction` behind its name."""


def option(default: Any, help: str, **known: Any) -> Any:
    """A field of a dataclass of options, with one line of help; `known` as in `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(help, **known)})


def described(options: type) -> dict[str, tuple[dataclasses.Field[Any], Option]]:
    """The fields of a dataclass of options that users may set, by name."""
    known = {f.name: (f, f.metadata["option"]) for f in dataclasses.fields(options) if "option" in f.metadata}
    return {name: (f, o) for name, (f, o) in sorted(known.items(), key=lambda n: n[1][1].work) if not o.hidden}


def answering(options: Any) -> dict[str, Any]:
    """The options an answer depends on: what two requests differ in."""
    known = {f.name: f.metadata["option"] for f in dataclasses.fields(options) if "option" in f.metadata}
    return {name: getattr(options, name) for name, o in known.items() if o.answer and not o.work}


def changed(options: Any) -> dict[str, Any]:
    """The options that are not at their default: what `run.yaml` says of them."""
    now = {f.name: (getattr(options, f.name), f.default) for f in dataclasses.fields(options)}
    return {name: value for name, (value, default) in now.items() if value != default}


def flag_of(name: str, known: Option) -> str:
    """The spelling on the command line of the field with this name."""
    return known.flag or f"--{name.replace('_', '-')}"


def typed(options: Any) -> list[str]:
    """The words that ask for the same options again on the command line; those at their default are left out."""
    words: list[str] = []
    now = changed(options)
    for name, (_, known) in described(type(options)).items():
        if name not in now:
            continue
        flag, value = flag_of(name, known), now[name]
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif isinstance(value, tuple) and known.parse is None:
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return words


def said(options: Any) -> dict[str, Any]:
    """The options that were given and are about the question: what a difference of two requests is explained by."""
    known = described(type(options))
    return {name: value for name, value in changed(options).items() if name in known and not known[name][1].work}


def read_options(cls: type[T], given: Mapping[str, Any]) -> T:
    """Options from keywords, YAML or flags; an unknown one is an error that names the nearest.

    Text is parsed where an option says how; where several values are expected, one alone and a list will do.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if strange := next((name for name in given if name not in fields), None):
        raise unknown_name("option", strange, sorted(fields, key=lambda name: name in WHERE))
    hints = get_type_hints(cls)
    return cls(**{name: _fitted(value, hints[name], fields[name]) for name, value in given.items()})


def _fitted(value: Any, hint: Any, f: dataclasses.Field[Any]) -> Any:
    known = f.metadata.get("option")
    if isinstance(value, str) and known is not None and known.parse is not None:
        return known.parse(value)
    if value is None or not any(get_origin(kind) is tuple for kind in (hint, *get_args(hint))):
        return value
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def check_names(options: Any) -> None:
    """Refuse a name that an option does not know; commands do before they import anything heavy."""
    for name, (_, known) in described(type(options)).items():
        value = getattr(options, name)
        for one in (value if isinstance(value, tuple) else (value,)) if known.choices else ():
            flag, base = flag_of(name, known), one.partition("@")[0]
            if isinstance(value, tuple) and "," in one:
                several = " ".join(f"{flag} {n.strip()}" for n in one.split(",") if n.strip())
                raise StratoscopeError(f"expected one {flag[2:]}, got '{one}'; repeat the option instead: {several}")
            if ALIASES.get(base, base) not in known.choices:
                raise unknown_name(flag.removeprefix("--"), base, known.choices)


def check_options(options: Any) -> None:
    """Refuse numbers that are none, or not between the least and the most that an option allows."""
    for f in dataclasses.fields(options):
        known, value = f.metadata.get("option"), getattr(options, f.name)
        if known is None or (known.least, known.most) == (None, None) or value is None:
            continue
        flag = flag_of(f.name, known)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise StratoscopeError(f"expected {flag} as a number, got '{value}'")
        if known.least is not None and value < known.least:
            raise StratoscopeError(f"expected {flag} of at least {known.least:g}, got {value:g}")
        if known.most is not None and value > known.most:
            raise StratoscopeError(f"expected {flag} of at most {known.most:,.0f}, got {value:,}")
    number = getattr(options, "seed", 0)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
        raise StratoscopeError(f"expected a --seed of at least 0 and below 2^63, got {number}")


BYTES = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parse_bytes(text: str) -> float:
    """Read a size such as `4GB`, `800M` or `1e9`."""
    number = r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[0-9]+)?)"
    match = re.fullmatch(rf"\s*{number}\s*([KMGT]?)i?B?\s*", str(text), flags=re.IGNORECASE)
    size = float(match[1]) * BYTES[match[2].upper()] if match else 0.0
    if not 0 < size < math.inf:
        raise StratoscopeError(f"expected a size such as 4GB or 800MB, got '{text}'")
    return size


def parse_layers(text: str) -> tuple[int, ...]:
    """Read layers such as `0,3-6` (inclusive)."""
    layers: set[int] = set()
    for piece in str(text).split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4}))?\s*", piece)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise StratoscopeError(f"expected layers such as '0,3-6', got '{text}'")
        layers |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(layers))


# Fields that several analyses have, spelled once: each call makes a field of its own, as a dataclass wants it.
seed = partial(option, 0, "Seed of every random choice.")
length = partial(option, None, "Truncate texts to N tokens; by default as in fine-tuning.")
batch_tokens = partial(option, None, "Largest number of tokens in a batch.", work=True, least=1)
memory = partial(
    option, None, "Memory to work in, e.g. 4GB; by default half of the machine's.", work=True, parse=parse_bytes
)
workers = partial(option, None, "Number of processes; by default one per core.", work=True, least=1)
overwrite = partial(option, False, "Replace another result in the folder.", work=True)


MOST_REPLICATES = 10_000
"""Of a bootstrap: an interval gains nothing from more, and all are kept with the result."""
bootstrap = partial(option, least=0, most=MOST_REPLICATES)


WHERE = ("workers", "engine", "shard", "merge")
"""The fields of `Working`, which come last in every list."""
LOCAL, RAY = "local", "ray"
ENGINES = (LOCAL, RAY)


@dataclass(frozen=True, kw_only=True)
class Working:
    """Where the work of any analysis is done; no answer depends on it."""

    workers: int | None = workers()
    engine: str = option(
        LOCAL, "Where to work: local, or ray (the cluster at RAY_ADDRESS, else a local one).", work=True
    )
    shard: str | None = option(
        None, "Work beside other shards on one folder, e.g. 3/8 in a job array; any of them finishes.", work=True
    )
    merge: bool = option(False, "Make what shards left undone and write the result.", work=True)
