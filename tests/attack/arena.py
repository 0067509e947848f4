"""A place to attack: tiny models, data and finished runs, and how a command ends there, in a process of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

import stratoscope
import tiny

SECONDS = 60
"""Longest that a case may take; a command that is still at work then hangs."""
MEMORY = 12_000_000_000
"""Address space of a case beyond which an allocation fails, as on a machine that is full."""
TRACE = re.compile(r"Traceback \(most recent call last\)|^\w*(?:Error|Exception):", re.MULTILINE)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

TAGGED = """1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2\tfox\tfox\tNOUN\tNN\t_\t3\tnsubj\t_\t_
3\tjumps\tjump\tVERB\tVBZ\t_\t0\troot\t_\t_

"""
FAST = ("--max-steps", "2", "--batch", "4")
LINES: dict[str, Sequence[str]] = {
    "demo": ("demo", "--help"),
    "finetune": ("finetune", "base", "--data", "rows.jsonl", *FAST),
    "study finetuned": ("study", "finetuned", "base", "clf", "--data", "rows.jsonl"),
    "study similarity": ("study", "similarity", "base", "tuned", "--data", "t.txt"),
    "study attention": ("study", "attention", "base", "tuned", "--data", "t.txt"),
    "study alignment": ("study", "alignment", "base", "tuned", "--data", "t.txt", "--method", "ridge"),
    "study recovery": ("study", "recovery", "--dim", "2", "--method", "ridge", "--rows", "20"),
    "study probing": ("study", "probing", "base", "tuned", "--corpus", "t.conllu", "--property", "upos"),
    "compare": ("compare", "base", "tuned", "--data", "t.txt"),
    "diff": ("diff", "base", "clf", "--data", "rows.jsonl"),
    "attention": ("attention", "base", "tuned", "--data", "t.txt"),
    "align": ("align", "base", "tuned", "--data", "t.txt", "--method", "ridge"),
    "inject": ("inject", "clf", "clf", "--data", "rows.jsonl", "--method", "ridge"),
    "depth": ("depth", "clf", "--data", "rows.jsonl"),
    "cut": ("cut", "clf", "--data", "rows.jsonl", "--budget", "0.9"),
    "cut DECODER": ("cut", "decoder", "--data", "t.txt", "--max-ppl", "9x"),
    "prune": ("prune", "base", "--drop", "top:1", "--data", "rows.jsonl", *FAST),
    "perplexity": ("perplexity", "decoder", "--data", "t.txt"),
    "reproduce": ("reproduce", "wu2020", "fig1", "--models", "base", "tuned", "--data", "t.txt", "--dry-run"),
    "probe": ("probe", "base", "--corpus", "t.conllu", "--property", "upos"),
    "weights": ("weights", "base", "tuned"),
    "findings": ("findings", "done-compare"),
    "report": ("report", "done-compare"),
    "measures": ("measures",),
    "families": ("families",),
    "tasks": ("tasks",),
}
"""A line that works, but for its --out, for every command."""
NO_RUN = ("demo", "reproduce", "findings", "report", "measures", "families", "tasks")
"""Commands that make no run folder of their own here."""
DONE = ("compare", "depth", "perplexity", "weights", "attention")
"""Commands whose finished runs are attacked too."""


def line(command: str) -> list[str]:
    """The line of a command, its run folder with it."""
    return [*LINES[command], *(() if command in NO_RUN else ("--out", "run"))]


def build(root: Path) -> Path:
    """Models, data and finished runs, made once."""
    root.mkdir(parents=True, exist_ok=True)
    small = {"layers": 2, "hidden": 16}
    tiny.checkpoint("bert", root / "base", **small)
    tiny.checkpoint("bert", root / "tuned", seed=1, **small)
    tiny.checkpoint("bert", root / "clf", head="classification", seed=2, **small)
    tiny.checkpoint("llama", root / "decoder", head="causal", **small)
    (root / "t.txt").write_text("\n".join(f"{s} {k}" for k in range(4) for s in tiny.SENTENCES) + "\n")
    rows = [{"text": f"{tiny.SENTENCES[k % 10]} {k}", "label": "ab"[k % 2], "n": k} for k in range(60)]
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (root / "rows.csv").write_text("text,label\n" + "".join(f"{r['text']!r},{r['label']}\n" for r in rows))
    (root / "t.conllu").write_text(TAGGED * 30)
    (root / "precious").mkdir()
    (root / "precious" / "thesis.txt").write_text("years of work\n")
    for name in (*stratoscope.LATER, "stratoscope.report.words", "scipy.stats", "pandas"):  # once, not in every fork
        getattr(stratoscope, name) if name in stratoscope.LATER else import_module(name)
    for command in DONE:
        ended = call([*line(command)[:-1], f"done-{command}"], root)
        assert ended.code == 0, ended.err
    return root


@dataclass(frozen=True)
class Ended:
    """How a command ended; a code below 0 is a signal, 1 a traceback or a crash."""

    words: Sequence[str]
    code: int
    out: str
    err: str
    seconds: float
    lost: Sequence[str] = ()
    """Files that were there before, are no part of the run folder, and are gone or changed."""

    @property
    def wrong(self) -> str:
        """What must not be, or nothing."""
        said = [text for text in self.err.splitlines() if text.startswith("stratoscope: ")]
        if self.seconds >= SECONDS:
            return f"still at work after {SECONDS} s"
        if self.code not in (0, 2):
            return f"exit code {self.code}"
        if TRACE.search(self.err) or TRACE.search(self.out):
            return "a traceback"
        if CONTROL.search(self.out) or CONTROL.search(self.err):
            return "control characters on the terminal"
        if self.code == 2 and "Usage: " not in self.err and (len(said) != 1 or not self.err.endswith(f"{said[0]}\n")):
            return f"expected one sentence at the end, got {len(said)}"
        if any(len(text) > 2000 for text in said):
            return f"a sentence of {max(map(len, said))} characters"
        return f"foreign files were changed: {', '.join(self.lost)}" if self.lost else ""

    def __str__(self) -> str:
        return (
            f"{self.wrong or 'fine'} ({self.seconds:.1f} s, exit {self.code}): {list(self.words)!r}\n{self.err[-1500:]}"
        )


def call(words: Sequence[str], folder: Path, *, draw: bool = False) -> Ended:
    """Run the entry point in a fork of this process, inside `folder`."""
    before, began = _content(folder), time.monotonic()
    with contextlib.ExitStack() as stack:
        names = [folder.parent / f"{folder.name}.{end}" for end in ("out", "err")]
        out, err = (stack.enter_context(name.open("w+b")) for name in names)
        child = os.fork()
        if child == 0:
            _child(words, folder, out.fileno(), err.fileno(), draw=draw)
        code = _wait(child, began + SECONDS)
        texts = [name.read_bytes().decode("utf-8", "surrogateescape") for name in names]
    after = _content(folder)
    lost = [name for name, content in before.items() if after.get(name) != content]
    return Ended(words, code, *texts, time.monotonic() - began, lost)


def _child(words: Sequence[str], folder: Path, out: int, err: int, *, draw: bool) -> None:
    """The command as the shell would run it; never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = (os.fdopen(k, "w", errors="surrogateescape") for k in (1, 2))
        sys.argv = ["stratoscope", *words]
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for caught, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            signal.signal(caught, usual)
        from stratoscope.cli.main import run
        from stratoscope.report import write

        if not draw:
            write.write_report = lambda path, *a, **k: (path / "report.html").touch()  # type: ignore[assignment]
        try:
            run()
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        sys.__excepthook__(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(child: int, until: float) -> int:
    """The exit code of a process; with all that it started it is killed when the time is over."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -int(signal.SIGKILL)
        time.sleep(0.002)


def _content(folder: Path) -> dict[str, str]:
    """Digests of all files but those of the runs that may be made or made again."""
    own = ("run", *(f"done-{command}" for command in DONE))
    files = [p for p in folder.rglob("*") if p.relative_to(folder).parts[0] not in own]
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "no file"
        for p in files
        if not p.is_symlink() and "__pycache__" not in p.parts
    }


@contextlib.contextmanager
def copied(root: Path, into: Path, *whole: str) -> Iterator[Path]:
    """A folder for one case: what is named is a copy that may be spoilt, the rest are links."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for path in root.iterdir():
        if path.name in (*whole, "precious"):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, into / path.name)
        else:
            (into / path.name).symlink_to(path)
    yield into
    shutil.rmtree(into, ignore_errors=True)


Spoil = Callable[[Path], None]
torch.set_num_threads(1)
