"""The page of a study: panels before and after fine-tuning (Phang et al. 2021, Fig. 1, 7), drift, depth and cut."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from stratoscope.core.matrix import Matrix
from stratoscope.report.labels import count, number, points, printable, ranges, shorten, slugs
from stratoscope.report.outline import Card, Section, Sections, Switch
from stratoscope.report.pictures import Heatmap, Panels, color_range, constant_layers
from stratoscope.report.sections.cutting import cut as cut_page
from stratoscope.report.sections.cutting import depth as depth_page
from stratoscope.report.sections.layers import (
    HEADLINE,
    blocks_tables,
    drift,
    drift_cards,
    drift_pictures,
    localization_section,
    rows_cards,
    split_card,
    when_of,
)
from stratoscope.results.study import Study

DEBIASED = "ckasim-debiased"
BIAS = 0.02
"""Difference of the biased and the debiased score from which rows are too few for the biased one."""


def sections(study: Study) -> Sections:
    """What the page of a study shows."""
    measures = tuple(dict.fromkeys(m for c in study.comparisons.values() for m in c))
    units = tuple(study.comparisons)
    switches = (
        Switch("unit", "Rows", units, units[0]),
        Switch("measure", "Measure", measures, HEADLINE if HEADLINE in measures else measures[0]),
    )
    warned = [*study.warnings, *(w for c in study.compared.values() for w in c.warnings)]
    warned += [w for part in (study.depth, study.cut) if part is not None for w in part.warnings]
    rows = [f"{u} {c.data['rows']:,} rows" for u, c in study.compared.items() if isinstance(c.data.get("rows"), int)]
    task = [study.depth.task.get("name")] if study.depth else []
    cited = dict.fromkeys([*measures, *(study.localization or ())])
    return Sections(
        title=f"{printable(study.base)} before and after fine-tuning",
        cards=tuple(_cards(study)),
        sections=tuple(_sections(study)),
        models=study.models,
        summary=tuple(printable(t) for t in (*task, *rows) if t),
        switches=tuple(s for s in switches if len(s.options) > 1),
        warnings=tuple(dict.fromkeys(warned)),
        facts=_facts(study),
        measures=tuple(cited),
        works=("Phang et al. 2021",),
    )


def panels(study: Study, matrix: Matrix) -> dict[str, Matrix]:
    """By title, its first name on the rows: ORIG–ORIG, FT–ORIG, FT–FT, FT[1]–FT[2], FT–OTHER, and the control."""
    base, first = study.base, study.tuned[0]
    made = {
        "ORIG–ORIG": matrix.between(base, base),
        "FT–ORIG": matrix.between(first, base),
        "FT–FT": matrix.between(first, first),
    }
    if len(study.tuned) > 1:
        made["FT[1]–FT[2]"] = matrix.between(first, study.tuned[1])
    made |= {f"FT–{role}": matrix.between(first, name) for role, name in _others(study).items()}
    if study.control is not None:
        made["RANDOM–RANDOM"] = matrix.between(study.control, study.control)
    return made


def _sections(study: Study) -> Iterator[Section]:
    files, shown, moved, tables = slugs(study.comparisons), [], [], []
    order = [m for m in (study.base, *study.tuned, *study.across, study.control) if m]
    for unit, comparison in study.comparisons.items():
        when = when_of(comparison, **({"unit": unit} if len(study.comparisons) > 1 else {}))
        place = {m: f"{files[unit]}-{slug}" for m, slug in slugs(comparison).items()}
        blocks = {m.measure: panels(study, m) for m in comparison.matrices}
        scale = color_range([p.values for line in blocks.values() for p in line.values()])
        for measure, parts in blocks.items():
            heats = tuple(
                Heatmap.of(part, id=f"{place[measure]}-{k}", title=title, range=scale)
                for k, (title, part) in enumerate(parts.items())
            )
            shown.append(
                Panels(
                    id=f"panels-{place[measure]}",
                    file=f"panels-{files[unit]}",
                    title=f"Before and after fine-tuning, {shorten(unit, 20)} rows",
                    caption=_caption(study, parts),
                    panels=heats,
                    label=printable(measure),
                    when=when[measure],
                )
            )
        moved += drift_pictures(
            comparison,
            partial(_drifts, study),
            base=study.base,
            place=place,
            when=when,
            file=f"drift-{files[unit]}",
            title=f"Drift by layer, {shorten(unit, 20)} rows",
        )
        tables += blocks_tables(comparison, order, base=study.base, apart=study.across, place=place, when=when)
    lead = " ".join(bias for unit in study.comparisons if (bias := _bias(study, unit)))
    yield Section("layers", "Layers before and after fine-tuning", tuple(shown), lead=lead)
    without = "" if moved else "The tuned models do not have the layers of the base model."
    yield Section("drift", "Drift by layer", tuple(moved), lead=without, width="half")
    if tables:
        yield Section("blocks", "Block structure", tables=tuple(tables), width="half")
    if study.localization is not None and (section := localization_section(study.localization)) is not None:
        yield section
    if study.depth is not None:
        yield from depth_page.parts(study.depth)
    if study.cut is not None:
        yield from cut_page.parts(study.cut)
    elif study.refused:
        yield Section("cut", "The cut model", lead=f"Nothing was cut: {printable(study.refused)}")


def _bias(study: Study, unit: str) -> str:
    """How far the biased and the debiased score are apart in what is shown; empty unless both were computed."""
    comparison = study.comparisons[unit]
    if not {HEADLINE, DEBIASED} <= set(comparison):
        return ""
    pairs = zip(*(panels(study, comparison[m]).values() for m in (HEADLINE, DEBIASED)), strict=True)
    gaps = np.concatenate([np.abs(one.values - two.values).ravel() for one, two in pairs])
    largest = float(np.nanmax(gaps)) if np.isfinite(gaps).any() else 0.0
    so = "too few rows for the biased score, trust the debiased one" if largest > BIAS else "the rows suffice"
    return f"{printable(unit)} rows: {HEADLINE} and {DEBIASED} differ by at most {number(largest)}; {so}."


def _drifts(study: Study, matrix: Matrix) -> dict[str, Any]:
    drifts = {name: drift(matrix, study.base, name) for name in study.tuned}
    return {name: curve for name, curve in drifts.items() if curve is not None}


def _others(study: Study) -> dict[str, str]:
    """Models that are not made from the base, by what titles call them: OTHER, or OTHER[1], OTHER[2]."""
    if len(study.across) == 1:
        return {"OTHER": study.across[0]}
    return {f"OTHER[{k}]": name for k, name in enumerate(study.across, start=1)}


def _caption(study: Study, blocks: dict[str, Matrix]) -> str:
    tuned = dict(zip(("FT", "FT[2]"), study.tuned, strict=False))
    roles = {"ORIG": study.base, **tuned, **_others(study), **({"RANDOM": study.control} if study.control else {})}
    gone = sorted({layer.index for part in blocks.values() for layer in constant_layers(part)})
    missing = f" Missing: layer{'' if len(gone) == 1 else 's'} {ranges(gone)}, constant on these rows." if gone else ""
    names = "; ".join(f"{role}: {shorten(name, 32)}" for role, name in roles.items() if name)
    return (
        f"{names}. The first name of a title is on the rows; layer 0 is at the lower left; one colour scale.{missing}"
    )


def _cards(study: Study) -> Iterator[Card]:
    unit, comparison = next(iter(study.comparisons.items()))
    measure = HEADLINE if HEADLINE in comparison else comparison.matrices[0].measure
    curve = drift(comparison[measure], study.base, study.tuned[0])
    if curve is not None:
        yield from drift_cards(curve, base=study.base, measure=f"{measure}, {unit} rows")
    yield from rows_cards(comparison)
    splits, first = comparison.findings.get("blocks", {}).get(measure, {}), study.tuned[0]
    if first in splits:
        yield split_card(first, splits[first], measure, splits.get(study.base))
    if study.depth is not None:
        yield from list(depth_page.cards(study.depth))[:2]
    if study.cut is not None:
        kept, total = len(study.cut.kept), len(study.cut.kept) + len(study.cut.dropped)
        ratio = study.cut.latency.get("ratio")
        time = f", {ratio:.2f} of the time" if isinstance(ratio, float) else ""
        yield Card(
            "Cut model",
            f"{kept} of {count(total, 'block')}",
            f"{study.cut.metric} {points(study.cut.difference.value)}{time}",
        )
    elif study.refused:
        yield Card("Cut model", "none", printable(study.refused))


def _facts(study: Study) -> dict[str, dict[str, Any]]:
    data: dict[str, Any] = {unit: c.data for unit, c in study.compared.items()}
    provenance: dict[str, Any] = {**study.provenance}
    provenance |= {unit: c.provenance for unit, c in study.compared.items() if c.provenance}
    if study.depth is not None:
        data["task"] = study.depth.task
        provenance |= {"depth": study.depth.provenance} if study.depth.provenance else {}
    return {"Data": data, "Provenance": provenance}
