"""The demo: a real model fine-tuned on real text, seen before and after, and cut; without a hub."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stratoscope.core.progress import Progress
from stratoscope.data.tasks.read import TaskData, read_task
from stratoscope.demo.assets import LEXICON_FILE, MINILM, REVIEWS, fetch
from stratoscope.demo.polarity import PROPERTY, polarity_corpus, read_lexicon
from stratoscope.models.open.loading import ModelSpec
from stratoscope.results.probing import Probing
from stratoscope.results.study import Study
from stratoscope.runs.run import Draw
from stratoscope.studies.cut.study import Cut, CutOptions, NothingToCutError, cut
from stratoscope.studies.finetune.options import FinetuneOptions
from stratoscope.studies.finetune.study import finetune
from stratoscope.studies.finetuned.study import StudyOptions, study_finetuned
from stratoscope.studies.probing.study import probe

HUB_MODEL, HUB_TASK = "nreimers/MiniLM-L6-H384-uncased", "sst2"


@dataclass(frozen=True)
class Size:
    """How much of everything: what fits into minutes on two cores."""

    train: int
    validation: int
    """Rows the cut is chosen and confirmed on."""
    compared: int
    """Of these, rows whose layers are compared and on which depth is judged."""
    probed: int
    """Rows that were not trained on and in which the polarity of words is probed."""
    bootstrap: int
    budget: float
    """Loss that the cut may cost."""


FULL = Size(train=1200, validation=1400, compared=240, probed=2000, bootstrap=100, budget=0.06)
QUICK = Size(train=320, validation=320, compared=100, probed=800, bootstrap=20, budget=0.1)
RATE = 2e-4
"""Learning rate: with so few steps, twice the recipe's learns more."""


def run_demo(out: Path, *, hub: bool, quick: bool, progress: Progress, draw: Draw | None = None) -> Study:
    """Fine-tune MiniLM on movie reviews with two seeds, cut what the task does not need, and study what changed."""
    size = QUICK if quick else FULL
    base, task = _source(size, hub=hub, progress=progress)
    how = FinetuneOptions("quick", lr=RATE, epochs=1, seeds=2)
    tuned = [
        ModelSpec(str(t.folder)) for t in finetune(base, task, out=out / "finetuned", options=how, progress=progress)
    ]
    small, refused = _cut(tuned[0], task, out / "cut", budget=size.budget, progress=progress)
    return study_finetuned(
        base,
        tuned,
        replace(task, validation=task.sample(train=None, validation=size.compared, seed=0).validation),
        out=out,
        options=StudyOptions(limit=None, bootstrap=size.bootstrap),
        cut=small,
        refused=refused,
        progress=progress,
        draw=draw,
    )


def probe_demo(out: Path, *, hub: bool, quick: bool, progress: Progress, draw: Draw | None = None) -> Probing:
    """What the layers of the model know of the polarity of words they were never told of, before and after tuning."""
    size = replace(QUICK if quick else FULL, validation=(QUICK if quick else FULL).probed)
    base, task = _source(size, hub=hub, progress=progress)
    lexicon = read_lexicon(fetch(REVIEWS, progress=progress).with_name(LEXICON_FILE))
    return probe(
        [base, ModelSpec(str(out / "finetuned" / "seed-0"))],
        corpus=polarity_corpus(task.name, (e.texts[0][0] for e in task.validation), lexicon),
        property=PROPERTY,
        out=out / PROPERTY,
        progress=progress,
        draw=draw,
    )


def _cut(tuned: ModelSpec, task: TaskData, out: Path, *, budget: float, progress: Progress) -> tuple[Cut | None, str]:
    """What was cut, or why nothing was."""
    try:
        return cut(tuned, task, budget=budget, out=out, options=CutOptions(head=True), progress=progress), ""
    except NothingToCutError as e:
        return None, e.fact


def _source(size: Size, *, hub: bool, progress: Progress) -> tuple[ModelSpec, TaskData]:
    if hub:
        base, task = ModelSpec(HUB_MODEL), read_task(HUB_TASK)
    else:
        base = ModelSpec(str(fetch(MINILM, progress=progress)), name=MINILM.name)
        task = read_task("reviews", data=str(fetch(REVIEWS, progress=progress)))
    return base, task.sample(train=size.train, validation=size.validation, seed=0)
