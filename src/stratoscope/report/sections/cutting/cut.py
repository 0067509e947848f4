"""The page of a cut model: what was taken out, what it costs and what it saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stratoscope.core.value import MISSING, Value
from stratoscope.report.labels import count, number, points, printable, ranges, shown
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Bar, Bars, Level, Table
from stratoscope.results.cutting.cut import Cut


def sections(cut: Cut) -> Sections:
    """What the page of a cut model shows."""
    task = printable(cut.task.get("name") or "task")
    name = printable(cut.model.get("name") or "model")
    return Sections(
        title=f"{name}, cut to {len(cut.kept)} of {_blocks(cut)} blocks",
        cards=tuple(cards(cut)),
        sections=tuple(parts(cut)),
        summary=(task, printable(cut.metric), f"{count(cut.rows.get('confirm', 0), 'row')} confirmed it"),
        warnings=cut.warnings,
        facts={
            "Model": {**cut.model, "loads_with": cut.loads_with, "kept": cut.kept, "dropped": cut.dropped},
            "Task": {**cut.task, "rows": cut.rows, "longest text in tokens": cut.length, "baselines": cut.baselines},
            "Checkpoint": {"latency": cut.latency, "reload": cut.reload, "head": cut.head},
            "Provenance": cut.provenance,
        },
        works=("Phang et al. 2021",),
    )


def cards(cut: Cut) -> Iterator[Card]:
    """The answer in numbers."""
    before, after = cut.parameters["before"], cut.parameters["after"]
    name, budget = printable(cut.metric), f"{100 * cut.budget:g} points"
    yield Card("Blocks kept", f"{len(cut.kept)} of {_blocks(cut)}", f"dropped: {ranges(cut.dropped)}")
    yield Card(
        f"Change of {name}",
        points(cut.difference.value),
        f"at worst {points(cut.difference.low)} with {cut.confidence:.0%} confidence; budget {budget}",
    )
    chosen, sure = cut.rows.get("choose", 0), cut.rows.get("confirm", 0)
    yield Card(
        "Judged on", count(sure, "row"), f"the other {chosen:,} chose the cut; 'depth' judges on all {chosen + sure:,}"
    )
    yield Card("Parameters", f"−{1 - after / before:.0%}", f"{before / 1e6:.1f} M → {after / 1e6:.1f} M")
    yield Card("Time for the same rows", f"{_ratio(cut.latency).value:.2f} of before", _times(cut.latency))


def parts(cut: Cut) -> Iterator[Section]:
    """Before and after, and how the cut was chosen, for this page or a study's."""
    name = printable(cut.metric)
    rows = printable(f"{cut.rows.get('confirm', 0):,} validation rows that took no part in the choice")
    dashes = {"bag_of_words": "dash", "majority": "dot"}
    levels = tuple(Level(k.replace("_", " "), cut.baselines[k], d) for k, d in dashes.items() if k in cut.baselines)
    head = "; the head was tuned for the layer it reads now" if cut.head.get("tuned") else ""
    bars = Bars(
        id="cut",
        title=f"{printable(cut.model.get('name'))} before and after the cut",
        caption=f"{name} on {rows}, with 95 % intervals.",
        categories=("before", "after"),
        bars=(Bar(name, (cut.before, cut.after)),),
        levels=levels,
        y=name,
    )
    table = Table(
        id="before-after",
        title="Before and after",
        caption=f"Measured on {rows}{head}.",
        head=("", "Before", "After"),
        rows=(
            ("Blocks", _blocks(cut), len(cut.kept)),
            (name, cut.before, cut.after),
            ("Parameters", cut.parameters["before"], cut.parameters["after"]),
            ("Time for the same rows", 1.0, _ratio(cut.latency)),
        ),
    )
    yield Section("cut", "The cut model", (bars,), (table,))
    if cut.candidates:
        yield Section("choice", "How the cut was chosen", tables=(_tried(cut, name),))


def _tried(cut: Cut, name: str) -> Table:
    """Everything that was tried."""
    confirmed = {t.kept: t.loss for t in cut.tested}
    times: Mapping[str, float] = cut.latency.get("by_blocks", {})
    return Table(
        id="tried",
        title="Everything that was tried",
        caption=f"{name} and its paired change, with 95 % intervals, on the {cut.rows.get('choose', 0):,} validation"
        f" rows for the choice, where the whole model has {number(cut.whole_on_choice_rows)}. Cuts within the budget of"
        f" {100 * cut.budget:g} points there are tested on the {cut.rows.get('confirm', 0):,} others, mildest first,"
        f" until one is not confirmed; the lower end of that change is one-sided, of {cut.confidence:.0%} confidence."
        " Time: share of the whole model's.",
        head=("Blocks kept", "Number", name, "Change", "Change, confirmed", "Parameters", "Time", "Verdict"),
        rows=tuple(
            (
                ranges(c.kept),
                len(c.kept),
                c.value,
                c.change,
                confirmed.get(c.kept, MISSING),
                c.parameters,
                float(times.get(str(len(c.kept)), "nan")),
                c.verdict,
            )
            for c in cut.candidates
        ),
    )


def _blocks(cut: Cut) -> int:
    return len(cut.kept) + len(cut.dropped)


def _ratio(latency: Mapping[str, Any]) -> Value:
    return Value(*(float(latency.get(k, "nan")) for k in ("ratio", "low", "high")))


def _times(latency: Mapping[str, Any]) -> str:
    rounds = f"median of {latency['rounds']} rounds" if latency.get("rounds") else ""
    return printable(" on ".join(x for x in (rounds, str(latency.get("device") or "")) if x)) or shown(_ratio(latency))
