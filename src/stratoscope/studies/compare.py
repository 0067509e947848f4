"""Compare every layer of any set of models under any set of measures, in one pass over the text."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from stratoscope.core.errors import ForeignResultError, StratoscopeError, unknown_name
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.result import RESULT, Comparison, Layer, Matrix, ModelInfo
from stratoscope.core.runfolder import RunFolder, digest
from stratoscope.data.corpus import Corpus
from stratoscope.data.readers import read_corpus
from stratoscope.engine.local import local_engine
from stratoscope.measures.bootstrap import bootstrap
from stratoscope.measures.score import Scoring, Setting, score_layers
from stratoscope.measures.structure import findings
from stratoscope.measures.table import ALL, Request, parse, requests
from stratoscope.models.loading import ModelSpec, Survey, choose_device, survey
from stratoscope.models.rows import SUBWORDS, Rows, check_unit, plan_rows
from stratoscope.statistics.rows import StoredRows
from stratoscope.studies.activations import Reading, chosen_layers, chunk_starts, keep_activations

LIBRARIES = ("stratoscope", "torch", "transformers", "numpy", "scipy")
FEWEST_REPLICATES = 20
FEWEST_ROWS = 4
"""Unbiased HSIC needs four rows."""


@dataclass(frozen=True)
class Options:
    """How to compare; every field is also a CLI option."""

    unit: str = "word"
    measures: tuple[str, ...] = ("ckasim",)
    subword: str = "last"
    layers: tuple[int, ...] | None = None
    limit: int | None = None
    seed: int = 0
    bootstrap: int = 0
    """Replicates of the bootstrap over sentences; 0 for no intervals."""
    random_init: bool = False
    """Add a copy of the first model with fresh weights, as a control."""
    memory: float | None = None
    """Bytes to work in; half of the machine's by default."""
    workers: int | None = None
    batch_tokens: int | None = None
    standardise: bool = False
    """Z-score neuronsim and svsim before taking their difference as localization."""
    keep: bool = False
    """Keep activations in the run folder for later comparisons."""
    overwrite: bool = False


