"""Kill every command at random, run it again, and hold what it leaves against a run that nobody disturbed.

    python bench/kills.py                                      # 55 kills over all commands, at most 12 minutes
    python bench/kills.py --kills 6 --only compare cut --seed 5 --minutes 2

Models are tiny. A command is ended by SIGKILL, SIGINT or SIGTERM, after a random time or just before a random one of
its changes to the run folder, once or twice, and then run again to its end, sometimes with other --workers, --memory or
--batch-tokens. Then every file of the folder must be that of the undisturbed run, byte by byte, except

- times: `seconds` of a fine-tuning, `latency` of a cut and what is drawn from it, parts that hold seconds;
- what the user said otherwise the second time (`said` in the record, `run.yaml`), where that was other workers,
  memory or batches; with other batches numbers may differ by rounding, too (`TOLERANCE`).

Pages that differ for these reasons must be those of the record beside them. Nothing half-written may be left, finished
parts must not have been made again, and files of the user beside the folder and in it must be as they were.

Every third attack is on Ray, a cluster of two nodes that is started for it: the driver is ended as above, or one or two
of the cluster's workers by SIGKILL, in which case the command must come to its end by itself; what it leaves is held
against the undisturbed run without Ray. They are left out, with a line, where Ray is not installed.

Commands run in forks of this process, which has the imports behind it, through the very entry point; the first kill of
each command is of a real `python -m stratoscope`. Exit code 1 on any difference, or when there was no time for all.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import importlib.util
import json
import os
import pkgutil
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MPLBACKEND": "agg",
    "PYTHONPATH": os.pathsep.join(map(str, (HERE / "src", HERE / "tests", HERE / "tests" / "studies"))),
}
OUT, LOG = "run", "log"
"""Names of the run folder, and of the folder for what a command says, in the working folder of an attack."""
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where writing through to a disk costs nothing; None for the system's temporary folder."""
STOPS = {signal.SIGINT, signal.SIGTERM}
PATIENCE = 180.0
"""Seconds after which a command counts as hanging."""
LATE = 50
"""Changes at the end of a run, when results are put in place and drawn: every other kill at a change is at one of them.
"""
TOLERANCE = 2e-4
"""How far numbers may be apart once texts were read in other batches; relative, or absolute below 1."""
RAY = ("--engine", "ray")
RAY_CONNECTS = 3.0
"""Seconds that a command on Ray takes longer, about."""
SAID = {"--workers": "workers", "--memory": "memory", "--batch-tokens": "batch_tokens", "--overwrite": "overwrite"}
MINE = {
    "notes.txt": "mine",
    "result.json": '{"mine": 1}',
    ".result.json.123.tmp": "mine",
    "parts/layers.safetensors": "mine",
    "seed-0/config.json": "mine",
}
"""Files of the user beside the run folder; none of them is ever touched."""
MINE_INSIDE = {"notes.txt": "mine", ".draft.123.tmp": "mine", "mine/result.json": "mine"}
"""Files of the user in the folder of a run that does not ask for one of its own."""


@dataclass(frozen=True)
class Case:
    """One command."""

    name: str
    words: tuple[str, ...]
    record: str = ""
    """File of the result in the folder; empty where the command ends without one."""
    page: bool = True
    alone: bool = False
    """Wants a folder of its own."""
    keep: bool = False
    """Leaves parts."""
    varies: tuple[str, ...] = ()
    """Fields of the record that are times."""
    otherwise: tuple[tuple[str, ...], ...] = ()
    """Flags with which it may be resumed; none of them may change the answer."""
    code: int = 0
    before: Case | None = None
    """What the folder holds when the command starts."""


BATCHES = ("--batch-tokens", "48")
TASK = ("--data", "train.jsonl", "--validation", "validation.jsonl")
LEARN = ("--recipe", "quick", "--lr", "3e-3", "--epochs", "12", "--batch", "8", "--length", "24")
COMPARE = ("compare", "base", "other", "--data", "t.txt", "-m", "ckasim", "-m", "rsa",
           "--bootstrap", "20", "--workers", "2")  # fmt: skip
WORKERS = (("--workers", "1"), ("--workers", "1", "--memory", "200MB"), ("--workers", "3"), BATCHES)
EARLIER = Case("an earlier comparison", ("compare", "base", "other", "--data", "t.txt", "--seed", "3"), "result.json")
TUNED = Case("an earlier tuning", ("finetune", "calm", *TASK, *LEARN[:-6], "--epochs", "2"), "seed-0/finetune.json",
             page=False, alone=True)  # fmt: skip
