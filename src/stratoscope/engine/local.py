"""Engines on this machine: in this process, or in a pool of processes with one thread each."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any
from weakref import WeakSet

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import disk_errors
from stratoscope.core.progress import Progress
from stratoscope.engine.base import Engine, Item, Out, Resources, kept

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""Makes glibc reuse the memory of large arrays; handing it back and forth costs a quarter of the time."""
LATE = 1.0
"""Seconds by which an interrupt may reach this process after it has ended a worker: then it is the reason."""
LARGE = 1_000_000
"""Bytes from which on what items share is handed over in a file, once, instead of with every item."""
WORKER_ENVIRONMENT = ONE_THREAD | KEEP_MEMORY
ANY = Resources()


mapped: WeakSet[mmap.mmap] = WeakSet()
"""Files of this process's own that are mapped into its memory."""


def hand_back() -> None:
    """Give freed memory back: arrays are of all sizes, and what glibc keeps between them grows piece by piece.

    Pages of mapped files go too; what they hold stays with the file.
    """
    for file in mapped:
        if hasattr(file, "madvise"):
            file.madvise(mmap.MADV_DONTNEED)
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


class _Here:
    """What engines on this machine have in common."""

    memory = None

    def attach(self, folder: Path, progress: Progress) -> None:
        pass


class InProcess(_Here):
    """One item after the other, with all of this process's threads."""

    workers = 1

    def map(
        self,
        work: Callable[[Any, Item], Out],
        items: Iterable[Item],
        shared: Any = None,
        resources: Resources = ANY,
    ) -> Iterator[tuple[int, Out]]:
        try:
            for k, item in enumerate(items):
                # Torch's large products keep their threads; LAPACK's small factorisations only lose by having several.
                with _thread_pools().limit(limits=1, user_api="blas"):
                    result = [work(shared, item)]
                yield k, result.pop()  # not held here while the next item is worked on
                hand_back()
        finally:
            kept.clear()

    def close(self) -> None:
        pass


class ProcessPool(_Here):
    """Several processes, one thread each: small factorisations do not speed up with threads, but run side by side."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def map(
        self,
        work: Callable[[Any, Item], Out],
        items: Iterable[Item],
        shared: Any = None,
        resources: Resources = ANY,
    ) -> Iterator[tuple[int, Out]]:
        if resources.threaded or resources.here:
            yield from InProcess().map(work, items, shared)
            return
        queue: Iterator[tuple[int, Item]] = iter(enumerate(items))
        if (first := next(queue, None)) is None:
            return
        queue = chain([first], queue)
        common = pickle.dumps((work, shared))
        key = hashlib.sha256(common).digest()
        spare = Path(tempfile.gettempdir(), f"stratoscope-shared-{os.getpid()}-{secrets.token_hex(8)}")
        futures: dict[Future[bytes], int] = {}
        try:
            handed = _handed_over(common, spare)
            pool = self._pool = self._pool or self._start()

            def fill() -> None:
                # One more than can run: packed items are copies, and all of them at once may not fit into memory.
                for k, item in islice(queue, self.workers + 1 - len(futures)):
                    futures[pool.submit(call, key, handed, pickle.dumps(item), resources.model)] = k

            fill()
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    k, packed = futures.pop(future), future.result()
                    fill()
                    yield k, pickle.loads(packed)
        except BrokenProcessPool as e:
            self._pool = None
            time.sleep(LATE)
            raise StratoscopeError(
                "a worker process was ended from outside, most likely for want of memory; "
                "run the same command again with a smaller --memory or --workers 1: finished parts are kept"
            ) from e
        finally:
            for future in futures:
                future.cancel()
            spare.unlink(missing_ok=True)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _start(self) -> ProcessPoolExecutor:
        # Spawned, not forked: a fork of a process whose BLAS threads run can hang.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_settle)
        before = {k: os.environ.get(k) for k in WORKER_ENVIRONMENT}
        os.environ.update(WORKER_ENVIRONMENT)  # read by the children's BLAS when it is imported
        # Held back until a child is set up: it would answer a Ctrl-C on the way there with a traceback.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _unimportable_main():
                for started in [pool.submit(os.getpid) for _ in range(self.workers)]:
                    started.result()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        return pool


def local_engine(workers: int | None, work: float = float("inf")) -> Engine:
    """The engine for so many workers; by default one per core, or none but this process for `work` (FLOP) soon done."""
    if workers is not None and workers < 1:
        raise StratoscopeError(f"expected at least 1 worker, got {workers}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = workers if workers is not None else cores if work > 1e11 else 1
    return ProcessPool(count) if count > 1 else InProcess()


@cache
def _thread_pools() -> Any:
    """The BLAS libraries in this process; looking for them takes longer than many an item."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # type: ignore[no-untyped-call]


def _handed_over(common: bytes, path: Path) -> bytes | str:
    """What to send with every item: itself, or the name of the file that then holds it."""
    if len(common) <= LARGE:
        return common
    with disk_errors(path.parent):
        path.touch(mode=0o600, exist_ok=False)
        path.write_bytes(common)
    return str(path)


_shared: dict[bytes, Any] = {}
"""In a worker: what the items of the current map share, unpacked once."""


def call(key: bytes, common: bytes | str | Callable[[], bytes], packed: bytes, keep: bool = False) -> bytes:
    """Run one item, packed by us: torch would send each tensor as an open file in /dev/shm, and both run out.

    `common` is what the items of this map share, its file, or what brings it; unless `keep`, no model stays open.
    """
    if key not in _shared:
        _shared.clear()
        if not keep:
            kept.clear()
        held = common() if callable(common) else common if isinstance(common, bytes) else Path(common).read_bytes()
        _shared[key] = pickle.loads(held)
    work, shared = _shared[key]
    return pickle.dumps(work(shared, pickle.loads(packed)))


def _settle() -> None:
    """Make a worker of this process: one thread, silent on an interrupt, and gone when its parent is."""
    import torch

    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell makes it for what runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _unimportable_main() -> Iterator[None]:
    """Keep spawned workers from running the user's script again: all work lives in importable modules."""
    main = sys.modules["__main__"]
    names = ("__file__", "__spec__")
    hidden: dict[str, object] = {k: main.__dict__.pop(k) for k in names if k in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
