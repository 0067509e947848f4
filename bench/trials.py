"""One timed run of one contender, in a process of its own: reads what to do as JSON, writes what it cost and found.

A fresh process a run keeps memory figures apart, sets the number of threads before any BLAS is loaded, and lets the
contenders take turns. Heavy imports are inside the functions: the workers of our own engine load this file too.
"""

from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meter import Meter, cores

if TYPE_CHECKING:
    from torch import Tensor

    from inputs import Rows
    from stratoscope.statistics.rows import StoredRows

Spec = dict[str, Any]
Outcome = dict[str, Any]


def run(trial: str, *, threads: int, peers: Path | None = None, rows: Rows | None = None, **spec: Any) -> Outcome:
    """Run a trial in a process of its own; a contender that fails gives its reason under `failed`."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    paths = [str(p) for p in (peers, os.environ.get("PYTHONPATH")) if p]
    environment = os.environ | limits | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": os.pathsep.join(paths)}
    work = json.dumps({"trial": trial, "rows": asdict(rows.stored) if rows else None, **spec})
    done = subprocess.run(
        [sys.executable, __file__], input=work, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"failed": lines[-1] if lines else f"ended with code {done.returncode}"}
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return outcome


def ours(spec: Spec) -> Outcome:
    """All layers under some measures, as `stratoscope compare` runs them: stored rows, run folder, workers."""
    import torch

    from stratoscope.engine.local import local_engine
    from stratoscope.measures.score import score_layers
    from stratoscope.measures.table import parse
    from stratoscope.runs.folder import RunFolder
    from stratoscope.runs.run import Run

    rows = _rows(spec)
    wanted = [parse(name) for name in spec["measures"]]
    torch.set_num_threads(cores())
    with (
        tempfile.TemporaryDirectory(dir=spec["scratch"]) as tmp,
        RunFolder.open(tmp) as folder,
        Meter() as meter,
        closing(local_engine(spec["workers"], spec["work"])) as engine,
    ):
        begun = time.perf_counter()
        for _ in engine.map(operator.add, range(engine.workers), 0):
            pass  # starts the workers
        started = time.perf_counter() - begun
        found = score_layers(rows, wanted, run=Run(folder, engine, memory=spec["memory"]), key="bench")
    scores = {name: s.values.tolist() for name, s in found.scored.items()}
    return {**meter.facts(), "started": started, "scores": scores}


def gram(spec: Spec) -> Outcome:
    """The joint Gram matrix alone: upper-triangle blocks only, float32, rows already in memory.

    One product a pair of layers, each contiguous: no slower than panels of the joint matrix, whose rows lie far apart.
    """
    import torch

    rows = _rows(spec)
    layers = [_matrix(rows, k) for k in range(rows.layers)]
    pairs = list(combinations_with_replacement(layers, 2))
    n, width = layers[0].shape
    blocks = torch.ones(len(pairs), width, width)  # written to, so that no page is new below
    with Meter() as meter:
        for (x, y), block in zip(pairs, blocks, strict=True):
            torch.mm(x.T, y, out=block)
    return {**meter.facts(), "flop": 2 * n * width**2 * len(pairs)}


def gemm(spec: Spec) -> Outcome:
    """The machine's float32 peak: the best of many products of two square matrices."""
    import torch

    size = spec["size"]
    a, b, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    best = 0.0
    for _ in range(spec["times"]):
        begun = time.perf_counter()
        torch.mm(a, b, out=out)
        best = max(best, 2 * size**3 / (time.perf_counter() - begun))
    return {"flops": best}


def plain(spec: Spec) -> Outcome:
    """The per-pair SVD code of the papers: what a layer costs, what a pair costs, and its scores."""
    from plain import Layer, apart, apart_all, scores

    rows, pairs = _rows(spec), _pairs(spec)
    compute = {f.__name__: f for f in (scores, apart, apart_all)}[spec["how"]]
    matrices = {k: _matrix(rows, k) for k in _members(pairs)}
    with Meter() as one:
        layers = {k: Layer.of(x) for k, x in matrices.items()}
    with Meter() as two:
        found = {pair: compute(layers[pair[0]], layers[pair[1]]) for pair in pairs}
    return {
        "layer": one.cpu / len(layers),
        "pair": two.cpu / len(pairs),
        "wall": one.wall + two.wall,
        "peak": max(one.peak, two.peak),
        "scores": _by_measure(found),
    }


def kernels(spec: Spec) -> Outcome:
    """RBF CKA pair by pair, both n×n kernels made anew for each, float32: in place, or as the published code does."""
    from plain import published_rbf_cka, rbf_cka

    rows, pairs = _rows(spec), _pairs(spec)
    matrices = {k: _matrix(rows, k) for k in _members(pairs)}
    with Meter() as meter:
        if spec["published"]:
            found = {(i, j): published_rbf_cka(matrices[i].numpy(), matrices[j].numpy()) for i, j in pairs}
        else:
            found = {(i, j): rbf_cka(matrices[i], matrices[j]) for i, j in pairs}
    return {**meter.facts(), "pair": meter.cpu / len(pairs), "scores": _alone("ckasim-rbf", found)}


