"""What a study of fine-tuning shows, in words with numbers, and which published findings do not hold in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stratoscope.core.depth import Point
from stratoscope.core.result import Comparison, Matrix
from stratoscope.core.study import Study
from stratoscope.report.axes import constant_layers, printable
from stratoscope.report.depthwords import at_chance, depth_observations, shown, verdict
from stratoscope.report.series import Series, halves, layers_of, mean, split_blocks
from stratoscope.report.studyparts import DEBIASED, Quarters, drift, largest_difference, matrices, quarters
from stratoscope.report.words import localization_words

CLEAR = 0.02
"""A difference of two similarities below this is called no clear difference."""


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
        groups.append(("Localization", list(localization_words(parts.localization, base=parts.base))))
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
    yield from _top_unlike_base(parts, first)
    yield from _restarts(parts, first)
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
    gap = split.high - split.low
    against = ""
    if other is not None and (found := halves(other)) is not None and (found.high - found.low > CLEAR) != (gap > CLEAR):
        against = f", and debiased CKA disagrees ({found.low:.2f} and {found.high:.2f})"
    yield (
        f"Mean drift of {one}: {split.low:.2f} over layers {split.lower}, {split.high:.2f} over layers {split.upper}. "
        f"'Top layers change more than bottom ones' (Wu et al. 2020, section 6) {_holds(gap > CLEAR)} here{against}."
    )


def _blocks(parts: Study, comparison: Comparison, matrix: Matrix) -> Iterator[str]:
    """phang2021 section 3: fine-tuned models show two blocks of similar layers."""
    found = comparison.findings.get("blocks", {}).get(matrix.measure, {})
    debiased = comparison.findings.get("blocks", {}).get(DEBIASED, {})
    if parts.base not in found:
        return
    own, base = found[parts.base]["contrast"], printable(parts.base)
    published = "'Two blocks after fine-tuning' (Phang et al. 2021, section 3)"
    for name in parts.tuned:
        if name not in found:
            continue
        has = found[name]["contrast"]
        also = (
            f" (debiased {debiased[name]['contrast']:.2f})" if name in debiased and matrix.measure != DEBIASED else ""
        )
        yield (
            f"{printable(name)} splits best into two blocks at layer {found[name]['start']}, with a contrast of "
            f"{has:.2f}{also}; the untuned {base}'s own is {own:.2f}, its second block from layer "
            f"{found[parts.base]['start']}.{verdict(parts.depth, f'{published} {_holds(has - own > CLEAR)} here.')}"
        )
    if parts.control in found:
        floor = found[parts.control]["contrast"]
        level = [printable(n) for n in parts.tuned if n in found and found[n]["contrast"] - floor <= CLEAR]
        meaning = (
            f"the split of {' and '.join(level)} is not clearer than that, so it is no evidence of anything learnt"
            if level
            else "the tuned models' are clearer"
        )
        yield f"The random initialisation {printable(str(parts.control))} has a contrast of {floor:.2f}: {meaning}."


def _top_unlike_base(parts: Study, matrix: Matrix) -> Iterator[str]:
    """phang2021 Fig. 5: the tuned model's top layers resemble no layer of the base."""
    block = matrix.between(parts.tuned[0], parts.base)
    last = block.values[-1]
    if np.isnan(last).all():
        return
    best = int(np.nanargmax(last))
    interval = (
        "" if block.low is None or block.high is None else f" [{block.low[-1, best]:.2f}, {block.high[-1, best]:.2f}]"
    )
    published = "'The top layers resemble no layer of the untuned model' (Phang et al. 2021, Fig. 5; below 0.5)"
    judged = verdict(parts.depth, f"{published} {_holds(bool(last[best] < 0.5))} here.")
    yield (
        f"The top layer of {printable(parts.tuned[0])} is closest to layer {block.columns[best].index} of "
        f"{printable(parts.base)}: CKA {last[best]:.2f}{interval}.{judged}"
    )


def _restarts(parts: Study, matrix: Matrix) -> Iterator[str]:
    """phang2021 Fig. 6: two restarts agree at the top."""
    if len(parts.tuned) < 2:
        return
    one, two = parts.tuned[:2]
    (_, rows), (_, columns) = (split_blocks(layers_of(matrix, name)) for name in (one, two))
    (_, base) = split_blocks(layers_of(matrix, parts.base))
    each_other = mean(matrix.between(one, two).values[np.ix_(rows, columns)])
    with_base = mean(matrix.between(one, parts.base).values[np.ix_(rows, base)])
    if each_other is None or with_base is None:
        return
    published = "'Two restarts reach similar top layers' (Phang et al. 2021, Fig. 6)"
    judged = verdict(parts.depth, f"{published} {_holds(each_other - with_base > CLEAR)} here.")
    yield (
        f"In the upper half {printable(one)} and {printable(two)} have a mean CKA of {each_other:.2f} with each other, "
        f"{printable(one)} and the untuned {printable(parts.base)} {with_base:.2f}.{judged}"
    )


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
    judged = f"If {two} was tuned on the same task, {published} {_alike_across(found)}."
    yield (
        f"Across models, {one} and {two}: mean CKA {first.early:.2f} of the lower halves, {first.late:.2f} of the "
        f"upper halves, {first.crossed:.2f} of one's lower with the other's upper half{also}."
        f"{verdict(parts.depth, judged)}"
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


def _holds(yes: bool) -> str:
    return "holds" if yes else "does NOT hold"