def compare(
    models: Sequence[str | Path | ModelSpec],
    *,
    data: str | Path | Corpus,
    out: str | Path | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare all layers of all models; with `out`, finished parts are kept there and reused."""
    options, progress = options or Options(), progress or Silent()
    _check(options)
    specs = _named([m if isinstance(m, ModelSpec) else ModelSpec(str(m)) for m in models], options)
    for spec in specs:
        choose_device(spec.device)
    corpus = (data if isinstance(data, Corpus) else read_corpus(str(data))).sample(options.limit, options.seed)
    surveys = [survey(spec, progress=progress) for spec in specs]
    for spec, seen in zip(specs, surveys, strict=True):
        chosen_layers(seen, spec.label, options.layers)
    rows = plan_rows(corpus, [s.encoder for s in surveys], options.unit)
    if len(rows) < FEWEST_ROWS:
        raise StratoscopeError(f"expected at least {FEWEST_ROWS} rows to compare, got {len(rows)}; give more text")
    width = max(s.width for s in surveys)
    wanted, notes = requests(list(options.measures), n=len(rows), width=width)
    request = _request(specs, surveys, rows, options, wanted)

    def kept(part: str) -> bool:
        return options.keep and part.startswith("activations-")

    with ExitStack() as stack:
        out = out or stack.enter_context(tempfile.TemporaryDirectory(prefix="stratoscope-"))
        folder = stack.enter_context(RunFolder.open(out))
        finished = _finished(folder, request, overwrite=options.overwrite)
        if finished is not None:
            progress.note(f"{folder.path} already holds this result; nothing to do")
            folder.drop_parts(keep=kept)
            return finished
        comparison = _run(specs, surveys, corpus, rows, wanted, options, folder, progress, notes, request)
        comparison.save(folder.path)
        folder.drop_parts(keep=kept)
    return comparison


def _run(
    specs: Sequence[ModelSpec],
    surveys: Sequence[Survey],
    corpus: Corpus,
    rows: Rows,
    wanted: Sequence[Request],
    options: Options,
    folder: RunFolder,
    progress: Progress,
    notes: list[str],
    request: str,
) -> Comparison:
    reading = Reading(corpus, rows, options.unit, options.subword, options.layers, options.batch_tokens)
    axis, files, precision = [], [], []
    for spec, seen in zip(specs, surveys, strict=True):
        layers = chosen_layers(seen, spec.label, options.layers)
        files += keep_activations(spec, seen, reading, folder, progress)
        axis += [Layer(spec.label, k) for k in layers]
        precision += [torch.finfo(getattr(torch, seen.dtype)).eps] * len(layers)
    bounds = chunk_starts(rows.sentence)
    sizes = tuple(b - a for a, b in pairwise(bounds))
    stored = StoredRows(sizes, tuple(tuple(f) for f in files), tuple(precision))
    width = max(s.width for s in surveys)
    work = len(rows) * float(len(axis) * width) ** 2 * max(1, options.bootstrap)
    with closing(local_engine(options.workers, work)) as engine:
        memory = options.memory or _physical_memory() / 2
        setting = Setting(engine, folder, request, memory, options.seed, progress)
        scoring = score_layers(stored, wanted, setting)
        values = {name: s.values for name, s in scoring.scored.items()}
        intervals = {}
        if options.bootstrap:
            sentence = torch.from_numpy(rows.sentence)
            intervals = bootstrap(stored, sentence, wanted, values, replicates=options.bootstrap, setting=setting)
    axes = tuple(axis)
    matrices = []
    for name, value in values.items():
        low, high = (None, None) if name not in intervals else (v.numpy() for v in intervals[name])
        matrices.append(Matrix(name, axes, axes, value.numpy(), low, high))
    found = Comparison(
        matrices=tuple(matrices),
        models=tuple(
            ModelInfo(spec.label, spec.source, s.family.name, s.layers, s.width, s.fingerprint)
            for spec, s in zip(specs, surveys, strict=True)
        ),
        data=_described(corpus, rows, options),
        warnings=(*notes, *_row_notes(corpus, rows), *_constant_notes(scoring, axes, surveys, specs)),
        provenance=_provenance(specs, surveys, options, request),
        arrays={k: v.numpy() for s in scoring.scored.values() for k, v in s.arrays.items()},
    )
    return replace(found, findings=findings(found, standardise=options.standardise))


def _check(options: Options) -> None:
    """Refuse what cannot work before anything is read or written."""
    check_unit(options.unit)
    if options.subword not in SUBWORDS:
        raise unknown_name("subword", options.subword, SUBWORDS)
    for name in options.measures:
        if name != ALL:
            parse(name)
    if options.layers is not None and not options.layers:
        raise StratoscopeError("expected at least one layer, got none; leave --layers out to compare all")
    if options.layers is not None and len(set(options.layers)) < len(options.layers):
        raise StratoscopeError(f"expected each layer once, got {', '.join(map(str, options.layers))}")
    if not 0 <= options.seed < 2**63:
        raise StratoscopeError(f"expected a --seed of at least 0 and below 2^63, got {options.seed}")
    if options.bootstrap and options.bootstrap < FEWEST_REPLICATES:
        raise StratoscopeError(
            f"expected at least {FEWEST_REPLICATES} bootstrap replicates for a 95 % interval (or 0 for none),"
            f" got {options.bootstrap}"
        )
    for name, value in (("--workers", options.workers), ("--batch-tokens", options.batch_tokens)):
        if value is not None and value < 1:
            raise StratoscopeError(f"expected {name} of at least 1, got {value}")
    if options.memory is not None and options.memory < 1e8:
        raise StratoscopeError(f"expected --memory of at least 100MB, got {options.memory / 1e6:g}MB")


def _named(specs: list[ModelSpec], options: Options) -> list[ModelSpec]:
    """Give every model a label of its own: the folder's name, with its parent's where two are alike."""
    if not specs:
        raise StratoscopeError("expected at least one model, got none")
    if options.random_init:
        specs = [*specs, replace(specs[0], random_init=True, seed=options.seed, name=f"{specs[0].label}-random")]
    labels = [s.label for s in specs]
    longer = [
        f"{Path(s.source).resolve().parent.name}/{label}" if labels.count(label) > 1 else label
        for s, label in zip(specs, labels, strict=True)
    ]
    counted = [
        label if longer.count(label) == 1 else f"{label}-{longer[: k + 1].count(label)}"
        for k, label in enumerate(longer)
    ]
    if twice := next((label for label in counted if counted.count(label) > 1), None):
        raise StratoscopeError(f"two models would be labelled '{twice}'; give each its own --name")
    return [replace(s, name=name) for s, name in zip(specs, counted, strict=True)]


def _request(
    specs: Sequence[ModelSpec], surveys: Sequence[Survey], rows: Rows, options: Options, wanted: Sequence[Request]
) -> str:
    """Digest of everything the numbers depend on."""
    return digest(
        {
            "models": [[spec.label, s.fingerprint, s.dtype] for spec, s in zip(specs, surveys, strict=True)],
            "rows": rows.fingerprint,
            "measures": [r.name for r in wanted],
            "subword": options.subword,
            "layers": options.layers,
            "seed": options.seed,
            "bootstrap": options.bootstrap,
            "standardise": options.standardise,
            "version": version("stratoscope"),
        },
        length=64,
    )


def _finished(folder: RunFolder, request: str, *, overwrite: bool) -> Comparison | None:
    """The folder's result if it answers this very request; another one is not overwritten unasked."""
    if not (folder.path / RESULT).is_file():
        return None
    try:
        found = Comparison.load(folder.path)
    except ForeignResultError as e:
        if overwrite:
            return None
        raise StratoscopeError(f"{e}, in another folder or with --overwrite") from e
    except StratoscopeError:
        return None  # damaged: made again
    if found.provenance.get("request") == request:
        return found
    if not overwrite:
        raise StratoscopeError(f"{folder.path} holds another comparison; choose another --out or give --overwrite")
    return None


def _described(corpus: Corpus, rows: Rows, options: Options) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "fingerprint": corpus.fingerprint,
        "rows_fingerprint": rows.fingerprint,
        "unit": options.unit,
        "subword": options.subword if options.unit == "word" else None,
        "sentences": len(corpus),
        "rows": len(rows),
        "dropped": dict(rows.dropped),
        "blank": corpus.skipped,
    }