def peer(spec: Spec) -> Outcome:
    """Another package on a sample of pairs."""
    from peers import PEERS

    chosen = next(p for p in PEERS if p.name == spec["peer"])
    rows, pairs = _rows(spec), _pairs(spec)
    matrices = {k: _prepared(rows, k, chosen.measure) for k in _members(pairs)}
    chosen.compute({k: x[:64] for k, x in matrices.items()}, pairs)  # imports are not part of the work
    with Meter() as meter:
        found = chosen.compute(matrices, pairs)
    return {**meter.facts(), "pair": meter.cpu / len(pairs), "scores": _alone(chosen.measure, found)}


def reference(spec: Spec) -> Outcome:
    """Float64 scores of a sample of pairs from the rows themselves."""
    from plain import Layer, rbf_cka, rsa, scores

    rows, pairs = _rows(spec), _pairs(spec)
    exact = {k: _matrix(rows, k).double() for k in _members(pairs)}
    layers = {k: Layer.of(x, cut=True) for k, x in exact.items()}
    found = _by_measure({(i, j): scores(layers[i], layers[j]) for i, j in pairs})
    found["ckasim-minibatch"] = found["ckasim-debiased"]  # what minibatches estimate
    del layers
    if spec["kernels"]:
        heavy = [(i, j) for i, j in spec["kernels"]]
        found |= _alone("ckasim-rbf", {(i, j): rbf_cka(exact[i], exact[j]) for i, j in heavy})
        some = {k: _prepared(rows, k, "rsa") for k in exact}
        found |= _alone("rsa", {(i, j): rsa(some[i], some[j]) for i, j in pairs})
    return {"scores": found}


def extraction(spec: Spec) -> Outcome:
    """Our reading of words and a bare `model(**batch)` loop over the same batches, taking turns batch by batch."""
    import torch

    from stratoscope.data.readers import read_corpus
    from stratoscope.models.open.loading import ModelSpec, open_model
    from stratoscope.models.read.hidden import RowReader
    from stratoscope.models.read.loop import batches, hidden_bytes, read, token_budget
    from stratoscope.models.text.rows import encode_for, plan_rows

    torch.set_num_threads(cores())
    model = open_model(ModelSpec(spec["model"]))
    corpus = read_corpus(spec["text"]).sample(spec["sentences"], seed=0)
    rows = plan_rows(corpus, [model.encoder], "word")
    begun = time.perf_counter()
    encoded = encode_for(model.encoder, corpus.sentences, ["word"])
    reader = RowReader(encoded, corpus, rows)
    seconds = {"ours": time.perf_counter() - begun, "bare": 0.0}
    budget = token_budget(model, hidden_bytes(model))
    cut = batches(encoded.lengths[reader.texts], lambda length: budget // length)
    for k, texts in enumerate(reader.texts[b] for b in cut):
        inputs = encoded.batch(texts)
        with torch.inference_mode():
            model.module(**inputs)  # what a new shape costs is nobody's
        for name in ("ours", "bare") if k % 2 else ("bare", "ours"):
            begun = time.perf_counter()
            if name == "ours":
                read(model, encoded, [reader], examples=texts)
            else:
                with torch.inference_mode():
                    model.module(**inputs)
            seconds[name] += time.perf_counter() - begun
    return {**seconds, "rows": len(rows), "tokens": int(encoded.lengths[reader.texts].sum())}


def _rows(spec: Spec) -> StoredRows:
    from stratoscope.statistics.rows import StoredRows

    r = spec["rows"]
    files = tuple(tuple((path, name) for path, name in layer) for layer in r["files"])
    return StoredRows(tuple(r["sizes"]), files, tuple(r["precision"]))


def _matrix(rows: StoredRows, layer: int) -> Tensor:
    import torch

    return torch.cat([rows.chunk(layer, k) for k in range(len(rows.sizes))])


def _prepared(rows: StoredRows, layer: int, measure: str) -> Tensor:
    """A layer's rows as a peer takes them: RSA gets the centred rows our own RSA draws with seed 0."""
    import torch

    x = _matrix(rows, layer)
    if measure != "rsa":
        return x
    from stratoscope.measures.kernels.rsa import ROWS

    drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:ROWS].sort().values
    return x.double()[drawn] - x.double().mean(0)


def _pairs(spec: Spec) -> list[tuple[int, int]]:
    return [(i, j) for i, j in spec["pairs"]]


def _members(pairs: Iterable[tuple[int, int]]) -> list[int]:
    return sorted({k for pair in pairs for k in pair})


def _by_measure(
    found: dict[tuple[int, int], dict[str, tuple[float, float]]],
) -> dict[str, dict[str, tuple[float, float]]]:
    names = next(iter(found.values()))
    return {name: {f"{i},{j}": s[name] for (i, j), s in found.items()} for name in names}


def _alone(measure: str, found: dict[tuple[int, int], float]) -> dict[str, dict[str, tuple[float, float]]]:
    return {measure: {f"{i},{j}": (value, value) for (i, j), value in found.items()}}


TRIALS: dict[str, Callable[[Spec], Outcome]] = {
    f.__name__: f for f in (ours, gram, gemm, plain, kernels, peer, reference, extraction)
}

if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(TRIALS[given["trial"]](given)))
