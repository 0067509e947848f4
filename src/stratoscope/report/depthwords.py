"""What the depth curves and the skip matrix show, in words with numbers, and what of phang2021 does not hold here."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.value import Values
from stratoscope.report.axes import printable
from stratoscope.results.depth import TUNED, TUNEDORIG, UNTUNED, Depth
from stratoscope.TODO.depth import Point

POINT = 0.01
"""One point of a metric: the loss that counts as little."""
TOP = 3
"""The published claim is tried on the top third of the blocks: phang2021 drops the top 4 of RoBERTa's 12."""
ROUNDING = 1e-9
"""0.91 - 0.90 is not quite 0.01; that does not decide what is within a point."""

HOW = {
    UNTUNED: "UNTUNED (the head as it is)",
    TUNED: "TUNED (the head tuned on that layer)",
    TUNEDORIG: "TUNEDORIG (the head tuned on the base model's layer)",
}


def depth_sentences(depth: Depth) -> list[str]:
    """Everything worth saying of a depth result, the warnings of the run last."""
    return [*depth_observations(depth), *(f"Warning: {printable(w)}" for w in depth.warnings)]


def depth_observations(depth: Depth) -> list[str]:
    """The sentences without the warnings."""
    curves = {c.name: c for c in depth.curves}
    return [
        *_scope(depth),
        *(s for name in (UNTUNED, TUNED) if name in curves for s in _droppable(depth, curves[name])),
        *_top_layers(depth, curves),
        *_lag(depth, curves),
        *_skipping(depth),
    ]


def at_chance(depth: Depth) -> str | None:
    """Why no published finding is tried where this model is; None where it is known to have learnt its task."""
    full, floor = depth.full, depth.majority
    if not (full.value <= floor or full.low <= floor):
        return None
    known = "has not" if full.value <= floor else "may not have"
    numbers = f"{metric_name(depth)} {shown(full)}, always the commonest label {floor:.3f}"
    return f"{printable(depth.model.name)} {known} learnt the task ({numbers}), so no published finding is judged here."


def verdict(depth: Depth | None, text: str) -> str:
    """A verdict on a finding, after a blank, unless the model is at chance; without depth that is not known."""
    return "" if depth is not None and at_chance(depth) else f" {text}"


def metric_name(depth: Depth) -> str:
    """The metric's name, for axes and sentences."""
    return printable(str(depth.task.get("metric") or "metric"))


def shown(point: Point) -> str:
    """A value with its interval where it has one."""
    if math.isnan(point.low) or math.isnan(point.high):
        return f"{point.value:.3f}"
    return f"{point.value:.3f} [{point.low:.3f}, {point.high:.3f}]"


def _scope(depth: Depth) -> Iterator[str]:
    task, metric, full = depth.task, metric_name(depth), depth.full
    rows = f" on {task['n_validation']:,} validation rows" if isinstance(task.get("n_validation"), int) else ""
    base = f", tuned from {printable(depth.base.name)}" if depth.base else ""
    yield (
        f"{printable(depth.model.name)} ({depth.model.layers - 1} blocks{base}) on {printable(str(task.get('name')))}: "
        f"{metric} {shown(full)}{rows}; always the commonest label of the training rows {_number(depth.majority)}, a "
        f"bag of words {_number(depth.bag_of_words)}."
    )
    if full.value <= depth.bag_of_words:
        yield (
            f"The whole model does not beat a bag of words ({full.value:.3f} against {depth.bag_of_words:.3f}): what "
            "its layers seem to add or lose below says little about the task."
        )
    elif full.low <= depth.bag_of_words:
        yield (
            f"The whole model beats a bag of words by {_points(full.value - depth.bag_of_words)}, but its interval "
            f"reaches down to {full.low:.3f}, so it may not on other rows."
        )
    if (reason := at_chance(depth)) is not None:
        yield reason


def droppable(depth: Depth, curve: Curve, *, low: bool) -> int:
    """Top blocks that can go with every depth on the way within one point of the whole model.

    With `low`, the lower end of each interval must stay within the point too. The intervals are of the metric, not of
    the paired difference: for two readings that agree on most rows they are too wide rather than too narrow.
    """
    count = 0
    for point in curve.points[-2::-1]:
        worst = point.low if low else point.value
        if not worst >= depth.full.value - POINT - ROUNDING:
            break
        count += 1
    return count


def _droppable(depth: Depth, curve: Curve) -> Iterator[str]:
    how, blocks = HOW[curve.name], len(curve.points) - 1
    about, sure = (droppable(depth, curve, low=low) for low in (False, True))
    if not about:
        first = curve.points[-2] if blocks else None
        if first is not None and not math.isnan(first.value):
            yield (
                f"{how}: no top block can go within one point: without the last one {metric_name(depth)} is "
                f"{shown(first)}, {_points(depth.full.value - first.value)} below the whole model."
            )
        return
    if sure == about:
        yield f"{how}: {_top(about, blocks)} can go within one point: {shown(curve.points[-1 - about])} remains."
        return
    left = curve.points[-1 - about]
    text = (
        f"{how}: about {_top(about, blocks)} can go within one point ({left.value:.3f} remains), but the interval "
        f"[{left.low:.3f}, {left.high:.3f}] does not exclude a loss of {_points(depth.full.value - left.low)}"
    )
    held = f"within one point with confidence: {_top(sure, blocks)}" if sure else "no cut is within it with confidence"
    yield f"{text}; {held}."


