"""The page of a diff: the answer, single texts, then layers, depth or spans and weights as on their own pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.value import Value
from stratoscope.report.labels import count, number, printable, ranges, shorten, shown
from stratoscope.report.outline import Card, Section, Sections, tally
from stratoscope.report.pictures import Cell, Table
from stratoscope.report.sections import study as study_page
from stratoscope.report.sections import weights as weights_page
from stratoscope.report.sections.cutting import depth as depth_page
from stratoscope.report.sections.cutting.perplexity import best_spans, span_sections
from stratoscope.report.sections.layers import UNCHANGED, drift
from stratoscope.results.cutting.depth import TUNED
from stratoscope.results.cutting.perplexity import times
from stratoscope.results.diff import Diff

NEAR = 0.1
"""Layers whose drift is within this share of the largest one changed most too."""
WITHIN = 1.1
"""A decoder's span is droppable up to this many times the perplexity."""
MOST_ROWS = 1000
"""Examples on the page; the file has them all."""


def sections(result: Diff) -> Sections:
    """What the page of a diff shows."""
    study = study_page.sections(result.study)
    base, tuned = printable(result.study.base), printable(result.study.tuned[0])
    answers = tuple(_answers(result))
    weights = [] if result.weights is None else list(weights_page.sections(result.weights).sections)
    spans, texts = (result.language.spans, result.language.span_texts) if result.language else ((), 0)
    parts = (
        *study.sections,
        *span_sections(spans, _blocks(result), name=tuned, texts=texts),
        *_examples(result),
        *(replace(s, id=f"weights-{s.id}", title=f"Weights: {s.title[:1].lower()}{s.title[1:]}") for s in weights),
    )
    return replace(
        study,
        title=f"{tuned} against {base}",
        cards=tuple(Card(label[:1].upper() + label[1:], value, note) for label, value, note in answers),
        sections=parts,
        summary=(printable(result.data.get("name", "")), count(int(result.data.get("rows", 0)), "row")),
        warnings=tuple(dict.fromkeys((*study.warnings, *(result.weights.warnings if result.weights else ())))),
        lines=tuple(_lines(result, answers)),
    )


def changed(result: Diff) -> Curve | None:
    """Drift of every layer, by the first unit and measure."""
    comparison = next(iter(result.study.comparisons.values()))
    return drift(comparison.matrices[0], result.study.base, result.study.tuned[0])


def droppable(result: Diff) -> int:
    """Top blocks that can go within one point with 95 % confidence, the head tuned; of a decoder, of the best span."""
    depth, language = result.study.depth, result.language
    if depth is not None:
        return depth_page.droppable(depth, depth.curve(TUNED), sure=True)
    kept = [n for n, s in best_spans(language.spans if language else ()).items() if s.ratio.value <= WITHIN]
    return max(kept, default=0)


def _blocks(result: Diff) -> int:
    return result.study.models[0].layers - 1


def _lines(result: Diff, answers: tuple[tuple[str, str, str], ...]) -> Iterator[str]:
    """The answer on the console."""
    name, rows = printable(result.data.get("name", "")), int(result.data.get("rows", 0))
    base, tuned = (shorten(m, 40) for m in (result.study.base, result.study.tuned[0]))
    train = int(result.data.get("train", 0))
    heads = f"; heads tuned on {train:,} others" if train else ""
    yield f"{tuned} against {base} on {shorten(name, 40)} ({count(rows, 'row')}{heads})"
    for label, value, note in answers:
        yield f"{label:<16} {printable(value)}{f' ({note})' if note else ''}"
    if result.statements:
        yield f"{'findings':<16} {tally(result.statements)}"


def _answers(result: Diff) -> Iterator[tuple[str, str, str]]:
    """What, its answer, and what stands beside it."""
    curve = changed(result)
    if curve is not None and curve.known:
        yield ("changed most", *_most(curve))
    depth, language, blocks = result.study.depth, result.language, _blocks(result)
    if depth is not None:
        yield "task", f"{depth_page.metric(depth)} {shown(depth.full)}", f"majority {number(depth.majority)}"
        sure, kept = droppable(result), depth.model.layers - 1
        what = f"top {sure} of {count(kept, 'block')}" if sure else f"none of {count(kept, 'block')} from the top"
        lost = "" if sure else f": {depth_page.cost(depth, depth.curve(TUNED))}"
        few = "" if depth_page.enough(depth) else f" takes {depth_page.ENOUGH} rows"
        yield "droppable", f"{what} within 1 point", f"95 % confidence{few}, head tuned{lost}"
    elif language is not None:
        beside = f"base {shown(language.before)}, ratio {times(language.ratio)}"
        yield "perplexity", shown(language.after), beside
        if language.spans:
            best = best_spans(language.spans)
            span = best[droppable(result) or 1]
            what = (
                f"block{'s' if span.last > span.first else ''} {ranges(range(span.first, span.last + 1))} of {blocks}"
            )
            how = f"{times(span.ratio)} the perplexity, untuned"
            yield (
                "droppable",
                what if droppable(result) else f"no block within {WITHIN:g}x",
                (how if droppable(result) else f"cheapest: {what}, {how}"),
            )
    else:
        yield "droppable", "not judged", printable(result.unjudged)
    if result.weights is not None:
        yield ("weights", *_weights(result))
    flipped = [e for e in result.examples if blocks - 1 in e.flips]
    if depth is not None and result.examples and depth.predicted is not None:
        yield "examples", f"{len(flipped)} of {len(result.examples)} predictions flip", "without the top block"
    elif result.examples:
        half = float(np.median([e.moved for e in result.examples]))
        top = result.examples[0]
        yield (
            "examples",
            f"row {top.row} moved most",
            f"{number(top.moved)}, median {number(half)}; layer {result.layer}",
        )


