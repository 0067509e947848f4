"""`stratoscope cut`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, beside, drawing
from stratoscope.cli.loading import AdapterBase, LoadingOne, Tuned, folder
from stratoscope.cli.options import command
from stratoscope.core.options import typed
from stratoscope.core.progress import Progress
from stratoscope.data.tasks.source import TaskSource
from stratoscope.studies.cut.options import CutOptions

USUAL_BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""One point of the metric."""

Small = Annotated[Path, typer.Option("--out", help="Folder of the smaller checkpoint, with its page.", parser=folder)]
Budget = Annotated[
    float, typer.Option("--budget", help="Largest loss allowed, in units of the metric: 0.01 is one point.")
]


@command
def cut(
    tuned: Tuned,
    out: Small,
    budget: Budget,
    source: TaskSource,
    options: CutOptions,
    loading: LoadingOne,
    progress: Progress,
    base: AdapterBase = None,
) -> Answer:
    """Take out the blocks a fine-tuned model can do without, into a standard checkpoint."""
    from stratoscope.studies.cut.study import cut as run

    spec = loading.spec(tuned, base=base)
    draw = drawing(progress)
    result = run(spec, source.read(progress), budget=budget, out=out, options=options, progress=progress, draw=draw)
    # A checkpoint of ours is no revision on the hub, and no pickle.
    how = [*source.typed(), *typed(LoadingOne(device=loading.device, trust_remote_code=loading.trust_remote_code))]
    return answer_of(out, result, then=["stratoscope", "depth", str(out), *how, "--out", beside(out, "depth")])


def cut_next(tuned: str, how: Sequence[str], out: str, *, rows: int) -> list[str]:
    """The command that cuts this model, with the smallest usual budget that so many validation rows can confirm."""
    from stratoscope.studies.cut.confirm import rows_for

    budget = next((b for b in USUAL_BUDGETS if rows // 2 >= rows_for(b, CutOptions().confidence)), USUAL_BUDGETS[-1])
    return ["stratoscope", "cut", tuned, *how, "--budget", f"{budget:g}", "--out", out]
