"""Pictures, tables and cards read off matrices of layers, for comparisons and studies alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Matrix
from stratoscope.core.value import Interval, Values
from stratoscope.report.labels import count, printable, ranges, shown
from stratoscope.report.outline import Card, Section
from stratoscope.report.pictures import Cell, Curves, Line, Table
from stratoscope.results.comparison import Comparison

HEADLINE = "ckasim"
"""The measure that both studies show."""
UNCHANGED = 0.02
"""A layer whose drift is at most this, its interval included, is practically unchanged."""


def drift(matrix: Matrix, base: str, other: str) -> Curve | None:
    """1 − similarity of each layer with the same layer of the base; None where their layers are not the same."""
    block = matrix.between(base, other)
    layers = tuple(layer.index for layer in block.rows)
    if layers != tuple(layer.index for layer in block.columns):
        return None
    low, high = (None if edge is None else _one_minus(edge) for edge in (block.high, block.low))
    return Curve(other, layers, _one_minus(block.values), low, high, block.interval)


def when_of(comparison: Comparison, **fixed: str) -> dict[str, dict[str, str]]:
    """By measure, the choices under which the page shows it."""
    return {m: fixed | ({"measure": m} if len(comparison) > 1 else {}) for m in comparison}


def drift_pictures(
    comparison: Comparison,
    curves_of: Callable[[Matrix], Mapping[str, Curve]],
    *,
    base: str,
    place: Mapping[str, str],
    when: Mapping[str, Mapping[str, str]],
    **more: Any,
) -> list[Curves]:
    """Drift from a base under every measure, on one axis: from 0, or below where a score exceeds 1.

    `place` is part of the id by measure, `more` are fields of the pictures.
    """
    moved = {m.measure: curves for m in comparison.matrices if (curves := curves_of(m))}
    ends = [v for curves in moved.values() for c in curves.values() for v in (c.values, c.low, c.high) if v is not None]
    known = np.concatenate([np.zeros(0), *(v[np.isfinite(v)] for v in ends)]).tolist()
    low, high = min([0.0, *known]), max(known, default=0.0)
    room = 0.04 * (high - low or 1.0)
    return [
        Curves(
            id=f"drift-{place[m]}",
            caption=f"1 − {'similarity' if 'measure' in when[m] else m} of each layer with the same layer of "
            f"{printable(base)}: 0 is unchanged.{band_note(curves.values())}",
            lines=tuple(Line.of(curve, name=name, tint=k) for k, (name, curve) in enumerate(curves.items())),
            y="drift (1 − similarity)",
            when=when[m],
            range=(low - room, high + room) if known else None,
            **more,
        )
        for m, curves in moved.items()
    ]


def drift_cards(curve: Curve, *, base: str, measure: str) -> list[Card]:
    """Where a model changed most, and which layers it left as they were."""
    if not curve.known:
        return []
    values = curve.points
    most = max(curve.known, key=lambda k: values[k].value)
    name, whence = printable(curve.name), f"from {printable(base)} ({measure})"
    ends = {k: values[k].high if values[k].has_interval else values[k].value for k in curve.known}
    same = [curve.layers[k] for k, end in ends.items() if end <= UNCHANGED]
    if len(same) == len(curve.known):
        note = f"largest drift {whence}: {shown(values[most])} at layer {curve.layers[most]}"
        return [Card(f"{name}: practically unchanged", f"all {len(same)} layers" if len(same) > 1 else "1 layer", note)]
    cards = [Card(f"{name} changed most at", f"layer {curve.layers[most]}", f"drift {shown(values[most])} {whence}")]
    if same:
        largest = shown(max((values[curve.layers.index(x)] for x in same), key=lambda v: v.value))
        label = f"layer{'' if len(same) == 1 else 's'} {ranges(same)}"
        cards.append(Card(f"{name}: practically unchanged", label, f"drift at most {largest}"))
    else:
        least = min(curve.known, key=lambda k: values[k].value)
        cards.append(Card(f"{name} changed least at", f"layer {curve.layers[least]}", f"drift {shown(values[least])}"))
    return cards


def split_card(name: str, split: Mapping[str, Any], measure: str, own: Mapping[str, Any] | None = None) -> Card:
    """Where a model's layers fall into two blocks."""
    beside = f", untuned {own['contrast']:.3f}" if own else ""
    return Card(
        f"{printable(name)}: sharpest split into two blocks",
        f"before layer {split['start']}",
        f"contrast {split['contrast']:.3f}{beside} ({measure})",
    )


