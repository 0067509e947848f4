"""Score every pair of layers under every measure asked for: prepare each layer once, then compare tiles of pairs.

The steps are pure functions of plain data. With a run folder their results are kept as parts, so that a killed run
goes on where it stopped; without one everything stays in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratoscope.core.progress import Progress, Silent
from stratoscope.core.runfolder import RunFolder, digest
from stratoscope.engine.local import Engine, InProcess
from stratoscope.measures.measure import Item, Sums
from stratoscope.measures.pair import Pair
from stratoscope.measures.table import Request, parse
from stratoscope.statistics.cross import Pairing, cross_moments
from stratoscope.statistics.layer import LayerBasis, fit_basis
from stratoscope.statistics.rows import LayerRows, MemoryRows, StoredRows, count

Tensors = Mapping[str, Tensor]

PRODUCT_BYTES = 8
"""Cross-products are summed in float64."""


@dataclass(frozen=True)
class Scored:
    """Scores of one measure for all pairs of layers: `values[i, j]` has layer i as first argument."""

    values: Tensor
    arrays: Mapping[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """Where and how scores are computed."""

    engine: Engine = InProcess()
    folder: RunFolder | None = None
    key: str = ""
    """Digest of what made the rows; names the parts."""
    memory: float = 4e9
    """Bytes the cross-products held at once may take, over all workers."""
    seed: int = 0
    progress: Progress = Silent()


def score_layers(rows: LayerRows, wanted: Sequence[Request], setting: Setting = Setting()) -> dict[str, Scored]:
    """Scores of every pair of layers, by the request's name."""
    pairwise = [r for r in wanted if r.measure.compare]
    scored = _score_pairs(rows, pairwise, setting) if pairwise else {}
    for request in (r for r in wanted if r.measure.rows):
        scored[request.name] = _score_rows(rows, request, setting)
    return {r.name: scored[r.name] for r in wanted}


# --- measures of covariances ---------------------------------------------------------------------------------------


def _score_pairs(rows: LayerRows, wanted: Sequence[Request], setting: Setting) -> dict[str, Scored]:
    n, layers = count(rows), range(rows.layers)
    width = max(rows.chunk(k, 0).shape[1] for k in layers)
    whiten = n <= width or any(r.measure.whitens for r in wanted)
    key = digest([setting.key, whiten])
    items = [
        {"rows": rows, "layer": k, "whiten": whiten, "into": _part_path(setting, f"{key}/coordinates-{k:04d}")} for k in layers
    ]
    prepared = _run(_prepare, items, [f"{key}/basis-{k:04d}.safetensors" for k in layers], setting, "preparing layers")
    coordinates = _coordinates(rows, prepared, items)
    names = sorted((r.name for r in wanted), key=lambda name: not name.startswith("pwsim"))  # svsim reads pwsim's ρ
    bases = [{k: v for k, v in t.items() if k != "to" and not k.startswith("rows.")} for t in prepared]
    tiles = _tiles(rows.layers, _side(rows.layers, width, setting))
    work = [{"rows": coordinates, "bases": {k: bases[k] for p in t for k in p}, "pairs": t, "measures": names} for t in tiles]
    files = [f"{key}/{digest([names, t])}.safetensors" for t in tiles]
    done = _run(_score_tile, work, files, setting, "comparing layers", weights=[len(t) for t in tiles])
    return {r.name: _assemble(r, done, tiles, rows.layers) for r in wanted}


def _prepare(item: Item) -> Tensors:
    """Fit one layer's basis and express its rows in it, in files beside the basis or in memory."""
    rows, layer, into = item["rows"], item["layer"], item["into"]
    basis = fit_basis(rows, layer, whiten=item["whiten"])
    out = basis.to_tensors()
    for k in range(len(rows.sizes)):
        w = basis.transform(rows.chunk(layer, k))
        if into is None:
            out[f"rows.{k:05d}"] = w
        else:
            save_file({"rows": w}, f"{into}-{k:05d}.safetensors")
    return out


def _coordinates(rows: LayerRows, prepared: Sequence[Tensors], items: Sequence[Item]) -> LayerRows:
    if items[0]["into"] is None:
        return MemoryRows([torch.cat([t[f"rows.{k:05d}"] for k in range(len(rows.sizes))]) for t in prepared])
    files = tuple(
        tuple((f"{item['into']}-{k:05d}.safetensors", "rows") for k in range(len(rows.sizes))) for item in items
    )
    return StoredRows(tuple(rows.sizes), files, tuple(rows.eps(k) for k in range(rows.layers)))


