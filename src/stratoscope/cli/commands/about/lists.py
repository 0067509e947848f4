"""`stratoscope measures`, `families` and `tasks`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Sequence

from stratoscope.cli.answer import Answer, Table
from stratoscope.cli.options import command


@command
def measures() -> Answer:
    """List the measures of layers and of attention, with one line and the reference each."""
    from stratoscope.measures.attention.table import MEASURES as ATTENTION
    from stratoscope.measures.table import MEASURES

    rows = [(m.name, "yes" if m.symmetric else "no", "layers", m.summary, m.reference) for m in MEASURES]
    rows += [(m.name, "yes" if m.symmetric else "no", "attention", m.summary, m.reference) for m in ATTENTION]
    return _listed("measures", ("measure", "symmetric", "of", "what it is", "reference"), rows)


@command
def families() -> Answer:
    """List the model families, with one line and the reference each."""
    from stratoscope.models.families import FAMILIES

    rows = [(f.name, ", ".join(f.model_types), f.description, f.reference) for f in FAMILIES]
    return _listed("families", ("family", "model types", "what it is", "reference"), rows)


@command
def tasks() -> Answer:
    """List the tasks, with one line, the metric and the reference each."""
    from stratoscope.data.tasks.read import TASKS

    rows = [(t.name, t.metric, t.summary, t.reference) for t in TASKS]
    return _listed("tasks", ("task", "metric", "what it is", "reference"), rows)


def _listed(kind: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Answer:
    keys = [name.replace(" ", "_") for name in header]
    plain = {"kind": kind, kind: [dict(zip(keys, row, strict=True)) for row in rows]}
    return Answer(plain, table=Table(header, rows))