def _most(curve: Curve) -> tuple[str, str]:
    """The layers that changed most, and those that changed least."""
    values = {curve.layers[k]: curve.points[k] for k in curve.known}
    top = max(values, key=lambda k: values[k].value)
    if max(v.high if v.has_interval else v.value for v in values.values()) <= UNCHANGED:
        return "practically unchanged", f"largest drift {_drift(values[top])}, layer {top}"
    near = [k for k, v in values.items() if v.value >= (1 - NEAR) * values[top].value]
    low = min(values, key=lambda k: values[k].value)
    least = [k for k, v in values.items() if v.value <= max(UNCHANGED, values[low].value)]
    beside = (
        f"drift {_drift(values[top])}; layer{'s' if len(least) > 1 else ''} {ranges(least)} {_short(values[low].value)}"
    )
    return f"layer{'s' if len(near) > 1 else ''} {ranges(near)} of {max(values)}", beside


def _drift(value: Value) -> str:
    """`.69 ± .03`."""
    half = f" ± {_short((value.high - value.low) / 2)}" if value.has_interval else ""
    return f"{_short(value.value)}{half}"


def _short(value: float) -> str:
    """`.69`; what is smaller than .005 keeps one digit that counts."""
    size = abs(value)
    if size < 5e-7:
        return "0"
    return f"{value:.2f}".replace("0.", ".", 1) if size >= 0.005 else f"{value:.1g}"


def _weights(result: Diff) -> tuple[str, str]:
    assert result.weights is not None
    curve = result.weights.layers
    known = {k: v for k, v in zip(curve.layers, curve.values.tolist(), strict=True) if not math.isnan(v)}
    blocks = {k: v for k, v in known.items() if k}
    if not any(p.change > 0 for p in result.weights.parameters):
        return "identical", "no parameter changed"
    if not blocks:
        return "changed outside the blocks only", ""
    most, least = max(blocks, key=lambda k: blocks[k]), min(blocks, key=lambda k: blocks[k])
    lora = f"; LoRA of rank {result.weights.adapter.get('r')}" if result.weights.adapter else ""
    percent = weights_page.percent
    return f"block {most} changed most", f"{percent(blocks[most])}, block {least} {percent(blocks[least])}{lora}"


def _examples(result: Diff) -> Iterator[Section]:
    if not result.examples:
        return
    flips, losses = result.study.depth is not None, result.language is not None
    head = ["Row", "Text", "Moved"]
    labelled = any(e.label for e in result.examples)
    head += ["Label"] if labelled else []
    head += ["Predicted", "Flips when cut to layer"] if flips else []
    head += ["Loss before", "Loss after"] if losses else []
    rows: list[tuple[Cell, ...]] = []
    for e in result.examples:
        own: list[Cell] = [str(e.row), e.text, e.moved]
        own += [e.label] if labelled else []
        own += [e.predicted, ranges(e.flips) or "–"] if flips else []
        own += [e.loss_before, e.loss_after] if losses else []
        rows.append(tuple(own))
    more = (
        f" The first {MOST_ROWS:,}; examples.csv has all." if len(rows) > MOST_ROWS else " examples.csv has them too."
    )
    means = " Flips: a model cut to that layer, with the head tuned on it, predicts another label." if flips else ""
    table = Table(
        id="examples",
        title=f"Texts that moved most at layer {result.layer}",
        caption="Row: place among the rows judged, from 0. Moved: 1 − cosine of a text's relations to all other texts before and after, 0 is unmoved."
        f"{means}{' Loss: −log p per token.' if losses else ''}{more}",
        head=tuple(head),
        rows=tuple(rows),
        shown=MOST_ROWS,
        search="text, label …",
        top=True,
    )
    yield Section("examples", "Single texts", tables=(table,))
