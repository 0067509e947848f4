"""Take out of a decoder the blocks it can do without, judged by perplexity, and write a standard checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratoscope.claims.scores import spans
from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import Value
from stratoscope.data.corpus import Corpus
from stratoscope.data.readers import read_corpus
from stratoscope.models.open.loading import CAUSAL, check_head, survey
from stratoscope.models.surgery.blocks import exported
from stratoscope.results.cutting.cut import Candidate, Tested
from stratoscope.results.cutting.decoder import CutDecoder, Tried
from stratoscope.results.cutting.perplexity import times
from stratoscope.runs.run import Draw
from stratoscope.studies.asked import Model, chosen, data_asked, models_asked, request_for, run_study, spec_of
from stratoscope.studies.checkpoint import is_whole
from stratoscope.studies.cut.card import spelled
from stratoscope.studies.cut.confirm import Loss, confirm, rows_needed, sequence
from stratoscope.studies.cut.study import NothingToCutError
from stratoscope.studies.decoder.files import write_cut
from stratoscope.studies.decoder.options import ANY, BLOCKS, CutDecoderOptions, parse_max_ppl
from stratoscope.studies.decoder.work import Chosen, Work, choose
from stratoscope.studies.perplexity.spans import exp, ratio

WITHIN, NOT_WITHIN, TOO_MUCH, NOT_NEEDED = "confirmed", "not confirmed", "above the limit", "not tested"


def cut_decoder(
    model: Model,
    data: str | Path | Corpus,
    *,
    max_ppl: float | str,
    out: str | Path,
    options: CutDecoderOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> CutDecoder:
    """Write to `out` the decoder with the fewest blocks whose perplexity is at most `max_ppl` times the whole model's.

    For every number of blocks the best cut is measured on few texts, the block before each gap is refitted on others
    (`models.surgery.patch`), and what is within the limit is confirmed, mildest cut first, on the texts that are left:
    the upper end of the paired mean loss difference must be below ln(max_ppl) (`studies.cut.confirm`). What was
    computed is kept when nothing can be cut. Further keywords are the fields of `CutDecoderOptions`.
    """
    options, progress = chosen(CutDecoderOptions, options, keywords), progress or Silent()
    allowed = parse_max_ppl(max_ppl)
    if not 0.5 < options.confidence < 1:
        raise StratoscopeError(f"expected a --confidence above 0.5 and below 1, got {options.confidence:g}")
    if options.blocks not in BLOCKS:
        raise unknown_name("choice of a decoder's blocks", options.blocks, BLOCKS)
    spec = spec_of(model)
    check_head(spec, CAUSAL)
    read = {"text": options.text, "columns": options.columns}
    corpus = data if isinstance(data, Corpus) else read_corpus(str(data), **read)
    corpus = corpus.sample(options.limit, options.seed)
    surveyed = survey(spec, progress=progress)
    if surveyed.layers - 1 <= options.keep:
        raise StratoscopeError(
            f"'{spec.label}' has {surveyed.layers - 1} blocks and {options.keep} must stay, so there is nothing to cut;"
            " give a deeper model or a lower --keep"
        )
    inputs = {"model": [spec.label, surveyed.fingerprint, surveyed.dtype], "corpus": corpus.fingerprint}
    made = run_study(
        request_for("decoder", inputs, options, max_ppl=allowed),
        options,
        out,
        lambda running: _compute(Work(spec, surveyed, corpus, options, running), allowed),
        asked={"tuned": spec.source, "max_ppl": f"{allowed:g}x", **data_asked(data), **models_asked([spec])},
        progress=progress,
        draw=draw,
        whole=lambda folder, held: is_whole(folder, held.reload["weights"]),
        alone=True,
    )
    return replace(made, folder=Path(out))


def _compute(work: Work, allowed: float) -> CutDecoder:
    choice = choose(work)
    tested = _confirmed(work, choice, allowed)
    tried = tuple(_judged(t, tested, allowed, work) for t in choice.tried)
    made = [t for t in tested if t.confirmed]
    if not made:
        refusal = _nothing(work, tried, tested, allowed)
        refusal.tables = {f"everything tried, on {len(work.shares.choose)} texts": [_row(t) for t in tried]}
        raise refusal
    gone = next(t.removed for t in tried if work.kept(t.removed) == made[-1].kept)
    work.run.progress.note(f"{len(made[-1].kept)} of {work.blocks} blocks do: {spelled(gone)} can go")
    work.run.finish()
    return write_cut(work, replace(choice, tried=tried), gone, allowed)


def _confirmed(work: Work, found: Chosen, allowed: float) -> list[Tested]:
    """The cuts that were tested on texts that took no part in choosing or fitting, mildest first."""
    by_kept = {work.kept(t.removed): t for t in found.tried}
    rows, budget = work.shares.confirm, math.log(allowed)

    def measure(candidate: Candidate) -> Loss:
        removed = by_kept[candidate.kept].removed
        value = held_out(work, removed, found)
        mean, low, high = (-math.log(x) if x > 0 else math.inf for x in (value.value, value.high, value.low))
        return Loss(mean, low, high)

    candidates = [Candidate(kept, -math.log(t.best.value)) for kept, t in by_kept.items()]
    order = [c for c in sequence(candidates, whole=0.0, budget=budget) if _exportable(work, c.kept)]
    return confirm(order, measure, budget=budget) if order and len(rows) > 1 else []


def held_out(work: Work, removed: tuple[int, ...], found: Chosen) -> Value:
    """Perplexity of a cut over the whole model's on the texts for the confirmation, with one-sided ends."""
    rows, label = work.shares.confirm, f"confirming with {work.spec.label}"
    whole, small = (work.said(rows, *cut, label=label) for cut in ((), (removed, found.patches[removed])))
    return ratio(small.losses, whole.losses, work.tokens(rows), level=2 * work.options.confidence - 1)


