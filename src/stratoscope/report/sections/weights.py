"""The page of a comparison of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from string import ascii_lowercase

import numpy as np

from stratoscope.report.labels import count, printable, ranges
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Axis, Cell, Curves, Heatmap, Line, Table
from stratoscope.results.weights import ParameterChange, Weights, rank, relative


def sections(result: Weights) -> Sections:
    """What the page of a comparison of weights shows."""
    base, tuned = (printable(m.name) for m in result.models)
    changed = any(p.change > 0 for p in result.parameters)
    return Sections(
        title=f"Weights of {tuned} against {base}",
        cards=tuple(_cards(result)) if changed else (Card("Weights", "identical", "no parameter changed"),),
        sections=tuple(_sections(result, base)),
        models=result.models,
        summary=(
            count(len(result.parameters), "parameter") + " compared",
            f"{sum(math.prod(p.shape) for p in result.parameters):,} numbers",
            *([f"LoRA adapter of rank {result.adapter.get('r')}"] if result.adapter else []),
        ),
        warnings=result.warnings,
        facts={"Only in one model": result.missing, "Adapter": result.adapter, "Provenance": result.provenance},
    )


def _cards(result: Weights) -> Iterator[Card]:
    curve = result.layers
    blocks = {k: v for k, v in zip(curve.layers, curve.values.tolist(), strict=True) if k and not math.isnan(v)}
    most, least = max(blocks, key=lambda k: blocks[k]), min(blocks, key=lambda k: blocks[k])
    spread = f"relative change {percent(blocks[most])}; least: block {least} ({percent(blocks[least])})"
    yield Card("Changed most", f"block {most} of {len(blocks)}", spread)
    inside = [p for p in result.parameters if p.layer]
    by = {m: relative([p for p in inside if p.module == m]) for m in result.modules}
    known = {m: v for m, v in by.items() if not math.isnan(v)}
    top = sorted(known, key=lambda m: -known[m])
    rest = ", ".join(f"{printable(m)} {percent(known[m])}" for m in top[1:3])
    yield Card("Module that changed most", printable(top[0]), f"{percent(known[top[0]])}; then {rest}" if rest else "")
    if ranked := [(p.rank, min(p.shape)) for p in inside if not math.isnan(p.rank)]:
        share = float(np.median([r / full for r, full in ranked]))
        middle = float(np.median([r for r, _ in ranked]))
        full = ranges(sorted({f for _, f in ranked})) if len({f for _, f in ranked}) < 3 else "full"
        yield Card("Effective rank of a change", f"{middle:.1f}", f"median; {percent(share)} of full rank ({full})")
    if still := [k for k, v in zip(curve.layers, curve.values.tolist(), strict=True) if v == 0]:
        names = ["embeddings"] if 0 in still else []
        names += [f"blocks {ranges([k for k in still if k])}"] if any(still) else []
        yield Card("Unchanged to the last bit", ", ".join(names), "frozen in training")
    if result.moved_tokens:
        tokens = ", ".join(printable(t.token) or f"token {t.id}" for t in result.tokens[:5])
        moved = f"{result.moved_tokens:,} of {result.all_tokens:,} tokens moved"
        yield Card("Embeddings changed by", percent(float(curve.values[0])), f"{moved}, most: {tokens}")
    norms = [p for p in result.parameters if p.normalises]
    if norms and not math.isnan(change := relative(norms)):
        yield Card("Norms changed by", percent(change), f"scales and shifts, {count(len(norms), 'parameter')}")


def _sections(result: Weights, base: str) -> Iterator[Section]:
    lines = tuple(
        Line.of(replace(curve, values=100 * curve.values), tint=k)
        for k, curve in enumerate((result.layers, result.norms))
        if curve.known
    )
    curve = Curves(
        id="weights-layers",
        title="Relative change per layer",
        caption=f"‖ΔW‖/‖W‖ of all parameters of a layer, and of what normalises, against {base}: 0 is unchanged.",
        lines=lines,
        y="relative change (%)",
    )
    yield Section("layers", "Change per layer", (curve,), width="half")
    if result.modules:
        caption = "‖ΔW‖/‖W‖ of the weights and biases of a module."
        heat = _heatmap(
            result, lambda some: 100 * relative(some), "relative change (%)", "Relative change of every module", caption
        )
        yield Section("modules", "Change per layer and module", (heat,), width="half")
    if any(not math.isnan(p.rank) for p in result.parameters if p.layer):
        caption = "exp of the entropy of the squared singular values of ΔW: how many directions share the change."
        heat = _heatmap(result, rank, "effective rank", "Effective rank of the change", caption)
        yield Section("rank", "Effective rank of the change", (heat,), width="half")
    yield Section("outside", "Outside the blocks", tables=tuple(_tables(result)), width="half")


def _heatmap(
    result: Weights, value: Callable[[Sequence[ParameterChange]], float], unit: str, title: str, caption: str
) -> Heatmap:
    blocks, modules = [str(k) for k in result.layers.layers if k], tuple(map(printable, result.modules))
    values = result.grid(value)
    keep = np.asarray(~np.isnan(values).all(axis=0))
    names = tuple(m for m, kept in zip(modules, keep, strict=True) if kept)
    letters = tuple(_letter(k) for k in range(len(names)))  # the names are too long for an axis
    legend = "; ".join(f"{letter} {name}" for letter, name in zip(letters, names, strict=True))
    known = values[np.isfinite(values)]
    return Heatmap(
        id=f"weights-{'rank' if value is rank else 'change'}",
        title=title,
        caption=f"{caption} Modules: {legend}.",
        rows=Axis(tuple(f"block {b}" for b in blocks), tuple(blocks), title="block"),
        columns=Axis(names, letters, title="module"),
        values=values[:, keep],
        range=(0.0, float(known.max()) if known.size and known.max() > 0 else 1.0),
        unit=unit,
        joint=", ",
        missing="no matrix" if value is rank else "not there",
        numbers=True,
    )


def _letter(k: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    return (_letter(k // 26 - 1) if k >= 26 else "") + ascii_lowercase[k % 26]


def percent(value: float) -> str:
    """A relative change, with two digits that count."""
    return "–" if math.isnan(value) else f"{100 * value:.2g} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"


def _tables(result: Weights) -> Iterator[Table]:
    rows: list[tuple[Cell, ...]] = [
        (p.name, " × ".join(map(str, p.shape)), 100 * p.relative, p.rank) for p in result.parameters if not p.layer
    ]
    if rows:
        yield Table(
            id="weights-outside",
            title="Embeddings, poolers and final norms",
            caption="Parameters outside the blocks.",
            head=("Parameter", "Shape", "Change (%)", "Effective rank"),
            rows=tuple(rows),
        )
    if result.tokens:
        yield Table(
            id="weights-tokens",
            title="Tokens whose embeddings changed most",
            caption=f"Length of the change over the length of the row; {result.moved_tokens:,} of "
            f"{result.all_tokens:,} tokens moved.",
            head=("Token", "Id", "Change (%)"),
            rows=tuple((t.token or f"#{t.id}", t.id, 100 * t.relative) for t in result.tokens),
        )
