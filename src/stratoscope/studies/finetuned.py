"""What fine-tuning changed: a base model and what was tuned from it, layer by layer, and cut at every depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.runfolder import RunFolder
from stratoscope.core.study import Study
from stratoscope.data.taskdata import TaskData
from stratoscope.models.loading import ModelSpec
from stratoscope.studies.compare import Options, compare
from stratoscope.studies.depth import DepthOptions, depth

MEASURES = ("ckasim", "ckasim-debiased")
"""Biased and debiased CKA, side by side: on few rows they differ."""
UNITS = ("cls", "mean")

Then = Callable[[Path, Study], Any]


@dataclass(frozen=True)
class StudyOptions:
    """How to study; every field is also a CLI option."""

    units: tuple[str, ...] = UNITS
    limit: int | None = 1000
    """Validation rows whose layers are compared, drawn with the seed; depth is judged on all of them."""
    bootstrap: int = 100
    """Replicates behind the intervals of similarity and drift; 0 for none."""
    control: bool = True
    """Compare with the base's architecture under fresh weights too."""
    depth: bool = True
    """Cut the first tuned model at every layer, and skip every span of its blocks."""
    seed: int = 0
    length: int | None = None
    batch_tokens: int | None = None
    memory: float | None = None
    workers: int | None = None
    overwrite: bool = False


def study_finetuned(
    base: str | Path | ModelSpec,
    tuned: Sequence[str | Path | ModelSpec],
    task: TaskData,
    *,
    out: str | Path,
    options: StudyOptions | None = None,
    cut: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    then: Then | None = None,
) -> Study:
    """Compare before with after on the task's validation rows (Phang et al. 2021, §3 and §4), one folder a part.

    `cut` is what a cut of the first tuned model came to, for the same page. Each part is a run folder of its own and
    resumes as such; `study.json` is written when all are whole.
    """
    options, progress = options or StudyOptions(), progress or Silent()
    if not options.units:
        raise StratoscopeError("expected at least one unit, such as cls, got none")
    if not tuned:
        raise StratoscopeError("expected at least one fine-tuned model, got none; name it after the base model")
    corpus = task.corpus("validation")
    with RunFolder.open(out) as folder:
        comparisons = {
            unit: compare(
                [base, *tuned],
                data=corpus,
                out=folder.path / unit,
                options=Options(
                    unit=unit,
                    measures=MEASURES,
                    limit=options.limit,
                    seed=options.seed,
                    bootstrap=options.bootstrap,
                    random_init=options.control,
                    batch_tokens=options.batch_tokens,
                    memory=options.memory,
                    workers=options.workers,
                    overwrite=options.overwrite,
                ),
                progress=progress,
            )
            for unit in options.units
        }
        curves = None
        if options.depth:
            how = DepthOptions(
                seed=options.seed,
                length=options.length,
                batch_tokens=options.batch_tokens,
                overwrite=options.overwrite,
            )
            curves = depth(tuned[0], task, base=base, out=folder.path / "depth", options=how, progress=progress)
        labels = [m.name for m in next(iter(comparisons.values())).models]
        models, control = (labels[:-1], labels[-1]) if options.control else (labels, None)
        study = Study(comparisons, models[0], tuple(models[1:]), control, curves, cut)
        study.save(folder.path)
        if then is not None:
            then(folder.path, study)
    return study