def _score_tile(item: Item) -> Tensors:
    """Scores of a tile of pairs; every cross-product is made, reduced by every measure, and let go."""
    bases = {k: LayerBasis.from_tensors(t) for k, t in item["bases"].items()}
    live = [p for p in item["pairs"] if not (bases[p[0]].constant or bases[p[1]].constant)]
    itself = {(i, j) for i, j in live if i == j and bases[i].whitened}
    moments = cross_moments(item["rows"], bases, tuple(p for p in live if p not in itself))
    wanted = [parse(name) for name in item["measures"]]
    scores = {r.name: torch.full((len(item["pairs"]), 2), math.nan, dtype=torch.float64) for r in wanted}
    arrays: dict[str, Tensor] = {}
    for position, (i, j) in enumerate(item["pairs"]):
        if (i, j) not in live:
            continue
        if (i, j) in itself:
            pair = Pair.itself(bases[i])
        else:
            pair = Pair(bases[i], bases[j], moments.products.pop((i, j)) / moments.count, moments.norms[i, j])
        for request in wanted:
            assert request.measure.compare is not None
            result = request.measure.compare(pair, request.top)
            scores[request.name][position] = torch.tensor([result.forward, result.backward], dtype=torch.float64)
            if request.top == 1:
                for name, (forward, backward) in result.arrays.items():
                    arrays[f"{name}|{i}|{j}"] = forward.clone()
                    arrays[f"{name}|{j}|{i}"] = backward.clone()
    return scores | arrays


def _side(layers: int, width: int, setting: Setting) -> int:
    """Layers on one side of a tile: as many as memory allows, few enough that all workers have tiles to take."""
    share = setting.memory / setting.engine.workers / (PRODUCT_BYTES * width**2)
    return max(1, min(int(math.sqrt(share)), math.ceil(layers / (3 * setting.engine.workers))))


def _tiles(layers: int, side: int) -> list[tuple[Pairing, ...]]:
    """The upper triangle of all pairs, cut into squares."""
    groups = [range(start, min(start + side, layers)) for start in range(0, layers, side)]
    squares = [(a, b) for k, a in enumerate(groups) for b in groups[k:]]
    return [tuple((i, j) for i in a for j in b if i <= j) for a, b in squares]


def _assemble(request: Request, done: Sequence[Tensors], tiles: Sequence[tuple[Pairing, ...]], layers: int) -> Scored:
    values = torch.full((layers, layers), math.nan, dtype=torch.float64)
    found: dict[str, dict[Pairing, Tensor]] = {}
    for scores, pairs in zip(done, tiles, strict=True):
        for (i, j), (forward, backward) in zip(pairs, scores[request.name].tolist(), strict=True):
            values[i, j], values[j, i] = forward, backward
        for key, value in scores.items():
            name, _, where = key.partition("|")
            if where and name.startswith(f"{request.measure.name}.") and request.top == 1:
                i, j = (int(k) for k in where.split("|"))
                found.setdefault(name, {})[i, j] = value
    return Scored(values.clamp(*request.measure.bounds), {name: _stack(of, layers) for name, of in found.items()})


def _stack(of: Mapping[Pairing, Tensor], layers: int) -> Tensor:
    """One array over both layer axes; rows shorter than the widest layer are padded with -1."""
    first = next(iter(of.values()))
    longest = max(v.numel() for v in of.values())
    out = torch.full((layers, layers, longest), -1, dtype=first.dtype)
    for (i, j), value in of.items():
        out[i, j, : value.numel()] = value.flatten()
    return out if first.ndim else out[:, :, 0]


# --- measures of the rows themselves ---------------------------------------------------------------------------------


def _score_rows(rows: LayerRows, request: Request, setting: Setting) -> Scored:
    work = request.measure.rows
    assert work is not None
    key = digest([setting.key, request.name, setting.seed])
    items = [{"rows": rows, "measure": request.name, "item": item} for item in work.plan(rows, setting.seed)]
    files = [f"{key}/{k:05d}.safetensors" for k in range(len(items))]
    total: dict[str, Tensor] = {}
    for part in _run(_row_work, items, files, setting, f"{request.name}"):
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return Scored(work.finish(total), {})


def _row_work(item: Item) -> Sums:
    work = parse(item["measure"]).measure.rows
    assert work is not None
    return work.work(item["rows"], item["item"])


# --- running steps, keeping what is finished --------------------------------------------------------------------------


def _run(
    work: Callable[[Item], Tensors],
    items: Sequence[Item],
    files: Sequence[str],
    setting: Setting,
    label: str,
    weights: Sequence[int] | None = None,
) -> list[Tensors]:
    """Results of all items in order; those whose part is finished are read instead of computed."""
    weights = weights or [1] * len(items)
    folder = setting.folder
    results: dict[int, Tensors] = {}
    with setting.progress.step(label, sum(weights)) as advance:
        for k, name in enumerate(files):
            if folder is not None and folder.has(name):
                results[k] = load_file(folder.part(name))
                advance(weights[k])
        todo = [k for k in range(len(items)) if k not in results]
        for position, result in setting.engine.map(work, [items[k] for k in todo]):
            k = todo[position]
            if folder is not None:
                folder.save(files[k], lambda path, result=result: save_file(_contiguous(result), path))  # type: ignore[misc]
            results[k] = result
            advance(weights[k])
    return [results[k] for k in range(len(items))]


def _contiguous(tensors: Tensors) -> dict[str, Tensor]:
    return {k: v.contiguous() for k, v in tensors.items()}


def _part_path(setting: Setting, name: str) -> str | None:
    if setting.folder is None:
        return None
    path = setting.folder.part(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return str(Path(path).resolve())


def plain(scored: Scored) -> Any:
    """Values as a numpy array."""
    return scored.values.numpy()
