"""Score every pair of layers under every measure asked for: prepare each layer once, then compare tiles of pairs.

The steps are pure functions of plain data. With a run folder their results are kept as parts, so that a killed run
goes on where it stopped; without one everything stays in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratoscope.core.progress import Progress, Silent
from stratoscope.core.runfolder import RunFolder, digest, disk_errors
from stratoscope.engine.local import Engine, InProcess
from stratoscope.measures.measure import Item, Sums
from stratoscope.measures.pair import Pair
from stratoscope.measures.table import Request, parse
from stratoscope.statistics.cross import Pairing, cross_moments, norm_products
from stratoscope.statistics.layer import LayerBasis, deviations, fit_basis, layer_moments
from stratoscope.statistics.products import padded
from stratoscope.statistics.rows import LayerRows, MemoryRows, StoredRows, count

Tensors = Mapping[str, Tensor]

PRECISE = 3e11
"""Work (FLOP) up to which coordinates are float64 whatever the rows are: the time saved would not be noticed."""
DROPPED_SHARE = 1e-11
"""Share s of a layer's variance dropped as rounding above which measures that invert nothing must not miss it.

Rounding correlates with neurons by chance: on real layers CKA moves by up to √s / 70. A float32 layer drops 1e-14, one
with a neuron whose mean is 1e4 times its spread 1e-10, and half precisions 1e-6.
"""
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

    engine: Engine = field(default_factory=InProcess)
    folder: RunFolder | None = None
    key: str = ""
    """Digest of what made the rows; names the parts."""
    memory: float = 4e9
    """Bytes the cross-products held at once may take, over all workers."""
    seed: int = 0
    progress: Progress = field(default_factory=Silent)


@dataclass(frozen=True)
class Scoring:
    """Scores by the request's name, and what of each layer took no part in them."""

    scored: Mapping[str, Scored]
    constant: tuple[int, ...]
    """Neurons that do not vary over the rows."""
    lost: tuple[int, ...]
    """Directions left out as rounding (`LayerBasis.lost`); 0 where no measure asked for inverts a covariance."""


def score_layers(rows: LayerRows, wanted: Sequence[Request], setting: Setting | None = None) -> Scoring:
    """Scores of every pair of layers; NaN where one of the layers does not vary at all."""
    setting = setting or Setting()
    pairwise = [r for r in wanted if r.measure.compare]
    scored, sds, lost = (
        _score_pairs(rows, pairwise, setting) if pairwise else ({}, _deviations(rows), [0] * rows.layers)
    )
    for request in (r for r in wanted if r.measure.rows):
        scored[request.name] = _score_rows(rows, request, setting)
    absent = torch.tensor([not bool(sd.any()) for sd in sds])
    for found in scored.values():
        found.values[absent] = math.nan
        found.values[:, absent] = math.nan
    constant = tuple(int((sd == 0).sum()) for sd in sds)
    return Scoring({r.name: scored[r.name] for r in wanted}, constant, tuple(lost))


# --- measures of covariances ---------------------------------------------------------------------------------------


