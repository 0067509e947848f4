"""Score every pair of layers under every measure asked for: prepare each layer once, then compare tiles of pairs.

The steps are pure functions of plain data, run by `Run.map`: in a run folder their results are kept as parts, so that a
killed run resumes where it stopped; without one everything stays in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from stratoscope.measures.measure import Item, RowWork, Sums
from stratoscope.measures.pair import Pair
from stratoscope.measures.table import Request, parse
from stratoscope.runs.run import Run, Tensors
from stratoscope.statistics.cross import Pairing, cross_products, norm_products
from stratoscope.statistics.layer import LayerBasis, deviations, fit_basis, layer_moments
from stratoscope.statistics.rows import LayerRows, MemoryRows, StoredRows, count

PRECISE = 3e11
"""Work (FLOP) up to which coordinates are float64 whatever the rows are: the time saved would not be noticed."""
DROPPED_SHARE = 1e-11
"""Share s of a layer's variance dropped as rounding above which measures that invert nothing must not miss it.

Rounding correlates with neurons by chance: on real layers CKA moves by up to √s / 70. A float32 layer drops 1e-14, one
with a neuron whose mean is 1e4 times its spread 1e-10, and half precisions 1e-6.
"""
PRODUCT_BYTES = 8
"""Cross-products are summed in float64."""
PIECE_BYTES, PIECE_CHUNKS = 3.2e7, 16
"""Coordinates that one item gives back, and chunks of rows: what a worker holds, however many rows there are."""
SIDE = 4
"""Layers on one side of a tile of pairs at most: the rows of so many are read once for all of its products."""


@dataclass(frozen=True)
class Scored:
    """Scores of one measure for all pairs of layers: `values[i, j]` has layer i as first argument."""

    values: Tensor
    arrays: Mapping[str, Tensor]


@dataclass(frozen=True)
class Scoring:
    """Scores by the request's name, and what of each layer took no part in them."""

    scored: Mapping[str, Scored]
    constant: tuple[int, ...]
    """Neurons that do not vary over the rows."""
    lost: tuple[int, ...]
    """Directions left out as rounding (`LayerBasis.lost`); 0 where no measure asked for inverts a covariance."""


def score_layers(
    rows: LayerRows, wanted: Sequence[Request], *, run: Run | None = None, key: Any = None, seed: int = 0
) -> Scoring:
    """Scores of every pair of layers; NaN where one of the layers does not vary at all.

    `key` is plain data that says what made the rows; it names the parts that `run` keeps.
    """
    run = run or Run()
    pairwise = [r for r in wanted if r.measure.compare]
    scored, sds, lost = (
        _score_pairs(rows, pairwise, run, key) if pairwise else ({}, _deviations(rows), [0] * rows.layers)
    )
    scored |= _score_rows(rows, [r for r in wanted if r.measure.rows], run, [key, seed], seed)
    missing = torch.tensor([not bool(sd.any()) for sd in sds])
    for scores in scored.values():
        scores.values[missing] = math.nan
        scores.values[:, missing] = math.nan
    constant = tuple(int((sd == 0).sum()) for sd in sds)
    return Scoring({r.name: scored[r.name] for r in wanted}, constant, tuple(lost))


# --- measures of covariances ---------------------------------------------------------------------------------------


def _score_pairs(
    rows: LayerRows, wanted: Sequence[Request], run: Run, key: Any
) -> tuple[dict[str, Scored], list[Tensor], list[int]]:
    """Scores by name, each layer's standard deviations, and its directions lost to measures that invert."""
    n, layers = count(rows), range(rows.layers)
    width = max(rows.chunk(k, 0).shape[1] for k in layers)
    inverts = any(r.measure.whitens for r in wanted)
    precise = n * float(rows.layers * width) ** 2 < PRECISE
    how = {"whiten": n <= width or inverts, "inverts": inverts, "precise": precise}
    shared: dict[str, Any] = {"rows": rows, **how}
    bases = run.map_files(
        _fit, [{"layer": k} for k in layers], name="basis", key=[key, how], label="preparing layers", shared=shared
    )
    fitted = [_basis(b) for b in bases]
    apart: dict[str, Scored] = {}
    if inverts and any(basis.dropped_share > DROPPED_SHARE for basis in fitted):  # scores as each has without company
        others = [r for r in wanted if not r.measure.whitens]
        wanted = [r for r in wanted if r.measure.whitens]
        apart = _score_pairs(rows, others, run, key)[0] if others else {}
    coarse = not precise and rows.chunk(0, 0).dtype != torch.float64
    kinds = ("rows", "norms", "heads") if coarse else ("rows", "norms")
    kept = _coordinates(rows, bases, width, how, run, key, kinds)
    names = sorted((r.name for r in wanted), key=lambda name: not name.startswith("pwsim"))  # svsim reads pwsim's ρ
    tiles = sorted(_tiles(rows.layers), key=len, reverse=True)  # small ones last
    at_once = max(1, int(run.memory / run.engine.workers / (PRODUCT_BYTES * width**2)))
    done = run.map(
        _score_tile,
        [{"pairs": t, "measures": names} for t in tiles],
        name="tile",
        key=[key, how],
        label="comparing layers",
        shared={
            "rows": kept["rows"],
            "heads": kept.get("heads"),
            "norms": norm_products(kept["norms"]),
            "bases": bases,
            "at_once": at_once,
        },
        weights=[len(t) for t in tiles],
    )
    scored = apart | {r.name: _assemble(r, done, tiles, rows.layers) for r in wanted}
    return scored, [basis.sd for basis in fitted], [basis.lost if inverts else 0 for basis in fitted]


