"""The page of a comparison of attention: layers, then the heads of two layers, then what two heads attend to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from stratoscope.measures.attention.table import attention_measure
from stratoscope.report.labels import number, printable, slugs
from stratoscope.report.outline import Card, Section, Sections, Switch
from stratoscope.report.pictures import Attended, Curves, Heads, Heatmap, Line, Patterns, Table, tight_range
from stratoscope.report.sections.comparison import drift_curves, pairs
from stratoscope.report.sections.layers import band_note, drift, drift_cards, drift_pictures, interval_words, when_of
from stratoscope.results.attention import Attention

MOST_CELLS = 4_000_000
"""Pairs of heads on the page, over all measures; beyond, `result.heads` has them."""
MOST_ROWS = 12
"""Redundant heads in the table."""
WORK = "Wu et al. 2020"


def sections(result: Attention) -> Sections:
    """What the page shows."""
    measures = tuple(result)
    chosen = "js" if "js" in measures else measures[0]
    data = result.data
    kinds = [name for key, name in (("causal", "causal"), ("keep_specials", "special tokens kept")) if data.get(key)]
    heads = sum(result.heads_of)
    return Sections(
        title="Attention of " + ", ".join(printable(m.name) for m in result.models),
        cards=tuple(_cards(result, chosen)),
        sections=tuple(_sections(result)),
        models=result.models,
        summary=(printable(data.get("name", "")), f"{data.get('sentences', 0):,} sentences",
                 f"{data.get('rows', 0):,} words", f"{heads:,} heads in {len(result.layers)} layers", *kinds),
        switches=(Switch("measure", "Measure", measures, chosen),) if len(measures) > 1 else (),
        warnings=result.warnings,
        facts={"Data": data, "Provenance": result.provenance},
        measures=tuple(m for m in measures if attention_measure(m).of_heads is None),
        works=(WORK,),
    )  # fmt: skip


def _cards(result: Attention, measure: str) -> Iterator[Card]:
    controls = {m.name for m in result.models if m.is_control}
    for base, name in pairs(result)[:2]:
        curve = drift(result[measure], base, name)
        if curve is not None and name not in controls:
            yield from drift_cards(curve, base=base, measure=measure)
    if result.head_measures:
        table = result.redundant()
        if len(table):
            top = table.iloc[0]
            name = f"{printable(top['model'])}:{top['layer']} head {top['head']}"
            partner = f"like layer {top['partner_layer']} head {top['partner_head']}"
            note = f"{partner}, {result.head_measure()} {number(float(top['similarity']))}"
            yield Card("Most redundant head", name, note)


def _sections(result: Attention) -> Iterator[Section]:
    files, when = slugs(result), when_of(result)
    heats = tuple(
        Heatmap.of(
            m,
            id=f"similarity-{files[m.measure]}",
            file=files[m.measure],
            range=tight_range([m.values]),
            caption=f"{m.measure}: {attention_measure(m.measure).summary}. Rows are the first argument, columns the"
            " second; block k is layer k, the first is at the lower left. Click a cell to open its heads."
            + (f" Intervals: {interval_words(m.interval)}." if m.low is not None else ""),
            when=when[m.measure],
        )
        for m in result.matrices
    )
    yield Section("similarity", "Similarity of layers", heats, width="tall")
    curves = drift_pictures(
        result,
        partial(drift_curves, result),
        base=", ".join(dict.fromkeys(a for a, _ in pairs(result))),
        place=files,
        when=when,
        file="drift",
        title="Drift of attention by layer",
        x="layer",
    )
    if curves:
        yield Section("drift", "Drift by layer", tuple(curves), width="half")
    yield Section("columns", "Mean similarity per column", tuple(_columns(result)), width="half" if curves else "full")
    yield from _heads(result)


def _columns(result: Attention) -> Iterator[Curves]:
    files, when = slugs(result), when_of(result)
    for m in result.matrices:
        means = result.columns(m.measure)
        own = len(result.models) > 3  # pairs would be too many lines
        kept = {k: c for k, c in means.items() if not own or k[0] == k[1]}
        yield Curves(
            id=f"columns-{files[m.measure]}",
            file="columns",
            title="Mean similarity per column",
            caption="Mean over the layers of the first model of their similarity to each layer of the second, itself"
            f" left out: the stripes of the heatmap.{band_note(kept.values())}",
            lines=tuple(Line.of(c, tint=k, dashed=a != b) for k, ((a, b), c) in enumerate(kept.items())),
            x="layer of the second model",
            y=m.measure,
            when=when[m.measure],
        )


def _heads(result: Attention) -> Iterator[Section]:
    files, when = slugs(result), when_of(result)
    fit = max(1, MOST_CELLS // max(1, sum(result.heads_of) ** 2))
    first = result.head_measure() if result.head_measures else ""
    names = sorted(result.head_measures, key=lambda name: name != first)[:fit]
    pictures = tuple(
        Heads.of(
            np.asarray(result.arrays[name], dtype=np.float64),
            result.layers,
            result.heads_of,
            id=f"heads-{files[name]}",
            file=f"heads-{files[name]}",
            title=f"Similarity of heads, {name}",
            caption="Heads of the row's layer and of the column's. Click a pair to see what both attend to.",
            unit=name,
            when=when[name],
        )
        for name in names
        if sum(result.heads_of) ** 2 <= MOST_CELLS
    )
    left = [name for name in result.head_measures if name not in names]
    lead = f"Pairs of heads under {', '.join(left)} are in the result: `result.heads(...)`." if left else ""
    tables = tuple(_redundant(result, name) for name in result.head_measures)
    if pictures or tables:
        yield Section("heads", "Heads", pictures, tables, lead=lead, width="full")
    if result.patterns and result.head_measures and pictures:
        yield Section("patterns", "What two heads attend to", (_patterns(result),), width="full")


def _redundant(result: Attention, measure: str) -> Table:
    table = result.redundant(measure).head(MOST_ROWS)
    rows = tuple(
        (f"{a}:{b} head {c}", f"{d}:{e} head {f}", float(similarity))
        for a, b, c, d, e, f, similarity in table.to_numpy().tolist()
    )
    return Table(
        id=f"redundant-{slugs(result)[measure]}",
        file="redundant",
        title="Most redundant heads",
        caption="Heads with the most similar other head of their own model; controls left out.",
        head=("Head", "Most similar", measure),
        rows=rows,
        when=when_of(result)[measure],
    )


def _patterns(result: Attention) -> Patterns:
    """Opened at the most redundant head and its partner."""
    names = tuple(
        printable(f"{layer} head {h + 1}")
        for layer, count in zip(result.layers, result.heads_of, strict=True)
        for h in range(count)
    )
    table = result.redundant()
    at = dict.fromkeys(("", "partner_"), 0)
    if len(table):
        top = table.iloc[0]
        at = {side: names.index(printable(f"{top[f'{side}model']}:{top[f'{side}layer']} head {top[f'{side}head']}"))
              for side in at}  # fmt: skip
    sentences = tuple(Attended.of(p.words, p.targets, np.asarray(p.weights, dtype=np.uint8)) for p in result.patterns)
    return Patterns(
        id="patterns",
        title="What two heads attend to",
        caption="Rows are source words, the first at the top; columns what they attend to. Drag to zoom, double-click"
        f" to see all. In figures words are numbered: {' '.join(sentences[0].words)}",
        heads=names,
        first=at[""],
        second=at["partner_"],
        sentences=sentences,
    )
