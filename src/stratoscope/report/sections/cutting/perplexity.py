"""The page of a decoder's perplexity at every depth and without every span of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stratoscope.core.value import Value
from stratoscope.report.labels import count, printable, ranges, shown
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Axis, Curves, Heatmap, Line, Table
from stratoscope.results.cutting.perplexity import MOST, Perplexities, Skipped, times

WITHIN = 1.1
"""A depth whose perplexity is at most this many times that of the whole model does nearly as well."""
COLOURS = (1.0, 2.0)
"""Ratios of the first and the last colour: beyond twice the perplexity no span is of use."""


def sections(result: Perplexities) -> Sections:
    """What the page of perplexities shows."""
    name = printable(result.model.name)
    value, low, high = np.minimum(np.array([(p.value, p.low, p.high) for p in result.points]).T, MOST)
    last = result.points[-1]
    picture = Curves(
        id="perplexity",
        title=f"{name}: truncated at every layer",
        caption="Perplexity when the language-model head reads each layer; lower is better. Bands: 95 % intervals over "
        f"the texts.{' Values above 1e6 are drawn at 1e6.' if (value >= MOST).any() else ''}",
        lines=(Line(name, tuple(range(len(result.points))), value, low, high),),
        x="layer read (0 = embeddings)",
        y="perplexity",
        log=True,
    )
    truncated = Section("perplexity", "Truncated at every layer", (picture,), width="half" if result.spans else "full")
    return Sections(
        title=f"Perplexity of {name} at every depth",
        cards=tuple(_cards(result)),
        sections=(
            truncated,
            *span_sections(result.spans, len(result.points) - 1, name=name, texts=result.span_texts),
        ),
        models=(result.model,),
        summary=(
            printable(result.corpus.get("name") or "text"),
            count(last.texts, "text"),
            f"{last.tokens:,} tokens predicted",
            *([f"{count(last.cut, 'text')} truncated"] if last.cut else []),
        ),
        warnings=result.warnings,
        facts={"Data": result.corpus, "Provenance": result.provenance},
    )


def _cards(result: Perplexities) -> Iterator[Card]:
    whole, blocks = result.points[-1], len(result.points) - 1
    yield Card("Whole model: perplexity", _perplexity(whole.point), f"{count(blocks, 'block')}; lower is better")
    if not blocks:
        return
    before = result.points[-2]
    ratio = before.value / whole.value
    note = f"{ratio:.2f} times that of the whole model" if ratio <= MOST else "far beyond that of the whole model"
    yield Card("Without the top block", _perplexity(before.point), note)
    enough = next((k for k, p in enumerate(result.points) if p.value <= WITHIN * whole.value), blocks)
    yield Card(
        f"First layer within {WITHIN - 1:.0%} of the whole model",
        f"layer {enough} of {blocks}",
        f"perplexity {_perplexity(result.points[enough].point)}",
    )
    for length, span in sorted(best_spans(result.spans).items())[:: max(1, len(best_spans(result.spans)) - 1)]:
        yield Card(
            f"Cheapest {count(length, 'block')} to skip",
            f"block{'s' if length > 1 else ''} {ranges(range(span.first, span.last + 1))}: {times(span.ratio)}",
            f"same likeliest token as the whole model: {span.agreement:.0%}",
        )


def best_spans(spans: Sequence[Skipped]) -> dict[int, Skipped]:
    """The span that costs least, by its number of blocks."""
    best: dict[int, Skipped] = {}
    for span in sorted(spans, key=lambda s: s.ratio.value, reverse=True):
        best[span.last - span.first + 1] = span
    return best


def span_heatmap(spans: Sequence[Skipped], blocks: int, *, name: str, texts: int) -> Heatmap:
    """Perplexity ratio of every span that was skipped."""
    values, low, high, same = np.full((4, blocks, blocks), np.nan)
    for s in spans:
        cell = s.first - 1, s.last - 1
        values[cell], low[cell], high[cell] = (min(x, MOST) for x in (s.ratio.value, s.ratio.low, s.ratio.high))
        same[cell] = s.agreement
    longest = max(s.last - s.first + 1 for s in spans)
    numbers = tuple(str(k + 1) for k in range(blocks))
    with np.errstate(invalid="ignore"):
        marks = values <= WITHIN
    return Heatmap(
        id="skip",
        title=f"{name}: blocks skipped",
        caption=f"Perplexity over the whole model's with blocks first to last skipped, on {count(texts, 'text')}; spans"
        f" of at most {count(longest, 'block')}, intervals paired over the texts. Outlined: at most {WITHIN:g} times,"
        f" {int(marks.sum())} of {count(len(spans), 'span')}. Ratios above 2 have the last colour"
        f"{', those above 1e6 are cut there' if (values >= MOST).any() else ''}.",
        rows=Axis(tuple(f"without blocks {b}" for b in numbers), numbers, title="first block skipped"),
        columns=Axis(numbers, numbers, title="last block skipped"),
        values=values,
        low=None if np.isnan(low).all() else low,
        high=None if np.isnan(high).all() else high,
        range=COLOURS,
        unit="perplexity ratio",
        joint=" to ",
        missing="not skipped",
        hatched=False,
        marks=marks,
        beside={"top-1 agreement with the whole model": same},
        numbers=True,
    )


def span_sections(spans: Sequence[Skipped], blocks: int, *, name: str, texts: int) -> Iterator[Section]:
    """Every span that was skipped, for this page or another; nothing where none was."""
    if not spans:
        return
    picture = span_heatmap(spans, blocks, name=name, texts=texts)
    best = sorted(best_spans(spans).items())
    table = Table(
        id="best-spans",
        title="Cheapest spans",
        caption="Of every length; the blocks are skipped and nothing is tuned.",
        head=("Blocks skipped", "Number", "Perplexity ratio", "Top-1 agreement"),
        rows=tuple((ranges(range(s.first, s.last + 1)), k, times(s.ratio), s.agreement) for k, s in best),
    )
    yield Section("skip", "Spans of blocks skipped", (picture,), (table,), width="half")


def _perplexity(point: Value) -> str:
    return shown(point) if point.value <= MOST else ">1e6"