def _deviations(rows: LayerRows) -> list[Tensor]:
    """Each layer's standard deviations, where no basis was fitted that has them."""
    return [deviations(layer_moments(rows, k, full=False), rows.eps(k))[0] for k in range(rows.layers)]


def _fit(shared: Any, item: Item) -> Tensors:
    """One layer's basis."""
    dtype = torch.float64 if shared["precise"] else None
    how = {"whiten": shared["whiten"], "inverts": shared["inverts"], "dtype": dtype}
    return fit_basis(shared["rows"], item["layer"], **how).to_tensors()


def _basis(kept: Path | Tensors, *, transforms: bool = False) -> LayerBasis:
    """A layer's basis; the map that transforms rows is half of its file, and read only where it is needed."""
    if not isinstance(kept, Path):
        return LayerBasis.from_tensors(kept)
    with safe_open(kept, "pt") as f:
        return LayerBasis.from_tensors(
            {name: f.get_tensor(name) for name in list(f.keys()) if transforms or name != "to"}
        )


def _coordinates(
    rows: LayerRows,
    bases: Sequence[Path | Tensors],
    width: int,
    how: Item,
    run: Run,
    key: Any,
    kinds: Sequence[str],
) -> dict[str, LayerRows]:
    """What `LayerBasis.coordinates` gives of all layers' rows: coordinates, squared norms, and heads where needed."""
    chunks = len(rows.sizes)
    together = min(PIECE_CHUNKS, max(1, int(PIECE_BYTES / (8 * max(rows.sizes) * width))))
    spans = [(first, min(first + together, chunks)) for first in range(0, chunks, together)]
    items = [{"layer": k, "first": first, "last": last} for k in range(rows.layers) for first, last in spans]
    shared = {"rows": rows, "bases": bases, **how}
    kept = run.map_files(_transform, items, name="coordinates", key=[key, how], label="preparing rows", shared=shared)
    by_chunk: dict[tuple[int, int], Any] = {
        (i["layer"], c): k for i, k in zip(items, kept, strict=True) for c in range(i["first"], i["last"])
    }

    def stored(what: str) -> LayerRows:
        pieces = [[(by_chunk[k, c], f"{what}.{c:05d}") for c in range(chunks)] for k in range(rows.layers)]
        if not isinstance(kept[0], Path):
            return MemoryRows([torch.cat([tensors[name] for tensors, name in of]) for of in pieces])
        files = tuple(tuple((str(path), name) for path, name in of) for of in pieces)
        return StoredRows(tuple(rows.sizes), files, tuple(rows.eps(k) for k in range(rows.layers)))

    return {what: stored(what) for what in kinds}


def _transform(shared: Any, item: Item) -> Tensors:
    """What `LayerBasis.coordinates` gives of some chunks of one layer."""
    basis, dtype = _basis(shared["bases"][item["layer"]], transforms=True), torch.float64 if shared["precise"] else None
    out: dict[str, Tensor] = {}
    for c in range(item["first"], item["last"]):
        coordinates = basis.coordinates(shared["rows"].chunk(item["layer"], c), dtype)
        out |= {f"{what}.{c:05d}": values for what, values in coordinates.items()}
    return out