def _score_pairs(
    rows: LayerRows, wanted: Sequence[Request], setting: Setting
) -> tuple[dict[str, Scored], list[Tensor], list[int]]:
    """Scores by name, each layer's standard deviations, and its directions lost to measures that invert."""
    n, layers = count(rows), range(rows.layers)
    width = max(rows.chunk(k, 0).shape[1] for k in layers)
    inverts = any(r.measure.whitens for r in wanted)
    whiten = n <= width or inverts
    into = None if setting.folder is None else f"coordinates-{digest([setting.key, whiten, inverts])}"
    root = "" if setting.folder is None else str(setting.folder.part("").resolve())
    precise = n * float(rows.layers * width) ** 2 < PRECISE
    how = {"whiten": whiten, "inverts": inverts, "precise": precise, "root": root, "into": into}
    items = [{"rows": rows, "layer": k, **how} for k in layers]
    prepared = run_parts(_prepare, items, "basis", setting, "preparing layers", beside=_coordinate_files)
    fitted = [LayerBasis.from_tensors(t) for t in prepared]
    apart: dict[str, Scored] = {}
    if inverts and any(basis.dropped_share > DROPPED_SHARE for basis in fitted):  # scores as each has without company
        others = [r for r in wanted if not r.measure.whitens]
        wanted = [r for r in wanted if r.measure.whitens]
        apart = _score_pairs(rows, others, setting)[0] if others else {}
    coordinates, norms = _kept("rows", prepared, items), norm_products(_kept("norms", prepared, items))
    coarse = not precise and rows.chunk(0, 0).dtype != torch.float64
    heads = _kept("heads", prepared, items) if coarse else None
    names = sorted((r.name for r in wanted), key=lambda name: not name.startswith("pwsim"))  # svsim reads pwsim's ρ
    if setting.folder is None:
        bases: list[Tensors | str] = [{k: v for k, v in t.items() if "." not in k} for t in prepared]
    else:  # workers read them: passing them on costs the parent more
        bases = [str(setting.folder.part(_part("basis", item, setting))) for item in items]
    tiles = sorted(_tiles(rows.layers, _side(rows.layers, width, setting)), key=len, reverse=True)  # small ones last
    work = [
        {
            "rows": coordinates,
            "heads": heads,
            "norms": norms,
            "bases": {k: bases[k] for p in t for k in p},
            "pairs": t,
            "measures": names,
        }
        for t in tiles
    ]
    done = run_parts(_score_tile, work, "tile", setting, "comparing layers", weights=[len(t) for t in tiles])
    scored = apart | {r.name: _assemble(r, done, tiles, rows.layers) for r in wanted}
    return scored, [basis.sd for basis in fitted], [basis.lost if inverts else 0 for basis in fitted]


def _deviations(rows: LayerRows) -> list[Tensor]:
    """Each layer's standard deviations, where no basis was fitted that has them."""
    return [deviations(layer_moments(rows, k, full=False), rows.eps(k))[0] for k in range(rows.layers)]


def _prepare(item: Item) -> Tensors:
    """Fit one layer's basis; keep its rows' coordinates and squared norms in files beside the basis, or in memory."""
    rows, layer = item["rows"], item["layer"]
    dtype = torch.float64 if item["precise"] else None
    basis = fit_basis(rows, layer, whiten=item["whiten"], inverts=item["inverts"], dtype=dtype)
    out = basis.to_tensors()
    files = _coordinate_files(item)
    for k in range(len(rows.sizes)):
        w = basis.coordinates(rows.chunk(layer, k), dtype)
        kept = {"rows": padded(w.rows, 1), "norms": w.norms} | ({} if w.head is None else {"heads": w.head})
        if files:
            path = Path(item["root"], files[k])
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                save_file(kept, path)
        else:
            out |= {f"{name}.{k:05d}": t for name, t in kept.items()}
    return out


def _coordinate_files(item: Item) -> list[str]:
    """Parts that hold a layer's coordinates and norms, chunk by chunk; none when they stay in memory."""
    if item["into"] is None:
        return []
    return [f"{item['into']}/{item['layer']:04d}-{k:05d}.safetensors" for k in range(len(item["rows"].sizes))]


def _kept(what: str, prepared: Sequence[Tensors], items: Sequence[Item]) -> LayerRows:
    """Coordinates (`rows`) or squared `norms` of all layers' rows, as `_prepare` kept them."""
    rows: LayerRows = items[0]["rows"]
    if items[0]["into"] is None:
        return MemoryRows([torch.cat([t[f"{what}.{k:05d}"] for k in range(len(rows.sizes))]) for t in prepared])
    files = tuple(tuple((str(Path(i["root"], name)), what) for name in _coordinate_files(i)) for i in items)
    return StoredRows(tuple(rows.sizes), files, tuple(rows.eps(k) for k in range(rows.layers)))


