"""From two models to the answer: layers, weights, what could be cut, single texts; each text read once per model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.model import ModelInfo
from stratoscope.core.progress import Progress, Silent
from stratoscope.core.value import ratio_of_sums
from stratoscope.data.corpus import Corpus, Sentence
from stratoscope.data.readers import Data, corpus_of
from stratoscope.data.tasks.data import TaskData
from stratoscope.data.tasks.source import TaskSource
from stratoscope.measures.moved import row_moves
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import CAUSAL, ModelSpec, check_head, load_config, open_model, resolve, survey
from stratoscope.models.read.head import reads_mean
from stratoscope.models.read.perplexity import LEVEL, Predicted
from stratoscope.models.read.store import Reading, Stored, Wanted, store_all, together
from stratoscope.models.text.examples import text_length
from stratoscope.models.weights.stored import Pair
from stratoscope.results.cutting.depth import Depth
from stratoscope.results.diff import Diff, Example, Language
from stratoscope.runs.run import Draw, Run
from stratoscope.studies.asked import (
    Model,
    chosen,
    models_asked,
    names_asked,
    request_for,
    run_study,
    spec_of,
)
from stratoscope.studies.compare.plan import Plan, named
from stratoscope.studies.compare.study import work_of
from stratoscope.studies.depth.judge import Side, Work, judge
from stratoscope.studies.depth.study import trained_length
from stratoscope.studies.diff.options import DiffOptions
from stratoscope.studies.finetuned.options import UNITS, StudyOptions
from stratoscope.studies.finetuned.study import Roles, plans_of, read_task, study_of
from stratoscope.studies.perplexity.spans import Cut, exp, ratio, skipped, spans_of
from stratoscope.studies.weights.options import WeightsOptions
from stratoscope.studies.weights.study import compare_weights, opened_weights, two_models

__all__ = ["DiffOptions", "diff"]

TASK_ROWS = {"train_rows": 2000, "validation_rows": 1000}
"""Rows of a task that the front door uses where the user does not say."""
SPAN_LENGTH, SPAN_TEXTS = 4, 32
"""Longest span of a decoder's blocks that is skipped, and on how many texts."""
LETTERS = 500
"""Of a text that a result keeps."""


@dataclass(frozen=True)
class Asked:
    """What the two models are compared on."""

    models: Roles
    plans: Mapping[str, Plan]
    corpus: Corpus
    """The rows that are compared."""
    task: TaskData | None
    causal: bool
    unjudged: str
    options: DiffOptions
    name: str
    """Of the data, as a user knows it."""

    @property
    def sides(self) -> tuple[Side, ...]:
        return self.models.sides

    @property
    def unit(self) -> str:
        return next(iter(self.plans))


def diff(
    base: Model,
    tuned: Model | None = None,
    *,
    data: Data | TaskData | TaskSource,
    out: str | Path | None = None,
    options: DiffOptions | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
    **keywords: Any,
) -> Diff:
    """Tell what fine-tuning changed and what could be cut, layer by layer, from two models and some text.

    `base` alone may be an adapter, which names its base. `data` is a path, texts, a data frame, a corpus or a task;
    with labels and a task head, every depth is judged; of decoders without a task, the perplexity. Further keywords
    are the fields of `DiffOptions`, and how to read `data`: those of `TaskSource`, such as `text` and `label`.
    """
    reading = {f.name: keywords.pop(f.name) for f in fields(TaskSource) if f.name in keywords}
    options, progress = chosen(DiffOptions, options, keywords), progress or Silent()
    before, after = two_models(spec_of(base), None if tuned is None else spec_of(tuned))
    source = data if isinstance(data, TaskSource) else TaskSource(**reading, data=data)  # type: ignore[arg-type]
    rows, unjudged = _rows(source, after, progress)
    asked = replace(_asked(before, after, rows, unjudged, options, progress), name=_name(source, rows))
    try:
        weights = opened_weights(before, after, Silent())
    except StratoscopeError as e:
        weights = None
        progress.note(f"weights are not compared: {e.fact}")
    task = [] if asked.task is None else [asked.task.name, asked.task.fingerprint, asked.task.metric]
    inputs = {
        "models": [[s.spec.label, s.surveyed.fingerprint, s.surveyed.dtype, s.length] for s in asked.sides],
        "task": task,
        "rows": {name: plan.rows.fingerprint for name, plan in asked.plans.items()},
        "data": asked.corpus.fingerprint,
    }
    given = [spec_of(m) for m in (base, tuned) if m is not None]
    words = {k: v for k, v in vars(source).items() if isinstance(v, str | int | Path)}
    models = {"base": given[0].source, "tuned": given[1].source if tuned is not None else None}
    return run_study(
        request_for(Diff.KIND, inputs, options),
        options,
        out,
        lambda running: _compute(asked, weights, running),
        asked={**models, **words, **models_asked(given), **names_asked(given)},
        work=sum(map(work_of, asked.plans.values())),
        progress=progress,
        draw=draw,
    )


