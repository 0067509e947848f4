"""`stratoscope weights`."""

from __future__ import annotations

from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.loading import Base, Naming, Out
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.studies.weights.options import WeightsOptions

After = Annotated[
    str | None,
    typer.Argument(help="The model trained from it, or a LoRA adapter; BASE alone may be an adapter.", metavar="TUNED"),
]


@command
def weights(
    base: Base, out: Out, options: WeightsOptions, naming: Naming, progress: Progress, tuned: After = None
) -> Answer:
    """Show what training did to the weights, layer by layer: no data, no forward pass."""
    from stratoscope.studies.weights.study import weights as run

    specs = naming.specs([base] if tuned is None else [base, tuned])
    result = run(*specs, out=out, options=options, progress=progress, draw=drawing(progress))
    return answer_of(out, result, then=look_closer(out, result))
