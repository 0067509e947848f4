"""The page of probes: accuracy and selectivity of every layer, salient neurons (Durrani et al. 2021, Fig. 1-4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stratoscope.core.value import Value
from stratoscope.report.labels import count, number, printable, shorten, shown
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Bar, Cell, Curves, Level, Line, Stacks, Table
from stratoscope.results.probing import SOLVED, LayerProbes, NeuronProbes, Probing

MOST_TAGS = 8
"""Tags with a colour of their own; the others are one."""
MOST_NEURONS = 10


def sections(result: Probing) -> Sections:
    """What the page of probes shows."""
    words, names = result.data.get("words", {}), " and ".join(printable(m.name) for m in result.models)
    return Sections(
        title=f"Probes of {printable(result.data.get('property'))} in {names}",
        cards=tuple(_cards(result)),
        sections=tuple(_sections(result)),
        models=result.models,
        summary=(
            f"{printable(result.data.get('corpus'))}: {printable(result.data.get('property'))}",
            count(len(result.tags), "tag"),
            *(f"{words[split]:,} {split} words" for split in ("train", "dev", "test") if split in words),
        ),
        warnings=result.warnings,
        facts={"Data": result.data, "Provenance": result.provenance},
        works=("Durrani et al. 2021", "Hewitt & Liang 2019", "Voita & Titov 2020"),
    )


def _cards(result: Probing) -> Iterator[Card]:
    floors = f"each word's commonest tag {number(result.by_word.value)}, majority {number(result.majority.value)}"
    for model in result.models:
        of_layers = result.layers.of(model.name)
        curve, best = of_layers.accuracy, of_layers.at_best()
        at = f"layer {curve.layers[best]}"
        beaten = curve.points[best].low > result.by_word.value
        yield Card(
            f"{printable(model.name)}: best layer", f"{shown(curve.points[best])}, {at}", floors, caution=not beaten
        )
    for probes in result.neuron_probes:
        total = len(probes.ranking)
        minimal = f"{probes.minimal:,} of {total:,} neurons" if probes.minimal else f"more than {probes.steps[-1]:.0%}"
        note = f"all {shown(probes.oracle)}, minimal {shown(probes.minimal_accuracy)}"
        yield Card(f"{printable(probes.model)}: minimal set", minimal, note)


def _sections(result: Probing) -> Iterator[Section]:
    probes = result.layers.probes
    floors = (Level("each word's commonest tag", result.by_word.value), Level("majority", result.majority.value, "dot"))
    bands = "Bands: 95 % intervals over the test sentences."
    accuracy = Curves(
        id="layers",
        title=f"{printable(result.data.get('property'))}: accuracy of a linear probe on every layer",
        caption=f"Penalties chosen on development words, scored on test words. {bands}",
        lines=tuple(Line.of(p.accuracy, name=_label(p), tint=k) for k, p in enumerate(probes)),
        levels=floors,
        y="accuracy",
    )
    selectivity = Curves(
        id="selectivity",
        title="Selectivity: accuracy less accuracy on the control task",
        caption=f"The control task gives each word type a random tag: what a probe can learn by heart. {bands}",
        lines=tuple(Line.of(p.selectivity, name=_label(p), tint=k) for k, p in enumerate(probes)),
        y="selectivity",
    )
    bits = Curves(
        id="codelength",
        title="Description length",
        caption="Bits per training word of the online code; shorter means more is there, and easier to find.",
        lines=tuple(Line(_label(p), p.accuracy.layers, p.bits, tint=k) for k, p in enumerate(probes)),
        y="bits per word",
    )
    yield Section("layers", "Every layer", (accuracy,))
    yield Section("selectivity", "Against a control task", (selectivity,), width="half")
    yield Section("codelength", "Description length", (bits,), width="half")
    yield Section("penalties", "Probes", tables=(_table(probes),))
    if result.neuron_probes:
        yield Section("spread", "Salient neurons per layer", tuple(_stacks(result)))
        yield Section("steps", "Accuracy of the first neurons", tuple(_steps(result)))
        yield Section("neurons", "Neurons", tables=(_neuron_table(result), _tops(result), _salient(result)))
        yield Section("words", "The first neurons", tables=tuple(_words(p) for p in result.neuron_probes))


def _label(p: LayerProbes) -> str:
    return printable(p.model) if p.solver == SOLVED else f"{printable(p.model)} ({p.solver})"


def _penalty(value: float) -> str:
    """A power of ten as a page and a table both take it."""
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"


def _table(probes: tuple[LayerProbes, ...]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    seeds = any(not np.isnan(p.deviation).all() for p in probes)
    for p in probes:
        for k, layer in enumerate(p.accuracy.layers):
            gap = "–" if np.isnan(p.gap[k]) else f"{p.gap[k]:.4f} ({p.certified[k]:.0%} certified)"
            gap += f", {p.stopped[k]:.0f} stopped" if p.stopped[k] > 0 else ""
            spread = "–" if np.isnan(p.deviation[k]) else f"± {p.deviation[k]:.4f}"
            best, bits = (_penalty(p.l1[k]), _penalty(p.l2[k])), float(p.bits[k])
            cells: list[Cell] = [p.accuracy.points[k], *([spread] if seeds else []), p.selectivity.points[k]]
            rows.append((f"{_label(p)} {layer}", *cells, bits, *best, gap))
    return Table(
        id="penalties",
        title="Best penalties of every layer (Table 8)",
        caption="The gap is the largest over all 64 pairs: certified by duality, or estimated from the passes."
        " Stopped: probes that ended at their cap of passes above --gap, the control task's among them.",
        head=(
            "Layer",
            "Accuracy",
            *(["Std over seeds"] if seeds else []),
            "Selectivity",
            "Bits per word",
            "λ1",
            "λ2",
            "Gap to the optimum",
        ),
        rows=tuple(rows),
    )


def _stacks(result: Probing) -> Iterator[Stacks]:
    """Fig. 2 and 3: salient neurons by layer, stacked by the tag they enter for."""
    order = np.sum([p.counts.sum(axis=0) for p in result.neuron_probes], axis=0).argsort(kind="stable")[::-1]
    own, rest = order[:MOST_TAGS], order[MOST_TAGS:]
    for p in result.neuron_probes:
        bars = [Bar(printable(result.tags[t]), tuple(Value(float(v)) for v in p.counts[:, t])) for t in own]
        if len(rest):
            bars.append(Bar("other tags", tuple(Value(float(v)) for v in p.counts[:, rest].sum(axis=1))))
        yield Stacks(
            id=f"{printable(p.model)}-spread",
            title=f"{printable(p.model)}: {p.salient:,} salient neurons by layer",
            caption=f"{printable(p.model)}: neurons by the tag for which they enter first.",
            categories=tuple(str(k) for k in p.layers),
            bars=tuple(bars),
            y=f"neurons of {shorten(p.model, 24)}",
        )


def _steps(result: Probing) -> Iterator[Curves]:
    """How accuracy grows with the neurons kept, against all neurons; one scale for all models."""
    probes = result.neuron_probes
    drawn = np.concatenate([[*p.step_accuracy, p.dev_oracle, p.dev_oracle - p.delta] for p in probes])
    low, high = float(drawn.min()), float(drawn.max())
    edge = 0.05 * (high - low or 1.0)
    for k, p in enumerate(probes):
        percent = tuple(round(100 * share) for share in p.steps)
        within = p.dev_oracle - p.delta
        yield Curves(
            id=f"{printable(p.model)}-steps",
            title=f"{printable(p.model)}: accuracy of the first neurons",
            caption=f"{printable(p.model)}: development accuracy of a probe on the first neurons of the ranking alone;"
            f" the minimal set is the first within {number(p.delta)} of all neurons.",
            lines=(Line(printable(p.model), percent, p.step_accuracy, tint=k),),
            levels=(Level("all neurons", p.dev_oracle, "solid"), Level("all less delta", within)),
            x="percent of the neurons kept",
            y="accuracy",
            range=(low - edge, high + edge),
        )


def _neuron_table(result: Probing) -> Table:
    """Table 7."""
    return Table(
        id="minimal",
        title="Minimal sets (Table 7)",
        caption="Smallest set, in steps of 1 %, whose own probe comes within delta of all neurons on dev words.",
        head=(
            "Model",
            "Neurons",
            "Minimal set",
            "Accuracy of all",
            "Accuracy of the set",
            "Selectivity of all",
            "Selectivity of the set",
        ),
        rows=tuple(
            (
                printable(p.model),
                len(p.ranking),
                f"{p.minimal:,} ({p.minimal / len(p.ranking):.0%})" if p.minimal else f"> {p.steps[-1]:.0%}",
                p.oracle,
                p.minimal_accuracy,
                p.oracle_selectivity,
                p.minimal_selectivity,
            )
            for p in result.neuron_probes
        ),
    )


def _salient(result: Probing) -> Table:
    """Table 8 for the neurons, and where in the model they are."""
    return Table(
        id="salient",
        title="Penalties of the probes of neurons (Table 8), and where the salient neurons are",
        caption="Mean depth: of the salient neurons, 0 embeddings, 1 the top; its interval is over resamples of the"
        " training and development sentences, on which penalties are chosen and neurons ranked anew."
        " Gap to the optimum: the largest of the probes of subsets of the neurons.",
        head=("Model", "λ1", "λ2", "Salient neurons", "Mean depth", "Gap to the optimum"),
        rows=tuple(
            (
                printable(p.model),
                _penalty(p.l1),
                _penalty(p.l2),
                p.salient,
                result.mean_depth(p.model),
                float(p.gaps.max()),
            )
            for p in result.neuron_probes
        ),
    )


def _tops(result: Probing) -> Table:
    """Tables 1, 4 and 5, with the ablations."""
    return Table(
        id="topbottom",
        title=f"Top and bottom {result.neuron_probes[0].share:.0%} of the neurons (Tables 1, 4, 5)",
        caption="Trained again on these neurons alone; ablations keep or zero them in the probe of all neurons."
        " Intervals are over the test sentences; that of the claim is over resampled rankings and training too.",
        head=("Model", "Top", "Bottom", "Random", "Only top kept", "Only bottom kept", "Top at 0"),
        rows=tuple(
            (printable(p.model), p.top, p.bottom, p.random, p.keep_top, p.keep_bottom, p.zero_top)
            for p in result.neuron_probes
        ),
    )


def _words(p: NeuronProbes) -> Table:
    return Table(
        id=f"words-{printable(p.model)}",
        title=f"{printable(p.model)}: the first neurons and their words",
        caption="Test words at which a neuron is farthest from its mean, in brackets.",
        head=("Neuron", "Tag", "Share of its weight", "Words in context"),
        rows=tuple(
            (
                f"layer {n.layer}, {n.index}",
                printable(n.tag),
                n.share,
                " · ".join(printable(w) for w in n.words),
            )
            for n in p.first[:MOST_NEURONS]
        ),
    )
