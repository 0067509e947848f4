"""Commands that judge and cut what was fine-tuned. Heavy imports are inside them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from stratoscope.cli.options import (
    Base,
    BatchTokens,
    Length,
    Loading,
    Out,
    Overwrite,
    Revision,
    Seed,
    TaskOptions,
    Tuned,
    shares_options,
)
from stratoscope.cli.usage import Commands


@shares_options
def depth(
    tuned: Tuned,
    out: Out,
    rows: TaskOptions,
    loading: Loading,
    base: Annotated[
        str | None, typer.Option("--base", help="The model before tuning: heads are tuned on its layers too.")
    ] = None,
    skip: Annotated[bool, typer.Option(help="Skip every span of blocks too.")] = True,
    seed: Seed = 0,
    length: Length = None,
    batch_tokens: BatchTokens = None,
    overwrite: Overwrite = False,
    revision: Revision = None,
) -> None:
    """Judge a fine-tuned model cut at every layer, three ways, and with every span of blocks skipped."""
    from stratoscope.cli.show import Console, draw, tell
    from stratoscope.studies.depth.study import DepthOptions
    from stratoscope.studies.depth.study import depth as run

    options = DepthOptions(seed, length, batch_tokens, skip, overwrite)
    spec, before = loading.spec(tuned, revision), None if base is None else loading.spec(base)
    with Console() as console:
        then = partial(draw, console)
        found = run(spec, rows.read(console), base=before, out=out, options=options, progress=console, then=then)
    tell(out, found)


@shares_options
def cut(
    tuned: Tuned,
    out: Annotated[Path, typer.Option("--out", help="Folder of the smaller checkpoint.")],
    budget: Annotated[str, typer.Option(help="Loss that is allowed, in the metric's units: 0.01 is one point.")],
    rows: TaskOptions,
    loading: Loading,
    blocks: Annotated[str, typer.Option(help="top: truncate; any: skip any span of blocks.")] = "top",
    head: Annotated[bool, typer.Option("--head", help="Tune the head further for the layer it will read.")] = False,
    confidence: Annotated[float, typer.Option(help="With which the loss is within the budget.")] = 0.95,
    keep: Annotated[int, typer.Option(help="Blocks that stay at least.")] = 1,
    seed: Seed = 0,
    length: Length = None,
    batch_tokens: BatchTokens = None,
    revision: Revision = None,
) -> None:
    """Take out the blocks a fine-tuned model can do without, into a standard checkpoint."""
    from stratoscope.cli.show import Console, say
    from stratoscope.report.studywords import cut_sentence
    from stratoscope.studies.cut.study import CutOptions, parse_budget
    from stratoscope.studies.cut.study import cut as run

    options = CutOptions(seed, length, batch_tokens, head, confidence, blocks, keep)
    allowed = parse_budget(budget)
    spec = loading.spec(tuned, revision)
    with Console() as console:
        made = run(spec, rows.read(console), budget=allowed, out=out, options=options, progress=console)
    say(f"- {cut_sentence(made.record)}")
    say(f"\nload it with plain transformers from {out}; its model card is {out}/README.md")


study = typer.Typer(cls=Commands, help="Studies that put several parts on one page.", rich_markup_mode=None)


@study.callback()
def studies() -> None:
    """Studies that put several parts on one page."""


@study.command("finetuned")
@shares_options
def finetuned(
    base: Base,
    tuned: Annotated[list[str], typer.Argument(help="Checkpoints tuned from it, one or more.", metavar="TUNED...")],
    out: Out,
    rows: TaskOptions,
    loading: Loading,
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
    before, after, others = loading.spec(base), [loading.spec(t) for t in tuned], [loading.spec(a) for a in across]
    with Console() as console:
        then = partial(draw, console)
        found = study_finetuned(
            before, after, rows.read(console), out=out, options=options, across=others, progress=console, then=then
        )
    tell(out, found)


@shares_options
def perplexity(
    model: Annotated[str, typer.Argument(help="Decoder: checkpoint folder or hub id.", metavar="MODEL")],
    data: Annotated[str, typer.Option("--data", help="Text: a text file, JSONL, CSV, Parquet or hub data set.")],
    out: Out,
    loading: Loading,
    text: Annotated[str | None, typer.Option("--text", help="Column of your data that holds the text.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names of all columns of a file without a header, e.g. 'label text'.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of a hub data set.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use so many texts, drawn with the seed.")] = None,
    seed: Seed = 0,
    length: Length = None,
    batch_tokens: BatchTokens = None,
    revision: Revision = None,
) -> None:
    """Judge a decoder without a task: its perplexity on text, cut at every layer."""
    from stratoscope.cli.show import Console, say
    from stratoscope.data.readers import read_corpus
    from stratoscope.report.textplots import write_perplexity
    from stratoscope.studies.perplexity import PERPLEXITY, perplexity_by_depth

    spec = loading.spec(model, revision)
    with Console() as console:
        corpus = read_corpus(data, text=text, columns=columns, split=split).sample(limit, seed)
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
