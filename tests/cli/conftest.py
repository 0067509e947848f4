from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ended import Command, Ended
from standins import Calls, install

import tiny

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with models base and tuned and the text t.txt."""
    root = tmp_path_factory.mktemp("home")
    tiny.checkpoint("bert", root / "base")
    tiny.checkpoint("bert", root / "tuned", seed=1)
    (root / "t.txt").write_text("\n".join(tiny.SENTENCES) + "\n", encoding="utf-8")
    return root


@pytest.fixture
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh working folder with links to what `home` has, offline."""
    for path in home.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run the entry point as the shell would, but in this process; what any library writes to stderr counts."""
    from stratoscope.cli.main import run

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*args: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["stratoscope", *map(str, args)])
        capfd.readouterr()
        code = 0
        try:
            run()
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def environment() -> dict[str, str]:
    """For a real process: this source tree, one thread, offline."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    source = str(Path(__file__).parents[2] / "src")
    return {**os.environ, **one, "PYTHONPATH": source, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Studies that only remember how they were called."""
    return install(monkeypatch)


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh working folder with t.txt and the labelled rows.jsonl, and no models."""
    (tmp_path / "t.txt").write_text("\n".join(tiny.SENTENCES) + "\n", encoding="utf-8")
    rows = [{"text": f"{tiny.SENTENCES[k % 10]} {k}", "label": "ab"[k % 2]} for k in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose pages cost nothing."""
    from stratoscope.report import write

    monkeypatch.setattr(write, "write_report", lambda folder, *a, **k: (folder / "report.html").touch())