def _rows(source: TaskSource, tuned: ModelSpec, progress: Progress) -> tuple[TaskData | Corpus, str]:
    """The rows as a task where the tuned model has its head, else as text, and why."""
    rows: Any = source.data
    if isinstance(rows, TaskData):
        check_head(tuned, rows)
        return rows, ""
    few: dict[str, Any] = {k: v for k, v in TASK_ROWS.items() if getattr(source, k) is None}
    sampled = replace(source, **few)
    if source.task is not None or source.label is not None or source.validation is not None:
        task = sampled.read(progress)
        check_head(tuned, task)
        return task, ""
    corpus = corpus_of(rows, text=source.text, pair=source.pair, columns=source.columns)
    if "label" not in corpus.columns:
        return corpus, f"{corpus.name} has no labels"
    try:
        task = sampled.read(Silent())
        check_head(tuned, task)
    except StratoscopeError as e:
        return corpus, e.fact.partition(";")[0]
    if task.note:
        progress.note(f"{task.name}: {task.note}")
    return task, ""


def _asked(
    before: ModelSpec,
    after: ModelSpec,
    rows: TaskData | Corpus,
    unjudged: str,
    options: DiffOptions,
    progress: Progress,
) -> Asked:
    task = rows if isinstance(rows, TaskData) else None
    specs = named([before, after], random_init=options.control, seed=options.seed)
    surveys = [survey(spec, progress=progress) for spec in specs]
    shapes = [f"{s.family.name}, {s.layers - 1} blocks, width {s.width}" for s in surveys]
    if shapes[0] != shapes[1]:
        raise StratoscopeError(
            f"'{specs[0].label}' ({shapes[0]}) and '{specs[1].label}' ({shapes[1]}) are different architectures, so one"
            " was not tuned from the other; compare them with 'stratoscope compare'"
        )
    causal = task is None and _causal(before) and _causal(after)
    lengths = [text_length(s.encoder, options.length, otherwise=trained_length(specs[1])) for s in surveys[:2]]
    sides = tuple(Side(spec, surveyed, min(lengths)) for spec, surveyed in zip(specs, surveys, strict=True))
    models = Roles(sides, 1, 0, options.control)
    corpus = (rows.corpus("validation") if isinstance(rows, TaskData) else rows).sample(options.limit, options.seed)
    usual: tuple[str, ...] = ("mean",)
    if task is not None:
        usual = UNITS[::-1] if reads_mean(load_config(after, resolve(after))) else UNITS
    known = {f.name for f in fields(StudyOptions)} & set(vars(options))
    how = {name: getattr(options, name) for name in known} | {"units": options.units or usual}
    plans = plans_of(models, corpus, StudyOptions(**how))
    return Asked(models, plans, corpus, task, causal, "" if causal else unjudged, options, corpus.name)


def _name(source: TaskSource, rows: TaskData | Corpus) -> str:
    """The file that rows come from, or what they are called."""
    return Path(source.data).name if source.task is None and isinstance(source.data, str | Path) else rows.name


def _causal(spec: ModelSpec) -> bool:
    try:
        check_head(spec, CAUSAL)
    except StratoscopeError:
        return False
    return True


def _compute(asked: Asked, weights: tuple[Pair, tuple[ModelInfo, ...], dict[str, Any]] | None, running: Run) -> Diff:
    stored, depth, language = {}, None, None
    base, tuned = asked.sides[:2]
    if asked.task is not None:
        work = Work(tuned, asked.task, asked.options.seed, asked.options.batch_tokens, running)
        read = read_task(asked.models, work, asked.plans, deep=True)
        depth = judge(work, read[tuned.spec.label], (base, read[base.spec.label]), skip=asked.options.skip)
        stored = {label: of["validation"] for label, of in read.items()}
    else:
        wanted = [_wanted(asked, side, running) for side in asked.sides]
        stored = dict(zip((s.spec.label for s in asked.sides), store_all(wanted, running), strict=True))
    study = study_of(asked.models, asked.plans, stored, depth, running)
    pair = [stored[side.spec.label] for side in (base, tuned)]
    if asked.causal:
        language = _language(asked, pair, running)
    curve = study[asked.unit].matrices[0].between(base.spec.label, tuned.spec.label).values.diagonal()
    layer = None if np.isnan(curve).all() else int(np.nanargmin(curve))
    shown = asked.options.examples and layer is not None
    return Diff(
        study=study,
        data={
            "name": asked.name,
            "rows": len(asked.corpus),
            "train": len(asked.task.train) if asked.task else 0,
        },
        weights=compare_weights(*weights, WeightsOptions(asked.options.rank), running) if weights else None,
        language=language,
        unjudged=asked.unjudged,
        layer=layer,
        examples=_examples(asked, pair, int(layer or 0), depth, running) if shown else (),
        statements=study.statements,
        warnings=study.warnings,
    )


