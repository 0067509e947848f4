"""Engine on Ray Core: items are tasks of the cluster that `ray.init()` finds, or of a local one that it starts.

Clusters are never started, sized or given access to here: RAY_ADDRESS and Ray's own settings decide, and what Ray says
when that fails is passed on. A lost worker or node is retried by Ray; stratoscope has to be installed on every node.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.files import write_text
from stratoscope.core.progress import Progress
from stratoscope.core.provenance import code_key
from stratoscope.engine.base import Item, Out, Resources
from stratoscope.engine.local import ANY, WORKER_ENVIRONMENT, InProcess, call

RETRIES = 3
"""How often Ray runs an item again whose worker or node was lost."""
AHEAD = 0.25
"""Items handed out beyond those that run, as a share of them: a worker never waits for this process."""
ENVIRONMENT = WORKER_ENVIRONMENT | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
"""Of a worker: an item that asks for no GPU sees none."""
LONGEST_ITEM = 60
"""Letters by which an item names itself."""
LONGEST_WAIT = 1.0
"""Seconds after which the thread that waits for items can be asked to end Ray."""


class RayTasks:
    """Every item is a task; what all items share is put into the object store once.

    Whatever waits for Ray does so in a thread of its own: there Ray leaves the handlers of signals alone, its C++ code
    swallows no interrupt, and one that comes while Ray starts waits until it can be ended as a whole.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise StratoscopeError(f"expected at least 1 worker, got {workers}")
        self._asked, self._ray = workers, _module()
        self._own = not self._ray.is_initialized()  # a session that the caller has begun stays as it is
        self._thread = ThreadPoolExecutor(1)
        try:
            self._link = self._aside(_connected, self._ray) if self._own else ""
        except BaseException:
            self.close()
            raise
        self._task = self._ray.remote(_task)

    @property
    def workers(self) -> int:
        cores = max(1, int(self._total("CPU")))
        return cores if self._asked is None else min(self._asked, cores)

    @property
    def memory(self) -> float | None:
        return self._total("memory") or None

    def attach(self, folder: Path, progress: Progress) -> None:
        """Refuse the folder if a node does not see it, and nodes that have another stratoscope."""
        if self._link:
            progress.note(f"Ray's dashboard is at {self._link}")
        nodes = [n for n in self._ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
        progress.note(f"Ray: {self.workers} workers on {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}")
        token = secrets.token_hex(4)
        # Named like a half-written part, so that the next run clears it away should this one be killed here.
        path = folder.absolute() / f".visible.{os.getpid()}-{token}.tmp"
        write_text(path, token)
        try:
            looks = [(n["NodeManagerHostname"], self._look(n["NodeID"], path)) for n in nodes]
            for name, look in looks:
                with _passed_on(f"node {name} cannot work for this run"):
                    text, code = self._aside(self._ray.get, look)
                if text != token:
                    raise StratoscopeError(
                        f"the run folder {folder.parent} is not visible on node {name} of the Ray cluster",
                        "give --out on a disk that all nodes share, under the same path",
                    )
                if code != code_key():
                    raise StratoscopeError(
                        f"node {name} of the Ray cluster has other source files of stratoscope than this process",
                        "install the same version on all nodes",
                    )
        finally:
            path.unlink(missing_ok=True)

    def map(
        self,
        work: Callable[[Any, Item], Out],
        items: Iterable[Item],
        shared: Any = None,
        resources: Resources = ANY,
    ) -> Iterator[tuple[int, Out]]:
        if resources.here:
            yield from InProcess().map(work, items, shared)
            return
        ray, queue, pending = self._ray, iter(enumerate(items)), dict[Any, tuple[int, Item]]()
        common: Any = None
        try:
            while True:
                for k, item in islice(queue, max(0, self._room(resources) - len(pending))):
                    if common is None:
                        packed = pickle.dumps((work, shared))
                        key = hashlib.sha256(packed).digest()
                        with _passed_on("Ray's object store does not take what the items share"):
                            common = self._aside(ray.put, packed)
                        task = self._task.options(**self._options(resources))
                    # In a list the reference travels as such: a worker that has the object does not ask for it again.
                    ref = task.remote(key, [common], pickle.dumps(item), resources.model, os.getcwd())
                    pending[ref] = k, item
                if not pending:
                    return
                with _passed_on("Ray was lost"):
                    done, _ = self._aside(ray.wait, list(pending), num_returns=1, timeout=LONGEST_WAIT)
                for ref in done:
                    k, item = pending.pop(ref)
                    with _passed_on(f"{_name(work, item)} failed for good"):
                        result = pickle.loads(self._aside(ray.get, ref))
                    if isinstance(result, StratoscopeError):
                        raise result
                    del ref
                    yield k, result
        finally:
            for ref in pending:
                with suppress(Exception):
                    ray.cancel(ref)

    def close(self) -> None:
        if self._own:
            self._aside(self._ray.shutdown)
        self._thread.shutdown()

    def _aside(self, call: Callable[..., Out], *given: Any, **how: Any) -> Out:
        """What a call of Ray gives; the thread stays, for what Ray has started ends with the thread that started it."""
        return self._thread.submit(call, *given, **how).result()

    def _total(self, what: str) -> float:
        with _passed_on("Ray was lost"):
            return float(self._ray.cluster_resources().get(what, 0))

    def _room(self, resources: Resources) -> int:
        """Items to hand out: some more than run at once, but where that is the user's limit."""
        cores, asked = self._total("CPU"), self._asked
        return asked if asked is not None and asked < cores else int(cores * (1 + AHEAD)) + 1

    def _options(self, resources: Resources) -> dict[str, Any]:
        """What Ray is asked for; more memory than any node has would never be given."""
        if resources.gpus > self._total("GPU"):
            raise StratoscopeError(
                f"this run needs {resources.gpus:g} GPU for each worker, and the Ray cluster has"
                f" {self._total('GPU'):g}; give --device cpu"
            )
        most = max((n["Resources"].get("memory", 0) for n in self._ray.nodes() if n["Alive"]), default=0)
        return {
            "num_cpus": resources.cpus,
            "num_gpus": resources.gpus,
            "memory": int(min(resources.memory, most)) or None,
            "max_retries": RETRIES,
            "runtime_env": {"env_vars": ENVIRONMENT},
        }

    def _look(self, node: str, path: Path) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(_look).options(num_cpus=0, scheduling_strategy=there).remote(str(path))


def _task(key: bytes, common: list[Any], packed: bytes, keep: bool, folder: str) -> bytes:
    """Run one item in a worker of Ray, which stays for the next; what a user can do about an error comes back."""
    import ray

    _settle(folder)
    try:
        return call(key, lambda: ray.get(common[0]), packed, keep)
    except StratoscopeError as e:
        return pickle.dumps(e)


def _settle(folder: str) -> None:
    """As a worker of this machine's pool: one thread, and names of files mean what they mean to the user."""
    import torch

    torch.set_num_threads(1)
    with suppress(OSError):
        os.chdir(folder)


def _look(path: str) -> tuple[str | None, str]:
    """What a node sees of a file, and which code it has."""
    try:
        text = Path(path).read_text()
    except OSError:
        text = None
    return text, code_key()


def _module() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a local cluster of ours reports to nobody
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # its own for SIGTERM aborts with a stack trace
    try:
        import ray
    except ImportError as e:
        raise StratoscopeError(
            "--engine ray needs the package ray, which is not installed; run: pip install 'stratoscope[ray]'"
        ) from e
    return ray


def _connected(ray: Any) -> str:
    """The dashboard's address, if there is one, of the cluster that Ray finds or starts."""
    with _passed_on("Ray cannot be used", "check RAY_ADDRESS, and the cluster's token if it wants one"):
        context = ray.init(logging_level=logging.ERROR, log_to_driver=False)
    link = getattr(context, "dashboard_url", None)
    return f"http://{link}" if link else ""


AGAIN = "run the same command again: finished parts are kept"


@contextmanager
def _passed_on(what: str, way: str = AGAIN) -> Iterator[None]:
    """Whatever goes wrong in Ray or in a worker, in one sentence with Ray's own words."""
    try:
        yield
    except StratoscopeError:
        raise
    except Exception as e:
        cause = getattr(e, "cause", None)
        said = f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else f"{type(e).__name__}: {e}"
        if lines := str(e.__cause__ or "").strip().splitlines():  # a traceback, whose last line may name the token
            said += f" ({lines[-1].strip()})"
        raise StratoscopeError(f"{what}: {' '.join(said.split())}"[:1000], way) from e


def _name(work: Callable[..., Any], item: Any) -> str:
    """An item in a few letters: `score_layer of layer 3`."""
    plain = item.items() if isinstance(item, dict) else [("item", item)]
    short = ", ".join(f"{k} {v}" for k, v in plain if isinstance(v, int | float | str | list | tuple))
    return f"{work.__name__.strip('_')} of {short[:LONGEST_ITEM] or 'an item'}"
