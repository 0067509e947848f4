"""`stratoscope demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.loading import folder
from stratoscope.cli.options import command
from stratoscope.core.progress import Progress

Out = Annotated[Path, typer.Option("--out", help="Folder for all output.", parser=folder)]
Hub = Annotated[bool, typer.Option("--hub", help="Use a model and data from the hub instead.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer rows and steps: about half the time.")]


@command
def demo(progress: Progress, out: Out = Path("runs/demo"), hub: Hub = False, quick: Quick = False) -> Answer:
    """Fine-tune a real model on real text, see what changed, and cut the layers it does not need."""
    from stratoscope.demo.run import probe_demo, run_demo
    from stratoscope.report.words import console_lines

    study = run_demo(out, hub=hub, quick=quick, progress=progress, draw=drawing(progress))
    probes = probe_demo(out, hub=hub, quick=quick, progress=progress, draw=drawing(progress)).layers.probes
    known = [
        f"{p.model} {p.accuracy.points[k]:.2f} (layer {p.accuracy.layers[k]}, control task {p.control.values[k]:.2f})"
        for p, k in ((p, p.at_best()) for p in probes)
    ]
    line = f"polarity of words that no probe was trained on: {', '.join(known)}; see {out / 'polarity' / 'report.html'}"
    return answer_of(out, study, lines=[*console_lines(study), line], then=look_closer(out, study))
