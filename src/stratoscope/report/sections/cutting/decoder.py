"""The page of a cut decoder: what was taken out, what it costs and saves, and what others would have taken out."""

from __future__ import annotations

from collections.abc import Iterator

from stratoscope.core.value import Value
from stratoscope.report.labels import count, printable, ranges, shown
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Bar, Bars, Table
from stratoscope.report.sections.cutting.perplexity import span_heatmap
from stratoscope.results.cutting.decoder import CutDecoder
from stratoscope.results.cutting.perplexity import times


def sections(cut: CutDecoder) -> Sections:
    """What the page of a cut decoder shows."""
    name, text = printable(cut.model.get("name") or "model"), printable(cut.corpus.get("name") or "text")
    blocks = len(cut.kept) + len(cut.dropped)
    return Sections(
        title=f"{name}, cut to {len(cut.kept)} of {blocks} blocks",
        cards=tuple(_cards(cut, blocks)),
        sections=tuple(_parts(cut, name, blocks)),
        summary=(text, "perplexity", f"{count(cut.texts.get('confirm', 0), 'text')} confirmed it"),
        warnings=cut.warnings,
        facts={
            "Model": {**cut.model, "kept": cut.kept, "dropped": cut.dropped, "patched": cut.patched},
            "Data": {**cut.corpus, "texts for": cut.texts, "longest text in tokens": cut.length},
            "Checkpoint": {"latency": cut.latency, "reload": cut.reload},
            "Provenance": cut.provenance,
        },
        works=("Men et al. 2024", "Gromov et al. 2024"),
    )


def _cards(cut: CutDecoder, blocks: int) -> Iterator[Card]:
    before, after = cut.parameters["before"], cut.parameters["after"]
    patched = f"; block {ranges(cut.patched)} refitted" if cut.patched else ""
    yield Card("Blocks kept", f"{len(cut.kept)} of {blocks}", f"dropped: {ranges(cut.dropped)}{patched}")
    yield Card(
        "Perplexity over the whole model's",
        times(Value(cut.ratio.value)),
        f"at most {times(Value(cut.ratio.high))} with {cut.confidence:.0%} confidence; limit {cut.max_ppl:g}x",
    )
    yield Card("Same likeliest token", shown(cut.agreement), "share of tokens, cut against whole model")
    yield Card("Parameters", f"−{1 - after / before:.0%}", f"{before / 1e6:.1f} M → {after / 1e6:.1f} M")
    speed = Value(*(float(cut.latency.get(k, "nan")) for k in ("ratio", "low", "high")))
    yield Card("Time for the same texts", shown(speed), f"of the whole model's, on {printable(cut.latency['device'])}")


def _parts(cut: CutDecoder, name: str, blocks: int) -> Iterator[Section]:
    texts = f"{cut.texts.get('confirm', 0):,} texts that took no part in choosing and fitting"
    bars = Bars(
        id="cut",
        title=f"{name} before and after the cut",
        caption=f"Perplexity on {texts}, with 95 % intervals; the ratio is judged pair by pair and far surer.",
        categories=("before", "after"),
        bars=(Bar("perplexity", (cut.before, cut.after)),),
        y="perplexity",
    )
    choosing = f"On {count(cut.texts.get('choose', 0), 'text')} for the choice"
    tried = Table(
        id="tried",
        title="Everything that was tried",
        caption=f"{choosing}; patches are fitted on {cut.texts.get('fit', 0)} others and kept where they help. Held"
        f" out: {texts}, mildest cut first.",
        head=("Blocks removed", "Number", "Ratio", "Patched", "Held out", "Top-1 agreement", "Verdict"),
        rows=tuple(
            (
                ranges(t.removed),
                len(t.removed),
                times(t.ratio),
                f"{times(t.patched)}{'' if t.patch else ', not kept'}" if t.patched.known else "–",
                times(t.held_out) if t.held_out.known else "–",
                t.agreement,
                t.verdict,
            )
            for t in cut.tried
        ),
    )
    others = Table(
        id="heuristics",
        title="What others would have removed",
        caption=f"{choosing}, nothing patched: angular distance (Gromov et al. 2024), block influence (Men et al."
        " 2024) and the measured best.",
        head=("Number", "Measured best", "Ratio", "Angular distance", "Its ratio", "Block influence", "And its ratio"),
        rows=tuple(
            (
                str(len(t.removed)),
                *(ranges(t.removed), times(t.ratio)),
                *(ranges(t.angular), times(t.angular_ratio)),
                *(ranges(t.influence), times(t.influence_ratio)),
            )
            for t in cut.tried
        ),
    )
    yield Section("cut", "The cut model", (bars,), width="half")
    if cut.spans:
        picture = span_heatmap(cut.spans, blocks, name=name, texts=cut.texts.get("choose", 0))
        yield Section("skip", "Spans of blocks skipped", (picture,), width="half")
    yield Section("choice", "How the cut was chosen", tables=(tried, others))
