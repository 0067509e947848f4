"""From rows as read to a task: format and labels checked, a single source split, and a note of what was done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stratoscope.core.errors import StratoscopeError
from stratoscope.data.tasks.data import CHOICE, LEAST_TO_SPLIT, PAIR, SINGLE, TaskData, hold_out
from stratoscope.data.tasks.files import TaskRows
from stratoscope.data.tasks.labels import examples, infer_labels, labelled
from stratoscope.data.tasks.spec import Task

ACCURACY, CORRELATION = "accuracy", "correlation"


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
        given = _split(name, first, seed)
        notes.append(
            f"only one labelled file ({Path(first.source).name}): split 80/20 by example with seed {seed}, "
            f"{len(given[0])} rows to train on and {len(given[1])} to judge on; not comparable with published numbers"
        )
    train, validation = (examples(rows, labels, codes) for rows in given)
    metric = task.metric if task is not None else CORRELATION if labels is None else ACCURACY
    return TaskData(name, train, validation, labels, form, metric, "; ".join(notes))


def _format(name: str, task: Task | None, given: Sequence[TaskRows]) -> tuple[str, int]:
    """The format all rows share, and their number of choices."""
    shapes = [_shape(rows) for rows in given]
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


def _shape(rows: TaskRows) -> tuple[str, int]:
    first = rows.texts[0]
    return CHOICE if len(first) > 1 else SINGLE if first[0][1] is None else PAIR, len(first)


def _split(name: str, rows: TaskRows, seed: int) -> tuple[TaskRows, TaskRows]:
    if len(rows) < LEAST_TO_SPLIT:
        raise StratoscopeError(
            f"{name}: expected at least {LEAST_TO_SPLIT} rows to split 80/20, got {len(rows)} in {rows.source}; "
            "give more rows, or a validation file"
        )
    keep, held = hold_out(len(rows), seed)
    return rows.take(keep), rows.take(held)