def _score_tile(shared: Any, item: Item) -> Tensors:
    """Scores of a tile of pairs; every cross-product is made, reduced by every measure, and let go."""
    pairs = [(int(i), int(j)) for i, j in item["pairs"]]
    bases = {k: _basis(shared["bases"][k]) for k in sorted({k for p in pairs for k in p})}
    live = [p for p in pairs if not (bases[p[0]].constant or bases[p[1]].constant)]
    itself = {(i, j) for i, j in live if i == j and bases[i].whitened}
    measures = [parse(name) for name in item["measures"]]
    scores = {r.name: torch.full((len(pairs), 2), math.nan, dtype=torch.float64) for r in measures}
    arrays: dict[str, Tensor] = {}
    for first in range(0, len(live), shared["at_once"]):
        some = live[first : first + shared["at_once"]]
        products = cross_products(shared["rows"], bases, [p for p in some if p not in itself], shared["heads"])
        for i, j in some:
            norms = shared["norms"][[i, j]][:, [i, j]]
            known = (i, j) in itself
            pair = Pair.itself(bases[i], norms) if known else Pair(bases[i], bases[j], products.pop((i, j)), norms)
            for request in measures:
                assert request.measure.compare is not None
                result = request.measure.compare(pair, request.top)
                both = torch.tensor([result.forward, result.backward], dtype=torch.float64)
                scores[request.name][pairs.index((i, j))] = both
                if request.top == 1:
                    for name, (forward, backward) in result.arrays.items():
                        arrays[f"{name}|{i}|{j}"] = forward.clone()
                        arrays[f"{name}|{j}|{i}"] = backward.clone()
    return scores | arrays


def _tiles(layers: int) -> list[tuple[Pairing, ...]]:
    """The upper triangle of all pairs, cut into squares: small enough that workers end at about the same time."""
    side = max(1, min(SIDE, math.ceil(layers / 8)))
    groups = [range(start, min(start + side, layers)) for start in range(0, layers, side)]
    squares = [(a, b) for k, a in enumerate(groups) for b in groups[k:]]
    return [tuple((i, j) for i in a for j in b if i <= j) for a, b in squares]


def _assemble(request: Request, done: Sequence[Tensors], tiles: Sequence[tuple[Pairing, ...]], layers: int) -> Scored:
    values = torch.full((layers, layers), math.nan, dtype=torch.float64)
    assembled: dict[str, dict[Pairing, Tensor]] = {}
    for scores, pairs in zip(done, tiles, strict=True):
        for (i, j), (forward, backward) in zip(pairs, scores[request.name].tolist(), strict=True):
            values[i, j], values[j, i] = forward, backward
        for key, value in scores.items():
            name, _, where = key.partition("|")
            if where and name.startswith(f"{request.measure.name}.") and request.top == 1:
                i, j = (int(k) for k in where.split("|"))
                assembled.setdefault(name, {})[i, j] = value
    return Scored(values.clamp(*request.measure.bounds), {name: _stack(of, layers) for name, of in assembled.items()})


def _stack(of: Mapping[Pairing, Tensor], layers: int) -> Tensor:
    """One array over both layer axes; where a row is shorter than the widest layer it holds NaN, or -1 as an index."""
    first = next(iter(of.values()))
    longest = max(v.numel() for v in of.values())
    out = torch.full((layers, layers, longest), math.nan if first.is_floating_point() else -1, dtype=first.dtype)
    for (i, j), value in of.items():
        out[i, j, : value.numel()] = value.flatten()
    return out if first.ndim else out[:, :, 0]


# --- measures of the rows themselves ---------------------------------------------------------------------------------


def _score_rows(rows: LayerRows, wanted: Sequence[Request], run: Run, key: Any, seed: int) -> dict[str, Scored]:
    """Scores by name; measures that share their work and differ in how they finish it have it done once."""
    scored, done = dict[str, Scored](), dict[Any, dict[str, Tensor]]()
    for request in wanted:
        work = request.measure.rows
        assert work is not None
        if work.work not in done:
            done[work.work] = _row_sums(rows, request.name, work, run, key, seed)
        scored[request.name] = Scored(work.finish(done[work.work]).clamp(*request.measure.bounds), {})
    return scored


def _row_sums(rows: LayerRows, measure: str, work: RowWork, run: Run, key: Any, seed: int) -> dict[str, Tensor]:
    items, total = work.plan(rows, seed), dict[str, Tensor]()
    shared = {"rows": rows, "measure": measure}
    for part in run.map(_row_work, items, name=measure, key=key, label=measure, shared=shared):
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def _row_work(shared: Any, item: Item) -> Sums:
    work = parse(shared["measure"]).measure.rows
    assert work is not None
    return work.work(shared["rows"], item)
