"""What the pictures show, in plain words with numbers, and where a published finding does not hold on this data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np

from stratoscope.core.matrix import Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.report.axes import constant_layers, printable
from stratoscope.report.series import (
    Halves,
    Series,
    alone_series,
    drift_series,
    drop_start,
    halves,
    in_order,
    layers_of,
    localization_series,
    mean,
    share_rising,
    split_blocks,
)
from stratoscope.report.verdicts import CLEAR, DEBIASED, contrast, difference, judged, judged_apart
from stratoscope.results.comparison import Comparison

DROP = 0.05
"""How far below the best layer a similarity must stay to count as dropped."""
EXTREMES = "the scores of its least and of its most localized layer are"
MOSTLY = 2 / 3
"""Share of layer pairs that must agree before a series is said to rise or fall with depth."""


def sentences(comparison: Comparison) -> list[str]:
    """Everything worth saying of a result: what was compared, what it shows, and the warnings of the run."""
    return [*observations(comparison), *(f"Warning: {printable(w)}" for w in comparison.warnings)]


def observations(comparison: Comparison) -> list[str]:
    """The sentences without the warnings."""
    if not comparison.matrices:
        return ["This result holds no matrix."]
    return [
        *_scope(comparison),
        *_drift(comparison),
        *_blocks(comparison),
        *_across(comparison),
        *localization_words(comparison),
    ]


def headline(comparison: Comparison) -> Matrix:
    """The measure the words are about: ckasim, which both papers show, or else the first."""
    return comparison["ckasim"] if "ckasim" in comparison else comparison.matrices[0]


def _scope(comparison: Comparison) -> Iterator[str]:
    data, models = comparison.data, comparison.models
    names = _list([printable(m.name) for m in models])
    on = f" on {printable(str(data['name']))}" if data.get("name") else ""
    unit = f" (unit: {printable(str(data['unit']))})" if data.get("unit") else ""
    measures = f"{len(comparison)} measure{'s' if len(comparison) > 1 else ''}"
    yield f"{len(models)} model{'s' if len(models) > 1 else ''} compared{on}{unit} under {measures}: {names}."
    rows, width = data.get("rows"), max((m.width for m in models), default=0)
    if not isinstance(rows, int):
        yield "The number of rows is not recorded in this result, so how far to trust the digits cannot be said."
    elif rows <= width:
        yield (
            f"Only {rows:,} rows for layers of up to {width:,} neurons: with no more rows than neurons even unrelated "
            "layers score high under most measures; ckasim-debiased corrects for it, more rows remove it."
        )
    elif width:
        yield f"Every value rests on {rows:,} rows, {rows / width:.1f} for each neuron of the widest layer ({width:,})."
    matrix = headline(comparison)
    gone = constant_layers(matrix)
    if gone:
        names = _list([printable(str(layer)) for layer in gone])
        yield f"{len(gone)} constant layer{'s have' if len(gone) > 1 else ' has'} no similarity to anything: {names}."
    if len(comparison) > 1:
        yield f"The sentences below are about {matrix.measure} unless they name another measure."


def _drift(comparison: Comparison) -> Iterator[str]:
    drift = in_order(comparison.findings.get("drift", {}), comparison)
    info = {m.name: m for m in comparison.models}
    matrix = headline(comparison)
    for pair in drift.get(matrix.measure, ()):
        series = drift_series(matrix, pair)
        if not series.known:
            continue
        best, worst = int(np.nanargmax(series.values)), int(np.nanargmin(series.values))
        names = f"{printable(pair['first'])} and {printable(pair['second'])}"
        yield (
            f"Layer by layer, {names} differ least at layer {series.layers[best]} ({_score(matrix, series, best)}) and "
            f"most at layer {series.layers[worst]} ({_score(matrix, series, worst)}). {_drop(series, best, worst)}"
        )
        split = halves(series)
        if split is not None and _could_be_tuned(info[pair["first"]], info[pair["second"]]):
            same = {k: pair[k] for k in ("first", "second")}
            elsewhere = {
                m: halves(drift_series(comparison[m], p))
                for m, pairs in drift.items()
                for p in pairs
                if m != matrix.measure and {k: p[k] for k in same} == same
            }
            found = {matrix.measure: split} | {m: h for m, h in elsewhere.items() if h is not None}
            yield _top_changes_more(comparison, names, found)


def _score(matrix: Matrix, series: Series, k: int) -> str:
    value = f"{matrix.measure} {series.values[k]:.2f}"
    if series.low is None or series.high is None:
        return value
    return f"{value} [{series.low[k]:.2f}, {series.high[k]:.2f}]"


def _drop(series: Series, best: int, worst: int) -> str:
    start, values = drop_start(series, DROP), series.values
    if start is not None:
        return (
            f"The drop starts at layer {series.layers[start]} ({values[start]:.2f}): from there on every layer is more "
            f"than {DROP} below the best."
        )
    if values[best] - values[worst] <= DROP:
        return f"No layer is more than {DROP} below the best, so there is no drop to place."
    return f"There is no lasting drop: the last layer ({values[series.known[-1]]:.2f}) is within {DROP} of the best."


def _top_changes_more(comparison: Comparison, names: str, found: Mapping[str, Halves]) -> str:
    """wu2020 section 6: the top layers are more affected by fine-tuning than the bottom ones."""
    gaps = {m: difference(comparison, m, h.low, h.high) for m, h in found.items()}
    (first, split), *others = found.items()  # the measure the words are about comes first
    gap = gaps[first].value
    how = (
        "more in the upper half"
        if gap > CLEAR
        else ("less in the upper half" if -gap > CLEAR else "about equally in both halves")
    )
    verdict = judged(
        {m: gaps[m] for m in _deciders(comparison) if m in gaps},
        {m: f"{h.low:.2f} and {h.high:.2f}" for m, h in found.items()},
    )
    text = (
        f"{names} differ {how}: mean {split.low:.2f} over layers {split.lower}, {split.high:.2f} over layers "
        f"{split.upper}. If the second was fine-tuned from the first, 'top layers change more than bottom ones' "
        f"(Wu et al. 2020, section 6) {verdict}"
    )
    tell = [(m, h) for m, h in others if gaps[m].certain]
    if tell and gaps[first].certain:
        against = [f"{m} {h.low:.2f} and {h.high:.2f}" for m, h in tell if (gaps[m].value > CLEAR) != (gap > CLEAR)]
        text += f"; {len(tell) - len(against)} of {len(tell)} other measures agree"
        text += f" (not {', '.join(against)})" if against else ""
        text += f", {len(others) - len(tell)} cannot tell from chance" if len(others) > len(tell) else ""
    return text + "."


def _blocks(comparison: Comparison) -> Iterator[str]:
    matrix = headline(comparison)
    names = [m.name for m in comparison.models]
    found = in_order(comparison.findings.get("blocks", {}).get(matrix.measure, {}), names)
    if not found:
        return
    own = [
        f"{printable(name)} {b['contrast']:.2f} (second block from layer {b['start']}; "
        f"within {b['within']:.2f}, between {b['between']:.2f})"
        for name, b in found.items()
    ]
    yield (
        f"Contrast of the best split of each model's layers into two blocks: {'; '.join(own)}. Any smooth matrix has a "
        "best split, so a contrast says something only beside the other models' own."
    )
    models = [m for m in comparison.models if m.name in found]
    for first, second in combinations(models, 2):
        if _could_be_tuned(first, second):
            yield _two_blocks(comparison, first.name, second.name)
    for control in (m for m in models if m.is_control):
        floor = found[control.name]["contrast"]
        trained = [m.name for m in models if not m.is_control]
        beaten = [printable(name) for name in trained if found[name]["contrast"] - floor <= CLEAR]
        if beaten:
            yield (
                f"{printable(control.name)} is a random initialisation, and its contrast is {floor:.2f}: the split of "
                f"{_list(beaten)} is not clearer than that, so it is no evidence of anything learnt."
            )


def _two_blocks(comparison: Comparison, first: str, second: str) -> str:
    """phang2021 section 3: fine-tuned models show two blocks of similar layers."""
    one, two = printable(first), printable(second)
    blocks = comparison.findings["blocks"]
    found = {m: blocks[m] for m in _deciders(comparison) if {first, second} <= set(blocks.get(m, {}))}
    gaps = {m: contrast(comparison, m, f[second]) - contrast(comparison, m, f[first]) for m, f in found.items()}
    shown = {m: f"{f[second]['contrast']:.2f} beside {f[first]['contrast']:.2f}" for m, f in found.items()}
    own = found[headline(comparison).measure]
    a, b = own[first]["contrast"], own[second]["contrast"]
    how = "more sharply than" if b - a > CLEAR else "less sharply than" if a - b > CLEAR else "about as sharply as"
    return (
        f"{two} splits {how} {one}: contrast {b:.2f}, beside {one}'s own {a:.2f}. If {two} was "
        f"fine-tuned from {one}, 'two blocks after fine-tuning' (Phang et al. 2021, section 3) "
        f"{judged(gaps, shown)}."
    )


def _across(comparison: Comparison) -> Iterator[str]:
    """wu2020 section 5.1: lower layers are more similar across architectures than higher ones."""
    matrix = headline(comparison)
    for first, second in combinations(comparison.models, 2):
        if _same_shape(first, second) or first.is_control or second.is_control:
            continue
        found = {m: _matching_halves(comparison[m], first.name, second.name) for m in _deciders(comparison)}
        known = {m: (low, high) for m, (low, high) in found.items() if low is not None and high is not None}
        if matrix.measure in known:
            low, high = known[matrix.measure]
            verdict = judged(
                {m: difference(comparison, m, *pair) for m, pair in known.items()},
                {m: "{:.2f} and {:.2f}".format(*pair) for m, pair in known.items()},
            )
            yield (
                f"Across architectures, {printable(first.name)} and {printable(second.name)}: mean {matrix.measure} of "
                f"the lower halves {low:.2f}, of the upper halves {high:.2f}. 'Lower layers are more similar across "
                f"architectures' (Wu et al. 2020, section 5.1) {verdict}."
            )


def _matching_halves(matrix: Matrix, first: str, second: str) -> tuple[float | None, float | None]:
    """Mean similarity of two models' lower halves, and of their upper halves."""
    block = matrix.between(first, second).values
    rows, columns = (split_blocks(layers_of(matrix, name)) for name in (first, second))
    low, high = (mean(block[np.ix_(i, j)]) for i, j in zip(rows, columns, strict=True))
    return low, high


