"""What a study of fine-tuning shows, in words with numbers, and which published findings do not hold in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stratoscope.core.matrix import Matrix
from stratoscope.report.axes import constant_layers, printable
from stratoscope.report.depthwords import at_chance, depth_observations, shown, verdict
from stratoscope.report.series import Series, halves, layers_of, mean, split_blocks
from stratoscope.report.studyparts import DEBIASED, Quarters, drift, largest_difference, matrices, quarters
from stratoscope.report.verdicts import CLEAR, Score, contrast, deciding, difference, is_clear, judged, level_of, score
from stratoscope.report.words import localization_words
from stratoscope.results.comparison import Comparison
from stratoscope.results.study import Study
from stratoscope.TODO.depth import Point

ALIKE = 0.5
"""Layers whose CKA is below this do not resemble each other."""


def study_sentences(parts: Study) -> list[str]:
    """Everything worth saying of a study, each behind its heading, the warnings of its parts included."""
    said = [f"{head}: {sentence}" for head, group in study_groups(parts) for sentence in group]
    warned = [w for c in parts.compared.values() for w in c.warnings]
    warned += parts.depth.warnings if parts.depth else ()
    return [*said, *(f"Warning: {printable(w)}" for w in dict.fromkeys(warned))]


def study_groups(parts: Study) -> list[tuple[str, list[str]]]:
    """The sentences under their headings: one a unit, then localization, depth and the cut.

    Why verdicts are withheld is said once, before them all.
    """
    reason = None if parts.depth is None else at_chance(parts.depth)
    groups = [("Verdicts", [reason])] if reason else []
    groups += [
        (f"Layers ({printable(unit)})", list(_unit(parts, comparison)))
        for unit, comparison in parts.comparisons.items()
    ]
    if parts.localization is not None:
        groups.append(
            ("Localization", list(localization_words(parts.localization, base=parts.base, judge=reason is None)))
        )
    if parts.depth is not None:
        groups.append(("Depth", [s for s in depth_observations(parts.depth) if s != reason]))
    if parts.cut is not None:
        groups.append(("Cut", [cut_sentence(parts.cut)]))
    return groups


def _unit(parts: Study, comparison: Comparison) -> Iterator[str]:
    first = matrices(comparison)[0]
    yield from _rows(parts, comparison)
    constant = constant_layers(first)
    gone, whose = sorted({layer.index for layer in constant}), dict.fromkeys(layer.model for layer in constant)
    if gone:
        of = "" if len(whose) == len(first.models) else f" of {', '.join(map(printable, whose))}"
        yield (
            f"Constant on these rows: layer{'s' if len(gone) > 1 else ''} {', '.join(map(str, gone))}{of}. The same "
            "vector for every row has no similarity to anything, so it is shown as absent, not as a number."
        )
    for name in parts.tuned:
        yield from _drift(parts, comparison, name)
    yield from _blocks(parts, comparison, first)
    yield from _top_unlike_base(parts, comparison)
    yield from _restarts(parts, comparison)
    for name in parts.across:
        yield from _across(parts, comparison, name)


def _rows(parts: Study, comparison: Comparison) -> Iterator[str]:
    """On few rows biased CKA is too high for all pairs; the gap to the debiased one shows by how much."""
    rows, width = comparison.data.get("rows"), max((m.width for m in comparison.models), default=0)
    scope = f"{rows:,} rows for layers of {width:,} neurons" if isinstance(rows, int) else "An unknown number of rows"
    gap = largest_difference(parts, comparison)
    if gap is None:
        yield f"{scope}; only one of biased and debiased CKA was computed, so the bias cannot be seen."
        return
    cell = f"{printable(str(gap.row))} and {printable(str(gap.column))}, {gap.biased:.2f} and {gap.debiased:.2f}"
    if gap.size > CLEAR:
        yield (
            f"{scope}: biased and debiased CKA differ by up to {gap.size:.3f} ({cell}). So few rows leave the biased "
            "one too high for layers that have little in common: trust the debiased one. The sentences below give the "
            "biased one, as published, unless they say otherwise."
        )
    else:
        yield f"{scope}: biased and debiased CKA differ by at most {gap.size:.3f} ({cell}), so the rows suffice."


def _drift(parts: Study, comparison: Comparison, name: str) -> Iterator[str]:
    first, *rest = matrices(comparison)
    series, one, two = drift(first, parts.base, name), printable(name), printable(parts.base)
    if series is None or not series.known:
        yield f"{one} and {two} do not have the same layers, so there is no drift by layer."
        return
    most, least = int(np.nanargmax(series.values)), int(np.nanargmin(series.values))
    other = drift(rest[0], parts.base, name) if rest else None
    also = f"; debiased {other.values[most]:.2f}" if other is not None else ""
    yield (
        f"{one} moved furthest from {two} at layer {series.layers[most]} (1 − CKA {_at(series, most)}{also}) and least "
        f"at layer {series.layers[least]} ({_at(series, least)})."
    )
    split = halves(series)
    if split is None:
        return
    found = {first.measure: split}
    if other is not None and (debiased := halves(other)) is not None:
        found[DEBIASED] = debiased
    published = "'Top layers change more than bottom ones' (Wu et al. 2020, section 6)"
    gaps = {m: difference(comparison, m, 1 - h.low, 1 - h.high) for m, h in found.items()}
    shown = {m: f"{h.low:.2f} and {h.high:.2f}" for m, h in found.items()}
    against = ""
    if deciding(gaps) == first.measure and len({gap.value > CLEAR for gap in gaps.values()}) > 1:
        against = f", and debiased CKA disagrees ({shown[DEBIASED]})"
    yield (
        f"Mean drift of {one}: {split.low:.2f} over layers {split.lower}, {split.high:.2f} over layers {split.upper}."
        f"{verdict(parts.depth, f'{published} {judged(gaps, shown)}{against}.')}"
    )


def _blocks(parts: Study, comparison: Comparison, matrix: Matrix) -> Iterator[str]:
    """phang2021 section 3: fine-tuned models show two blocks of similar layers."""
    found = comparison.findings.get("blocks", {}).get(matrix.measure, {})
    debiased = comparison.findings.get("blocks", {}).get(DEBIASED, {})
    if parts.base not in found:
        return
    own, base = found[parts.base]["contrast"], printable(parts.base)
    published = "'Two blocks after fine-tuning' (Phang et al. 2021, section 3)"
    measures = {matrix.measure: found} | ({DEBIASED: debiased} if debiased else {})

    def against(name: str, other: str) -> dict[str, Score]:
        """How much sharper the first of two models splits, by measure."""
        return {
            m: contrast(comparison, m, f[name]) - contrast(comparison, m, f[other])
            for m, f in measures.items()
            if {name, other} <= set(f)
        }

    for name in parts.tuned:
        if name not in found:
            continue
        has = found[name]["contrast"]
        also = (
            f" (debiased {debiased[name]['contrast']:.2f})" if name in debiased and matrix.measure != DEBIASED else ""
        )
        gaps = against(name, parts.base)
        pairs = {m: (measures[m][name]["contrast"], measures[m][parts.base]["contrast"]) for m in gaps}
        told = judged(gaps, {m: f"{a:.2f} against {b:.2f}" for m, (a, b) in pairs.items()})
        yield (
            f"{printable(name)} splits best into two blocks at layer {found[name]['start']}, with a contrast "
            f"(mean similarity within the blocks less that between them) of {has:.2f}{also}; "
            f"the untuned {base}'s own is {own:.2f}, its second block from layer "
            f"{found[parts.base]['start']}.{verdict(parts.depth, f'{published} {told}.')}"
        )
    control = parts.control
    if control is not None and control in found:
        floor = found[control]["contrast"]
        level = [printable(n) for n in parts.tuned if n in found and found[n]["contrast"] - floor <= CLEAR]
        meaning = (
            f"the split of {' and '.join(level)} is not clearer than that, so it is no evidence of anything learnt"
            if level
            else "the tuned models' are clearer"
            if all(is_clear(against(n, control)) for n in parts.tuned if n in found)
            else "the tuned models' are higher, but with so few rows chance alone may do that"
        )
        yield f"The random initialisation {printable(control)} has a contrast of {floor:.2f}: {meaning}."


def _top_unlike_base(parts: Study, comparison: Comparison) -> Iterator[str]:
    """phang2021 Fig. 5: the tuned model's top layers resemble no layer of the base.

    Chance only adds to a score, so a low one is judged however few the rows are.
    """
    blocks = {m.measure: m.between(parts.tuned[0], parts.base) for m in matrices(comparison)}
    block = next(iter(blocks.values()))
    last = block.values[-1]
    if np.isnan(last).all():
        return
    best = int(np.nanargmax(last))
    interval = (
        "" if block.low is None or block.high is None else f" [{block.low[-1, best]:.2f}, {block.high[-1, best]:.2f}]"
    )
    published = "'The top layers resemble no layer of the untuned model' (Phang et al. 2021, Fig. 5; below 0.5)"
    highest = {m: float(np.nanmax(b.values[-1])) for m, b in blocks.items()}
    below = {m: score(ALIKE + CLEAR, 0) - score(value, level_of(comparison, m)) for m, value in highest.items()}
    told = judged(below, {m: f"{value:.2f}" for m, value in highest.items()})
    yield (
        f"The top layer of {printable(parts.tuned[0])} is closest to layer {block.columns[best].index} of "
        f"{printable(parts.base)}: CKA {last[best]:.2f}{interval}.{verdict(parts.depth, f'{published} {told}.')}"
    )


def _restarts(parts: Study, comparison: Comparison) -> Iterator[str]:
    """phang2021 Fig. 6: two restarts agree at the top."""
    if len(parts.tuned) < 2:
        return
    one, two = parts.tuned[:2]
    found = {}
    for matrix in matrices(comparison):
        each_other, with_base = (_upper_halves(matrix, one, other) for other in (two, parts.base))
        if each_other is None or with_base is None:
            return
        found[matrix.measure] = each_other, with_base
    each_other, with_base = next(iter(found.values()))
    published = "'Two restarts reach similar top layers' (Phang et al. 2021, Fig. 6)"
    gaps = {m: difference(comparison, m, *pair) for m, pair in found.items()}
    told = judged(gaps, {m: f"{a:.2f} and {b:.2f}" for m, (a, b) in found.items()})
    yield (
        f"In the upper half {printable(one)} and {printable(two)} have a mean CKA of {each_other:.2f} with each other, "
        f"{printable(one)} and the untuned {printable(parts.base)} {with_base:.2f}."
        f"{verdict(parts.depth, f'{published} {told}.')}"
    )


def _upper_halves(matrix: Matrix, one: str, two: str) -> float | None:
    """Mean similarity of two models' upper halves."""
    (_, rows), (_, columns) = (split_blocks(layers_of(matrix, name)) for name in (one, two))
    return mean(matrix.between(one, two).values[np.ix_(rows, columns)])


