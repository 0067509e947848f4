"""Ray: a real local cluster of two nodes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.engine.base import Resources
from stratoscope.engine.local import InProcess
from stratoscope.runs.run import Run

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stratoscope[ray]'")
HERE = str(Path(__file__).parent)
SOURCE = str(Path(__file__).parents[2] / "src")


def scaled(shared: Any, item: dict[str, Any]) -> dict[str, Any]:
    return {"x": shared["rows"].double() * item["k"], "threads": torch.get_num_threads(), "pid": os.getpid()}


def product(shared: Any, item: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {"x": shared["rows"] * item["k"]}


def node_of(shared: Any, item: dict[str, Any]) -> str:
    time.sleep(0.3)
    return str(ray.get_runtime_context().get_node_id())


def gpus_of(shared: Any, item: dict[str, Any]) -> tuple[list[str], str | None]:
    return ray.get_runtime_context().get_accelerator_ids()["GPU"], os.environ.get("CUDA_VISIBLE_DEVICES")


def refused(shared: Any, item: dict[str, Any]) -> None:
    if item["k"] == 2:
        raise StratoscopeError("expected anything but 2")


def broken(shared: Any, item: dict[str, Any]) -> None:
    raise ZeroDivisionError("by nought")


def killed_once(shared: str, item: dict[str, Any]) -> int:
    mark = Path(shared) / str(item["k"])
    if item["k"] == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return int(item["k"])


def slow(shared: str, item: dict[str, Any]) -> int:
    Path(shared, f"{item['k']}-{ray.get_runtime_context().get_node_id()}-{time.monotonic_ns()}").touch()
    time.sleep(0.5)
    return int(item["k"])


def endless(shared: str, item: dict[str, Any]) -> None:
    Path(shared, str(item["k"])).touch()
    time.sleep(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, HERE]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        store = {"object_store_memory": 80_000_000}
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, **store})
        made.add_node(num_cpus=1, **store)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def engine(cluster: Any) -> Iterator[Any]:
    from stratoscope.engine.ray import RayTasks

    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    made = RayTasks()
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    yield made
    made.close()


def test_two_nodes_give_what_this_process_gives(engine: Any) -> None:
    items, shared = [{"k": k} for k in range(6)], {"rows": torch.arange(5.0)}
    here, there = (dict(e.map(scaled, items, shared)) for e in (InProcess(), engine))
    assert engine.workers == 2
    assert sorted(there) == list(range(6))
    assert all(torch.equal(there[k]["x"], here[k]["x"]) for k in there)
    assert {r["threads"] for r in there.values()} == {1}
    assert os.getpid() not in {r["pid"] for r in there.values()}
    assert len({node for _, node in engine.map(node_of, items)}) == 2


def test_no_items_and_items_that_need_this_process(engine: Any) -> None:
    assert list(engine.map(scaled, [])) == []
    (found,) = engine.map(scaled, [{"k": 1}], {"rows": torch.ones(1)}, Resources(here=True))
    assert found[1]["pid"] == os.getpid()


def test_items_that_ask_for_a_gpu_get_one_and_others_see_none(engine: Any) -> None:
    """A GPU is what a node claims to have; here there is one."""
    with_gpu, without = (list(engine.map(gpus_of, [{}], None, Resources(gpus=n))) for n in (1, 0))
    assert with_gpu == [(0, (["0"], "0"))]
    assert without == [(0, ([], ""))]
    with pytest.raises(StratoscopeError, match=r"needs 2 GPU .* has 1; give --device cpu"):
        list(engine.map(gpus_of, [{}], None, Resources(gpus=2)))


class Noted(Silent):
    """Progress that keeps notes and counts."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[list[int]] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    @contextmanager
    def step(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        self.steps.append([total, 0])

        def advance(n: int) -> None:
            self.steps[-1][1] += n

        yield advance


def test_a_folder_that_all_nodes_see_and_the_dashboard(engine: Any, tmp_path: Path) -> None:
    said = Noted()
    engine.attach(tmp_path, said)
    assert not list(tmp_path.iterdir())
    assert said.notes == ["Ray: 2 workers on 2 nodes"], "this cluster has no dashboard"

    from stratoscope.engine import ray as module

    class Started:
        """What `ray.init` gives back where Ray runs a dashboard."""

        dashboard_url = "127.0.0.1:8265"

        @classmethod
        def init(cls, **how: Any) -> Any:
            return cls

    assert module._connected(Started) == "http://127.0.0.1:8265"


@pytest.fixture
def blind(cluster: Any, tmp_path: Path) -> Iterator[Path]:
    """A folder in whose place a third node, in a mount namespace of its own, has an empty disk."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    private = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*private, "true"], check=False).returncode:
        pytest.skip("a node that does not see a folder needs a mount namespace, and unshare is not allowed here")
    start = f"{sys.executable} -m ray.scripts.scripts start --address={cluster.address} --num-cpus=1 --block"
    command = [*private, f"mount -t tmpfs none {hidden} && exec {start} --object-store-memory=80000000"]
    node = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
    )
    alive = len([n for n in ray.nodes() if n["Alive"]])
    deadline = time.monotonic() + 120
    while len([n for n in ray.nodes() if n["Alive"]]) == alive and node.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    yield hidden
    node.terminate()
    try:
        node.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()
    while len([n for n in ray.nodes() if n["Alive"]]) > alive and time.monotonic() < deadline:
        time.sleep(0.1)


def test_a_folder_that_a_node_does_not_see(engine: Any, blind: Path) -> None:
    with pytest.raises(StratoscopeError, match=r"not visible on node .*; give --out on a disk that all nodes share"):
        engine.attach(blind, Silent())
    assert not list(blind.iterdir())


TOKEN = """
import os, subprocess, sys
from ray.cluster_utils import Cluster
from stratoscope.core.errors import StratoscopeError
from stratoscope.engine.ray import RayTasks
from test_ray_engine import scaled
import torch

if os.environ["RAY_AUTH_TOKEN"] == "b" * 64:
    try:
        RayTasks()
    except StratoscopeError as e:
        print("refused:", e)
    sys.exit()
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
os.environ["RAY_ADDRESS"] = cluster.address
engine = RayTasks()
print(sum(float(r["x"].sum()) for _, r in engine.map(scaled, [{"k": 1}, {"k": 2}], {"rows": torch.ones(2)})))
other = {**os.environ, "RAY_AUTH_TOKEN": "b" * 64, "RAY_NUM_REDIS_GET_RETRIES": "1"}
print(subprocess.run([sys.executable, *sys.orig_argv[1:]], env=other, capture_output=True, text=True).stdout)
engine.close()
cluster.shutdown()
"""


def test_token_authentication_is_rays_own(tmp_path: Path) -> None:
    """With the cluster's token all is as ever; with another one Ray's words are passed on."""
    asked = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **asked, "PYTHONPATH": os.pathsep.join([SOURCE, HERE])}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", TOKEN], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6.0\n")
    assert "refused: Ray cannot be used: " in done.stdout
    assert "InvalidAuthToken" in done.stdout, "Ray's own word for it"
    assert "RAY_ADDRESS" in done.stdout


def test_progress_counts_what_all_workers_finish(engine: Any) -> None:
    said = Noted()
    items = [{"k": k} for k in range(6)]
    how: dict[str, Any] = {"name": "x", "key": 1, "label": "scaling", "shared": {"rows": torch.ones(1)}}
    Run(engine=engine, progress=said).map(product, items, **how, weights=[3] * 6)
    assert said.steps == [[18, 18]]


def test_an_interrupted_map_cancels_what_is_queued(engine: Any, tmp_path: Path) -> None:
    results = engine.map(slow, [{"k": k} for k in range(12)], str(tmp_path))
    next(results)
    results.close()  # as an interrupt does on its way out
    begun = len(list(tmp_path.iterdir()))
    time.sleep(1.5)
    assert len(list(tmp_path.iterdir())) <= begun + 1, "nothing begins any more"
    assert begun < 6


STOPPED = """
import sys
from stratoscope.cli import main
from stratoscope.engine.ray import RayTasks
from test_ray_engine import endless

def app(*given, **how):
    engine = RayTasks()
    try:
        list(engine.map(endless, [{"k": k} for k in range(9)], sys.argv[1]))
    finally:
        engine.close()

main.app = app
main.run()
"""


def test_an_interrupt_does_not_wait_for_items(cluster: Any, engine: Any, tmp_path: Path) -> None:
    """What the handler raises would be lost in the C++ code that waits for an item."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "stratoscope: interrupted\n")
    assert len(list(tmp_path.iterdir())) == 2, "nothing that was queued begins any more"
    assert list(engine.map(product, [{"k": 1}], {"rows": torch.ones(1)})), "the cluster is there, and has room"


def test_an_item_that_fails_for_good_names_itself(engine: Any) -> None:
    with pytest.raises(StratoscopeError, match="expected anything but 2"):
        list(engine.map(refused, [{"k": k} for k in range(4)]))
    with pytest.raises(StratoscopeError, match=r"broken of k 7 failed for good: ZeroDivisionError: by nought"):
        list(engine.map(broken, [{"k": 7}]))


def test_a_killed_worker_is_retried(engine: Any, tmp_path: Path) -> None:
    found = dict(engine.map(killed_once, [{"k": k} for k in range(3)], str(tmp_path)))
    assert found == {0: 0, 1: 1, 2: 2}
    assert (tmp_path / "1").exists()


def test_more_than_the_object_store_holds(engine: Any) -> None:
    """Spilled to disk by Ray."""
    items, shared = [{"k": k} for k in range(4)], {"rows": torch.ones(6_000_000)}
    sums = {k: float(r["x"].sum()) for k, r in engine.map(scaled, items, shared)}
    assert sums == {k: 6e6 * k for k in range(4)}


def test_a_node_lost_in_the_middle_is_made_good_by_the_other(engine: Any, cluster: Any, tmp_path: Path) -> None:
    extra = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    results = engine.map(slow, [{"k": k} for k in range(20)], str(tmp_path))
    found = dict([next(results)])
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(f"*-{extra.node_id}-*")) and time.monotonic() < deadline:
        found.update([next(results)])
    cluster.remove_node(extra, allow_graceful=False)
    begun = len(list(tmp_path.iterdir()))
    found.update(results)
    assert found == {k: k for k in range(20)}
    assert list(tmp_path.glob(f"*-{extra.node_id}-*")), "the lost node was at work"
    assert begun < len(list(tmp_path.iterdir()))
