"""Validation on real tasks: fine-tune, look before and after, count the layers that can go; into RESULTS.md.

    python bench/validate.py                                   # MiniLM and MPNet on five tasks of GLUE: hours
    python bench/validate.py --models minilm --tasks sst2 --train-rows 64 --validation-rows 60 --steps 4 --results D.md

Weights are pinned packages of the index, tasks are folders of `--shared`/glue; subsets are drawn with seed 0. Every
model and task has a run folder in `--out` under the sizes of the run: a killed run goes on, a finished one is taken as
it is, a failed one is tried again. The section is written anew after every task from all finished ones of these sizes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from inputs import fetch_mpnet
from meter import machine
from stratoscope.cli.console import Console
from stratoscope.core.files import write_text
from stratoscope.core.progress import Progress, Silent
from stratoscope.data.tasks.data import TaskData
from stratoscope.data.tasks.read import read_task, task_named
from stratoscope.demo.assets import MINILM, default_cache, fetch
from stratoscope.models.open.loading import ModelSpec, choose_device, open_model, survey
from stratoscope.models.text.examples import tokenise
from stratoscope.models.train.freezing import freeze_
from stratoscope.models.train.trainer import Schedule, Setup, train_
from stratoscope.report.sections.cutting.depth import droppable
from stratoscope.results.comparison import Comparison
from stratoscope.results.cutting.depth import TUNED, UNTUNED, Depth
from stratoscope.results.study import Study
from stratoscope.studies.depth.options import DepthOptions
from stratoscope.studies.depth.study import depth
from stratoscope.studies.finetune.options import FinetuneOptions
from stratoscope.studies.finetune.recipes import recipe_named
from stratoscope.studies.finetune.study import finetune
from stratoscope.studies.finetuned.options import StudyOptions
from stratoscope.studies.finetuned.study import study_finetuned
from validation_report import Record, render, with_section

HERE = Path(__file__).resolve().parent
RATES = {"minilm": None, "mpnet": 3e-5}
"""Learning rate by model; the recipe's own is for small models, and too high for one of width 768."""
TASKS = ("sst2", "rte", "mrpc", "cola", "stsb")
RECIPE, RECORD = "quick", "validation.json"
ROUNDS, STEPS = 3, 4
"""Turns of whole and half-frozen training, and steps a turn."""


