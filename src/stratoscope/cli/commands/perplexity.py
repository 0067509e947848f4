"""`stratoscope perplexity`."""

from __future__ import annotations

from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.loading import AdapterBase, LoadingOne, Out
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
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
    """Judge a decoder without a task: its perplexity on text, truncated at every layer."""
    from stratoscope.studies.perplexity.study import perplexity as run

    spec = loading.spec(model, base=base)
    result = run(spec, data, out=out, options=options, progress=progress, draw=drawing(progress))
    return answer_of(out, result, then=look_closer(out, result))
