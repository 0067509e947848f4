"""What a run costs (wall clock, CPU seconds, peak memory, workers included), and the machine it ran on."""

from __future__ import annotations

import os
import platform
import resource
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType

INTERVAL = 0.05
"""Seconds between two looks at the memory."""
PACKAGES = ("stratoscope", "torch", "numpy", "scipy", "transformers")


class Meter:
    """Measures the block it surrounds; workers must have ended inside it for their CPU seconds to count."""

    wall: float
    cpu: float
    peak: int
    """Most bytes resident at once, summed over this process and its descendants; shared pages count in each."""

    def __enter__(self) -> Meter:
        self.peak = 0
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()
        self._cpu, self._wall = _cpu_seconds(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall, self.cpu = time.perf_counter() - self._wall, _cpu_seconds() - self._cpu
        self._stop.set()
        self._watch.join()

    def facts(self) -> dict[str, float]:
        """The three figures as plain data."""
        return {"wall": self.wall, "cpu": self.cpu, "peak": self.peak}

    def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, _resident(os.getpid()))
            if self._stop.wait(INTERVAL):
                return


def _cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def _resident(pid: int) -> int:
    """Resident bytes of a process and all its descendants (Linux); one that ended meanwhile counts nothing."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [c for t in tasks for c in (t / "children").read_text(encoding="ascii").split()]
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize() + sum(_resident(int(c)) for c in children)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, str]:
    """What a reader must know to judge the figures."""
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "processor": f"{_processor()}, {cores()} cores, {memory:.0f} GB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "load average at the start": f"{load} (1, 5, 15 minutes; above about 0.5, other work disturbed the figures)",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    wide = [name for name in ("avx2", "avx512f", "amx_bf16") if name in facts.get("flags", "").split()]
    return f"{facts.get('model name', platform.machine())} ({', '.join(wide) or 'no wide vectors'})"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