def _top_layers(depth: Depth, curves: dict[str, Curve]) -> Iterator[str]:
    """phang2021 section 4: the top few layers can be discarded without hurting performance."""
    blocks = depth.model.layers - 1
    count = max(1, round(blocks / TOP))
    curve = curves.get(UNTUNED)
    if curve is None or blocks < 2 or math.isnan(curve.points[-1 - count].value) or at_chance(depth):
        return
    point = curve.points[-1 - count]
    loss, worst = depth.full.value - point.value, depth.full.value - point.low
    holds = "holds" if worst <= POINT + ROUNDING else "may hold" if loss <= POINT + ROUNDING else "does NOT hold"
    reason = f", though a loss of {_points(worst)} is not excluded" if holds == "may hold" else ""
    yield (
        f"'The top layers can be dropped with little loss' (Phang et al. 2021, section 4: 4 of 12 for 0.6 points) "
        f"{holds} here: without {_top(count, blocks)} and no tuning, {_change(loss)}{reason}."
    )


def _lag(depth: Depth, curves: dict[str, Curve]) -> Iterator[str]:
    """phang2021 section 4: heads on the untuned encoder do much worse than on the tuned one, at all layers."""
    if TUNED not in curves or TUNEDORIG not in curves:
        return
    pairs = [
        (k, a, b)
        for k, (a, b) in enumerate(zip(curves[TUNED].points, curves[TUNEDORIG].points, strict=False))
        if k and not math.isnan(a.value) and not math.isnan(b.value)
    ]
    if not pairs:
        return
    gaps = [a.value - b.value for _, a, b in pairs]
    mean, widest = float(np.mean(gaps)), int(np.argmax(gaps))
    layer, a, b = pairs[widest]
    apart = [k for k, a, b in pairs if a.low > b.high]
    level = [k for k, a, b in pairs if a.value - b.value < POINT]  # the others may be worse: so many rows cannot tell
    if len(apart) == len(pairs):
        holds = "holds here"
    elif level:
        holds = (
            f"does NOT hold at {len(level)} of {len(pairs)} layers here, where TUNEDORIG is less than a point below "
            "TUNED or above it"
        )
    else:
        holds = "cannot be told here where the intervals overlap; more validation rows could tell"
    how = "lags behind" if mean > POINT else "is ahead of" if mean < -POINT else "is level with"
    published = "'Heads on the untuned encoder do much worse at all layers' (Phang et al. 2021, section 4)"
    yield (
        f"TUNEDORIG {how} TUNED: {_points(abs(mean))} {'below' if mean >= 0 else 'above'} it on average over layers "
        f"{pairs[0][0]}-{pairs[-1][0]}; the widest gap is at layer {layer} ({b.value:.3f} against {a.value:.3f}), and "
        f"the intervals are apart at {len(apart)} of {len(pairs)} layers.{verdict(depth, f'{published} {holds}.')}"
    )


def _skipping(depth: Depth) -> Iterator[str]:
    if depth.skip is None or np.isnan(depth.skip).all():
        return
    loss = depth.full.value - depth.skip
    blocks = len(loss)
    single = np.diag(loss)
    if not np.isnan(single).all():
        worst, best = int(np.nanargmax(single)), int(np.nanargmin(single))
        also = ", which Phang et al. 2021 too found costly to skip" if at_chance(depth) is None else ""
        first = "; not the first block" if worst else f"; the first block{also}"
        first = first if single[worst] > POINT else ""
        free = int((single <= POINT + ROUNDING).sum())
        yield (
            f"Skipping one block without tuning hurts most at block {worst + 1} ({_change(single[worst])}{first}) "
            f"and least at block {best + 1} ({_change(single[best])}); {free} of {blocks} single blocks cost a point "
            "or less."
        )
    if blocks >= 4:
        yield _upper_spans(loss, depth)


def _upper_spans(loss: Values, depth: Depth) -> str:
    """phang2021 section 4.1: several of the later layers can be skipped with minimal impact."""
    blocks, full = len(loss), depth.full
    half = blocks // 2
    lower, upper = (part[~np.isnan(part)] for part in (loss[:half, :half], loss[blocks - half :, blocks - half :]))
    free = int((upper <= POINT + ROUNDING).sum())
    noise = max(full.value - full.low, full.high - full.value)
    spread = f" The skip matrix has no intervals; the whole model's own is ±{_points(noise)}." if noise > 0 else ""
    holds = "holds" if free * 2 > len(upper) else "does NOT hold"
    published = "'Later layers can be skipped with minimal impact' (Phang et al. 2021, section 4.1)"
    return (
        f"Spans inside the upper half (blocks {blocks - half + 1}-{blocks}): on average "
        f"{_change(float(upper.mean()))}, inside the lower half {_change(float(lower.mean()))}; {free} of {len(upper)} "
        f"upper spans cost a point or less.{verdict(depth, f'{published} {holds} here for most of them.')}{spread}"
    )


def _top(count: int, blocks: int) -> str:
    return f"the top {count} of {blocks} blocks" if count > 1 else f"the top block of {blocks}"


def _points(loss: float) -> str:
    return f"{loss / POINT:.1f} point{'' if f'{loss / POINT:.1f}' == '1.0' else 's'}"


def _change(loss: float) -> str:
    return f"{_points(loss)} lost" if loss >= 0 else f"{_points(-loss)} gained"


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3f}"
