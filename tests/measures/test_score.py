"""All pairs at once: chunks, shards, files, tiles, workers and reuse give the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from measures.layer_cases import NEAR_CONSTANT, dominated, near_constant, related
from measures.reference import REFERENCES, canonical, pearson
from stratoscope.engine.local import InProcess, ProcessPool
from stratoscope.measures import score as score_module
from stratoscope.measures.score import Scoring, score_layers
from stratoscope.measures.table import known_names, parse
from stratoscope.runs.folder import RunFolder
from stratoscope.runs.run import Run
from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.rows import LayerRows, MemoryRows, StoredRows

NAMES = [*known_names(), "neuronsim@0.3", "mixedsim@0.3", "svsim@0.5", "pwsim@0.5"]


def four_layers(n: int = 150) -> list[Tensor]:
    """Two models of two layers and unequal widths, float32; one neuron of one layer is constant."""
    layers = [*related(n, 12, 9), *related(n, 12, 9, seed=5)]
    layers[2] = layers[2] + layers[0]
    layers[1][:, 4] = 2.5
    return [torch.from_numpy(m.astype(np.float32)) for m in layers]


def scores(layers: list[Tensor], names: list[str] = NAMES, run: Run | None = None) -> dict[str, Tensor]:
    return values(score_layers(MemoryRows(layers), [parse(m) for m in names], run=run))


def values(scoring: Scoring) -> dict[str, Tensor]:
    return {k: s.values for k, s in scoring.scored.items()}


def stored(layers: list[Tensor], folder: Path, cuts: list[int]) -> StoredRows:
    """The layers in one file a layer, cut into chunks at odd places."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = [0, *cuts, len(layers[0])]
    files = []
    for k, layer in enumerate(layers):
        path = folder / f"{k}.safetensors"
        pieces = {f"c{i}": layer[a:b].clone() for i, (a, b) in enumerate(pairwise(bounds))}
        save_file(pieces, path)
        files.append(tuple((str(path), name) for name in pieces))
    sizes = tuple(b - a for a, b in pairwise(bounds))
    return StoredRows(sizes, tuple(files), tuple(torch.finfo(m.dtype).eps for m in layers))


@pytest.mark.parametrize("seed", range(6))
def test_measures_that_share_work_score_as_they_do_alone(seed: int) -> None:
    """One component each, whose correlation is negative for some of the seeds."""
    c = dominated(seed)
    layers = [torch.from_numpy(c.x), torch.from_numpy(c.y)]
    together = scores(layers, ["pwsim", "svsim"])
    for name, values in together.items():
        assert float(values[0, 1]) == pytest.approx(REFERENCES[name](c.x, c.y), abs=1e-6)
        assert torch.equal(values, scores(layers, [name])[name])


@pytest.mark.parametrize("seed", range(3))
def test_a_near_constant_neuron_hides_no_direction_of_its_layer(seed: int) -> None:
    """Regressing on the layer is regressing on its other neurons: this one adds little but its rounding."""
    c = near_constant(seed)
    x, others, y = (torch.from_numpy(m) for m in (c.x, np.delete(c.x, NEAR_CONSTANT, axis=1), c.y))
    found, want = (score_layers(MemoryRows([m, y]), [parse("linreg"), parse("cca")]) for m in (x, others))
    assert found.lost == (1, 0)
    for name in ("linreg", "cca"):
        got, right = (float(s.scored[name].values[0, 1]) for s in (found, want))
        assert got == pytest.approx(right, abs=1e-4), name


def awkward_layers(n: int) -> list[Tensor]:
    """What real layers have, float32: a near-constant neuron, massive activations in a row or in neurons, neither."""
    shared = near_constant(4).x[:n].astype(np.float64)
    shared[:, NEAR_CONSTANT] -= shared[:, NEAR_CONSTANT].mean()
    layers = [near_constant(4).x[:n]]
    for k in range(3):
        rng = np.random.default_rng(k)
        x = shared @ np.linalg.qr(rng.standard_normal((100, 100)))[0] + 0.02 * rng.standard_normal((len(shared), 100))
        if k == 0:
            x[5] += 300 * rng.standard_normal(100)
        if k == 1:
            x[::10, :2] += 2000 * (1 + 0.1 * rng.standard_normal((len(x[::10]), 1)))
        layers.append(x.astype(np.float32))
    return [torch.from_numpy(m) for m in layers]


