"""`stratoscope diff`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, beside, drawing, look_closer
from stratoscope.cli.commands.cut import cut_decoder_next, cut_next
from stratoscope.cli.loading import AdapterBase, Loading, Out
from stratoscope.cli.options import command
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.diff.options import DiffOptions

First = Annotated[
    str, typer.Argument(help="The model before fine-tuning, or an adapter alone: it names its base.", metavar="BASE")
]
Second = Annotated[str | None, typer.Argument(help="The model tuned from it, or an adapter.", metavar="TUNED")]


@command
def diff(
    base: First,
    out: Out,
    source: TaskSource,
    options: DiffOptions,
    loading: Loading,
    progress: Progress,
    tuned: Second = None,
    adapter_base: AdapterBase = None,
) -> Answer:
    """Two models to a page: what fine-tuning changed, layer by layer and weight by weight, and what could be cut."""
    from stratoscope.report.sections.diff import droppable
    from stratoscope.studies.decoder.work import FEWEST
    from stratoscope.studies.diff.study import diff as run

    if adapter_base is not None and tuned is not None:
        raise StratoscopeError("expected --base with an adapter alone, got it beside BASE and TUNED; leave it out")
    if source.data is None and source.task is None:
        raise StratoscopeError("expected --data, text or labelled rows, or --task, got neither")
    specs = loading.merged([base] if tuned is None else [base, tuned], adapter_base)
    result = run(*specs, data=source, out=out, options=options, progress=progress, draw=drawing(progress))
    last = specs[-1] if tuned is None else replace(specs[-1], base=base)
    how, place = [*source.typed(), *loading.again(last)], beside(out, "cut")
    then = look_closer(out, result)
    if droppable(result) and result.study.depth is not None:
        words = cut_next(last.source, how, place, rows=int(result.study.depth.task["n_validation"]))
        then = [*words[:3], "--head", *words[3:]] if words else then
    elif result.language is not None and result.language.spans and int(result.data["rows"]) >= FEWEST:
        best = min(s.ratio.value for s in result.language.spans)
        then = cut_decoder_next(last.source, how, place, best=best)
    return answer_of(out, result, then=then)