def _score_tile(item: Item) -> Tensors:
    """Scores of a tile of pairs; every cross-product is made, reduced by every measure, and let go."""
    bases = {k: LayerBasis.from_tensors(load_file(t) if isinstance(t, str) else t) for k, t in item["bases"].items()}
    live = [p for p in item["pairs"] if not (bases[p[0]].constant or bases[p[1]].constant)]
    itself = {(i, j) for i, j in live if i == j and bases[i].whitened}
    moments = cross_moments(item["rows"], bases, tuple(p for p in live if p not in itself), item["heads"])
    wanted = [parse(name) for name in item["measures"]]
    scores = {r.name: torch.full((len(item["pairs"]), 2), math.nan, dtype=torch.float64) for r in wanted}
    arrays: dict[str, Tensor] = {}
    for position, (i, j) in enumerate(item["pairs"]):
        if (i, j) not in live:
            continue
        norms = item["norms"][[i, j]][:, [i, j]]
        if (i, j) in itself:
            pair = Pair.itself(bases[i], norms)
        else:
            pair = Pair(bases[i], bases[j], moments.products.pop((i, j)).div_(moments.count), norms)
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
    """Layers on one side of a tile: as many as memory allows, few enough that workers end at about the same time."""
    share = setting.memory / setting.engine.workers / (PRODUCT_BYTES * width**2)
    return max(1, min(int(math.sqrt(share)), math.ceil(layers / (4 * setting.engine.workers))))


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
    """One array over both layer axes; where a row is shorter than the widest layer it holds NaN, or -1 as an index."""
    first = next(iter(of.values()))
    longest = max(v.numel() for v in of.values())
    out = torch.full((layers, layers, longest), math.nan if first.is_floating_point() else -1, dtype=first.dtype)
    for (i, j), value in of.items():
        out[i, j, : value.numel()] = value.flatten()
    return out if first.ndim else out[:, :, 0]


# --- measures of the rows themselves ---------------------------------------------------------------------------------


def _score_rows(rows: LayerRows, request: Request, setting: Setting) -> Scored:
    work = request.measure.rows
    assert work is not None
    items = [{"rows": rows, "measure": request.name, "item": item} for item in work.plan(rows, setting.seed)]
    total: dict[str, Tensor] = {}
    for part in run_parts(_row_work, items, request.name, setting, request.name):
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return Scored(work.finish(total).clamp(*request.measure.bounds), {})


def _row_work(item: Item) -> Sums:
    work = parse(item["measure"]).measure.rows
    assert work is not None
    return work.work(item["rows"], item["item"])


# --- running steps, keeping what is finished --------------------------------------------------------------------------


def run_parts(
    work: Callable[[Item], Tensors],
    items: Sequence[Item],
    name: str,
    setting: Setting,
    label: str,
    *,
    weights: Sequence[int] | None = None,
    beside: Callable[[Item], list[str]] = lambda item: [],
) -> list[Tensors]:
    """Results of all items in order; with a run folder, finished ones are read instead of computed.

    A part's file is named after `name`, the rows' key and the item's plain content, so that nothing stale is read;
    `beside` names further parts the work itself writes, without which an item is not finished.
    """
    weights = weights or [1] * len(items)
    folder = setting.folder
    files = [_part(name, item, setting) for item in items]
    results: dict[int, Tensors] = {}
    with setting.progress.step(label, sum(weights)) as advance:
        for k, file in enumerate(files):
            if folder is not None and all(folder.has(f) for f in (file, *beside(items[k]))):
                results[k] = load_file(folder.part(file))
                advance(weights[k])
        todo = [k for k in range(len(items)) if k not in results]
        for position, result in setting.engine.map(work, [items[k] for k in todo]):
            k = todo[position]
            if folder is not None:
                for other in beside(items[k]):
                    folder.seal(other)
                folder.save(files[k], partial(save_file, {n: t.contiguous() for n, t in result.items()}))
            results[k] = result
            advance(weights[k])
    return [results[k] for k in range(len(items))]


def _part(name: str, item: Item, setting: Setting) -> str:
    return f"{name}-{digest([setting.key, _content(item)])}.safetensors"


def _content(item: Item) -> Item:
    """What tells one item from another; rows and what is made of them are told apart by the key."""
    return {k: v for k, v in item.items() if k not in ("rows", "heads", "norms", "bases", "sentence", "root")}
