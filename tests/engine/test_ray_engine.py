"""Ray: a real local cluster of two nodes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Silent
from stratoscope.engine.base import Resources
from stratoscope.engine.local import InProcess

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stratoscope[ray]'")
HERE = str(Path(__file__).parent)
SOURCE = str(Path(__file__).parents[2] / "src")


def scaled(shared: Any, item: dict[str, Any]) -> dict[str, Any]:
    return {"x": shared["rows"].double() * item["k"], "threads": torch.get_num_threads(), "pid": os.getpid()}


def node_of(shared: Any, item: dict[str, Any]) -> str:
    time.sleep(0.3)
    return str(ray.get_runtime_context().get_node_id())


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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, HERE]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        store = {"object_store_memory": 80_000_000}
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **store})
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


def test_a_folder_that_all_nodes_see_and_one_that_they_do_not(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.attach(tmp_path, Silent())
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(engine, "_look", lambda node, path: ray.put((None, "")))
    with pytest.raises(StratoscopeError, match=r"not visible on node .*; give --out on a disk that all nodes share"):
        engine.attach(tmp_path, Silent())


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
