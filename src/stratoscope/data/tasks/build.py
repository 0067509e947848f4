"""From rows as read to a task: format checked, labels known or inferred, a single source split, and a note of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import CHOICE, LEAST_TO_SPLIT, PAIR, SINGLE, Example, TaskData, hold_out
from stratoscope.data.tasks.files import TaskRows
from stratoscope.data.tasks.spec import Task

ACCURACY, CORRELATION = "accuracy", "correlation"
SHOWN = 8
"""Labels listed in a message."""


def build(name: str, task: Task | None, given: Sequence[TaskRows], *, seed: int, note: str = "") -> TaskData:
    """Rows to train on and to judge on, or one source of both; without a `task` its labels are inferred."""
    form, choices = _format(name, task, given)
    first = given[0]
    labels = task.labels if task is not None else infer_labels(first.source, labelled(first))
    if form == CHOICE:
        labels = tuple(str(k) for k in range(choices))
    codes = labels or ()
    if task is not None and task.labels is not None:
        codes = task.codes or tuple(str(k) for k in range(len(codes)))
    notes = [note] if note else []
    notes += [f"{r.source}: {r.skipped} rows with blank text left out" for r in given if r.skipped]
    if task is None:
        notes.append("labels inferred: " + ("targets of a regression" if labels is None else f"{len(labels)} classes"))
    if len(given) == 1:
        if len(first) < LEAST_TO_SPLIT:
            raise StratoscopeError(
                f"{name}: expected at least {LEAST_TO_SPLIT} rows to split 80/20, got {len(first)} in {first.source}; "
                "give more rows, or a validation file"
            )
        given = [first.take(keep) for keep in hold_out(len(first), seed)]
        notes.append(
            f"only one labelled file ({Path(first.source).name}): split 80/20 by example with seed {seed}, "
            f"{len(given[0])} rows to train on and {len(given[1])} to judge on; not comparable with published numbers"
        )
    train, validation = (examples(rows, labels, codes) for rows in given)
    metric = task.metric if task is not None else CORRELATION if labels is None else ACCURACY
    return TaskData(name, train, validation, labels, form, metric, "; ".join(notes))


def _format(name: str, task: Task | None, given: Sequence[TaskRows]) -> tuple[str, int]:
    """The format all rows share, and their number of choices."""
    firsts = [rows.texts[0] for rows in given]
    shapes = [(CHOICE if len(t) > 1 else SINGLE if t[0][1] is None else PAIR, len(t)) for t in firsts]
    choices = shapes[0][1]
    expected = shapes[0][0] if task is None else task.format
    for rows, (form, number) in zip(given, shapes, strict=True):
        if form != expected or number != choices:
            says = {SINGLE: "one text", PAIR: "a pair of texts", CHOICE: f"{max(choices, 2)} choices"}
            got = f"{number} choices" if form == CHOICE else says[form]
            raise StratoscopeError(
                f"{name}: expected {says[expected]} a row, got {got} in {rows.source}",
                "name the columns with --text and --pair",
                "choose a task of that format",
            )
    return expected, choices


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
    numbers = [x for w in written if (x := _number(w)) is not None]
    if len(numbers) < len(written):
        names = tuple(sorted(set(written)))
    elif any(x != int(x) for x in numbers):
        return None
    else:
        names = tuple(str(x) for x in sorted({int(x) for x in numbers}))
    if 2 * len(names) > len(written):
        raise StratoscopeError(
            f"{source}: expected labels that repeat, got {len(names)} different ones in {len(written)} rows "
            f"({_some(names)})",
            "name the label column with --label",
        )
    return names


def examples(rows: TaskRows, labels: Sequence[str] | None, codes: Sequence[str]) -> tuple[Example, ...]:
    """Rows with their labels as numbers; `codes` are what files write instead of the names, in the same order."""
    built = []
    for texts, position, written in zip(rows.texts, rows.positions, labelled(rows), strict=True):
        value = _number(written) if labels is None else _index(written, labels, codes)
        if value is None:
            expected = "a number as the target of a regression"
            if labels is not None:
                also = f" or {', '.join(codes)}" if tuple(codes) != tuple(labels) else ""
                expected = f"one of the labels {_some(labels)}{also}"
            raise StratoscopeError(
                f"{rows.source}: row {position + 1}: expected {expected}, got '{written}'",
                "fix the row",
                "name the column with --label",
            )
        built.append(Example(texts, value))
    return tuple(built)


def _index(written: str, labels: Sequence[str], codes: Sequence[str]) -> float | None:
    """Index of a class by its name, or else by its code, however that number is spelled."""
    number = _number(written)
    code = written if number is None or number != int(number) else str(int(number))
    for names, key in ((labels, written), (codes, code)):
        if key in names:
            return float(names.index(key))
    return None


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    # Words that Python reads as numbers ("nan", "infinity", "1_000") are words here.
    return value if math.isfinite(value) and "_" not in written else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
