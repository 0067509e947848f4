"""Other packages that compute similarities: installed apart from the project, called through their own interface."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
BATCH = 256
"""Rows of a minibatch, as in our own minibatch CKA."""

Pairs = Sequence[tuple[int, int]]
Compute = Callable[[dict[int, Tensor], Pairs], dict[tuple[int, int], float]]
"""Scores of some pairs of layers from their rows."""


@dataclass(frozen=True)
class Peer:
    """One function of another package, and the measure of ours it stands beside."""

    name: str
    measure: str
    """Ours."""
    compute: Compute
    every: bool = False
    """Cheap enough for the whole sample of pairs; the others make n×n matrices in float64."""
    crosses: bool = False
    """Compares layers of the first model with layers of the second only."""
    note: str = ""


def install(folder: Path) -> str | None:
    """Put the peers of requirements.txt into a folder; return why it could not be done."""
    marker = folder / ".installed"
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    if marker.is_file() and marker.read_text(encoding="utf-8") == wanted:
        return None
    reason = _pip(["--upgrade", "--requirement", str(REQUIREMENTS)], folder)
    if reason is None:
        marker.write_text(wanted, encoding="utf-8")
    return reason


def refused(requirement: str, folder: Path) -> str:
    """Why similarity-repository, which the issue names, is no peer: what pip, or the package itself when used, says."""
    if reason := _pip([requirement], folder):
        return f"not installed: {reason}"
    use = [sys.executable, "-c", "import similarity; similarity.match('*')"]
    done = subprocess.run(
        use, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(folder)}
    )
    said = done.stderr.strip().splitlines()
    return f"does not import: {said[-1]}" if done.returncode else "works now: write its adapter in bench/peers.py"


def _pip(what: list[str], folder: Path) -> str | None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*pip, *what], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
    start = next((k for k, line in enumerate(lines) if line.startswith("ERROR")), -1)
    return " ".join(lines[start:]).removeprefix("ERROR: ") if lines else "pip gave no reason"


def _ckatorch(**options: Any) -> Compute:
    def compute(rows: dict[int, Tensor], pairs: Pairs) -> dict[tuple[int, int], float]:
        cka = importlib.import_module("ckatorch.core").cka_base
        return {(i, j): float(cka(rows[i], rows[j], **options)) for i, j in pairs}

    return compute


class _Replay(nn.Module):
    """A model whose layers answer with stored rows, because torch_cka reads layers through hooks only."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        super().__init__()
        self.rows = rows
        self.layers = nn.ModuleList(nn.Identity() for _ in rows)

    def forward(self, index: Tensor) -> None:
        for layer, rows in zip(self.layers, self.rows, strict=True):
            layer(rows[index])

    @property
    def names(self) -> list[str]:
        return [f"layers.{k}" for k in range(len(self.layers))]


def _torch_cka(rows: dict[int, Tensor], pairs: Pairs) -> dict[tuple[int, int], float]:
    first, second = sorted({i for i, _ in pairs}), sorted({j for _, j in pairs})
    a, b = _Replay([rows[i] for i in first]), _Replay([rows[j] for j in second])
    options = {"model1_name": "first", "model2_name": "second", "model1_layers": a.names, "model2_layers": b.names}
    cka = importlib.import_module("torch_cka").CKA(a, b, **options)
    loader = DataLoader(TensorDataset(torch.arange(len(rows[first[0]]))), batch_size=BATCH, shuffle=False)
    cka.compare(loader, loader)
    found = cka.export()["CKA"]
    return {(i, j): float(found[first.index(i), second.index(j)]) for i, j in pairs}


def _rsatoolbox(rows: dict[int, Tensor], pairs: Pairs) -> dict[tuple[int, int], float]:
    toolbox = importlib.import_module("rsatoolbox")

    def distances(x: Tensor) -> Any:
        return toolbox.rdm.calc_rdm(toolbox.data.Dataset(x.double().numpy()), method="correlation")

    return {
        (i, j): float(toolbox.rdm.compare(distances(rows[i]), distances(rows[j]), method="spearman")[0, 0])
        for i, j in pairs
    }


PEERS = (
    Peer("torch_cka", "ckasim-minibatch", _torch_cka, every=True, crosses=True, note="batches of 256, float32"),
    Peer("ckatorch linear", "ckasim", _ckatorch(), note="n×n, float64"),
    Peer("ckatorch unbiased", "ckasim-debiased", _ckatorch(unbiased=True), note="n×n, float64"),
    Peer("ckatorch rbf", "ckasim-rbf", _ckatorch(kernel="rbf", threshold=0.5), note="n×n, float64"),
    Peer("rsatoolbox", "rsa", _rsatoolbox, every=True, note="the same rows as ours, columns centred"),
)
"""similarity-repository is tried by `refused`."""