@pytest.mark.parametrize("n", [105, 60])
@pytest.mark.parametrize("precise", [True, False])
def test_the_company_of_other_measures_and_layers_does_not_move_cka(
    n: int, precise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the basis that other measures want nor the precision that many layers get."""
    layers = awkward_layers(n)
    alone = scores(layers, ["ckasim"])["ckasim"]
    for i, x in enumerate(layers):
        want = [REFERENCES["ckasim"](x.double().numpy(), y.double().numpy()) for y in layers]
        np.testing.assert_allclose(alone[i], want, atol=1e-9)
    if not precise:
        monkeypatch.setattr(score_module, "PRECISE", 0)
    for company in ([], ["linreg"], ["procrustes", "neuronsim", "svsim", "cca"]):
        for first in (0, 1):
            got = scores(layers[first:], ["ckasim", *company])["ckasim"]
            torch.testing.assert_close(got, alone[first:, first:], atol=1e-7, rtol=0)


def test_scores_made_apart_are_kept_and_read_again(tmp_path: Path) -> None:
    """A near-constant neuron: measures that invert and those that do not each have a basis of their own."""
    names = ["cca", "ckasim", "linreg", "neuronsim"]
    want = scores(awkward_layers(105), names)
    assert list(want) == names
    for _ in range(2):
        with RunFolder.open(tmp_path) as folder:
            rows, wanted = MemoryRows(awkward_layers(105)), [parse(m) for m in names]
            found = score_layers(rows, wanted, run=Run(folder), key="k")
        assert_same(values(found), want, within=1e-12)
        assert found.lost == (1, 0, 0, 0)
        assert set(found.scored["neuronsim"].arrays) == {"neuronsim.correlation", "neuronsim.match"}


@pytest.mark.parametrize(("beside", "within"), [([], 1.5e-5), (["cca"], 1e-6)])
def test_debiased_cka_where_one_row_outweighs_all_others(
    beside: list[str], within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own product is most of ‖XᵀY‖² and is taken away again: float32 is too coarse for norms and large products.

    What is left of the error is the rounding of float32 products of neurons, none of which has the row to itself.
    """
    monkeypatch.setattr(score_module, "PRECISE", 0)
    layers = [torch.from_numpy(m.astype(np.float32)) for m in related(2000, 30, 20)]
    for k, layer in enumerate(layers):
        layer[0] += 1000 * torch.randn(layer.shape[1], generator=torch.Generator().manual_seed(k))
    want = REFERENCES["ckasim-debiased"](*(m.double().numpy() for m in layers))
    found = scores(layers, ["ckasim-debiased", *beside])["ckasim-debiased"]
    assert float(found[0, 1]) == pytest.approx(want, abs=within)


@pytest.fixture(scope="module")
def plain() -> dict[str, Tensor]:
    return scores(four_layers())


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor], within: float = 1e-6) -> None:
    assert got.keys() == want.keys()
    for name, values in want.items():
        torch.testing.assert_close(
            got[name], values, atol=within, rtol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("measure", known_names())
def test_every_cell_is_its_pair(measure: str, plain: dict[str, Tensor]) -> None:
    layers = [m.double().numpy() for m in four_layers()]
    for i, x in enumerate(layers):
        for j, y in enumerate(layers):
            want = 1.0 if i == j and i != 1 else REFERENCES[measure](x, y)
            assert float(plain[measure][i, j]) == pytest.approx(want, abs=1e-6), (i, j)


@pytest.mark.parametrize("chunk", [1, 7, 64, 149])
def test_chunk_size_does_not_matter(chunk: int, plain: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    assert len(MemoryRows(four_layers()).sizes) == -(-150 // chunk)
    names = [m for m in NAMES if chunk > 1 or m != "ckasim-rbf"]  # 150² pairs of chunks: see the next test
    assert_same(scores(four_layers(), names), {name: plain[name] for name in names})


@pytest.mark.parametrize(("n", "chunk"), [(10, 1), (10, 3), (257, 32)])
def test_chunk_size_does_not_matter_with_few_and_with_many_rows(
    n: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [m for m in NAMES if n > 25 or not m.startswith("pwsim")]  # not unique with few rows
    want = scores(four_layers(n), names)
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    assert_same(scores(four_layers(n), names), want)


def test_stored_rows_are_memory_rows(tmp_path: Path, plain: dict[str, Tensor]) -> None:
    found = score_layers(stored(four_layers(), tmp_path, [1, 70, 148]), [parse(m) for m in NAMES])
    assert_same(values(found), plain)


def test_which_measures_are_asked_for_together_does_not_matter(plain: dict[str, Tensor]) -> None:
    for name in NAMES:
        assert_same(scores(four_layers(), [name]), {name: plain[name]})


def products_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cross-products are held at a time, as they are made."""
    made: list[int] = []
    real = score_module.cross_products

    def watched(rows: LayerRows, bases: Any, pairs: list[tuple[int, int]], *rest: Any) -> Any:
        made.append(len(pairs))
        return real(rows, bases, pairs, *rest)

    monkeypatch.setattr(score_module, "cross_products", watched)
    return made


def test_little_memory_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve layers are two on a side of a tile."""
    layers = [*four_layers(), *four_layers(), *four_layers()]
    names = ["ckasim", "svsim", "neuronsim", "linreg", "ckasim-debiased"]
    found = []
    for memory in (4e9, 1.0):
        at_once = products_at_once(monkeypatch)
        found.append(scores(layers, names, Run(memory=memory)))
        assert max(at_once) == (1 if memory == 1.0 else 4)
        monkeypatch.undo()
    assert_same(found[1], found[0], within=0)


@pytest.mark.parametrize("layers", [1, 2, 5, 8, 9, 13, 24, 33, 65])
def test_tiles_hold_every_pair_once(layers: int) -> None:
    tiles = score_module._tiles(layers)
    assert sorted(p for tile in tiles for p in tile) == [(i, j) for i in range(layers) for j in range(i, layers)]
    assert max(map(len, tiles)) <= score_module.SIDE**2
    assert layers < 8 or len(tiles) >= 10, "enough for several workers"


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    engine = ProcessPool(2)
    yield engine
    engine.close()


def test_a_pool_of_processes_gives_the_same_numbers(
    tmp_path: Path, plain: dict[str, Tensor], pool: ProcessPool
) -> None:
    with RunFolder.open(tmp_path / "run") as folder:
        rows = stored(four_layers(), tmp_path / "rows", [64, 128])
        found = score_layers(rows, [parse(m) for m in NAMES], run=Run(folder, pool), key="key")
    assert_same(values(found), plain)
    in_memory = score_layers(MemoryRows(four_layers()), [parse(m) for m in NAMES], run=Run(engine=pool))
    assert_same(values(in_memory), plain)


@pytest.mark.parametrize("piece", [1.0, 20_000.0])
@pytest.mark.parametrize("kept", [False, True])
def test_coordinates_in_pieces_give_the_same_numbers(
    kept: bool, piece: float, tmp_path: Path, plain: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_module, "PIECE_BYTES", piece)
    rows, wanted = stored(four_layers(), tmp_path / "rows", [40, 80, 120]), [parse(m) for m in NAMES]
    if not kept:
        assert_same(values(score_layers(rows, wanted)), plain)
        return
    with RunFolder.open(tmp_path / "run") as folder:
        found = score_layers(rows, wanted, run=Run(folder), key="key")
    assert_same(values(found), plain)
    chunks_in_a_piece = max(1, int(piece / (8 * 40 * 12)))
    pieces = -(-4 // chunks_in_a_piece)
    assert len(list((tmp_path / "run" / "parts").glob("coordinates-*.safetensors"))) == 4 * pieces


STEPS = ("_fit", "_transform", "_score_tile", "_row_work")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps, as they are done."""
    names: list[str] = []

    def counted(step: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
        return lambda shared, item: (names.append(name), step(shared, item))[1]

    for step in STEPS:
        monkeypatch.setattr(score_module, step, counted(getattr(score_module, step), step))
    return names


def kept(folder: Path, names: list[str] = NAMES, *, key: str = "k", seed: int = 0, **how: Any) -> dict[str, Tensor]:
    with RunFolder.open(folder) as opened:
        wanted = [parse(m) for m in names]
        return values(score_layers(MemoryRows(four_layers()), wanted, run=Run(opened, **how), key=key, seed=seed))


def test_finished_parts_are_read_and_damaged_ones_made_again(
    tmp_path: Path, plain: dict[str, Tensor], done: list[str]
) -> None:
    first = kept(tmp_path)
    assert set(done) == set(STEPS)
    assert_same(first, plain)
    done.clear()
    assert_same(kept(tmp_path), first, within=0)
    assert done == []
    for kind, step in (("basis", "_fit"), ("coordinates", "_transform"), ("tile", "_score_tile"), ("rsa", "_row_work")):
        sorted((tmp_path / "parts").glob(f"{kind}-*.safetensors"))[0].write_bytes(b"x")
        assert_same(kept(tmp_path), first, within=0)
        assert done == [step]
        done.clear()


class ThreeWorkers(InProcess):
    """Works here, but counts as three."""

    @property
    def workers(self) -> int:
        return 3


def test_parts_do_not_depend_on_workers_or_memory(tmp_path: Path, done: list[str]) -> None:
    first = kept(tmp_path, memory=4e9)
    there = {p.name for p in (tmp_path / "parts").iterdir()}
    done.clear()
    for how in ({"memory": 1.0}, {"memory": 1e6, "engine": ThreeWorkers()}):
        assert_same(kept(tmp_path, **how), first, within=0)
        assert done == []
        kept(tmp_path / "another", **how)
        assert {p.name for p in (tmp_path / "another" / "parts").iterdir()} == there
        done.clear()


def test_parts_of_other_rows_and_of_another_seed_are_others(tmp_path: Path, done: list[str]) -> None:
    kept(tmp_path)
    once = len(done)
    done.clear()
    kept(tmp_path, key="other rows")
    assert len(done) == once
    done.clear()
    kept(tmp_path, seed=1)
    assert set(done) == {"_row_work"}, "only measures that draw rows depend on the seed"


def test_another_measure_reuses_what_was_prepared(tmp_path: Path, done: list[str]) -> None:
    kept(tmp_path, ["svsim"])
    done.clear()
    kept(tmp_path, ["svsim", "cca"])
    assert set(done) == {"_score_tile"}


def test_constant_neurons_are_counted_and_constant_layers_absent() -> None:
    layers = four_layers()
    layers[3] = torch.full_like(layers[3], 0.1)
    found: Scoring = score_layers(MemoryRows(layers), [parse(m) for m in NAMES])
    assert found.constant == (0, 1, 0, 9)
    for name, scored in found.scored.items():
        absent = scored.values.isnan()
        assert absent[3].all(), name
        assert absent[:, 3].all(), name
        assert not absent[:3, :3].any(), name


def test_directions_left_out_as_rounding_are_counted() -> None:
    """Five neurons are sums of others, LayerNorm takes one direction, and a constant neuron is counted as such."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 20, generator=generator)
    planted = torch.cat([x, x[:, :5] + x[:, 5:10]], 1)
    normed = torch.nn.functional.layer_norm(x, (20,))
    still = x.clone()
    still[:, 3] = 0.1
    rows = MemoryRows([planted, normed, still, x])
    assert score_layers(rows, [parse("cca")]).lost == (5, 1, 0, 0)
    assert score_layers(rows, [parse("ckasim")]).lost == (0, 0, 0, 0), "nothing is inverted"
    few = MemoryRows([m[:15] for m in rows.matrices])
    assert score_layers(few, [parse("cca")]).lost == (0, 0, 0, 0), "15 rows have 14 directions, and all are kept"


def test_a_neuron_moved_by_rounding_only_is_constant_and_does_not_hide_its_neighbours() -> None:
    """Its jitter is as large as the other neurons' spread; together they would look like rounding."""
    generator = torch.Generator().manual_seed(0)
    x = 0.1 * torch.randn(300, 3, generator=generator)
    y = x @ torch.randn(3, 3, generator=generator)
    jittery = torch.cat([x, 1e6 + 0.1 * torch.randn(300, 1, generator=generator)], 1)
    names = ["ckasim", "svsim", "cca", "linreg", "procrustes"]
    assert_same(scores([jittery, y], names), scores([x, y], names))
    for alone in ("ckasim", "ckasim-debiased", "procrustes"):  # nothing whitened
        assert_same(scores([jittery, y], [alone]), scores([x, y], [alone]))
    assert score_layers(MemoryRows([jittery, y]), [parse("ckasim")]).constant == (1, 0)


def test_matched_neurons_and_their_correlations() -> None:
    layers = four_layers()
    found = score_layers(MemoryRows(layers), [parse("neuronsim"), parse("neuronsim@0.5")]).scored["neuronsim"]
    strength, match = found.arrays["neuronsim.correlation"], found.arrays["neuronsim.match"]
    assert strength.shape == match.shape == (4, 4, 12)
    for i, x in enumerate(layers):
        for j, y in enumerate(layers):
            table = pearson(x.double().numpy(), y.double().numpy())
            p = x.shape[1]
            np.testing.assert_allclose(strength[i, j, :p], table.max(1), atol=1e-6)
            if j != 1 and i != 1:
                np.testing.assert_array_equal(match[i, j, :p], table.argmax(1))
            assert strength[i, j, p:].isnan().all()
            assert (match[i, j, p:] == -1).all()
            assert float(found.values[i, j]) == pytest.approx(float(strength[i, j, :p].double().mean()), abs=1e-6)


def test_r2_cca_is_kept_beside_cca() -> None:
    layers = four_layers()
    found = score_layers(MemoryRows(layers), [parse("cca"), parse("neuronsim")]).scored
    r2 = found["cca"].arrays["cca.r2"]
    assert set(found["cca"].arrays) == {"cca.r2"}
    x, y = layers[0].double().numpy(), layers[3].double().numpy()
    assert float(r2[0, 3]) == pytest.approx(float((canonical(x, y) ** 2).mean()), abs=1e-6)
    assert math.isclose(float(r2[0, 3]), float(r2[3, 0]))
