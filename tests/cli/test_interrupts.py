"""Real processes, killed and interrupted at many moments, then run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from ended import Command

import stratoscope as ss
from stratoscope.cli import main
from stratoscope.runs.folder import RunFolder

ARGS = ("base", "tuned", "--data", "t.txt", "--measure", "neuronsim", "--measure", "rsa", "--bootstrap", "60")
ENTRY = [sys.executable, "-c", "from stratoscope.cli.main import run; run()", "compare"]

Stamps = dict[str, tuple[int, int]]


@contextmanager
def started(environment: dict[str, str], *args: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own."""
    process = subprocess.Popen(
        [*ENTRY, *args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finished_parts(run: Path) -> Stamps:
    """Inode and time of every part that is sealed."""
    folder = RunFolder(run)
    names = [str(p.relative_to(run / "parts")) for p in (run / "parts").rglob("*.safetensors")]
    stats = {name: folder.part(name).stat() for name in names if folder.has(name)}
    return {name: (s.st_ino, s.st_mtime_ns) for name, s in stats.items()}


def wait_for(process: subprocess.Popen[str], run: Path, count: int) -> None:
    """Until so many parts are sealed."""
    deadline = time.monotonic() + 300
    while seals(run) < count:
        assert process.poll() is None, f"ended too early: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def seals(run: Path) -> int:
    return len(list((run / "parts").rglob("*.sha256")))


def test_killed_at_any_moment_and_run_again_it_gives_the_same_bytes(here: Path, environment: dict[str, str]) -> None:
    run = here / "run"
    known: Stamps = {}
    for moment in (1, 12, 40):
        at = max(moment, seals(run) + 1)
        with started(environment, *ARGS, "--out", "run") as process:
            wait_for(process, run, at)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert not (run / "result.json").exists()
        found = finished_parts(run)
        assert len(found) > len(known)
        again = {name for name in known if found[name] != known[name]}
        # One layer's coordinates may be sealed when the kill comes, and its basis not: that layer is not finished.
        assert all(name.startswith("coordinates-") for name in again), "finished parts are not made again"
        assert len({name.rpartition("-")[0] for name in again}) <= 1
        known = found
    damaged = max(known)
    path = run / "parts" / damaged
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    options = {"measures": ["neuronsim", "rsa"], "bootstrap": 60}
    ss.compare(["base", "tuned"], data="t.txt", out="whole", **options)
    ss.compare(["base", "tuned"], data="t.txt", out="run", **options)
    for name in ("result.json", "result.arrays.safetensors"):
        assert (run / name).read_bytes() == (here / "whole" / name).read_bytes()
    assert not (run / "parts").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for worker processes in /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_with_a_hint_and_takes_the_workers_along(
    here: Path, environment: dict[str, str], number: signal.Signals, code: int
) -> None:
    run = here / "run"
    with started(environment, *ARGS, "--out", "run", "--workers", "2") as process:
        wait_for(process, run, 3)
        workers = [p for p in Path("/proc").glob("[0-9]*/stat") if parent_of(p) == process.pid]
        assert len(workers) >= 2
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # what the terminal does on Ctrl-C
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (code, "")
    last = err.splitlines()[-1]
    assert last == "stratoscope: interrupted; run the same command again: what was finished is kept"
    assert "Traceback" not in err
    assert not (run / "result.json").exists()
    assert finished_parts(run)
    deadline = time.monotonic() + 30
    while any(parent_of(p) is not None for p in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [p for p in workers if parent_of(p) is not None]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_request_to_end_while_ray_starts_ends_it_whole(here: Path, environment: dict[str, str]) -> None:
    """Ray's own handler would end this process with another code, and leave some of what it had started."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'stratoscope[ray]'")
    with started({**environment, "RAY_ADDRESS": "local"}, *ARGS, "--out", "run", "--engine", "ray") as process:
        while not (own := of_session(process.pid) - {process.pid}) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    assert own, "Ray had begun to start"
    assert (process.returncode, out, err) == (143, "", "stratoscope: interrupted\n")
    deadline = time.monotonic() + 30
    while of_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not of_session(process.pid), "nothing of Ray is left"


def of_session(leader: int) -> set[int]:
    """Live processes of a session."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.add(int(stat.parent.name))
    return found


@pytest.mark.parametrize("args", [("measures",), ("report", "nothing")])
def test_once_the_answer_is_there_a_signal_is_not_caught_any_more(
    command: Command, args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a handler raises while Python shuts down would be printed as a traceback."""
    monkeypatch.chdir(tmp_path)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray leaves a handler of its own in a process that it was in
    command(*args)
    assert {signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} == {signal.SIG_DFL}


class Dying:
    """Interrupted in the middle of its end, where Python drops whatever is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("how", ["swallowed by a destructor", "mistaken"])
def test_an_interrupt_ends_the_command_whatever_became_of_it(
    how: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swallowing(*given: object, **how: object) -> None:
        Dying()
        time.sleep(20)

    def mistaking(*given: object, **how: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as e:
            raise ValueError("Invalid affine transformation matrix") from e  # as matplotlib's C++ does

    monkeypatch.setattr(main, "app", mistaking if how == "mistaken" else swallowing)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = command("measures")
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert ended.err.splitlines()[-1] == "stratoscope: interrupted", "and promises nothing where nothing is kept"


def parent_of(stat: Path) -> int | None:
    """Parent of a live process, None once it is gone."""
    try:
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(parent)
