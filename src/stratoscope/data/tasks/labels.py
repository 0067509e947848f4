"""Labels: from the words of a source to class indices or targets, known to the task or inferred from the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import Example
from stratoscope.data.tasks.files import TaskRows

SHOWN = 8
"""Labels listed in a message."""


def labelled(rows: TaskRows) -> list[str]:
    """The labels as written; a row without one is an error."""
    missing = [k for k, label in enumerate(rows.labels) if label is None]
    if missing:
        raise StratoscopeError(
            f"{rows.source}: expected a label in every row, got none in {len(missing)} of {len(rows)} rows "
            f"(the first is row {rows.positions[missing[0]] + 1})",
            "remove them",
            "name the column with --label",
        )
    return [str(label) for label in rows.labels]


def infer_labels(source: str, written: Sequence[str]) -> tuple[str, ...] | None:
    """Class names in order, or None for a regression: numbers of which at least one is not whole.

    Whole numbers are classes in numeric order (1.0 is the class 1), anything else is in alphabetical order.
    """
    numbers = [_number(w) for w in written]
    if all(x is not None for x in numbers):
        values = [x for x in numbers if x is not None]
        if any(x != int(x) for x in values):
            return None
        names = tuple(str(x) for x in sorted({int(x) for x in values}))
    else:
        names = tuple(sorted(set(written)))
    if 2 * len(names) > len(written):
        raise StratoscopeError(
            f"{source}: expected labels that repeat, got {len(names)} different ones in {len(written)} rows "
            f"({_some(names)})",
            "name the label column with --label",
        )
    return names


def examples(rows: TaskRows, labels: Sequence[str] | None, codes: Sequence[str]) -> tuple[Example, ...]:
    """Rows with their labels as numbers; `codes` are what files write instead of the names, in the same order."""
    written = labelled(rows)
    values = [
        _target(rows, k, w) if labels is None else _class(rows, k, w, labels, codes) for k, w in enumerate(written)
    ]
    return tuple(Example(texts, value) for texts, value in zip(rows.texts, values, strict=True))


def _class(rows: TaskRows, k: int, written: str, labels: Sequence[str], codes: Sequence[str]) -> float:
    number = _number(written)
    code = written if number is None or number != int(number) else str(int(number))
    for names, wanted in ((labels, written), (codes, code)):
        if wanted in names:
            return float(names.index(wanted))
    also = f" or {', '.join(codes)}" if tuple(codes) != tuple(labels) else ""
    raise StratoscopeError(
        f"{rows.source}: row {rows.positions[k] + 1}: expected one of the labels {_some(labels)}{also}, "
        f"got '{written}'",
        "fix the row",
        "name the column with --label",
    )


def _target(rows: TaskRows, k: int, written: str) -> float:
    number = _number(written)
    if number is None:
        raise StratoscopeError(
            f"{rows.source}: row {rows.positions[k] + 1}: expected a number as the target of a regression, "
            f"got '{written}'",
            "fix the row",
            "name the column with --label",
        )
    return number


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    # Words that Python reads as numbers ("nan", "infinity", "1_000") are words here.
    return value if math.isfinite(value) and "_" not in written else None


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")
