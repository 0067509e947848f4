"""What each layer is worth to a task: the model cut at every layer in three ways, and with every span skipped."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stratoscope.core.depth import DEPTH, TUNED, TUNEDORIG, UNTUNED, Curve, Depth
from stratoscope.core.errors import ForeignResultError, StratoscopeError
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.runfolder import RunFolder, digest
from stratoscope.data.baselines import bag_of_words, majority
from stratoscope.data.tasks.data import SPLITS, TaskData
from stratoscope.models.heads.fitting import scale_of
from stratoscope.models.open.loading import ModelSpec, Survey, check_head, choose_device, survey
from stratoscope.models.read.head import head_scores
from stratoscope.models.text.examples import text_length
from stratoscope.studies.depth.parts import DepthOptions, Encoder, Work, encoder_for, skipped, tuned_heads, vectors_of
from stratoscope.studies.finetune.study import RECORD, Finetuned

__all__ = ["DepthOptions", "depth"]

Then = Callable[[Path, Depth], Any]
"""What to do with a finished result while its folder is still held."""

LIBRARIES = ("stratoscope", "torch", "transformers", "numpy", "scikit-learn")


def depth(
    tuned: str | Path | ModelSpec,
    task: TaskData,
    *,
    base: str | Path | ModelSpec | None = None,
    out: str | Path,
    options: DepthOptions | None = None,
    progress: Progress | None = None,
    then: Then | None = None,
) -> Depth:
    """Judge a fine-tuned model with its head on every layer and with spans of blocks skipped, into `out`/depth.json.

    With `base`, heads are tuned on its layers too. Finished parts are kept in `out`, so that a killed run goes on.
    """
    options, progress = options or DepthOptions(), progress or Silent()
    _check(options)
    specs = [
        m if isinstance(m, ModelSpec) else ModelSpec(str(m)) for m in ((tuned,) if base is None else (tuned, base))
    ]
    for spec in specs:
        choose_device(spec.device)
    check_head(specs[0], task)
    surveys = [survey(spec, progress=progress) for spec in specs]
    _check_base(specs, surveys)
    length = text_length(surveys[0].encoder, options.length, otherwise=trained_length(specs[0]))
    encoders = [
        encoder_for(spec, seen, task, length, judged=k == 0)
        for k, (spec, seen) in enumerate(zip(specs, surveys, strict=True))
    ]
    request = _request(encoders, task, options)
    with RunFolder.open(out, makes=DEPTH) as folder:
        finished = _finished(folder, request, overwrite=options.overwrite)
        if finished is not None:
            progress.note(f"{folder.path} already holds this result; nothing to do")
        else:
            work = Work(encoders[0], encoders[1] if base is not None else None, task, options, folder, progress)
            finished = _run(work, request)
            finished.save(folder.path)
        folder.drop_parts()
        if then is not None:
            then(folder.path, finished)
    return finished


def _run(work: Work, request: str) -> Depth:
    task, tuned, progress = work.task, work.tuned, work.progress
    floor = {"majority": majority(task), "bag_of_words": bag_of_words(task)}
    stored = {split: vectors_of(work, tuned, split) for split in SPLITS}
    choices = tuned.inputs["validation"].choices
    validation = stored["validation"]
    head = tuned.model().module
    untuned = [head_scores(head, validation.head_input(k), choices=choices) for k in range(tuned.seen.layers)]
    start = scale_of(stored["train"].head_input(tuned.seen.layers - 1))
    curves, notes = [Curve(UNTUNED, tuple(map(work.point, untuned)))], _texts_cut(work)
    for name, encoder in ((TUNED, tuned), (TUNEDORIG, work.base)):
        if encoder is None:
            continue
        vectors = stored if encoder is tuned else {split: vectors_of(work, encoder, split) for split in SPLITS}
        scores, remarks = tuned_heads(work, encoder, vectors, start)
        curves.append(Curve(name, tuple(map(work.point, scores))))
        notes += remarks
    whole = validation.scores
    full = work.point(whole)
    skip, agreement = skipped(work, whole) if work.options.skip else (None, None)
    if full.value <= max(floor.values()):
        best = max(floor, key=lambda name: floor[name])
        words = "bag of words" if best == "bag_of_words" else "majority label"
        notes.insert(
            0,
            f"the whole model ({task.metric} {full.value:.3f}) does not beat the {words} ({floor[best]:.3f}): its"
            " layers say little about the task",
        )
    for note in notes:
        progress.note(note)
    return Depth(
        model=tuned.info,
        base=None if work.base is None else work.base.info,
        task=_described(task),
        full=full,
        curves=tuple(curves),
        skip=skip,
        skip_agreement=agreement,
        warnings=tuple(notes),
        provenance=_provenance(work, request),
        **floor,
    )


def trained_length(spec: ModelSpec) -> int | None:
    """Tokens of a text in fine-tuning, if the folder is one of ours."""
    if not (Path(spec.source) / RECORD).is_file():
        return None
    return int(Finetuned.load(spec.source).record["recipe"]["length"])


def _check(options: DepthOptions) -> None:
    if not 0 <= options.seed < 2**63:
        raise StratoscopeError(f"expected a --seed of at least 0 and below 2^63, got {options.seed}")
    if options.batch_tokens is not None and options.batch_tokens < 1:
        raise StratoscopeError(f"expected --batch-tokens of at least 1, got {options.batch_tokens}")


def _check_base(specs: Sequence[ModelSpec], surveys: Sequence[Survey]) -> None:
    if len(specs) < 2:
        return
    shapes = [(s.family.name, s.layers - 1, s.width) for s in surveys]
    if shapes[0] != shapes[1]:
        (a, b), (first, second) = shapes, (s.label for s in specs)
        raise StratoscopeError(
            f"'{first}' ({a[0]}, {a[1]} blocks, width {a[2]}) was not tuned from '{second}' ({b[0]}, {b[1]} blocks,"
            f" width {b[2]})",
            "give the model it was tuned from",
            "leave --base out",
        )


def _texts_cut(work: Work) -> list[str]:
    inputs = work.tuned.inputs
    cut = sum(inputs[split].truncated for split in SPLITS)
    return (
        [f"{cut} texts of {work.task.name} are longer than {work.tuned.length} tokens and were cut to that"]
        if cut
        else []
    )


def _request(encoders: Sequence[Encoder], task: TaskData, options: DepthOptions) -> str:
    """Digest of everything the numbers depend on."""
    return digest(
        {
            "models": [[e.spec.label, e.seen.fingerprint, e.seen.dtype, e.length] for e in encoders],
            "task": [task.name, task.fingerprint, task.metric],
            "seed": options.seed,
            "skip": options.skip,
            "version": version("stratoscope"),
        },
        length=64,
    )


def _finished(folder: RunFolder, request: str, *, overwrite: bool) -> Depth | None:
    """The folder's result if it answers this very request; another one is not overwritten unasked."""
    if not (folder.path / DEPTH).is_file():
        return None
    try:
        found = Depth.load(folder.path)
    except ForeignResultError as e:
        if overwrite:
            return None
        raise StratoscopeError(f"{e}, in another folder or with --overwrite") from e
    except StratoscopeError:
        return None  # damaged: made again
    if found.provenance.get("request") == request:
        return found
    if not overwrite:
        raise StratoscopeError(f"{folder.path} holds another result", "choose another --out", "give --overwrite")
    return None


def _described(task: TaskData) -> dict[str, Any]:
    return {
        "name": task.name,
        "metric": task.metric,
        "labels": None if task.labels is None else list(task.labels),
        "format": task.format,
        "fingerprint": task.fingerprint,
        "n_train": len(task.train),
        "n_validation": len(task.validation),
        "note": task.note,
    }


def _provenance(work: Work, request: str) -> dict[str, Any]:
    return {
        "request": request,
        "seed": work.options.seed,
        "length": work.tuned.length,
        "skip": work.options.skip,
        "head": "keeps its own pooler; tuned heads read standardised features",
        "versions": {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
    }
