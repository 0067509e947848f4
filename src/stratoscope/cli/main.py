"""The `stratoscope` command. Heavy imports live inside commands, so that `--help` answers at once."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from stratoscope.cli import judging, tuning
from stratoscope.cli.usage import Commands, UsageError, usage_sentence

# Before torch is imported anywhere: idle BLAS threads sleep instead of spinning on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

app = typer.Typer(
    name="stratoscope",
    cls=Commands,
    help="See how fine-tuning reshapes a Transformer, layer by layer.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Models = Annotated[list[str], typer.Argument(help="Checkpoint folders, .gguf files or hub ids.", metavar="MODEL...")]
Data = Annotated[
    str, typer.Option("--data", help="Text file, JSONL, CSV, TSV, Parquet, CoNLL-U, column file or hub data set.")
]
Out = Annotated[Path, typer.Option("--out", help="Run folder for the result, figures and page.")]


@app.command()
def compare(
    models: Models,
    data: Data,
    out: Out,
    measure: Annotated[
        list[str], typer.Option("--measure", "-m", help="Measure, measure@fraction, or 'all'; may be repeated.")
    ] = ["ckasim"],  # noqa: B006
    unit: Annotated[str, typer.Option(help="word, cls, mean or token.")] = "word",
    subword: Annotated[str, typer.Option(help="Sub-word that stands for a word: last, first or mean.")] = "last",
    layers: Annotated[str | None, typer.Option(help="Only these layers, e.g. '0,3-6'; 0 = embeddings.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use so many sentences, drawn with the seed.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    bootstrap: Annotated[
        int, typer.Option(help="Replicates for 95 % intervals over sentences; N cost about N scorings.")
    ] = 0,
    random_init: Annotated[
        bool, typer.Option("--random-init", help="Add a control: the first model with fresh weights.")
    ] = False,
    text: Annotated[str | None, typer.Option(help="Column that holds the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column that holds the second text.")] = None,
    label: Annotated[str | None, typer.Option(help="Column that holds the label.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names of a column file's columns, e.g. 'word pos chunk'.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of a hub data set.")] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of the models on the hub.")] = None,
    name: Annotated[list[str], typer.Option(help="Label for a model, in order; may be repeated.")] = [],  # noqa: B006
    dtype: Annotated[str, typer.Option(help="float32, float16, bfloat16 or auto.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    memory: Annotated[str | None, typer.Option(help="Memory to work in, e.g. 4GB; half the machine's.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes for the comparison; one per core.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Most tokens a model reads at once.")] = None,
    standardise: Annotated[
        bool, typer.Option("--standardise", help="Z-score the two parts of the localization score first.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep activations in the run folder for later.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another result in the folder.")] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Load pickle weights, which may run code.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a model.")
    ] = False,
) -> None:
    """Compare every layer of every model under every measure asked for."""
    from stratoscope.cli.show import Console, draw, tell
    from stratoscope.cli.values import parse_bytes, parse_layers, specs
    from stratoscope.studies.compare.options import Options
    from stratoscope.studies.compare.study import compare as run

    options = Options(
        unit=unit,
        measures=tuple(measure),
        subword=subword,
        layers=parse_layers(layers),
        limit=limit,
        seed=seed,
        bootstrap=bootstrap,
        random_init=random_init,
        text=text,
        pair=pair,
        label=label,
        columns=columns,
        split=split,
        memory=parse_bytes(memory),
        workers=workers,
        batch_tokens=batch_tokens,
        standardise=standardise,
        keep=keep,
        overwrite=overwrite,
    )
    chosen = specs(
        models,
        name,
        revision=revision,
        dtype=dtype,
        device=device,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    with Console() as console:
        comparison = run(chosen, data=data, out=out, options=options, progress=console, then=partial(draw, console))
    tell(out, comparison)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of an earlier comparison, depth result or study.")],
) -> None:
    """Rebuild figures and page from a saved result; no model needed."""
    from stratoscope.cli.show import Console, draw, page_of, tell
    from stratoscope.runs.folder import RunFolder

    page = page_of(folder)  # refuses a folder without one, which opening would make one of ours
    with Console() as console, RunFolder.open(folder):
        result = page.load(folder)
        draw(console, folder, result)
    tell(folder, result)


@app.command()
def measures() -> None:
    """List the measures, with one line and the reference each."""
    from stratoscope.cli.show import table
    from stratoscope.measures.table import MEASURES

    table(
        ("measure", "symmetric", "what it is", "reference"),
        [(m.name, "yes" if m.symmetric else "no", m.summary, m.reference) for m in MEASURES],
    )


@app.command()
def families() -> None:
    """List the model families, with one line and the reference each."""
    from stratoscope.cli.show import table
    from stratoscope.models.families import FAMILIES

    table(
        ("family", "model types", "what it is", "reference"),
        [(f.name, ", ".join(f.model_types), f.description, f.reference) for f in FAMILIES],
    )


for command in (tuning.finetune, judging.depth, judging.cut, tuning.prune, judging.perplexity, tuning.tasks):
    app.command()(command)
app.add_typer(judging.study, name="study")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for all it makes.")] = Path("runs/demo"),
    hub: Annotated[bool, typer.Option("--hub", help="Use a model and data from the hub instead.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and steps: about half the time.")] = False,
) -> None:
    """Fine-tune a real model on real text, see what changed, and cut the layers it does not need."""
    from stratoscope.cli.show import Console, draw, tell
    from stratoscope.demo.run import run_demo

    with Console() as console:
        study = run_demo(out, hub=hub, quick=quick, progress=console, then=partial(draw, console))
    tell(out, study)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"stratoscope {version('stratoscope')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """See how fine-tuning reshapes a Transformer, layer by layer."""


class StoppedError(BaseException):
    """Ctrl-C, or a request to end, under a name that typer does not turn into an exit of its own."""

    def __init__(self, number: int) -> None:
        self.number = number


def _stop(number: int, frame: FrameType | None) -> None:
    raise StoppedError(number)


def run() -> None:
    """Entry point: bad input is one sentence on stderr and exit code 2; Ctrl-C is 130, SIGTERM 143."""
    from stratoscope.core.errors import StratoscopeError

    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _stop)
    words = sys.argv[1:]
    try:
        sys.exit(app(words, prog_name="stratoscope", standalone_mode=False))
    except UsageError as e:
        _refuse(usage_sentence(e, words))
    except StratoscopeError as e:
        _refuse(str(e))
    except (StoppedError, KeyboardInterrupt) as e:
        sys.stderr.write("stratoscope: interrupted; run the same command again: what was finished is kept\n")
        sys.exit(128 + (e.number if isinstance(e, StoppedError) else signal.SIGINT))


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"stratoscope: {sentence}\n")
    sys.exit(2)
