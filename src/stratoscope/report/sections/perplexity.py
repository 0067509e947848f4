"""The page of a decoder's perplexity at every depth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stratoscope.report.labels import count, printable, shown
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Curves, Line
from stratoscope.results.perplexity import Perplexities

WITHIN = 1.1
"""A depth whose perplexity is at most this many times that of the whole model does nearly as well."""


def sections(result: Perplexities) -> Sections:
    """What the page of perplexities shows."""
    name = printable(result.model.name)
    value, low, high = np.array([(p.value, p.low, p.high) for p in result.points]).T
    last = result.points[-1]
    picture = Curves(
        id="perplexity",
        title=f"{name}: truncated at every layer",
        caption="Perplexity when the language-model head reads each layer; lower is better. Bands: 95 % intervals over "
        "the texts.",
        lines=(Line(name, tuple(range(len(result.points))), value, low, high),),
        x="layer read (0 = embeddings)",
        y="perplexity",
        log=True,
    )
    return Sections(
        title=f"Perplexity of {name} at every depth",
        cards=tuple(_cards(result)),
        sections=(Section("perplexity", "Truncated at every layer", (picture,)),),
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
    yield Card("Whole model: perplexity", shown(whole.point), f"{count(blocks, 'block')}; lower is better")
    if blocks:
        before = result.points[-2]
        times = before.value / whole.value
        yield Card("Without the top block", shown(before.point), f"{times:.2f} times that of the whole model")
        enough = next(k for k, p in enumerate(result.points) if p.value <= WITHIN * whole.value)
        yield Card(
            f"First layer within {WITHIN - 1:.0%} of the whole model",
            f"layer {enough} of {blocks}",
            f"perplexity {shown(result.points[enough].point)}",
        )
