"""`stratoscope probe` and `stratoscope study probing`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.loading import LoadingSeveral, Out
from stratoscope.cli.options import command
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress
from stratoscope.studies.probing.options import ProbeOptions

Models = Annotated[
    list[str],
    typer.Argument(
        help="Checkpoint folders, hub ids or files of activations; the first is the base.", metavar="MODEL..."
    ),
]
Words = Annotated[
    str,
    typer.Option(
        "--corpus", help="Tagged words: a folder with train, dev and test files, or one CoNLL-U, column or JSONL file."
    ),
]
Property = Annotated[
    str,
    typer.Option(
        "--property", help="What to predict: upos, xpos, deprel, feats:Number, misc:KEY, a column, a JSONL key."
    ),
]


def _probing(name: str, help: str, *, fewest: int = 1, **fixed: Any) -> Callable[..., None]:
    """A command that probes at least so many models, some options fixed."""

    def run(
        models: Models,
        corpus: Words,
        property: Property,
        out: Out,
        options: ProbeOptions,
        loading: LoadingSeveral,
        progress: Progress,
    ) -> Answer:
        if len(models) < fewest:
            raise StratoscopeError(
                f"expected a base model and at least one fine-tuned from it, got {', '.join(models)} alone",
                "give both, or use 'stratoscope probe --neurons' for one model",
            )
        from stratoscope.studies.probing.study import probe as study

        specs, draw = loading.specs(models), drawing(progress)
        chosen = replace(options, **fixed)
        result = study(specs, corpus=corpus, property=property, out=out, options=chosen, progress=progress, draw=draw)
        return answer_of(out, result, then=look_closer(out, result))

    run.__name__, run.__doc__ = name, help
    return command(run)


probe = _probing("probe", "Probe what every layer knows of a property of words, and with --neurons, which neurons do.")
probing = _probing(
    "probing",
    "Before and after fine-tuning: what layers and neurons know of a property, as the paper's figures and tables.",
    fewest=2,
    neurons=True,
)