def main() -> None:
    args = _arguments()
    cache = args.cache.expanduser().resolve()
    length = f"{args.steps} steps" if args.steps else f"{args.epochs:g} epochs"
    out = (args.out or cache / "validation") / f"{args.train_rows}-{args.validation_rows}-{length.replace(' ', '')}"
    facts = machine() | {"how": f"recipe `{RECIPE}`, {length}, seed 0; MPNet's learning rate is {RATES['mpnet']:g}"}
    for model in args.models:
        for task in args.tasks:
            folder = out / f"{model}-{task}"
            if not _finished(folder):
                about = {"model": model, "task": task, "command": shlex.join(["python", *sys.argv])}
                about["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
                folder.mkdir(parents=True, exist_ok=True)
                write_text(folder / RECORD, json.dumps(about | _attempt(args, model, task, folder, cache)))
            page = args.results.read_text(encoding="utf-8") if args.results.is_file() else ""
            write_text(args.results, with_section(page, render(_records(out), facts)))
            print(f"{model} on {task}: in {args.results}", file=sys.stderr, flush=True)


def _attempt(args: argparse.Namespace, model: str, task: str, folder: Path, cache: Path) -> dict[str, Any]:
    """What was found, or the reason why nothing was: one failure must not cost the other tasks."""
    try:
        base = ModelSpec(str(fetch(MINILM) if model == "minilm" else fetch_mpnet(cache)), name=model)
        rows = read_task(task, folder=str(args.shared / "glue" / task_named(task).folder.name))
        rows = rows.sample(train=args.train_rows, validation=args.validation_rows, seed=0)
        options = FinetuneOptions(
            RECIPE, lr=RATES[model], epochs=None if args.steps else args.epochs, max_steps=args.steps
        )
        with Console() as progress:
            return validate(base, rows, folder, options=options, progress=progress)
    except Exception as e:
        traceback.print_exc()
        return {"failed": " ".join(f"{type(e).__name__}: {e}".split())}


def validate(
    base: ModelSpec, task: TaskData, folder: Path, *, options: FinetuneOptions, progress: Progress
) -> dict[str, Any]:
    """Fine-tune, compare layers before and after, cut at every depth, and time a half-frozen step."""
    begun = time.monotonic()
    (made,) = finetune(base, task, out=folder / "finetuned", options=options, progress=progress)
    tuned = ModelSpec(str(made.folder), name="tuned")
    began = time.monotonic()
    # Depth is asked for apart: the study's own would also skip every span of blocks, which nothing here reads.
    how = StudyOptions(limit=None, bootstrap=0, depth=False)
    study = study_finetuned(base, [tuned], task, out=folder / "study", options=how, progress=progress)
    cut = depth(tuned, task, base=base, out=folder / "depth", options=DepthOptions(skip=False), progress=progress)
    studied = time.monotonic() - began
    found = _figures(cut) | {"blocks": {unit: _blocks(study, c) for unit, c in study.comparisons.items()}}
    found["freeze"] = freezing(base, task, progress=progress)
    spent = {"finetune": made.seconds, "study": studied, "all": time.monotonic() - begun}
    return found | {"seconds": spent}


def _figures(cut: Depth) -> dict[str, Any]:
    return {
        "metric": cut.task["metric"],
        "train": cut.task["n_train"],
        "validation": cut.task["n_validation"],
        "score": [cut.full.value, cut.full.low, cut.full.high],
        "majority": cut.majority,
        "bag_of_words": cut.bag_of_words,
        "depth": cut.model.layers - 1,
        "droppable": {
            name: [droppable(cut, cut.curve(name), sure=sure) for sure in (False, True)] for name in (UNTUNED, TUNED)
        },
    }


def _blocks(study: Study, comparison: Comparison) -> dict[str, Any]:
    """Contrast and start of the second block by measure and model."""
    names = {"base": study.base, "tuned": study.tuned[0], "random": study.control}
    found = comparison.findings["blocks"]
    return {measure: {who: found[measure].get(name) for who, name in names.items()} for measure in comparison}


def freezing(base: ModelSpec, task: TaskData, *, progress: Progress) -> dict[str, Any]:
    """Seconds a training step of the whole model and with its lower half frozen, on the same batches by turns."""
    seen, recipe = survey(base), recipe_named(RECIPE)
    how = f"bottom:{(seen.layers - 1) // 2}"
    inputs = tokenise(task, "train", seen.encoder, length=recipe.length or 128)
    models = {name: open_model(base, task, seed=0, surveyed=seen).module for name in ("whole", "frozen")}
    freeze_(models["whole"], None)
    parts = freeze_(models["frozen"], how)
    schedule = Schedule(recipe.lr, recipe.batch, STEPS, 0, recipe.epsilon, grouped=recipe.grouped)
    spent: dict[str, list[float]] = {name: [] for name in models}
    with tempfile.TemporaryDirectory() as tmp, progress.step(f"timing {how}", 2 * ROUNDS) as advance:
        for turn in range(ROUNDS):
            for name, module in models.items():
                setup = Setup(
                    folder=Path(tmp) / name,
                    request=f"{turn}",
                    label=name,
                    progress=Silent(),
                    device=choose_device(base.device),
                    seed=turn,
                    checkpoint_steps=STEPS + 1,
                )
                spent[name].append(train_(module, inputs, schedule, setup).seconds / STEPS)
                advance(1)
    ratio = median(b / a for a, b in zip(spent["whole"], spent["frozen"], strict=True))
    share = parts.trained / (parts.trained + parts.frozen)
    return {"how": how, "ratio": ratio, "trained": share} | {name: fmean(s) for name, s in spent.items()}


def _finished(folder: Path) -> bool:
    return (folder / RECORD).is_file() and "failed" not in _read(folder / RECORD)


def _records(out: Path) -> list[Record]:
    places = [out / f"{model}-{task}" / RECORD for model in RATES for task in TASKS]
    return [_read(path) for path in places if path.is_file()]


def _read(path: Path) -> Record:
    found: Record = json.loads(path.read_text(encoding="utf-8"))
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(RATES), help="names with commas between them")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--train-rows", type=int, default=1000)
    parser.add_argument("--validation-rows", type=int, default=400)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--steps", type=int, help="training steps in place of --epochs")
    parser.add_argument("--shared", type=Path, default=HERE.parents[1] / "shared/data", help="holds the folder glue")
    parser.add_argument("--cache", type=Path, default=default_cache() / "bench", help="where MPNet is kept")
    parser.add_argument("--out", type=Path, help="where run folders go (validation in --cache)")
    parser.add_argument("--results", type=Path, default=HERE / "RESULTS.md", help="page that holds the section")
    args = parser.parse_args()
    for name, known in (("models", tuple(RATES)), ("tasks", TASKS)):
        setattr(args, name, getattr(args, name).split(","))
        if strange := [n for n in getattr(args, name) if n not in known]:
            parser.error(f"--{name}: expected some of {', '.join(known)}, got {', '.join(strange)}")
    return args


if __name__ == "__main__":
    main()
