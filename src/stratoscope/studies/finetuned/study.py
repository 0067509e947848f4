"""What fine-tuning changed: a base model and what was tuned from it, layer by layer, and cut at every depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.tasks.data import TaskData
from stratoscope.models.open.checkpoints import locate
from stratoscope.models.open.loading import ModelSpec
from stratoscope.results.study import LOCALIZATION, Study
from stratoscope.runs.folder import RunFolder
from stratoscope.studies.compare.plan import named
from stratoscope.studies.compare.study import Options, compare
from stratoscope.studies.depth.study import DepthOptions, depth
from stratoscope.TODO.study import STUDY

MEASURES = ("ckasim", "ckasim-debiased")
"""Biased and debiased CKA, side by side: on few rows they differ."""
LOCALIZING = ("neuronsim", "svsim")
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
    localization: bool = False
    """Score localization before and after (Wu et al. 2020, Fig. 7), on words, as published.

    A comparison of its own, without intervals: on the few rows of `cls` svsim would be near its chance level, and each
    replicate would cost as much again. Small models take about as long for it as for CKA with all its replicates, and
    the work grows with the square of the layers and the cube of the width.
    """
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
    across: Sequence[str | Path | ModelSpec] = (),
    cut: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    then: Then | None = None,
) -> Study:
    """Compare before with after on the task's validation rows (Phang et al. 2021, §3 and §4), one folder a part.

    `across` are other models, of any family, depth and width, such as another family tuned on the same task: they are
    compared on the same rows, so what their tokenizers drop is dropped for all. `cut` is what a cut of the first tuned
    model came to, for the same page. Each part is a run folder of its own and resumes as such; `study.json` is written
    when all are whole.
    """
    options, progress = options or StudyOptions(), progress or Silent()
    if not options.units:
        raise StratoscopeError("expected at least one unit, such as cls, got none")
    if not tuned:
        raise StratoscopeError("expected at least one fine-tuned model, got none; name it after the base model")
    specs = [m if isinstance(m, ModelSpec) else ModelSpec(str(m)) for m in (base, *tuned, *across)]
    others = 1 + len(tuned)
    _check_across(specs, others)
    specs = named(specs, Options(random_init=options.control, seed=options.seed))
    corpus = task.corpus("validation")
    how = Options(
        measures=MEASURES,
        limit=options.limit,
        seed=options.seed,
        bootstrap=options.bootstrap,
        batch_tokens=options.batch_tokens,
        memory=options.memory,
        workers=options.workers,
        overwrite=options.overwrite,
    )
    with RunFolder.open(out, makes=STUDY) as folder:
        comparisons = {
            unit: compare(
                specs, data=corpus, out=folder.path / unit, options=replace(how, unit=unit), progress=progress
            )
            for unit in options.units
        }
        localization = None
        if options.localization:
            localization = compare(
                [spec for k, spec in enumerate(specs) if not 0 <= k - others < len(across)],
                data=corpus,
                out=folder.path / LOCALIZATION,
                options=replace(how, unit="word", measures=LOCALIZING, bootstrap=0),
                progress=progress,
            )
        curves = None
        if options.depth:
            deep = DepthOptions(
                seed=options.seed,
                length=options.length,
                batch_tokens=options.batch_tokens,
                overwrite=options.overwrite,
            )
            curves = depth(specs[1], task, base=specs[0], out=folder.path / "depth", options=deep, progress=progress)
        labels = [spec.label for spec in specs]
        control = labels.pop() if options.control else None
        after, away = tuple(labels[1:others]), tuple(labels[others:])
        study = Study(comparisons, labels[0], after, control, curves, cut, away, localization)
        study.save(folder.path)
        if then is not None:
            then(folder.path, study)
    return study


def _check_across(specs: Sequence[ModelSpec], known: int) -> None:
    """Refuse a model across that is among the first `known` or comes twice: its panel would be another one again."""
    seen = [_identity(spec) for spec in specs]
    for k, spec in enumerate(specs[known:], start=known):
        if seen[k] in seen[:k]:
            raise StratoscopeError(
                f"expected --across models besides the base and the tuned ones, each once, got '{spec.source}' again; "
                "leave it out"
            )


def _identity(spec: ModelSpec) -> tuple[str, str | None]:
    if locate(spec.source).local:
        return str(Path(spec.source).expanduser().resolve()), None
    return spec.source, spec.revision
