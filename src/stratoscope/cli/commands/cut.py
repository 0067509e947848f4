"""`stratoscope cut`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from stratoscope.cli.answer import Answer, answer_of, beside, drawing
from stratoscope.cli.loading import AdapterBase, LoadingOne, Tuned, folder
from stratoscope.cli.options import command
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.options import typed
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.cut.options import CutOptions
from stratoscope.studies.decoder.options import CutDecoderOptions, DecoderOnly

USUAL_BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.2)
USUAL_LIMITS = (1.05, 1.1, 1.2, 1.5, 2, 5)

Small = Annotated[Path, typer.Option("--out", help="Folder of the smaller checkpoint, with its page.", parser=folder)]
Budget = Annotated[
    float | None, typer.Option("--budget", help="Largest loss allowed, in units of the metric: 0.01 is one point.")
]
MaxPpl = Annotated[
    str | None,
    typer.Option("--max-ppl", help="A decoder without a task: largest perplexity over the whole model's, e.g. 1.1x."),
]


@command
def cut(
    tuned: Tuned,
    out: Small,
    source: TaskSource,
    options: CutOptions,
    decoder: DecoderOnly,
    loading: LoadingOne,
    progress: Progress,
    base: AdapterBase = None,
    budget: Budget = None,
    max_ppl: MaxPpl = None,
) -> Answer:
    """Take out the blocks that a fine-tuned model or a decoder can do without, into a standard checkpoint."""
    [spec], draw = loading.merged([tuned], base), drawing(progress)
    shared: dict[str, Any] = {"out": out, "progress": progress, "draw": draw}
    # A checkpoint of ours is no revision on the hub, and no pickle.
    again = typed(LoadingOne(device=loading.device, trust_remote_code=loading.trust_remote_code))
    if max_ppl is not None:
        from stratoscope.studies.decoder.study import cut_decoder

        data, known = _text(source, budget), _decoder_options(source, options, decoder)
        made = cut_decoder(spec, data, max_ppl=max_ppl, options=known, **shared)
        how = [*source.typed(), *again, "--out", beside(out, "perplexity")]
        return answer_of(out, made, then=["stratoscope", "perplexity", str(out), *how])
    from stratoscope.studies.cut.study import cut as run

    if budget is None:
        raise StratoscopeError("expected --budget for a task, or --max-ppl for a decoder and --data, got neither")
    if strange := typed(decoder):
        raise StratoscopeError(f"{strange[0]} is for a decoder without a task; leave it out or give --max-ppl")
    result = run(spec, source.read(progress), budget=budget, options=options, **shared)
    how = [*source.typed(), *again, "--out", beside(out, "depth")]
    return answer_of(out, result, then=["stratoscope", "depth", str(out), *how])


def _text(source: TaskSource, budget: float | None) -> str:
    """The text a decoder is judged on; what belongs to a task is refused."""
    if budget is not None:
        raise StratoscopeError("expected --budget (a task) or --max-ppl (a decoder without a task), got both")
    if source.data is None or source.task is not None:
        raise StratoscopeError("--max-ppl judges a decoder on text; give the text as --data and no --task")
    if strange := typed(replace(source, data=None, text=None, columns=None)):
        raise StratoscopeError(f"{strange[0]} is for a task; leave it out or give --budget instead of --max-ppl")
    return source.data


def _decoder_options(source: TaskSource, options: CutOptions, decoder: DecoderOnly) -> CutDecoderOptions:
    """The same flags as options of a decoder."""
    if options.head:
        raise StratoscopeError("--head tunes the head of a task, and a decoder without a task has none; leave it out")
    if options.force:
        raise StratoscopeError("--force is for a task with a majority label, and a decoder without a task has none")
    shared = {k: v for k, v in vars(options).items() if k not in ("head", "force") and v is not None}
    return CutDecoderOptions(**vars(decoder), **shared, text=source.text, columns=source.columns)


def cut_next(tuned: str, how: Sequence[str], out: str, *, rows: int) -> list[str]:
    """The command that cuts this model, with the smallest usual budget that so many validation rows can confirm.

    Nothing where they can confirm none.
    """
    from stratoscope.data.metrics import rows_for

    budget = next((b for b in USUAL_BUDGETS if rows // 2 >= rows_for(b, CutOptions().confidence)), None)
    return ["stratoscope", "cut", tuned, *how, "--budget", f"{budget:g}", "--out", out] if budget else []


def cut_decoder_next(model: str, how: Sequence[str], out: str, *, best: float) -> list[str]:
    """The command that cuts this decoder, with the smallest usual limit that its best span keeps."""
    limit = next((x for x in USUAL_LIMITS if best <= x), USUAL_LIMITS[-1])
    return ["stratoscope", "cut", model, *how, "--max-ppl", f"{limit:g}x", "--out", out]