def blocks_tables(
    comparison: Comparison,
    order: Sequence[str],
    *,
    place: Mapping[str, str],
    when: Mapping[str, Mapping[str, str]],
    base: str | None = None,
    apart: Sequence[str] = (),
) -> list[Table]:
    """The best split of each model into two blocks, and how much sharper than that of `base`, but for `apart`."""
    tables, blocks = [], comparison.findings.get("blocks", {})
    for measure in (m for m in comparison if blocks.get(m)):
        splits = blocks[measure]
        own = splits.get(base or "", {}).get("contrast")
        rows: list[tuple[Cell, ...]] = []
        for name in (n for n in order if n in splits):
            s = splits[name]
            gap: list[Cell] = [] if own is None else ["–" if name in (base, *apart) else float(s["contrast"] - own)]
            rows.append((name, float(s["contrast"]), *gap, float(s["within"]), float(s["between"]), int(s["start"])))
        minus = [] if own is None else [f"Minus {printable(base)}"]
        tables.append(
            Table(
                id=f"blocks-{place[measure]}",
                file="blocks",
                title="Best split into two blocks",
                caption="Mean similarity within the blocks, between them, and the contrast (within − between). Any "
                "smooth matrix has a best split: read a contrast only beside that of the other models.",
                head=("Model", "Contrast", *minus, "Within", "Between", "Upper block from"),
                rows=tuple(rows),
                when=when[measure],
            )
        )
    return tables


def localization_section(comparison: Comparison, **more: Any) -> Section | None:
    """Localization scores by layer, those of controls dashed; None where they were not computed."""
    matrix = comparison.matrices[0] if comparison.matrices else None
    trained, alone = (comparison.findings.get(k, {}) for k in ("localization", "localization_alone"))
    if matrix is None or not trained:
        return None
    lines: list[Line] = []
    for scores, suffix in ((trained, ""), (alone, " (own layers)")):
        for name in (m.name for m in comparison.models if m.name in scores):
            layers = tuple(layer.index for layer in matrix.rows if layer.model == name)
            values = np.array([np.nan if v is None else v for v in scores[name]], dtype=np.float64)
            lines.append(Line(printable(name) + suffix, layers, values, tint=len(lines), dashed=bool(suffix)))
    z = "z-scored " if comparison.provenance.get("standardise") else "mean "
    chance = comparison.findings.get("localization_chance")
    level = f" Differences up to {chance:.2f} can be chance." if isinstance(chance, float) and chance > 0.01 else ""
    control = " Controls: to their own other layers, compare shape and not level." if alone else ""
    picture = Curves(
        id="localization",
        title="Localization by layer",
        caption=f"{z.capitalize()}neuronsim − {z}svsim of a layer with all other layers: higher where single neurons, "
        f"not whole layers, have counterparts.{level}{control}",
        lines=tuple(lines),
        y="localization",
    )
    return Section("localization", "Localization", (picture,), **more)


def band_note(curves: Any) -> str:
    """What the bands are, after a blank; empty where there are none."""
    banded = [c for c in curves if c.low is not None]
    return f" Bands: {interval_words(banded[0].interval)}." if banded else ""


def interval_words(interval: Interval | None) -> str:
    """`95 % intervals (bootstrap over 872 sentences)`."""
    if interval is None:
        return "95 % intervals"
    over = f" over {count(interval.groups, interval.of)}" if interval.method == "bootstrap" and interval.groups else ""
    return f"{interval.level * 100:g} % intervals ({interval.method}{over})"


def rows_cards(comparison: Comparison) -> list[Card]:
    """A caution where there are no more rows than neurons; nothing otherwise."""
    rows, width = comparison.data.get("rows"), max((m.width for m in comparison.models), default=0)
    if not isinstance(rows, int) or not 0 < rows <= width:
        return []
    note = f"{rows:,} rows, {width:,} neurons: even unrelated layers score high under most measures"
    return [Card("Rows per neuron", f"{rows / width:.2f}", note, caution=True)]


def rows_summary(comparison: Comparison) -> tuple[str, ...]:
    """Data, unit and rows, in a few words each."""
    data, rows = comparison.data, comparison.data.get("rows")
    width = max((m.width for m in comparison.models), default=0)
    per = f" ({rows / width:.1f} per neuron)" if isinstance(rows, int) and width else ""
    parts = (
        data.get("name"),
        f"unit {data['unit']}" if data.get("unit") else "",
        f"{count(rows, 'row')}{per}" if isinstance(rows, int) else "number of rows unknown",
    )
    return tuple(printable(t) for t in parts if t)


def _one_minus(similarity: Values) -> Values:
    """Drift; 1 + 1e-9, computed for identical layers, is no negative drift."""
    gone = 1 - np.diagonal(similarity)
    return np.where(np.abs(gone) < 1e-9, 0.0, gone)