def _provenance(
    specs: Sequence[ModelSpec], surveys: Sequence[Survey], options: Options, request: str
) -> dict[str, Any]:
    return {
        "request": request,
        "limit": options.limit,
        "layers": None if options.layers is None else list(options.layers),
        "dtype": {spec.label: s.dtype for spec, s in zip(specs, surveys, strict=True)},
        "seed": options.seed,
        "bootstrap": options.bootstrap,
        "standardise": options.standardise,
        "versions": {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
    }


def _row_notes(corpus: Corpus, rows: Rows) -> list[str]:
    notes = [f"left out: {count} {reason}" for reason, count in rows.dropped.items()]
    return notes + ([f"left out: {corpus.skipped} blank rows of {corpus.name}"] if corpus.skipped else [])


def _constant_notes(
    scoring: Scoring, axes: Sequence[Layer], surveys: Sequence[Survey], specs: Sequence[ModelSpec]
) -> list[str]:
    width = {spec.label: s.width for spec, s in zip(specs, surveys, strict=True)}
    absent = [str(a) for a, c in zip(axes, scoring.constant, strict=True) if c == width[a.model]]
    partly = sum(c for a, c in zip(axes, scoring.constant, strict=True) if c < width[a.model])
    notes = [f"{', '.join(absent)} do not vary over these rows and are shown as absent"] if absent else []
    return notes + (
        [f"{partly} neurons do not vary over these rows and score 0 in neuronsim and mixedsim"] if partly else []
    )


def _physical_memory() -> float:
    """Bytes of memory this machine has; its size rather than what is free, so that a run repeats itself."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