def _wanted(asked: Asked, side: Side, running: Run) -> Wanted:
    """Rows of every unit, and of decoders -log p, each text read once."""
    reading = Reading(
        asked.corpus,
        {part: plan.rows for part, plan in asked.plans.items()},
        losses=asked.causal,
        truncate=side.length,
        batch_tokens=asked.options.batch_tokens,
    )
    head = CAUSAL if asked.causal else None
    return Wanted(_held(side, head, running), side.surveyed, reading)


def _held(side: Side, head: str | None, running: Run) -> Held:
    """The model, opened when and where it is needed."""
    opening = partial(open_model, side.spec, head, surveyed=side.surveyed)
    return Held(opening, side.surveyed, head or "", running.progress, one_of_many=True)


def _language(asked: Asked, pair: list[Stored], running: Run) -> Language:
    """Perplexity before and after, and of the tuned model without every span of a few blocks."""
    (before, tokens), (after, _) = (stored.losses for stored in pair)
    kept = tokens > 0
    if not kept.any():
        raise StratoscopeError(f"expected texts of two tokens or more, got none in '{asked.corpus.name}'")
    before, after, tokens = before[kept], after[kept], tokens[kept]
    both = [exp(ratio_of_sums(losses, tokens, level=LEVEL)) for losses in (before, after)]
    language = Language(both[0], both[1], ratio(after, before, tokens))
    side, options = asked.sides[1], asked.options
    blocks = side.surveyed.layers - 1
    if not (options.skip and blocks):
        return language
    sample = asked.corpus.sample(SPAN_TEXTS, options.seed)
    encoded = side.surveyed.encoder.encode(sample.sentences[:], truncate=side.length)
    texts = np.flatnonzero(encoded.lengths > 1)
    where = np.searchsorted(np.asarray(asked.corpus.positions), np.asarray(sample.positions))[texts]
    whole, counts = pair[1].losses
    scores = skipped(
        running,
        Cut(_held(side, CAUSAL, running), encoded, options.batch_tokens),
        texts,
        longest=min(SPAN_LENGTH, blocks),
        key=[side.surveyed.fingerprint, side.surveyed.dtype, side.surveyed.device, sample.fingerprint, side.length],
        label=f"skipping blocks of {side.spec.label}",
    )
    spans = spans_of(scores, Predicted(whole[where], np.empty((0, 0), dtype=np.int64)), counts[where])
    return replace(language, spans=spans, span_texts=len(texts))


def _examples(asked: Asked, pair: list[Stored], layer: int, depth: Depth | None, running: Run) -> tuple[Example, ...]:
    """Every text that was compared, those that moved most first."""
    plan = asked.plans[asked.unit]
    rows = together([stored.rows[asked.unit] for stored in pair])
    moves = running.part(
        "moved", [plan.key, layer], lambda: {"moved": row_moves(rows, layer, rows.layers // 2 + layer)}
    )["moved"].numpy()
    counts = np.bincount(plan.rows.sentence, minlength=len(asked.corpus))
    with np.errstate(invalid="ignore"):
        moved = np.bincount(plan.rows.sentence, weights=moves, minlength=len(asked.corpus)) / counts
    losses = [loss / np.maximum(n, 1) for loss, n in (s.losses for s in pair)] if asked.causal else []
    made = []
    for k in np.flatnonzero(counts).tolist():
        sentence, place = asked.corpus.sentences[k], asked.corpus.positions[k]
        known = _predictions(asked.task, depth, place)
        known |= {"loss_before": float(losses[0][k]), "loss_after": float(losses[1][k])} if losses else {}
        made.append(Example(place, _text(sentence), float(moved[k]), sentence.label or "", **known))
    return tuple(sorted(made, key=lambda e: (-e.moved, e.row)))


def _predictions(task: TaskData | None, depth: Depth | None, row: int) -> dict[str, Any]:
    """What the whole model predicts of a row of the validation corpus, and at which layers that flips."""
    if task is None or depth is None or depth.predicted is None or task.labels is None:
        return {}
    *cut, whole = depth.predicted[:, row // len(task.validation[0].texts)].astype(int).tolist()
    return {"predicted": task.labels[whole], "flips": tuple(k for k, p in enumerate(cut) if p != whole)}


def _text(sentence: Sentence) -> str:
    whole = sentence.text if sentence.pair is None else f"{sentence.text} / {sentence.pair}"
    return whole if len(whole) <= LETTERS else f"{whole[: LETTERS - 1]}…"
