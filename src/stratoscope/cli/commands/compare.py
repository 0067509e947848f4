"""`stratoscope compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, judge_next
from stratoscope.cli.loading import AdapterBase, LoadingSeveral, Out
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.studies.compare.options import CompareOptions

Models = Annotated[
    list[str],
    typer.Argument(
        help="Checkpoint or adapter folders, .gguf files, saved activations or hub ids.", metavar="MODEL..."
    ),
]
Data = Annotated[
    str, typer.Option("--data", help="Text file, JSONL, CSV, TSV, Parquet, CoNLL-U, column file or hub data set.")
]


@command
def compare(
    models: Models,
    data: Data,
    out: Out,
    options: CompareOptions,
    loading: LoadingSeveral,
    progress: Progress,
    base: AdapterBase = None,
) -> Answer:
    """Compare every layer of every model under every measure asked for."""
    specs = loading.merged(models, base)
    from stratoscope.studies.compare.study import compare as run

    comparison = run(specs, data=data, out=out, options=options, progress=progress, draw=drawing(progress))
    return answer_of(out, comparison, then=judge_next(out, comparison, "compare"))