def _exportable(work: Work, kept: tuple[int, ...]) -> bool:
    """Whether a configuration of the architecture describes the cut."""
    try:
        exported(work.model.module, kept)
    except StratoscopeError as reason:
        work.run.progress.note(str(reason))
        return False
    return True


def _judged(tried: Tried, tested: Sequence[Tested], allowed: float, work: Work) -> Tried:
    """A cut with what became of it."""
    test = next((t for t in tested if t.kept == work.kept(tried.removed)), None)
    if test is None:
        return replace(tried, verdict=TOO_MUCH if tried.best.value > allowed else NOT_NEEDED)
    ends = exp(Value(-test.loss.value, -test.loss.high, -test.loss.low))
    return replace(tried, held_out=ends, verdict=WITHIN if test.confirmed else NOT_WITHIN)


def _row(tried: Tried) -> dict[str, Any]:
    """A cut that was tried, as a table shows it."""
    patched = f"{times(tried.patched)}{'' if tried.patch else ', not kept'}" if tried.patched.known else "–"
    return {
        "blocks removed": spans(tried.removed),
        "perplexity": times(tried.ratio),
        "patched": patched,
        "held out": times(tried.held_out) if tried.held_out.known else "–",
        "top-1 agreement": round(tried.agreement, 2),
        "verdict": tried.verdict,
    }


def _nothing(work: Work, tried: Sequence[Tried], tested: Sequence[Tested], allowed: float) -> NothingToCutError:
    best = min(tried, key=lambda t: t.best.value)
    what = f"nothing can be cut from '{work.spec.label}' within {allowed:g} times its perplexity: "
    ways = ["give a larger --max-ppl"]
    if work.options.blocks != ANY and not work.options.patch:
        ways.append("leave out --no-patch")
    if not tested:
        what += (
            f"the best cut, without {spelled(best.removed)}, has {times(best.best)} on the"
            f" {len(work.shares.choose)} texts for the choice"
        )
        return NothingToCutError(what, *ways)
    test, rows = tested[0], len(work.shares.confirm)
    needed = rows_needed(test.loss, rows, budget=math.log(allowed), exact=False)
    held = next(t for t in tried if work.kept(t.removed) == test.kept)
    what += (
        f"without {spelled(held.removed)}, the safest cut by the texts for the choice, it has {times(held.held_out)} on"
        f" {rows} other texts, and {work.options.confidence:.0%} confidence needs an upper end of {allowed:g}"
    )
    more = [f"give about {needed} texts to confirm it (--limit) instead of {rows}"] if needed else []
    return NothingToCutError(what, *more, *ways)
