"""`stratoscope probe` and `stratoscope study probing`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.loading import LoadingSeveral, Out
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.studies.probing.options import ProbeOptions

Models = Annotated[
    list[str], typer.Argument(help="Checkpoint folders or hub ids; the first is the base.", metavar="MODEL...")
]
Words = Annotated[
    str,
    typer.Option(
        "--corpus", help="Tagged words: a folder with train, dev and test files, or one CoNLL-U, column or JSONL file."
    ),
]
Property = Annotated[
    str, typer.Option("--property", help="What to predict: upos, xpos, deprel, feats:Number, a column, a JSONL key.")
]


@command
def probe(
    models: Models,
    corpus: Words,
    property: Property,
    out: Out,
    options: ProbeOptions,
    loading: LoadingSeveral,
    progress: Progress,
) -> Answer:
    """Probe what every layer knows of a property of words, and with --neurons, which neurons do."""
    return _probed(models, corpus, property, out, options, loading, progress)


@command
def probing(
    models: Models,
    corpus: Words,
    property: Property,
    out: Out,
    options: ProbeOptions,
    loading: LoadingSeveral,
    progress: Progress,
) -> Answer:
    """Before and after fine-tuning: what layers and neurons know of a property, as the paper's figures and tables."""
    return _probed(models, corpus, property, out, replace(options, neurons=True), loading, progress)


def _probed(
    models: list[str],
    corpus: str,
    property: str,
    out: Path,
    options: ProbeOptions,
    loading: LoadingSeveral,
    progress: Progress,
) -> Answer:
    from stratoscope.studies.probing.study import probe as run

    specs = loading.specs(models)
    result = run(
        specs, corpus=corpus, property=property, out=out, options=options, progress=progress, draw=drawing(progress)
    )
    return answer_of(out, result, then=look_closer(out, result))
