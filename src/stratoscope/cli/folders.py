"""Where a run goes that was given no `--out`: `runs/<command>-<names>`, or beside it if that holds another result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stratoscope.core.errors import AnotherResultError
from stratoscope.models.open.checkpoints import label_of
from stratoscope.report.labels import slugs

if TYPE_CHECKING:
    from stratoscope.core.progress import Progress

ROOT = "runs"
NAMING = (("paper", "item"), ("tuned",), ("models",), ("first", "second"), ("model",), ("base", "task"))
"""Parameters that name a run, the first of these that were given: what is studied rather than what it came from."""
R = TypeVar("R")


def default_folder(command: str, given: Mapping[str, Any], labels: Sequence[str] = ()) -> Path:
    """`runs/diff-tuned` of `diff base tuned`; `given` are the arguments in order, `labels` those of `--name`."""
    named = {parameter for group in NAMING for parameter in group}
    several = {k: v if isinstance(v, list) else [v] for k, v in given.items() if k in named and v}
    sources = [(k, str(value)) for k, values in several.items() for value in values]
    known = [(k, label or _label(source)) for (k, source), label in zip_longest(sources, labels[: len(sources)])]
    chosen: Sequence[str] = next((group for group in NAMING if any(k in group for k, _ in known)), ())
    words = "-".join([*command.split(), *(name for k, name in known if k in chosen)])
    return Path(ROOT) / slugs([words])[words]


def _label(source: str) -> str:
    try:
        return label_of(source)
    except (OSError, RuntimeError, ValueError):  # a name that no file system takes: whoever opens it says so
        return Path(source).name


def in_free_folder(call: Callable[[Path], R], first: Path, progress: Progress) -> R:
    """Call with `first`; where that holds another result, with `first-2`, `first-3`, ... until one is free or its own.

    So a command that was given no folder never replaces what another one made, and finds its own result again.
    """
    refused: AnotherResultError | None = None
    for k in count(1):
        place = first if k == 1 else first.with_name(f"{first.name}-{k}")
        if refused is not None:
            from stratoscope.runs.run import holds_another

            if holds_another(place, refused.digest):
                continue
            progress.note(f"{refused.fact}; this one is in {place}")
        try:
            return call(place)
        except AnotherResultError as e:
            refused = e
    raise AssertionError("there is always another number")