CASES = (
    Case("compare", COMPARE, "result.json", otherwise=WORKERS),
    Case("compare --keep", (*COMPARE[:-2], "--unit", "mean", "--keep"), "result.json", keep=True,
         otherwise=(("--workers", "2"), BATCHES)),
    Case("compare --overwrite", (*COMPARE[:-4], "--overwrite"), "result.json", before=EARLIER,
         otherwise=(("--workers", "2"),)),
    Case("depth", ("depth", "tuned", "--base", "calm", *TASK), "depth.json", otherwise=(BATCHES,)),
    Case("cut", ("cut", "lazy", "--data", "lazy.jsonl", "--validation", "lazy.jsonl", "--budget", "0.05"), "cut.json",
         alone=True, varies=("latency",), otherwise=(BATCHES,)),
    Case("cut --head", ("cut", "lazy", "--data", "lazy.jsonl", "--validation", "lazy.jsonl", "--budget", "0.05",
         "--head"), "cut.json", alone=True, varies=("latency",)),
    Case("cut refused", ("cut", "busy", "--data", "busy.jsonl", "--validation", "busy.jsonl", "--budget", "0.05",
         "--blocks", "any"), page=False, alone=True, keep=True, code=2, otherwise=(BATCHES,)),
    Case("finetune", ("finetune", "calm", *TASK, *LEARN, "--seeds", "2"), "seed-0/finetune.json", page=False,
         alone=True, varies=("seconds",)),
    Case("finetune --overwrite", ("finetune", "calm", *TASK, *LEARN, "--overwrite"), "seed-0/finetune.json",
         page=False, alone=True, varies=("seconds",), before=TUNED),
    Case("prune", ("prune", "calm", "--drop", "top:1", *TASK, *LEARN), "seed-0/finetune.json", page=False, alone=True,
         varies=("seconds",)),
    Case("perplexity", ("perplexity", "decoder", "--data", "many.txt"), "perplexity.json", otherwise=(BATCHES,)),
    Case("study finetuned", ("study", "finetuned", "calm", "tuned", *TASK, "--unit", "mean", "--bootstrap", "20",
         "--localization"), "study.json", otherwise=(("--workers", "2"), ("--memory", "200MB"), BATCHES)),
    Case("study similarity", ("study", "similarity", "base", "other", "--data", "t.txt", "--random-init"),
         "result.json", otherwise=(("--workers", "2"),)),
    Case("attention", ("attention", "base", "other", "--data", "t.txt", "-m", "all", "--bootstrap", "20"),
         "attention.json", otherwise=WORKERS),
    Case("probe", ("probe", "base", "other", "--corpus", "tags.jsonl", "--property", "tags", "--neurons"),
         "probing.json", otherwise=WORKERS),
    Case("align", ("align", "base", "other", "--data", "many.txt", "--unit", "mean", "--method", "ridge",
         "--method", "procrustes", "--train", "200"), "alignment.json",
         otherwise=(("--workers", "1"), ("--workers", "3"))),
    Case("inject", ("inject", "tuned", "tuned", *TASK, "--method", "ridge"), "injection.json"),
    Case("study recovery", ("study", "recovery", "--dim", "4", "--train", "200", "--method", "ridge",
         "--method", "procrustes"), "recovery.json"),
    Case("weights", ("weights", "calm", "tuned"), "weights.json"),
    Case("cut decoder", ("cut", "decoder", "--data", "few.txt", "--max-ppl", "50x"), "decoder.json", alone=True,
         varies=("latency",)),
    Case("reproduce", ("reproduce", "wu2020", "fig1", "--models", "base", "other", "--data", "t.txt"),
         "reproduction.json"),
    Case("report", ("report", OUT, "--style", "paper"), "result.json", before=EARLIER),
)  # fmt: skip


def main() -> None:
    args = _arguments()
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})  # before BLAS is loaded
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by a shell's background, and by all forks then
    begun = time.monotonic()
    cases = [case for case in CASES if not args.only or case.name in args.only]
    if strange := set(args.only) - {case.name for case in CASES}:
        sys.exit(f"no command {', '.join(sorted(strange))}; there are {', '.join(case.name for case in CASES)}")
    root = Path(tempfile.mkdtemp(prefix="kills-", dir=args.scratch or SCRATCH)).resolve()
    os.environ["TMPDIR"] = tempfile.tempdir = str(root)
    failed = True
    try:
        make_material(root / "material")
        preload()
        with _cluster(wanted=args.ray) as cluster:
            failed = attack_all(root, cases, args, begun, cluster)
    finally:
        if failed:
            print(f"the folders are in {root}")
        else:
            shutil.rmtree(root)
    sys.exit(int(failed))


