"""The page of a depth result: the metric at every truncation and without every span (Phang et al. 2021, Fig. 3, 4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stratoscope.core.curve import Curve
from stratoscope.core.value import PERCENTILES, Interval, Value, Values, spread
from stratoscope.data.metrics import rows_for
from stratoscope.report.labels import count, number, points, printable, shown
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Axis, Cell, Curves, Heatmap, Level, Line, Table, tight_range
from stratoscope.report.sections.layers import interval_words
from stratoscope.results.cutting.depth import TUNED, TUNEDORIG, UNTUNED, Depth

POINT = 0.01
"""One point of a metric: the loss that counts as little."""
LEVEL = 0.95
ENOUGH = rows_for(POINT, LEVEL)
"""Validation rows without a single loss that make a loss within one point sure."""
ROUNDING = 1e-9
"""0.91 − 0.90 is not quite 0.01; that does not decide what is within a point."""
TINTS = {UNTUNED: 2, TUNED: 0, TUNEDORIG: 1}
HOW = {
    UNTUNED: "the tuned head reads the layer as it is",
    TUNED: "the head is tuned further on that layer",
    TUNEDORIG: "the head is tuned on that layer of the base model",
}


def sections(depth: Depth) -> Sections:
    """What the page of a depth result shows."""
    task, rows = printable(depth.task.get("name") or "task"), depth.task.get("n_validation")
    return Sections(
        title=f"Depth of {printable(depth.model.name)} on {task}",
        cards=tuple(cards(depth)),
        sections=tuple(parts(depth)),
        models=tuple(m for m in (depth.model, depth.base) if m),
        summary=(task, metric(depth), *([count(rows, "validation row")] if isinstance(rows, int) else [])),
        warnings=depth.warnings,
        facts={"Task": depth.task, "Provenance": depth.provenance},
        works=("Phang et al. 2021",),
    )


def metric(depth: Depth) -> str:
    """The metric's name."""
    return printable(depth.task.get("metric") or "metric")


def droppable(depth: Depth, curve: Curve, *, sure: bool) -> int:
    """Top blocks that can go with every depth on the way within one point of the whole model.

    With `sure`, the lower end of the interval must stay within the point too: of the paired difference where the
    resamples were kept, else of the metric, which is too wide rather than too narrow. And there must be as many rows as
    confirm a cut that loses none of them: with fewer, the resamples are too sure.
    """
    if sure and not enough(depth):
        return 0
    ends = _worst(depth, curve) if sure else curve.values
    total = 0
    for value in ends[-2::-1]:
        if not value >= depth.full.value - POINT - ROUNDING:
            break
        total += 1
    return total


def enough(depth: Depth) -> bool:
    """Whether there are rows enough to be sure of a loss within one point."""
    rows = depth.task.get("n_validation")
    return rows is None or int(rows) >= ENOUGH


def cost(depth: Depth, curve: Curve) -> str:
    """What the top block alone is worth: `without block 6 −2.9 points [−7.5, +1.7]`."""
    blocks, ends = depth.model.layers - 1, _paired(depth, curve)
    low, high = (np.full(blocks + 1, np.nan),) * 2 if ends is None else ends
    change = Value(*(100 * float(x[blocks - 1]) for x in (curve.values - depth.full.value, low, high)))
    between = f" [{change.low:+.1f}, {change.high:+.1f}]".replace("-", "−") if change.has_interval else ""
    return f"without block {blocks} {points(change.value / 100)}{between}"


def cards(depth: Depth) -> Iterator[Card]:
    """The answer in numbers."""
    full, blocks = depth.full, depth.model.layers - 1
    beaten = full.value > depth.bag_of_words
    beside = f"bag of words {number(depth.bag_of_words)}, majority {number(depth.majority)}"
    note = beside if beaten else f"not above the simple baselines: {beside}"
    yield Card(f"Whole model: {metric(depth)}", shown(full), note, caution=not beaten or full.low <= depth.majority)
    for curve in depth.curves:
        if curve.name != TUNEDORIG:
            about, sure = (droppable(depth, curve, sure=s) for s in (False, True))
            confident = "with 95 % confidence" if sure == about else f"{sure} with 95 % confidence"
            note = f"{confident}; {HOW[curve.name]}" if about else f"{HOW[curve.name]}"
            yield Card(f"Top blocks droppable within 1 point ({curve.name})", f"{about} of {blocks}", note)
    if depth.skip is not None and np.isfinite(np.diag(depth.skip)).any():
        single = np.diag(depth.skip) - full.value
        worst, free = int(np.nanargmin(single)), int((single >= -POINT - ROUNDING).sum())
        yield Card(
            "Costliest block to skip",
            f"block {worst + 1} ({points(single[worst])})",
            f"{free} of {blocks} single blocks cost 1 point or less",
        )


