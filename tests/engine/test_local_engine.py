from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stratoscope.core.errors import StratoscopeError
from stratoscope.engine.local import LARGE, ONE_THREAD, InProcess, ProcessPool, local_engine

SOURCE = str(Path(__file__).parents[2] / "src")
HERE = str(Path(__file__).parent)


def square(shared: Any, x: dict[str, Any]) -> dict[str, Any]:
    return {"value": x["value"] ** 2, "rows": x["rows"].double() * 2}


def threads(shared: Any, _: int) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "torch": torch.get_num_threads(),
        "environment": {k: os.environ.get(k) for k in ONE_THREAD},
        "interrupt": signal.getsignal(signal.SIGINT) is signal.SIG_DFL,
    }


def refuse(shared: Any, x: int) -> int:
    if x == 2:
        raise StratoscopeError(f"expected anything but {x}")
    return x


def many_tensors(shared: Any, x: int) -> dict[str, torch.Tensor]:
    return {str(k): torch.full((3,), float(k + x)) for k in range(400)}


def open_files(shared: Any, _: int) -> int:
    return len(os.listdir("/proc/self/fd"))


class Watched:
    """An item that tells when it is packed."""

    def __init__(self, value: int, packed: list[int]) -> None:
        self.value, self.packed = value, packed

    def __reduce__(self) -> tuple[Any, ...]:
        self.packed.append(self.value)
        return Watched, (self.value, [])


def value_of(shared: Any, item: Watched) -> int:
    return item.value


def add(shared: dict[str, Any], item: int) -> dict[str, Any]:
    """What all items share, and whether this worker unpacked it for this item or an earlier one."""
    shared["uses"] = shared.get("uses", 0) + 1
    return {"sum": float(shared["rows"].sum()) + item, "uses": shared["uses"], "pid": os.getpid()}


