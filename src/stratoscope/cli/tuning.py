"""Commands about tasks: fine-tune, study what changed, judge depth, cut, prune. Heavy imports are inside them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from stratoscope.data.taskdata import TaskData
    from stratoscope.models.loading import ModelSpec

Base = Annotated[str, typer.Argument(help="Checkpoint folder or hub id of the model before tuning.", metavar="BASE")]
Tuned = Annotated[str, typer.Argument(help="Checkpoint fine-tuned on the task.", metavar="TUNED")]
Out = Annotated[Path, typer.Option("--out", help="Folder for what this makes.")]
Task = Annotated[
    str | None, typer.Option("--task", help="One of 'stratoscope tasks', or a name for the task of your own --data.")
]
Folder = Annotated[
    str | None, typer.Option("--task-folder", help="The task's published files (GLUE-style); otherwise the hub's.")
]
Data = Annotated[str | None, typer.Option("--data", help="Your own rows: JSONL, CSV, TSV, Parquet or hub data set.")]
Validation = Annotated[
    str | None, typer.Option("--validation", help="Your own rows to judge on; otherwise a fifth of --data.")
]
Text = Annotated[str | None, typer.Option("--text", help="Column of your data that holds the text.")]
Pair = Annotated[str | None, typer.Option("--pair", help="Column that holds the second text.")]
Label = Annotated[str | None, typer.Option("--label", help="Column that holds the label.")]
TrainRows = Annotated[int | None, typer.Option("--train-rows", help="Use so many training rows, drawn with seed 0.")]
ValidationRows = Annotated[int | None, typer.Option("--validation-rows", help="Use so many validation rows.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of every random choice.")]
Length = Annotated[int | None, typer.Option("--length", help="Tokens kept of a text.")]
BatchTokens = Annotated[int | None, typer.Option("--batch-tokens", help="Most tokens a model reads at once.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace another result in the folder.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Revision of the model on the hub.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
Pickle = Annotated[bool, typer.Option("--allow-pickle", help="Load pickle weights, which may run code.")]
RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a model.")]
Recipe = Annotated[str, typer.Option("--recipe", help="phang2021, wu2020, ren2023 or quick.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate in place of the recipe's.")]
Batch = Annotated[int | None, typer.Option("--batch", help="Batch size in place of the recipe's.")]
Epochs = Annotated[float | None, typer.Option("--epochs", help="Epochs in place of the recipe's length.")]
MaxSteps = Annotated[int | None, typer.Option("--max-steps", help="Steps in place of the recipe's length.")]
Warmup = Annotated[float | None, typer.Option("--warmup", help="Warm-up steps; below 1, a share of the run.")]
Seeds = Annotated[int, typer.Option("--seeds", help="How many runs, of seeds 0, 1, ...")]
FirstSeed = Annotated[int, typer.Option("--first-seed", help="Seed of the first run.")]


def finetune(
    context: typer.Context,
    base: Base,
    out: Out,
    task: Task = None,
    task_folder: Folder = None,
    data: Data = None,
    validation: Validation = None,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    train_rows: TrainRows = None,
    validation_rows: ValidationRows = None,
    recipe: Recipe = "wu2020",
    lr: Rate = None,
    batch: Batch = None,
    epochs: Epochs = None,
    max_steps: MaxSteps = None,
    warmup: Warmup = None,
    length: Length = None,
    freeze: Annotated[
        str | None, typer.Option(help="Blocks that stay as they are: top:k, or bottom:k with the embeddings.")
    ] = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    overwrite: Overwrite = False,
    revision: Revision = None,
    device: Device = "auto",
    allow_pickle: Pickle = False,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Fine-tune a model on a task, once per seed, into standard checkpoints."""
    from stratoscope.cli.show import Console
    from stratoscope.studies.finetune import finetune as run
    from stratoscope.studies.recipes import FinetuneOptions

    options = FinetuneOptions(
        recipe, lr, batch, epochs, max_steps, warmup, length, freeze, seeds, first_seed, overwrite=overwrite
    )
    spec = _spec(base, revision, device, allow_pickle, trust_remote_code)
    with Console() as console:
        read = _task(task, task_folder, data, validation, text, pair, label, train_rows, validation_rows)
        made = run(spec, read, out=out, options=options, progress=console)
    _tell_tuned(made, base, context.params)


