"""The page of a comparison: every matrix under a measure switch, drift, localization and block structure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from stratoscope.core.curve import Curve
from stratoscope.core.matrix import Matrix
from stratoscope.core.value import Value
from stratoscope.report.labels import printable, shown, slugs
from stratoscope.report.outline import Card, Section, Sections, Switch
from stratoscope.report.pictures import Heatmap, missing_note
from stratoscope.report.sections.layers import (
    HEADLINE,
    blocks_tables,
    drift,
    drift_cards,
    drift_pictures,
    interval_words,
    localization_section,
    rows_cards,
    rows_summary,
    split_card,
    when_of,
)
from stratoscope.results.comparison import Comparison

MOST_PAIRS = 2
"""Pairs of models that have cards."""
MOST_LAYERS = 45
"""Layers of all models up to which a heatmap can be read in half of a wide page."""


def sections(comparison: Comparison) -> Sections:
    """What the page of a comparison shows."""
    names = [m.name for m in comparison.models]
    measures = tuple(comparison)
    chosen = HEADLINE if HEADLINE in measures else next(iter(measures), "")
    switch = Switch("measure", "Measure", measures, chosen)
    return Sections(
        title="Layers of " + ", ".join(map(printable, names)),
        cards=tuple(_cards(comparison, chosen)) if chosen else (Card("This result", "holds no matrix"),),
        sections=tuple(_sections(comparison)) if chosen else (),
        models=comparison.models,
        summary=(*rows_summary(comparison), f"{len(measures)} measure{'' if len(measures) == 1 else 's'}"),
        switches=(switch,) if len(measures) > 1 else (),
        warnings=comparison.warnings,
        facts={"Data": comparison.data, "Provenance": comparison.provenance},
        measures=measures,
    )


def pairs(comparison: Comparison) -> list[tuple[str, str]]:
    """A base and a model to compare with it layer by layer: what the run knows, else the first model and each other.

    A control's base says nothing of the other models: its pair comes last, beside theirs.
    """
    names = [m.name for m in comparison.models]
    known = [(str(m.base), m.name, m.is_control) for m in comparison.models if m.base in names]
    trained = [(base, name) for base, name, control in known if not control]
    controls = [(base, name) for base, name, control in known if control]
    others = {name for _, name in controls}
    return (trained or [(names[0], name) for name in names[1:] if name not in others]) + controls


def _sections(comparison: Comparison) -> Iterator[Section]:
    from stratoscope.measures.table import MEASURES  # with torch, which drawing alone has no use for

    said = {m.name: m.summary for m in MEASURES}
    files, when = slugs(comparison), when_of(comparison)
    heats = tuple(
        Heatmap.of(
            m,
            id=f"similarity-{files[m.measure]}",
            file=files[m.measure],
            caption=_caption(m, said.get(m.measure.partition("@")[0], "")),
            when=when[m.measure],
        )
        for m in comparison.matrices
    )
    wide = max(len(m.columns) for m in comparison.matrices) > MOST_LAYERS
    yield Section("similarity", "Similarity of layers", heats, width="full" if wide else "tall")
    drifts = drift_pictures(
        comparison,
        partial(drift_curves, comparison),
        base=next((base for base, _ in pairs(comparison)), ""),
        place=files,
        when=when,
        file="drift",
        title="Drift by layer",
    )
    if drifts:
        yield Section("drift", "Drift by layer", tuple(drifts), width="half")
    localization = localization_section(comparison, width="half")
    if localization is not None:
        yield localization
    tables = blocks_tables(comparison, [m.name for m in comparison.models], place=files, when=when)
    if tables:
        yield Section(
            "blocks", "Block structure", tables=tuple(tables), width="full" if drifts and localization else "half"
        )


def drift_curves(comparison: Comparison, matrix: Matrix) -> dict[str, Curve]:
    """Drift curves by what the legend calls them."""
    compared = pairs(comparison)
    drifts = {pair: drift(matrix, *pair) for pair in compared}
    one_base = len({base for base, _ in compared}) == 1
    return {(b if one_base else f"{a} → {b}"): curve for (a, b), curve in drifts.items() if curve is not None}


def _caption(matrix: Matrix, summary: str) -> str:
    """One line: what the measure is, how to read the axes, what is hatched."""
    what = f"{matrix.measure}: {summary}. " if summary else ""
    ends = f" Intervals: {interval_words(matrix.interval)}." if matrix.low is not None else ""
    axes = "Rows are the first argument, columns the second; layer 0 is at the lower left."
    return f"{what}{axes}{missing_note(matrix)}{ends}"


def _cards(comparison: Comparison, measure: str) -> Iterator[Card]:
    matrix, controls = comparison[measure], {m.name for m in comparison.models if m.is_control}
    unchanged = 0
    for base, name in pairs(comparison):
        curve = None if {base, name} & controls else drift(matrix, base, name)
        if curve is not None and curve.known and unchanged < MOST_PAIRS:
            yield from drift_cards(curve, base=base, measure=measure)
            unchanged += 1
    yield from rows_cards(comparison)
    blocks = comparison.findings.get("blocks", {}).get(measure, {})
    if not unchanged:
        trained = [n for n in (m.name for m in comparison.models) if n not in controls]
        for one, two in [(a, b) for k, a in enumerate(trained) for b in trained[k + 1 :]][:MOST_PAIRS]:
            yield from _closest(matrix.between(one, two))
        for name in [n for n in trained if n in blocks][:MOST_PAIRS]:
            yield split_card(name, blocks[name], measure)


def _closest(block: Matrix) -> Iterator[Card]:
    """The pair of layers of two models that are most alike."""
    if np.isnan(block.values).all():
        return
    i, j = np.unravel_index(int(np.nanargmax(block.values)), block.values.shape)
    ends = () if block.low is None or block.high is None else (float(block.low[i, j]), float(block.high[i, j]))
    best = shown(Value(float(block.values[i, j]), *ends))
    names = f"{printable(block.rows[i])} and {printable(block.columns[j])}"
    models = " and ".join(printable(axis[0].model) for axis in (block.rows, block.columns))
    yield Card(f"Most alike layers of {models}", names, f"{block.measure} {best}")