def _deciders(comparison: Comparison) -> list[str]:
    """The measure the words are about, and the one without a chance level that may decide in its place."""
    first = headline(comparison).measure
    return [m for m in dict.fromkeys((first, DEBIASED.get(first, first))) if m in comparison]


def localization_words(comparison: Comparison, *, base: str | None = None, judge: bool = True) -> Iterator[str]:
    """wu2020 sections 5.1 and 6: localization by depth, and before and after where `base` is what others came from.

    Without `judge` the numbers alone, no verdict.
    """
    models = [m for m in comparison.models if not m.is_control]
    scores = in_order(localization_series(comparison), [m.name for m in models])
    chance = comparison.findings.get("localization_chance", 0.0)
    for name, series in scores.items():
        if len(series.known) < 3:
            continue
        first, last = series.known[0], series.known[-1]
        up, down = share_rising(series.values), share_rising(-series.values)
        way = "rises" if up >= MOSTLY else "falls" if down >= MOSTLY else "neither rises nor falls"
        told = judged_apart(up >= MOSTLY, float(np.ptp(series.values[series.known])), chance, EXTREMES)
        published = f" 'Higher layers are more localized' (Wu et al. 2020, section 5.1) {told}."
        yield (
            f"Localization of {printable(name)} {way} with depth: {series.values[first]:.2f} at layer "
            f"{series.layers[first]}, {series.values[last]:.2f} at layer {series.layers[last]}; in {up:.0%} of all "
            f"pairs of layers the deeper is the more localized.{published if judge else ''}"
        )
    for name, series in alone_series(comparison).items():
        if series.known:
            first, last = series.known[0], series.known[-1]
            yield (
                f"Localization of the control {printable(name)}, over its own layers only: {series.values[first]:.2f} "
                f"at layer {series.layers[first]}, {series.values[last]:.2f} at layer {series.layers[last]}."
            )
    for before, after in combinations([m for m in models if m.name in scores], 2):
        a, b = halves(scores[before.name]), halves(scores[after.name])
        if base is not None and before.name != base:
            continue
        if a is not None and b is not None and _could_be_tuned(before, after):
            one, two = printable(before.name), printable(after.name)
            given = "" if base is not None else f"If {two} was fine-tuned from {one}, "
            how = "less" if a.high - b.high > CLEAR else "not clearly less"
            told = judged_apart(a.high - b.high > CLEAR, abs(a.high - b.high), chance, "the two are")
            published = f" {given}'less localized at the top' (Wu et al. 2020, section 6) {told}."
            yield (
                f"In the upper half (layers {a.upper}) {two} is {how} localized than {one}: mean {b.high:.2f} against "
                f"{a.high:.2f}.{published if judge else ''}"
            )


def _same_shape(first: ModelInfo, second: ModelInfo) -> bool:
    return (first.family, first.layers, first.width) == (second.family, second.layers, second.width)


def _could_be_tuned(first: ModelInfo, second: ModelInfo) -> bool:
    """Whether the second may have been made from the first; the result does not know more than that."""
    return _same_shape(first, second) and not first.is_control and not second.is_control


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
