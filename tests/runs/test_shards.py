"""Shards of one run: several processes on one folder, killed and run again, leave what one run leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratoscope.core.errors import InUseError, StratoscopeError
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Shard

SOURCE = str(Path(__file__).parents[2] / "src")
SCRIPT = """
import sys, time
import torch
import numpy as np
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.results.comparison import Comparison
from stratoscope.runs.run import Request, Shard, run


def square(shared, item):
    open(sys.argv[3], "a").write(f"{item['k']}\\n")
    time.sleep(0.05)
    return {"x": torch.tensor([float(item["k"]) ** 2 + shared])}


def compute(running):
    first = running.map(square, [{"k": k} for k in range(12)], name="a", key=1, label="a", shared=0.0)
    total = float(sum(p["x"] for p in first))
    second = running.map(square, [{"k": k} for k in range(6)], name="b", key=2, label="b", shared=total)
    sums = np.array([[float(sum(p["x"] for p in second))]])
    return Comparison((Matrix("ckasim", (Layer("m", 0),), (Layer("m", 0),), sums),), (), {})


shard = Shard.parse(sys.argv[2]) if sys.argv[2] != "-" else None
print(run(Request("comparison", {"x": 1}, {}), sys.argv[1], compute, shard=shard).matrices[0].values.item())
"""


def start(out: Path, shard: str, log: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", SCRIPT, str(out), shard, str(log)]
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    folder = tmp_path_factory.mktemp("alone")
    said = start(folder / "run", "-", folder / "log").communicate()[0]
    return (folder / "run" / "result.json").read_bytes(), said


def test_shards_share_the_parts_and_leave_what_one_run_leaves(alone: tuple[bytes, str], tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    running = [start(out, f"{k}/3", log) for k in (1, 2, 3)]
    assert [p.communicate()[0] for p in running] == [alone[1]] * 3
    assert (out / "result.json").read_bytes() == alone[0]
    assert len(log.read_text().splitlines()) == 18, "every part is made once"
    assert not (out / "parts").exists(), "the last one tidies up"


def test_a_killed_shard_is_made_good_by_the_others(alone: tuple[bytes, str], tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    killed, other = start(out, "1/2", log), start(out, "2/2", log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and len(log.read_text().splitlines()) > 3):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert other.communicate()[0] == alone[1]
    assert (out / "result.json").read_bytes() == alone[0]
    assert len(log.read_text().splitlines()) <= 19, "at most what the killed one was making is made again"


def test_a_run_alone_and_shards_keep_out_of_each_others_way(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "a", shared=True) as one, RunFolder.open(tmp_path / "a", shared=True) as two:
        assert not one.is_last() or not two.is_last()
    with RunFolder.open(tmp_path / "b", shared=True), pytest.raises(InUseError), RunFolder.open(tmp_path / "b"):
        pass


def test_shares_cover_every_item_once() -> None:
    own = [Shard(i, 3).order(range(10))[: len(range(i - 1, 10, 3))] for i in (1, 2, 3)]
    assert sorted(k for share in own for k in share) == list(range(10))
    assert all(sorted(Shard(i, 3).order(range(10))) == list(range(10)) for i in (1, 2, 3))
    for wrong in ("0/3", "4/3", "x", "1", "1/0"):
        with pytest.raises(StratoscopeError, match=r"3/8.*" + wrong):
            Shard.parse(wrong)
