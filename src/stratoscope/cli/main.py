"""The `stratoscope` command. Heavy imports live inside commands, so that `--help` answers at once."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from stratoscope.cli.answer import Answer, Table, clean
from stratoscope.cli.commands import (
    align,
    attention,
    compare,
    cut,
    depth,
    diff,
    finetune,
    perplexity,
    probe,
    reproduce,
    study,
    weights,
)
from stratoscope.cli.commands.about import demo, findings, lists, report
from stratoscope.cli.options import Command
from stratoscope.cli.usage import Commands, UsageError, usage_sentence

# Before torch is imported anywhere: idle BLAS threads sleep instead of spinning on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

LONGEST_SENTENCE = 1000
"""Characters of an error that are shown."""
WHAT = "See how fine-tuning reshapes a Transformer, layer by layer."
Tables = Mapping[str, Sequence[Mapping[str, Any]]]
GROUPS = {"study": "Studies that put several analyses on one page."}
COMMANDS: Mapping[str, Callable[..., None]] = {
    "demo": demo.demo,
    "diff": diff.diff,
    "finetune": finetune.finetune,
    "study finetuned": study.finetuned,
    "study similarity": study.similarity,
    "study attention": attention.study_attention,
    "study alignment": align.align,
    "study recovery": align.recovery,
    "study probing": probe.probing,
    "compare": compare.compare,
    "attention": attention.attention,
    "align": align.align,
    "inject": align.inject,
    "depth": depth.depth,
    "cut": cut.cut,
    "prune": finetune.prune,
    "perplexity": perplexity.perplexity,
    "reproduce": reproduce.reproduce,
    "probe": probe.probe,
    "weights": weights.weights,
    "findings": findings.findings,
    "report": report.report,
    "measures": lists.measures,
    "families": lists.families,
    "tasks": lists.tasks,
}
"""Every command, as it is typed, in the order of the help."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"stratoscope {version('stratoscope')}")
        raise typer.Exit


def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _app() -> typer.Typer:
    app = typer.Typer(
        name="stratoscope",
        cls=Commands,
        help=WHAT,
        callback=main,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    groups: dict[str, typer.Typer] = {}
    for typed, function in COMMANDS.items():
        group, _, name = typed.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(cls=Commands, help=GROUPS[group], rich_markup_mode=None)
            app.add_typer(groups[group], name=group)
        groups.get(group, app).command(name, cls=Command)(function)
    return app


app = _app()


class StoppedError(BaseException):
    """Ctrl-C, or a request to end, under a name that typer does not turn into an exit of its own."""

    def __init__(self, number: int) -> None:
        self.number = number


_received: list[int] = []
"""Signals that asked this process to end."""


def _stop(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    raise StoppedError(number)


def _again(lost: sys.UnraisableHookArgs) -> None:
    """Whatever a destructor raises is dropped: an interrupt that came while one ran is sent once more."""
    if isinstance(lost.exc_value, StoppedError):
        threading.Timer(0.01, os.kill, (os.getpid(), lost.exc_value.number)).start()
    else:
        sys.__unraisablehook__(lost)


def run() -> None:
    """Entry point: bad input is one sentence on stderr and exit code 2; Ctrl-C is 130, SIGTERM 143."""
    from stratoscope.core.errors import StratoscopeError

    for caught, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(caught) is usual:
            signal.signal(caught, _stop)
    words, hook = sys.argv[1:], sys.unraisablehook
    sys.unraisablehook = _again
    _received.clear()
    try:
        try:
            code = app(words, prog_name="stratoscope", standalone_mode=False)
        except Exception:
            if not _received:
                raise
            raise StoppedError(_received[0]) from None  # a library's C code makes errors of its own of an interrupt
        finally:  # what is left is to tell the end: another signal is the end, without a traceback
            sys.unraisablehook = hook
            for caught in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(caught) is _stop:
                    signal.signal(caught, signal.SIG_DFL)
        sys.exit(code)
    except UsageError as e:
        _refuse(usage_sentence(e, words), words)
    except StratoscopeError as e:
        _refuse(str(e), words, tables=e.tables)
    except OSError as e:
        if e.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        _refuse(f"cannot use '{e.filename}' as a path: {os.strerror(e.errno)}; check the spelling", words)
    except (StoppedError, KeyboardInterrupt) as e:
        number = e.number if isinstance(e, StoppedError) else int(signal.SIGINT)
        _refuse("interrupted; run the same command again: what was finished is kept", words, code=128 + number)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _shortened(sentence: str) -> str:
    """A sentence that a screen has room for: names from files and arguments may be of any length."""
    half = LONGEST_SENTENCE // 2
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:half]} ... {sentence[-half:]}"


def _refuse(sentence: str, words: list[str], *, code: int = 2, tables: Tables | None = None) -> NoReturn:
    """One sentence on stderr, below the tables that show why; with `--json`, one document on stdout says the same."""
    sentence = _shortened(clean(sentence))
    if "--json" in words:
        import json

        sys.stdout.write(json.dumps({"error": sentence, **(tables or {})}) + "\n")
    elif tables:
        from stratoscope.cli.console import show

        for name, rows in tables.items():
            drawn = Table(tuple(rows[0]), [[_cell(value) for value in row.values()] for row in rows])
            show(Answer({}, [name], drawn), as_json=False, quiet=True)
    sys.stderr.write(f"stratoscope: {sentence}\n")
    sys.exit(code)