def attack_all(
    root: Path, cases: Sequence[Case], args: argparse.Namespace, begun: float, cluster: Cluster | None
) -> bool:
    """Kill the commands in turn until there are enough kills, with a line each; whether anything went wrong."""
    chance, kills, wrong = random.Random(args.seed), Counter[str](), Counter[str]()
    how, reused = Counter[str](), Counter[str]()
    undisturbed: dict[str, Reference] = {}
    for case in cases:
        found = undisturbed[case.name] = reference(root, case)
        print(
            f"{case.name}: undisturbed in {found.seconds:.1f} s with {found.changes} changes to the folder", flush=True
        )
        wrong[case.name] += say(found.problems)
    number, out_of_time = 0, False
    while kills.total() < args.kills or any(kills[case.name] < args.each for case in cases):
        case = min(cases, key=lambda c: kills[c.name])
        if out_of_time := time.monotonic() - begun > 60 * args.minutes:
            break
        number += 1
        found, place = undisturbed[case.name], root / f"{number:03d}"
        if cluster is not None and (number + args.seed) % 3 == 0 and case.words[0] != "report":
            done = attack_on_ray(place, case, found, chance, cluster)
        else:
            done = attack(place, case, found, chance, first=not kills[case.name])
        kills[case.name] += len(done.ends)
        how.update(end.how for end in done.ends)
        reused[case.name] += done.reused
        print(f"{number:3d} {case.name}: {done.line}", flush=True)
        wrong[case.name] += say(done.problems)
        if not done.problems:
            shutil.rmtree(root / f"{number:03d}")
    print(f"\n{'command':22s} kills  parts reused  differences")
    for case in cases:
        print(f"{case.name:22s} {kills[case.name]:5d} {reused[case.name]:13d} {wrong[case.name]:12d}")
    minutes = (time.monotonic() - begun) / 60
    print(f"{'all':22s} {kills.total():5d} {reused.total():13d} {wrong.total():12d}   in {minutes:.1f} minutes,"
          f" seed {args.seed}; {', '.join(f'{n} {what}' for what, n in sorted(how.items()))}")  # fmt: skip
    if out_of_time:
        print(f"out of time after {kills.total()} of {args.kills} kills")
    return out_of_time or wrong.total() > 0


def say(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"      DIFFERS: {problem}", flush=True)
    return len(problems)


# --- models, rows and imports ----------------------------------------------------------------------------------------