def die(shared: Any, _: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    """Two workers; starting them must leave this process's environment as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "3")
        patch.delenv("MKL_NUM_THREADS", raising=False)
        before = dict(os.environ)
        ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
        engine = ProcessPool(2)
        list(engine.map(threads, [0]))
        signal.signal(signal.SIGINT, ignored)
        assert dict(os.environ) == before
    yield engine
    engine.close()


def test_a_pool_gives_what_this_process_gives(pool: ProcessPool) -> None:
    items = [{"value": k, "rows": torch.arange(k, k + 3, dtype=torch.float32)} for k in range(7)]
    here, there = (dict(engine.map(square, items)) for engine in (InProcess(), pool))
    assert sorted(there) == list(range(7))
    for k, expected in here.items():
        assert there[k]["value"] == expected["value"] == k**2
        assert torch.equal(there[k]["rows"], expected["rows"])


@pytest.mark.parametrize("size", [10, 400_000], ids=["with every item", "by file"])
def test_what_items_share_reaches_all_of_them(
    size: int, pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed once a worker, not with every item; a large one goes by a file, which only its owner may read."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shared = {"rows": torch.ones(size, dtype=torch.float64)}
    results = pool.map(add, range(8), shared)
    found = [next(results)]
    there = list(tmp_path.iterdir())
    assert len(there) == (size * 8 > LARGE)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in there)
    found += results
    assert not list(tmp_path.iterdir())
    assert {k: r["sum"] for k, r in found} == {k: float(size + k) for k in range(8)}
    for pid in {r["pid"] for _, r in found}:
        uses = sorted(r["uses"] for _, r in found if r["pid"] == pid)
        assert uses == list(range(1, len(uses) + 1))
    assert "uses" not in shared


def test_another_map_shares_something_else(pool: ProcessPool) -> None:
    for value in (1.0, 5.0, 1.0):
        found = dict(pool.map(add, [0, 10], {"rows": torch.full((2,), value)}))
        assert [found[k]["sum"] for k in (0, 1)] == [2 * value, 2 * value + 10]


@pytest.mark.parametrize("items", [[0, 1, 2, 3], [0, 1]])
def test_the_file_of_what_is_shared_is_gone_whatever_happens(
    items: list[int], pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results = pool.map(refuse, items, torch.ones(LARGE))
    if len(items) > 2:
        with pytest.raises(StratoscopeError):
            list(results)
    else:
        next(results)
        assert list(tmp_path.iterdir())
        results.close()  # as when a part cannot be saved
    assert not list(tmp_path.iterdir())


def test_a_full_disk_for_what_is_shared_is_one_sentence(
    pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as f:
            f.write(data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StratoscopeError, match="no space left"):
        list(pool.map(refuse, [0], torch.ones(LARGE)))
    assert not list(tmp_path.iterdir())


def test_in_this_process_what_is_shared_is_shared() -> None:
    shared = {"rows": torch.ones(3)}
    assert [r["uses"] for _, r in InProcess().map(add, [0, 1], shared)] == [1, 2]


def test_no_items_no_work(pool: ProcessPool) -> None:
    assert list(pool.map(square, [])) == list(InProcess().map(square, [])) == []


def test_workers_have_one_thread(pool: ProcessPool) -> None:
    found = [result for _, result in pool.map(threads, range(6))]
    assert os.getpid() not in {f["pid"] for f in found}
    for f in found:
        assert f["torch"] == 1
        assert f["environment"] == ONE_THREAD
        assert f["interrupt"], "Ctrl-C must end a worker without a traceback"


def test_items_are_packed_only_as_workers_get_free(pool: ProcessPool) -> None:
    """Packed items are copies: all at once they could need more memory than the run was given."""
    packed: list[int] = []
    results = pool.map(value_of, [Watched(k, packed) for k in range(30)])
    first, _ = next(results)
    assert len(packed) <= 4
    assert {first, *(k for k, _ in results)} == set(range(30))


@pytest.mark.parametrize("engine", [InProcess(), None])
def test_errors_come_back_as_they_are(engine: InProcess | None, pool: ProcessPool) -> None:
    with pytest.raises(StratoscopeError, match="expected anything but 2"):
        list((engine or pool).map(refuse, [0, 1, 2, 3]))
    assert sorted(r for _, r in pool.map(refuse, [3, 4])) == [3, 4], "the pool lives on"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_tensors_do_not_cost_open_files(pool: ProcessPool) -> None:
    """torch would keep a file in /dev/shm open for each of them, and most systems allow 1,024."""
    before = open_files(None, 0)
    results = dict(pool.map(many_tensors, [0, 1, 2]))
    assert open_files(None, 0) < before + 20
    assert results[2]["7"].tolist() == [9.0] * 3
    assert max(n for _, n in pool.map(open_files, range(4))) < 100


def test_a_killed_worker_is_one_sentence_and_the_next_call_starts_afresh() -> None:
    engine = ProcessPool(1)
    try:
        with pytest.raises(StratoscopeError, match=r"worker.*ended from outside.*parts are kept"):
            list(engine.map(die, [0]))
        assert list(engine.map(refuse, [5])) == [(0, 5)]
        ((_, worker),) = engine.map(threads, [0])
        os.kill(worker["pid"], signal.SIGKILL)  # while it is idle, between two calls
        for _ in range(100):
            if not Path(f"/proc/{worker['pid']}").exists():
                break
            time.sleep(0.02)
        with pytest.raises(StratoscopeError, match="ended from outside"):
            list(engine.map(refuse, [0]))
    finally:
        engine.close()


def interrupt_late(shared: Any, item: int) -> None:
    """What a Ctrl-C does when it ends the worker before it reaches the parent."""
    subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -INT {os.getppid()}"])
    os._exit(1)


def test_an_interrupt_that_ends_a_worker_first_is_still_an_interrupt() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the suite runs in the background
    engine = ProcessPool(1)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(engine.map(interrupt_late, [0]))
    finally:
        engine.close()
        signal.signal(signal.SIGINT, before)


def disposition(shared: Any, item: int) -> str:
    return str(signal.getsignal(signal.SIGINT))


@pytest.mark.parametrize("kind", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_worker_ignores_interrupts_only_where_its_parent_does(kind: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, kind)
    engine = ProcessPool(1)
    try:
        assert list(engine.map(disposition, [0])) == [(0, str(kind))]
    finally:
        engine.close()
        signal.signal(signal.SIGINT, before)


ORPHANS = """
import os, sys, time
sys.path.insert(0, {here!r})
import test_local_engine as t
if __name__ != "__main__":
    raise SystemExit("the user's script was run again in a worker")
engine = t.ProcessPool(1)
print([r["pid"] for _, r in engine.map(t.threads, [0])][0], flush=True)
time.sleep(60)
"""


def test_workers_go_with_a_killed_parent_and_do_not_run_its_script_again(tmp_path: Path) -> None:
    script = tmp_path / "script_without_a_main_guard.py"
    script.write_text(ORPHANS.format(here=HERE))
    process = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        while is_running(worker) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not is_running(worker)
    finally:
        process.kill()
        process.communicate()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_the_engine_for_so_many_workers() -> None:
    assert isinstance(local_engine(1), InProcess)
    assert local_engine(3).workers == 3
    assert isinstance(local_engine(3), ProcessPool)
    assert isinstance(local_engine(None, work=1e3), InProcess)
    for wrong in (0, -2):
        with pytest.raises(StratoscopeError, match=f"1 worker.*{wrong}"):
            local_engine(wrong)