def prune(
    context: typer.Context,
    base: Base,
    out: Out,
    drop: Annotated[str, typer.Option(help="Blocks to drop before fine-tuning: top:k or bottom:k.")],
    task: Task = None,
    task_folder: Folder = None,
    data: Data = None,
    validation: Validation = None,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    train_rows: TrainRows = None,
    validation_rows: ValidationRows = None,
    recipe: Recipe = "wu2020",
    lr: Rate = None,
    batch: Batch = None,
    epochs: Epochs = None,
    max_steps: MaxSteps = None,
    warmup: Warmup = None,
    length: Length = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    overwrite: Overwrite = False,
    revision: Revision = None,
    device: Device = "auto",
    allow_pickle: Pickle = False,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Drop the top or bottom blocks of a model, then fine-tune what is left."""
    from stratoscope.cli.show import Console
    from stratoscope.studies.prune import prune as run
    from stratoscope.studies.recipes import FinetuneOptions

    options = FinetuneOptions(
        recipe, lr, batch, epochs, max_steps, warmup, length, None, seeds, first_seed, overwrite=overwrite
    )
    spec = _spec(base, revision, device, allow_pickle, trust_remote_code)
    with Console() as console:
        read = _task(task, task_folder, data, validation, text, pair, label, train_rows, validation_rows)
        made = run(spec, read, drop=drop, out=out, options=options, progress=console)
    _tell_tuned(made, str(out / "base"), context.params)


def depth(
    tuned: Tuned,
    out: Out,
    base: Annotated[
        str | None, typer.Option("--base", help="The model before tuning: heads are tuned on its layers too.")
    ] = None,
    task: Task = None,
    task_folder: Folder = None,
    data: Data = None,
    validation: Validation = None,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    train_rows: TrainRows = None,
    validation_rows: ValidationRows = None,
    skip: Annotated[bool, typer.Option(help="Skip every span of blocks too.")] = True,
    seed: Seed = 0,
    length: Length = None,
    batch_tokens: BatchTokens = None,
    overwrite: Overwrite = False,
    revision: Revision = None,
    device: Device = "auto",
    allow_pickle: Pickle = False,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Judge a fine-tuned model cut at every layer, three ways, and with every span of blocks skipped."""
    from stratoscope.cli.show import Console, draw, tell
    from stratoscope.studies.depth import DepthOptions
    from stratoscope.studies.depth import depth as run

    options = DepthOptions(seed, length, batch_tokens, skip, overwrite)
    tuned_spec = _spec(tuned, revision, device, allow_pickle, trust_remote_code)
    base_spec = None if base is None else _spec(base, None, device, allow_pickle, trust_remote_code)
    with Console() as console:
        read = _task(task, task_folder, data, validation, text, pair, label, train_rows, validation_rows)
        then = partial(draw, console)
        found = run(tuned_spec, read, base=base_spec, out=out, options=options, progress=console, then=then)
    tell(out, found)


def cut(
    tuned: Tuned,
    out: Annotated[Path, typer.Option("--out", help="Folder of the smaller checkpoint.")],
    budget: Annotated[str, typer.Option(help="Loss that is allowed, in the metric's units: 0.01 is one point.")],
    task: Task = None,
    task_folder: Folder = None,
    data: Data = None,
    validation: Validation = None,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    train_rows: TrainRows = None,
    validation_rows: ValidationRows = None,
    blocks: Annotated[str, typer.Option(help="top: truncate; any: skip any span of blocks.")] = "top",
    head: Annotated[bool, typer.Option("--head", help="Tune the head further for the layer it will read.")] = False,
    confidence: Annotated[float, typer.Option(help="With which the loss is within the budget.")] = 0.95,
    keep: Annotated[int, typer.Option(help="Blocks that stay at least.")] = 1,
    seed: Seed = 0,
    length: Length = None,
    batch_tokens: BatchTokens = None,
    revision: Revision = None,
    device: Device = "auto",
    allow_pickle: Pickle = False,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Take out the blocks a fine-tuned model can do without, into a standard checkpoint."""
    from stratoscope.cli.show import Console, say
    from stratoscope.report.studywords import cut_sentence
    from stratoscope.studies.cut import CutOptions, parse_budget
    from stratoscope.studies.cut import cut as run

    options = CutOptions(seed, length, batch_tokens, head, confidence, blocks, keep)
    allowed = parse_budget(budget)
    spec = _spec(tuned, revision, device, allow_pickle, trust_remote_code)
    with Console() as console:
        read = _task(task, task_folder, data, validation, text, pair, label, train_rows, validation_rows)
        made = run(spec, read, budget=allowed, out=out, options=options, progress=console)
    say(f"- {cut_sentence(made.record)}")
    say(f"\nload it with plain transformers from {out}; its model card is {out}/README.md")


study = typer.Typer(no_args_is_help=True, help="Studies that put several parts on one page.", rich_markup_mode=None)


@study.callback()
def studies() -> None:
    """Studies that put several parts on one page."""


@study.command("finetuned")
def finetuned(
    base: Base,
    tuned: Annotated[list[str], typer.Argument(help="Checkpoints tuned from it, one or more.", metavar="TUNED...")],
    out: Out,
    task: Task = None,
    task_folder: Folder = None,
    data: Data = None,
    validation: Validation = None,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    train_rows: TrainRows = None,
    validation_rows: ValidationRows = None,
    across: Annotated[
        list[str],
        typer.Option(help="Another model, of any family, to compare the first TUNED with; may be repeated."),
    ] = [],  # noqa: B006
    unit: Annotated[list[str], typer.Option(help="cls, mean, ...; may be repeated.")] = ["cls", "mean"],  # noqa: B006
    limit: Annotated[int, typer.Option(help="Validation rows whose layers are compared.")] = 1000,
    bootstrap: Annotated[int, typer.Option(help="Bootstrap replicates for 95 % intervals; 0 for none.")] = 100,
    control: Annotated[bool, typer.Option(help="Compare with fresh weights too.")] = True,
    with_depth: Annotated[bool, typer.Option("--depth/--no-depth", help="Truncation and skipping too.")] = True,
    localization: Annotated[
        bool, typer.Option("--localization", help="Localization of words before and after too; slow on deep models.")
    ] = False,
    seed: Seed = 0,
    length: Length = None,
    batch_tokens: BatchTokens = None,
    memory: Annotated[str | None, typer.Option(help="Memory to work in, e.g. 4GB; half the machine's.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes for the comparison; one per core.")] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    allow_pickle: Pickle = False,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Before and after fine-tuning: the four matrices, other models across, block structure, drift, depth: one page."""
    from stratoscope.cli.show import Console, draw, tell
    from stratoscope.cli.values import parse_bytes
    from stratoscope.studies.finetuned import StudyOptions, study_finetuned

    options = StudyOptions(
        tuple(unit),
        limit,
        bootstrap,
        control,
        with_depth,
        localization,
        seed,
        length,
        batch_tokens,
        parse_bytes(memory),
        workers,
        overwrite,
    )
    first, *specs = (_spec(source, None, device, allow_pickle, trust_remote_code) for source in (base, *tuned, *across))
    after, others = specs[: len(tuned)], specs[len(tuned) :]
    with Console() as console:
        read = _task(task, task_folder, data, validation, text, pair, label, train_rows, validation_rows)
        then = partial(draw, console)
        found = study_finetuned(
            first, after, read, out=out, options=options, across=others, progress=console, then=then
        )
    tell(out, found)


def perplexity(
    model: Annotated[str, typer.Argument(help="Decoder: checkpoint folder or hub id.", metavar="MODEL")],
    data: Annotated[str, typer.Option("--data", help="Text: a text file, JSONL, CSV, Parquet or hub data set.")],
    out: Out,
    text: Text = None,
    limit: Annotated[int | None, typer.Option(help="Use so many texts, drawn with the seed.")] = None,
    seed: Seed = 0,
    length: Length = None,
    batch_tokens: BatchTokens = None,
    revision: Revision = None,
    device: Device = "auto",
    allow_pickle: Pickle = False,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Judge a decoder without a task: its perplexity on text, cut at every layer."""
    from stratoscope.cli.show import Console, say
    from stratoscope.data.readers import read_corpus
    from stratoscope.report.textplots import write_perplexity
    from stratoscope.studies.textdepth import PERPLEXITY, perplexity_by_depth

    spec = _spec(model, revision, device, allow_pickle, trust_remote_code)
    with Console() as console:
        corpus = read_corpus(data, text=text).sample(limit, seed)
        points = perplexity_by_depth(spec, corpus, out=out, length=length, batch_tokens=batch_tokens, progress=console)
        write_perplexity(out, spec.label, [(p.value, p.low, p.high) for p in points])
    whole = points[-1]
    say(
        f"- perplexity of {spec.label} on {whole.texts:,} texts ({whole.tokens:,} tokens): {whole.value:.2f}"
        f" [{whole.low:.2f}, {whole.high:.2f}]; {whole.cut:,} texts were cut to the length"
    )
    for blocks, p in enumerate(points[:-1]):
        say(f"- first {blocks} of {len(points) - 1} blocks: {p.value:.5g}, {p.value / whole.value:.3g} times the whole")
    say(f"\nsee {out}/figures/perplexity.png; the numbers are in {out}/{PERPLEXITY}")


def tasks() -> None:
    """List the tasks, with one line, the metric and the reference each."""
    from stratoscope.cli.show import table
    from stratoscope.data.tasks import TASKS

    table(("task", "metric", "what it is", "reference"), [(t.name, t.metric, t.summary, t.reference) for t in TASKS])


def _spec(source: str, revision: str | None, device: str, allow_pickle: bool, remote_code: bool) -> ModelSpec:
    from stratoscope.models.loading import ModelSpec

    return ModelSpec(source, revision=revision, device=device, allow_pickle=allow_pickle, trust_remote_code=remote_code)


def _task(
    name: str | None,
    folder: str | None,
    data: str | None,
    validation: str | None,
    text: str | None,
    pair: str | None,
    label: str | None,
    train_rows: int | None,
    validation_rows: int | None,
) -> TaskData:
    from stratoscope.core.errors import StratoscopeError
    from stratoscope.data.tasks import read_task

    if name is None and data is None:
        raise StratoscopeError("expected --task (see 'stratoscope tasks') or your own --data, got neither")
    read = read_task(
        name or Path(str(data)).stem,
        folder=folder,
        data=data,
        validation=validation,
        text=text,
        pair=pair,
        label=label,
    )
    return read.sample(train=train_rows, validation=validation_rows, seed=0)


ROWS = ("task", "task_folder", "data", "validation", "text", "pair", "label", "train_rows", "validation_rows")
"""Options that say which rows: those of `_task`."""


def _tell_tuned(made: Any, base: str, given: Mapping[str, Any]) -> None:
    """What came out, and the next command with the same rows."""
    from stratoscope.cli.show import say

    for run in made:
        low, high = run.interval
        floor = run.record["baselines"]
        say(
            f"- {run.folder}: {run.metric} {run.score:.3f} [{low:.3f}, {high:.3f}] on the validation rows; bag of words"
            f" {floor['bag_of_words']:.3f}, majority {floor['majority']:.3f}"
        )
    rows = [w for name in ROWS if given[name] is not None for w in (f"--{name.replace('_', '-')}", str(given[name]))]
    parts = [base, *(str(run.folder) for run in made), *rows, "--out", f"{made[0].folder.parent}-study"]
    say(f"\nnext: stratoscope study finetuned {shlex.join(parts)}")
