"""`stratoscope perplexity`."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, beside, drawing, look_closer
from stratoscope.cli.commands.cut import cut_decoder_next
from stratoscope.cli.loading import AdapterBase, LoadingOne, Out
from stratoscope.cli.options import command
from stratoscope.core.options import typed
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.decoder.options import CutDecoderOptions
from stratoscope.studies.perplexity.options import PerplexityOptions

Decoder = Annotated[str, typer.Argument(help="Decoder: checkpoint or adapter folder, or hub id.", metavar="MODEL")]
Texts = Annotated[str, typer.Option("--data", help="Text: a text file, JSONL, CSV, TSV, Parquet or hub data set.")]


@command
def perplexity(
    model: Decoder,
    data: Texts,
    out: Out,
    options: PerplexityOptions,
    loading: LoadingOne,
    progress: Progress,
    base: AdapterBase = None,
) -> Answer:
    """Judge a decoder without a task: its perplexity on text, truncated at every layer and with blocks skipped."""
    from stratoscope.studies.decoder.work import FEWEST
    from stratoscope.studies.perplexity.study import perplexity as run

    [spec] = loading.merged([model], base)
    result = run(spec, data, out=out, options=options, progress=progress, draw=drawing(progress))
    best = min((s.ratio.value for s in result.spans), default=math.nan)
    texts = result[-1].texts
    if (
        math.isnan(best) or len(result) < 3 or texts < FEWEST or options.split is not None
    ):  # nothing to cut with or from
        return answer_of(out, result, then=look_closer(out, result))
    columns = TaskSource(data=data, text=options.text, columns=options.columns)
    how = [*columns.typed(), *typed(loading), *typed(CutDecoderOptions(length=options.length))]
    return answer_of(out, result, then=cut_decoder_next(model, how, beside(out, "cut"), best=best))