def make_material(place: Path) -> None:
    """Tiny models, and rows for them; in a fork, which leaves no thread and no generator behind here."""
    place.mkdir(parents=True)
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            sys.exit("the models could not be made")
        return
    with _ending():
        import planted
        import torch
        from toys import distinct

        import tiny

        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        tiny.checkpoint("bert", place / "base")
        tiny.checkpoint("bert", place / "other", seed=1)
        tiny.checkpoint("gpt2", place / "decoder", head="causal")
        tiny.checkpoint("bert", place / "calm", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        for name, idle in (("lazy", 2), ("busy", 0)):
            planted.classifier(place / name, idle=idle)
            examples = planted.task_of(place / name).validation
            _write_rows(place / f"{name}.jsonl", examples)
        task = distinct(48, 120)
        _write_rows(place / "train.jsonl", task.train)
        _write_rows(place / "validation.jsonl", task.validation)
        (place / "t.txt").write_text("\n".join(planted.texts(40, 5)) + "\n")
        (place / "few.txt").write_text("\n".join(planted.texts(150, 7)) + "\n")
        tagged = [text.split() for text in planted.texts(80, 8)]
        (place / "tags.jsonl").write_text(
            "".join(json.dumps({"words": w, "tags": [f"T{len(x) % 3}" for x in w]}) + "\n" for w in tagged)
        )
        (place / "many.txt").write_text("\n".join(planted.texts(1200, 6)) + "\n")
        from stratoscope import finetune, read_task

        task = read_task("train", data=place / "train.jsonl", validation=place / "validation.jsonl")
        (made,) = finetune(place / "calm", task, out=place / "ft", recipe="quick", lr=3e-3, epochs=5, batch=8)
        made.folder.rename(place / "tuned")


def _write_rows(path: Path, examples: Sequence[Any]) -> None:
    rows = [{"text": e.texts[0][0], "label": ("bad", "good")[int(e.label)]} for e in examples]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def preload() -> None:
    """Import what commands import, so that forks begin with their work."""
    import stratoscope

    for module in pkgutil.walk_packages(stratoscope.__path__, "stratoscope."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2", "sklearn.pipeline",
                 "sklearn.linear_model", "sklearn.feature_extraction.text", "matplotlib.backends.backend_agg",
                 "matplotlib.backends.backend_svg", "matplotlib.backends.backend_pdf", "yaml", "rich.console",
                 "rich.progress"):  # fmt: skip
        importlib.import_module(name)
    trainer: Any = importlib.import_module("stratoscope.models.train.trainer")
    trainer.CHECKPOINT_SECONDS, trainer.CHECKPOINT_SHARE = 0.1, 1.0  # a training of a second has several


# --- starting and ending a command -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """As the shell has it; of a process ended by a signal, minus its number."""
    seconds: float
    said: str
    """Its stderr."""
    changes: tuple[str, ...]
    """Of a fork: files renamed into place in the run folder, or the number of changes asked for."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class End:
    """When and how to end a command."""

    signal: int
    after: float | None = None
    """Seconds, those of imports not counted; None to end it at a change."""
    change: int = 0
    """Just before this change to the run folder."""
    group: bool = True
    """Whether workers are sent the signal, too; if not they must go by themselves."""

    @property
    def how(self) -> str:
        return signal.Signals(self.signal).name

    def __str__(self) -> str:
        when = f"after {self.after:.2f} s" if self.after is not None else f"at change {self.change}"
        return f"{self.how} {when}{'' if self.group else ' to the driver alone'}"


def start(
    here: Path,
    words: Sequence[str],
    end: End | None = None,
    *,
    cold: bool = False,
    beside: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command in a session of its own, ended on the way if that is asked for; `beside` is called once it runs."""
    log = here / LOG
    log.mkdir(exist_ok=True)
    for name in ("stdout", "stderr", "changes"):
        if (log / name).exists():
            (log / name).rename(log / f"{name}-{len(list(log.iterdir()))}")
        (log / name).touch()
    begun = time.monotonic()
    pid = _spawned(here, words) if cold else _forked(here, words, end)
    beside()
    status = None
    while cold and not _at_work(pid, here) and time.monotonic() < begun + PATIENCE:
        time.sleep(0.002)
    deadline = (time.monotonic() if cold else begun) + (end.after if end and end.after is not None else PATIENCE)
    while status is None and time.monotonic() < deadline:
        status = _status(pid)
        time.sleep(0.002)
    problems = []
    if status is None and end is not None and end.after is not None:
        _send(pid, end)
        deadline = time.monotonic() + PATIENCE
        while status is None and time.monotonic() < deadline:
            status = _status(pid)
            time.sleep(0.002)
    seconds = time.monotonic() - begun
    if status is None:
        problems.append(f"still running after {seconds:.0f} s: {' '.join(words)}")
        os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    if not _gone(pid, 0.0 if end and end.signal == signal.SIGKILL and end.group else 30.0):
        problems.append("workers are still there")
        os.killpg(pid, signal.SIGKILL)
    said = (log / "stderr").read_text(errors="replace")
    if "Traceback" in said:
        problems.append("a traceback: " + " / ".join(said[said.index("Traceback") :].splitlines()[-6:]))
    changes = tuple((log / "changes").read_text().splitlines())
    return Ended(os.waitstatus_to_exitcode(status), seconds, said, changes, tuple(problems))


def _at_work(pid: int, here: Path) -> bool:
    """Whether a process holds a run folder, or is no more."""
    held = Path(f"/proc/{pid}/fd")
    try:
        return any(os.readlink(fd).startswith(f"{here / OUT}/") for fd in held.iterdir())
    except OSError:
        return not held.exists() or _is_over(pid)


def _is_over(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return status if ended else None


def _send(pid: int, end: End) -> None:
    (os.killpg if end.group else os.kill)(pid, end.signal)


def _gone(pid: int, patience: float) -> bool:
    """Whether nobody of the session is left; who was killed may take a moment to be collected."""
    deadline = time.monotonic() + max(patience, 5.0)
    while time.monotonic() < deadline:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def _spawned(here: Path, words: Sequence[str]) -> int:
    with (here / LOG / "stdout").open("w") as out, (here / LOG / "stderr").open("w") as err:
        command = [sys.executable, "-m", "stratoscope", *words]
        process = subprocess.Popen(command, cwd=here, stdout=out, stderr=err, start_new_session=True)
    process.returncode = 0  # this file waits for it by its number
    return process.pid


def _forked(here: Path, words: Sequence[str], end: End | None) -> int:
    """The entry point in a fork; it notes its changes to the run folder, and ends itself at one of them if asked to."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Held back until the command is ready for them, as a process is once it has imported everything.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    if child := os.fork():
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while os.getpgid(child) != child:
            time.sleep(0.001)
        return child
    with _ending():
        os.setsid()
        os.chdir(here)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{LOG}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        sys.argv = ["stratoscope", *words]
        sys.addaudithook(_watching(here, end))
        from stratoscope.cli import main

        app = main.app

        def ready(*given: Any, **how: Any) -> Any:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            return app(*given, **how)

        main.app = ready  # type: ignore[assignment]
        main.run()
    raise AssertionError


def _watching(here: Path, end: End | None) -> Callable[[str, tuple[Any, ...]], None]:
    """Sees every change to the run folder before it is made."""
    count, inside, log = 0, str(here / OUT), os.open(here / LOG / "changes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def see(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open":
            changes = bool((given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")
        if not changes or not isinstance(given[0], str | os.PathLike):
            return
        path = os.path.abspath(given[1] if event == "os.rename" else given[0])
        if path != inside and not path.startswith(f"{inside}/"):
            return
        count += 1
        os.write(log, f"{event} {os.path.relpath(path, inside)}\n".encode())
        if end is not None and end.after is None and count == end.change:
            _send(os.getpid(), end)

    return see


class _ending:  # noqa: N801
    """The end of a fork: nothing of this file runs after it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> NoReturn:
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
            code = 1
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


# --- a run undisturbed, and attacks ----------------------------------------------------------------------------------

Files = dict[str, bytes]


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run left and took."""

    files: Files
    said: str
    seconds: float
    changes: int
    earlier: Path | None
    """A folder with what the command finds."""
    problems: tuple[str, ...]


@dataclass
class Attack:
    """What was done to a command, and what came of it."""

    ends: list[End] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reused: int = 0
    """Finished parts that the last run found and did not make again."""

    @property
    def line(self) -> str:
        return "; ".join(self.steps)


def settle(here: Path, root: Path, earlier: Path | None, *, inside: bool = False) -> Path:
    """A working folder with the models and rows, files of the user, and what the run folder holds already."""
    here.mkdir()
    for path in (root / "material").iterdir():
        (here / path.name).symlink_to(path)
    for name, text in MINE.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    if earlier is not None:
        shutil.copytree(earlier, here / OUT)
    for name, text in MINE_INSIDE.items() if inside else ():
        (here / OUT / name).parent.mkdir(exist_ok=True, parents=True)
        (here / OUT / name).write_text(text)
    return here


def words_of(case: Case) -> tuple[str, ...]:
    return case.words if case.words[0] == "report" else (*case.words, "--out", OUT)


def files_in(folder: Path) -> Files:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def reference(root: Path, case: Case) -> Reference:
    """Run a command undisturbed."""
    earlier = None
    if case.before is not None:
        earlier = root / f"before {case.name}" / OUT
        ended = start(settle(earlier.parent, root, None), words_of(case.before))
        assert ended.code == 0, ended.said
    here = settle(root / f"undisturbed {case.name}", root, earlier)
    ended = start(here, words_of(case))
    if ended.code != case.code:
        sys.exit(f"{case.name} ended with {ended.code}: {ended.said}")
    made = Reference(files_in(here / OUT), last_line(ended.said), ended.seconds, len(ended.changes), earlier, ())
    problems = (*ended.problems, *differences(here, case, made, ended))
    return replace(made, problems=tuple(f"undisturbed, {p}" for p in problems))


def last_line(said: str) -> str:
    return said.strip().splitlines()[-1] if said.strip() else ""


def attack(here: Path, case: Case, expected: Reference, chance: random.Random, *, first: bool) -> Attack:
    """End a command once or twice, and run it again to its end."""
    inside = not case.alone and case.before is None and chance.random() < 0.3
    settle(here, here.parent, expected.earlier, inside=inside)
    done, words = Attack(), words_of(case)
    done.steps += ["files of the user inside"] if inside else []
    for attempt in range(2 if chance.random() < 0.3 else 1):
        end = choose(expected, chance, cold=first, share=1 / (1 + attempt))
        ended = start(here, words, end, cold=first)
        done.problems += ended.problems
        known = -end.signal if end.signal == signal.SIGKILL else 128 + end.signal
        if ended.code in (known, -end.signal):  # by its own handler; the last moments of a process know none
            done.ends.append(end)
            done.steps.append(f"{end}{' of a real process' if first else ''}")
        else:
            done.steps.append(f"{end} came too late")
            if ended.code != case.code:
                done.problems.append(f"{end}: expected exit code {known}, got {ended.code}: {last_line(ended.said)}")
        first = False
    other = chance.choice(case.otherwise) if case.otherwise and chance.random() < 0.5 else ()
    if "--overwrite" in words and _answered(here / OUT, case, expected) and chance.random() < 0.5:
        words = tuple(w for w in words if w != "--overwrite")  # what is there is the answer already
        done.steps.append("without --overwrite")
    kept = finished_parts(here / OUT)
    sealed = trainings(here / OUT)
    whole = _answered(here / OUT, case, expected)
    ended = start(here, (*words, *other))
    done.steps.append(f"resumed {'with ' + ' '.join(other) + ' ' if other else ''}in {ended.seconds:.1f} s")
    done.problems += ended.problems
    if ended.code != case.code:
        done.problems.append(f"resumed: expected exit code {case.code}, got {ended.code}: {last_line(ended.said)}")
    made = {c.partition(" parts/")[2] for c in ended.changes if c.startswith("os.rename parts/")}
    again = {name for name in kept & made if not name.startswith("coordinates-")}
    if again:
        done.problems.append(f"{len(again)} of {len(kept)} finished parts were made again, such as {min(again)}")
    if not whole:
        done.reused = len(kept - made) + len(sealed)
        done.steps.append(f"{len(kept - made)} of {len(kept)} finished parts reused")
    if sealed and not whole and "resuming from step" not in ended.said:
        done.problems.append(f"a checkpoint of the training was not used: {', '.join(sealed)}")
    elif sealed and not whole:
        done.steps.append(re.findall(r"resuming from step \d+ of \d+", ended.said)[-1])
    done.problems += differences(here, case, expected, ended, other, inside=inside)
    return done


@dataclass(frozen=True)
class Cluster:
    """A local Ray cluster of two nodes, in a session of its own."""

    pid: int

    def workers(self, at: bytes = b"ray::_task") -> list[int]:
        """Processes of it that work on an item."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self.pid and (path / "cmdline").read_bytes().startswith(at):
                    found.append(int(path.name))
            except OSError:
                continue
        return sorted(found)

    def wait(self) -> None:
        """Until nobody works for a driver that is no more."""
        deadline = time.monotonic() + 60
        while self.workers() and time.monotonic() < deadline:
            time.sleep(0.05)


@contextmanager
def _cluster(*, wanted: bool) -> Iterator[Cluster | None]:
    """The cluster, whose address all commands then have; None without Ray."""
    if not wanted or importlib.util.find_spec("ray") is None:
        print("nothing is killed on Ray: it is not installed" if wanted else "nothing is killed on Ray")
        yield None
        return
    script = (
        "import sys; from ray.cluster_utils import Cluster; one = {'num_cpus': 1, 'object_store_memory': 10**8};"
        "made = Cluster(initialize_head=True, head_node_args=one); made.add_node(**one);"
        "print(made.address, flush=True); sys.stdin.read(); made.shutdown()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen([sys.executable, "-c", script], **pipes, text=True, start_new_session=True, env=quiet)
    try:
        os.environ["RAY_ADDRESS"] = process.stdout.readline().strip()  # type: ignore[union-attr]
        yield Cluster(process.pid)
    finally:
        process.communicate()


def attack_on_ray(here: Path, case: Case, expected: Reference, chance: random.Random, cluster: Cluster) -> Attack:
    """End the driver of a command on Ray, or its workers, and run it again to its end, on Ray or not."""
    settle(here, here.parent, expected.earlier)
    done, words = Attack(), words_of(case)
    if chance.random() < 0.5:
        end = replace(choose(expected, chance, cold=False, share=1), group=True)
        if end.after is not None:
            end = replace(end, after=chance.uniform(0, expected.seconds + RAY_CONNECTS))
        ended = start(here, (*words, *RAY), end)
        codes = (-end.signal if end.signal == signal.SIGKILL else 128 + end.signal, -end.signal)
        if ended.code in codes:
            done.ends.append(end)
            done.steps.append(f"{end} on Ray")
        else:
            done.steps.append(f"{end} on Ray came too late")
    else:
        codes, ended = (), _without_workers(here, (*words, *RAY), chance, cluster, done)
    done.problems += ended.problems
    if ended.code not in (case.code, *codes):
        done.problems.append(f"on Ray: expected exit code {case.code}, got {ended.code}: {last_line(ended.said)}")
    cluster.wait()
    other = RAY if chance.random() < 0.5 else ()
    kept, whole = finished_parts(here / OUT), _answered(here / OUT, case, expected)
    ended = start(here, (*words, *other))
    done.steps.append(f"resumed {'on Ray ' if other else ''}in {ended.seconds:.1f} s")
    done.problems += ended.problems
    if ended.code != case.code:
        done.problems.append(f"resumed: expected exit code {case.code}, got {ended.code}: {last_line(ended.said)}")
    made = {c.partition(" parts/")[2] for c in ended.changes if c.startswith("os.rename parts/")}
    if again := {name for name in kept & made if not name.startswith("coordinates-")}:
        done.problems.append(f"{len(again)} of {len(kept)} finished parts were made again, such as {min(again)}")
    if not whole:
        done.reused = len(kept - made)
    done.problems += differences(here, case, expected, ended)
    return done


def _without_workers(here: Path, words: Sequence[str], chance: random.Random, cluster: Cluster, done: Attack) -> Ended:
    """Run a command on Ray while one or two workers are killed, each as soon as it is at work on an item."""
    stop = threading.Event()

    def kill() -> None:
        for _ in range(chance.choice((1, 2))):
            wait = chance.uniform(0, 0.5)
            while not (busy := cluster.workers()) and not stop.is_set():
                time.sleep(0.005)
            if stop.wait(wait) or not (busy := cluster.workers() or busy):
                return
            try:
                os.kill(chance.choice(busy), signal.SIGKILL)
            except ProcessLookupError:
                continue
            done.ends.append(End(signal.SIGKILL, after=wait))
            done.steps.append("a worker of Ray was killed")

    killer = threading.Thread(target=kill)
    ended = start(here, words, beside=killer.start)  # after the fork, which would not have the thread
    stop.set()
    killer.join()
    return ended


def choose(expected: Reference, chance: random.Random, *, cold: bool, share: float) -> End:
    """A random end in the first `share` of a run; a process that is still importing knows no other than SIGKILL."""
    if cold:
        return End(signal.SIGKILL, after=chance.uniform(0, expected.seconds))
    number = chance.choices((signal.SIGKILL, signal.SIGINT, signal.SIGTERM), (6, 2, 2))[0]
    group = number == signal.SIGINT or chance.random() < 0.6
    if chance.random() < 0.5:
        return End(number, after=chance.uniform(0, share * expected.seconds), group=group)
    last = max(1, int(share * expected.changes))
    return End(number, change=chance.randint(chance.choice((1, max(1, last - LATE))), last), group=group)


def finished_parts(out: Path) -> set[str]:
    """Names of the parts that are sealed and undamaged."""
    from stratoscope.runs.folder import RunFolder

    names = [str(p.relative_to(out / "parts")) for p in (out / "parts").glob("*.safetensors")]
    return {name for name in names if RunFolder(out).has(name)}


def trainings(out: Path) -> list[str]:
    """Checkpoints of unfinished trainings that can be gone on from."""
    from stratoscope.models.train import trainer

    found = sorted(out.rglob("parts/training/*/checkpoint-*"))
    found = [p for p in found if not (p.parents[3] / "finetune.json").exists()]
    return [str(p.relative_to(out)) for p in found if trainer._is_whole(p)]


def _answered(out: Path, case: Case, expected: Reference) -> bool:
    """Whether the folder holds the answer already."""
    if not case.record or not (out / case.record).is_file():
        return False
    there, wanted = (json.loads(b)["provenance"] for b in ((out / case.record).read_bytes(),
                                                           expected.files[case.record]))  # fmt: skip
    return bool(there["digest"] == wanted["digest"])


# --- what must be alike ----------------------------------------------------------------------------------------------


TIMES = "parts/time-"
"""Parts of measured seconds, which a refused cut leaves."""


def differences(
    here: Path, case: Case, expected: Reference, ended: Ended, other: Sequence[str] = (), *, inside: bool = False
) -> list[str]:
    """Everything in a working folder that is not as after an undisturbed run."""
    out, found = here / OUT, list[str]()
    got, want = files_in(out), dict(expected.files)
    for place, mine in ((here, MINE), (out, MINE_INSIDE if inside else {})):
        for name, text in mine.items():
            if not (place / name).is_file() or (place / name).read_text() != text:
                found.append(f"the user's {place.name}/{name} is gone or changed")
    if inside:
        from stratoscope.runs.folder import LOCK, SHARED

        got = {name: b for name, b in got.items() if name not in MINE_INSIDE}
        want[LOCK] = SHARED.encode()
    found += [f"left over: {p.relative_to(out)}" for p in out.rglob("*") if _is_leftover(p, case) and not (
        inside and str(p.relative_to(out)) in MINE_INSIDE)]  # fmt: skip
    required = [case.record, str(Path(case.record).parent / "run.yaml")] if case.record else []
    found += [f"no {name}" for name in [*required, *(["report.html"] if case.page else [])] if name not in got]
    if case.code and last_line(ended.said) != expected.said and BATCHES[0] not in other:
        found.append(f"said '{last_line(ended.said)}' for '{expected.said}'")
    for name in sorted(got.keys() ^ want.keys()):
        found.append(f"{name} is {'new' if name in got else 'missing'}")
    changed = [name for name in got.keys() & want.keys() if got[name] != want[name] and not name.startswith(TIMES)]
    loose = BATCHES[0] in other
    drawn = [name for name in changed if _is_drawn(name)]
    for name in sorted(set(changed) - set(drawn)):
        found += _apart(name, want[name], got[name], case, other, loose=loose)
    if drawn and not (case.varies or other):
        found += [f"{name} differs" for name in drawn]
    elif drawn:
        found += _wrongly_drawn(out, here / "drawn")
    return found


def _is_leftover(path: Path, case: Case) -> bool:
    if path.name.endswith(".tmp") or re.fullmatch(r"\.tmp\w{6}", path.name):
        return True
    return path.name in ("parts", "checkpoint", "training") and not (case.keep and path.name == "parts")


def _is_drawn(name: str) -> bool:
    return name in ("report.html", ".written.json", "citations.bib") or name.startswith(("figures/", "tables/"))


def _apart(name: str, want: bytes, got: bytes, case: Case, other: Sequence[str], *, loose: bool) -> list[str]:
    """What differs in one file beyond what may."""
    said = {SAID[flag] for flag in other if flag in SAID} | {"overwrite", "engine"}
    if name.endswith(".json") and b'"provenance"' in want:
        one, two = (_record(text, case, said) for text in (want, got))
        return [f"{name}: {where}" for where in _unlike(one, two, loose=loose)][:5]
    if name.endswith("run.yaml"):
        one, two = ([ln for ln in text.decode().splitlines() if ln.split(":")[0] not in said] for text in (want, got))
        return [] if one == two else [f"{name}: {sorted(set(one) ^ set(two))}"]
    if name == "README.md" and case.varies:
        one, two = ([ln for ln in t.decode().splitlines() if not ln.startswith("| time")] for t in (want, got))
        if one == two or (loose and len(one) == len(two)):
            return []
    if name.endswith(".safetensors") and loose:
        from safetensors.numpy import load

        one, two = ({k: v.tolist() for k, v in load(text).items()} for text in (want, got))
        return [f"{name}: {where}" for where in _unlike(one, two, loose=True)][:5]
    if name.endswith(".sha256") and loose:
        return []
    return [f"{name} differs ({len(want)} bytes, now {len(got)})"]


def _record(text: bytes, case: Case, said: set[str]) -> Any:
    """A record without times, checksums of what differs by them, and what was said otherwise."""
    plain = json.loads(text)
    for key in (*case.varies, "sha256"):
        plain.pop(key, None)
    for key in said:
        plain["provenance"]["request"]["said"].pop(key, None)
    return plain


def _unlike(want: Any, got: Any, where: str = "", *, loose: bool) -> Iterator[str]:
    """Places at which two pieces of plain data differ; if `loose`, numbers by more than rounding."""
    if isinstance(want, Mapping) and isinstance(got, Mapping) and want.keys() == got.keys():
        for key in want:
            if not (loose and key in ("arrays_sha256", "reason")):
                yield from _unlike(want[key], got[key], f"{where}.{key}", loose=loose)
    elif isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        for k, (a, b) in enumerate(zip(want, got, strict=True)):
            yield from _unlike(a, b, f"{where}[{k}]", loose=loose)
    elif loose and isinstance(want, float) and isinstance(got, float):
        if abs(want - got) > TOLERANCE * max(1.0, abs(want)):
            yield f"{where} is {got}, not {want}"
    elif want != got:
        yield f"{where} is {str(got)[:80]}, not {str(want)[:80]}"


def _wrongly_drawn(out: Path, scratch: Path) -> list[str]:
    """Files of the report that are not those of the record beside them."""
    from stratoscope.report.write import write_report
    from stratoscope.results.result import load

    scratch.mkdir()
    write_report(scratch, load(out))
    fresh, there = files_in(scratch), {name: b for name, b in files_in(out).items() if _is_drawn(name)}
    return [f"{name} is not what the record gives" for name in sorted(fresh.keys() | there.keys())
            if fresh.get(name) != there.get(name)]  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=55, help="kills over all commands")
    parser.add_argument("--each", type=int, default=0, help="fewest kills of every command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=11.5, help="no attack is begun after this time")
    parser.add_argument("--only", nargs="*", default=[], help="commands, as the summary names them")
    parser.add_argument("--ray", action=argparse.BooleanOptionalAction, default=True, help="attack on Ray too")
    parser.add_argument("--scratch", type=Path, help="folder for a temporary folder; by default in memory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
