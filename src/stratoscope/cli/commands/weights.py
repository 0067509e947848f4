"""`stratoscope weights`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.loading import Base, Naming, folder
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress
from stratoscope.studies.weights.options import WeightsOptions

After = Annotated[
    str | None,
    typer.Argument(help="The model trained from it, or a LoRA adapter; BASE alone may be an adapter.", metavar="TUNED"),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Run folder; by default runs/weights-<name of TUNED>.", parser=folder)
]


@command
def weights(
    base: Base, options: WeightsOptions, naming: Naming, progress: Progress, tuned: After = None, out: Out = None
) -> Answer:
    """See what training did to the weights, layer by layer: no data, no forward pass."""
    from stratoscope.report.labels import slugs
    from stratoscope.studies.weights.study import weights as run

    specs = naming.specs([base] if tuned is None else [base, tuned])
    label = specs[-1].label
    place = out or Path("runs") / f"weights-{slugs([label])[label]}"
    result = run(*specs, out=place, options=options, progress=progress, draw=drawing(progress))
    return answer_of(place, result, then=look_closer(place, result))
