"""`stratoscope attention` and `stratoscope study attention`."""

from __future__ import annotations

from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.commands.compare import Data
from stratoscope.cli.loading import LoadingSeveral, Out
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.studies.attention.options import AttentionOptions, AttentionStudyOptions

Models = Annotated[
    list[str], typer.Argument(help="Checkpoint or adapter folders, .gguf files or hub ids.", metavar="MODEL...")
]


@command
def attention(
    models: Models, data: Data, out: Out, options: AttentionOptions, loading: LoadingSeveral, progress: Progress
) -> Answer:
    """Compare the attention of every layer of every model: heads, their partners and layers as a whole."""
    specs = loading.specs(models)
    from stratoscope.studies.attention.study import attention as run

    result = run(specs, data=data, out=out, options=options, progress=progress, draw=drawing(progress))
    return answer_of(out, result, then=look_closer(out, result))


@command
def study_attention(
    models: Models, data: Data, out: Out, options: AttentionStudyOptions, loading: LoadingSeveral, progress: Progress
) -> Answer:
    """Attention of several models, base and fine-tuned, under every measure: figures 4, 6 and 10 of Wu et al. 2020."""
    specs = loading.specs(models)
    from stratoscope.studies.attention.study import attention as run

    draw, name = drawing(progress), "study attention"
    result = run(specs, data=data, out=out, options=options, progress=progress, draw=draw, command=name)
    return answer_of(out, result, then=look_closer(out, result))