def _across(parts: Study, comparison: Comparison, name: str) -> Iterator[str]:
    """phang2021 Fig. 7: early layers match early and late match late, even across models.

    Debiased CKA decides: few rows lift the biased one of unrelated layers, and more so of layers of higher rank.
    """
    tuned, by_measure = parts.tuned[0], {m.measure: m for m in matrices(comparison)}
    found = {measure: q for measure, m in by_measure.items() if (q := quarters(m, tuned, name)) is not None}
    if not found:
        return
    first, *rest = found.values()
    also = "".join(f" (debiased {q.early:.2f}, {q.late:.2f} and {q.crossed:.2f})" for q in rest)
    one, two = printable(tuned), printable(name)
    published = "'the earlier and the later layers are similar even across models' (Phang et al. 2021, Fig. 7)"
    told = f"If {two} was tuned on the same task, {published} {_alike_across(found)}."
    yield (
        f"Across models, {one} and {two}: mean CKA {first.early:.2f} of the lower halves, {first.late:.2f} of the "
        f"upper halves, {first.crossed:.2f} of one's lower with the other's upper half{also}."
        f"{verdict(parts.depth, told)}"
    )
    control = quarters(by_measure[DEBIASED], tuned, parts.control) if DEBIASED in found and parts.control else None
    if control is None:
        return
    here = found[DEBIASED]
    gaps = {"lower": (here.early, control.early), "upper": (here.late, control.late)}
    for half, (value, floor) in gaps.items():
        if value - floor <= CLEAR:
            yield (
                f"The {half} halves of {one} and {two} are not clearly closer (debiased CKA {value:.2f}) than those of "
                f"{one} and the random initialisation {printable(str(parts.control))} ({floor:.2f}): no evidence of "
                "anything learnt alike."
            )