def parts(depth: Depth) -> Iterator[Section]:
    """Truncation and skipping, for this page or a study's."""
    if depth.curves:
        yield Section(
            "truncation", "Truncated at every layer", (_truncation(depth),), (_droppable(depth),), width="half"
        )
    if depth.skip is not None:
        yield Section("skip", "Every span of blocks skipped", (_skipping(depth),), width="half")


def _truncation(depth: Depth) -> Curves:
    levels = (
        Level("whole model", depth.full.value, "solid"),
        Level("bag of words", depth.bag_of_words, "dash"),
        Level("majority", depth.majority, "dot"),
    )
    ways = "; ".join(f"{c.name.upper()}: {HOW[c.name]}" for c in depth.curves)
    missing = any(np.isnan(c.values).any() for c in depth.curves)
    gap = " No point: the head reads the same vector for every row." if missing else ""
    banded = next((c for c in depth.curves if c.low is not None), None)
    bands = f" Bands: {interval_words(banded.interval)} over the validation rows." if banded else ""
    return Curves(
        id="truncation",
        title=f"{printable(depth.model.name)} on {printable(depth.task.get('name'))}: truncated at every layer",
        caption=f"{ways}.{bands}{gap}",
        lines=tuple(Line.of(c, name=c.name.upper(), tint=TINTS[c.name]) for c in depth.curves),
        levels=tuple(level for level in levels if not np.isnan(level.value)),
        x="layer read (0 = embeddings)",
        y=metric(depth),
    )


def _droppable(depth: Depth) -> Table:
    """How many top blocks each way of reading can do without."""
    rows: list[tuple[Cell, ...]] = []
    for curve in depth.curves:
        about, sure = (droppable(depth, curve, sure=s) for s in (False, True))
        rows.append((curve.name.upper(), about, sure, curve.points[-1 - about]))
    return Table(
        id="droppable",
        title="Top blocks droppable within 1 point",
        caption=f"Of {depth.model.layers - 1}; every depth on the way is within the point.",
        head=("Curve", "Droppable", "With 95 % confidence", f"{metric(depth)} left"),
        rows=tuple(rows),
    )


def _skipping(depth: Depth) -> Heatmap:
    assert depth.skip is not None
    blocks = [str(k + 1) for k in range(len(depth.skip))]
    known = depth.skip[np.isfinite(depth.skip)]
    low, high = _skip_interval(depth)
    beside = {"change in points": 100 * (depth.skip - depth.full.value)}
    if depth.skip_agreement is not None and np.isfinite(depth.skip_agreement).any():
        beside["predicted as by the whole model"] = depth.skip_agreement
    free = int(little_loss(depth).sum())
    return Heatmap(
        id="skip",
        title=f"{printable(depth.model.name)} on {printable(depth.task.get('name'))}: blocks skipped",
        caption=f"Blocks first to last are skipped and nothing is tuned; the diagonal skips one block. Outlined: "
        f"within 1 point of the whole model ({number(depth.full.value)}), {free} of {count(known.size, 'span')}.",
        rows=Axis(tuple(f"without blocks {b}" for b in blocks), tuple(blocks), title="first block skipped"),
        columns=Axis(tuple(blocks), tuple(blocks), title="last block skipped"),
        values=depth.skip,
        low=low,
        high=high,
        range=tight_range([known, np.array([depth.full.value, depth.majority])]),
        unit=metric(depth),
        joint=" to ",
        missing="not a span",
        hatched=False,
        marks=little_loss(depth),
        beside=beside,
        numbers=True,
    )


def little_loss(depth: Depth) -> npt.NDArray[np.bool_]:
    """Where skipping costs a point or less."""
    assert depth.skip is not None
    with np.errstate(invalid="ignore"):
        return np.asarray(depth.skip >= depth.full.value - POINT - ROUNDING)


def _skip_interval(depth: Depth) -> tuple[Values | None, Values | None]:
    """Ends of the intervals of the skip matrix, where its resamples were kept."""
    if depth.skip is None or depth.skip_replicates is None or len(depth.skip_replicates) < 2:
        return None, None
    return spread(depth.skip, depth.skip_replicates, Interval(LEVEL, PERCENTILES))


def _worst(depth: Depth, curve: Curve) -> Values:
    """The lower end at every layer: of the difference from the whole model, where the resamples were kept."""
    ends = _paired(depth, curve)
    if ends is None:
        return curve.values if curve.low is None else curve.low
    return np.where(np.isnan(curve.values), np.nan, depth.full.value + ends[0])


def _paired(depth: Depth, curve: Curve) -> tuple[Values, Values] | None:
    """Ends of the difference from the whole model at every layer; None where the resamples were not kept."""
    if curve.replicates is None or depth.full_replicates is None or len(curve.replicates) < 2:
        return None
    n = min(len(curve.replicates), len(depth.full_replicates))
    gaps = curve.replicates[:n] - depth.full_replicates[:n, None]
    return spread(curve.values, gaps, Interval(LEVEL, PERCENTILES))