def _alike_across(found: Mapping[str, Quarters]) -> str:
    """The verdict, by debiased CKA; none without it."""
    if DEBIASED not in found:
        return "is not judged here: without debiased CKA, a likeness cannot be told from chance"
    alike = {m: (q.early - q.crossed > CLEAR, q.late - q.crossed > CLEAR) for m, q in found.items()}
    early, late = alike[DEBIASED]
    against = ", by debiased CKA; the biased one disagrees" if len(set(alike.values())) > 1 else ""
    if early and late:
        return f"holds here{against}"
    missing = "later" if early else "earlier" if late else "earlier and of the later"
    return f"does NOT hold here, for lack of a match of the {missing} layers{against}"


def cut_sentence(cut: Mapping[str, Any]) -> str:
    """What was cut and what it cost, or why nothing was."""
    if cut.get("refused"):
        reason = printable(str(cut["refused"])).rstrip(".")
        return f"{reason[:1].upper()}{reason[1:]}."
    before, after = (Point(**cut[when]) for when in ("before", "after"))
    large, small = cut["parameters"]["before"], cut["parameters"]["after"]
    tuned = ", its head tuned for the layer it reads now" if cut.get("head", {}).get("tuned") else ""
    return (
        f"The cut model keeps {len(cut['kept'])} of {cut['model']['blocks']} blocks: {cut['metric']} {shown(before)} "
        f"before, {shown(after)} after{tuned}, on {cut['rows']['confirm']:,} rows not used for the choice (at least "
        f"{cut['confidence']:.0%} sure that the loss is within {cut['budget'] * 100:g} points); {large / 1e6:.1f} M "
        f"parameters become {small / 1e6:.1f} M ({small / large - 1:+.0%}), and it takes {cut['latency']['ratio']:.2f} "
        "of the time."
    )


def _at(series: Series, k: int) -> str:
    if series.low is None or series.high is None:
        return f"{series.values[k]:.2f}"
    return f"{series.values[k]:.2f} [{series.low[k]:.2f}, {series.high[k]:.2f}]"
