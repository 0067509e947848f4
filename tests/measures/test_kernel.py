"""RBF and minibatch CKA: sums over pairs of rows, in tiles and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from measures.layer_cases import related
from measures.reference import ckasim_debiased, ckasim_rbf, hsic1, linear_kernel
from stratoscope.measures.kernels import kernel
from stratoscope.measures.score import score_layers
from stratoscope.measures.similarity import similarity
from stratoscope.measures.table import parse
from stratoscope.statistics import rows as rows_module
from stratoscope.statistics.rows import MemoryRows


def layers(n: int) -> list[torch.Tensor]:
    return [torch.from_numpy(m.astype(np.float32)) for m in related(n, 10, 7)]


def score(n: int, measure: str, *, seed: int = 0) -> float:
    found = score_layers(MemoryRows(layers(n)), [parse(measure)], seed=seed)
    return float(found.scored[measure].values[0, 1])


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7])
def test_the_median_is_numpys_of_the_whole_distance_matrix(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((n, 4))
    distances = np.square(x[:, None] - x).sum(2)
    assert kernel._median_distance(torch.from_numpy(x)) == pytest.approx(np.median(distances), rel=1e-12)


@pytest.mark.parametrize(("chunk", "block"), [(64, 256), (300, 17), (64, 17), (299, 1)])
def test_rbf_does_not_depend_on_its_tiles(chunk: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    monkeypatch.setattr(kernel, "BLOCK", block)
    want = ckasim_rbf(*(m.double().numpy() for m in layers(300)))
    assert score(300, "ckasim-rbf") == pytest.approx(want, abs=1e-6)


def test_rbf_takes_its_bandwidth_from_a_seeded_sample_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = score(300, "ckasim-rbf")
    monkeypatch.setattr(kernel, "MEDIAN_ROWS", 100)
    sampled = [score(300, "ckasim-rbf", seed=k) for k in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert sampled[0] == pytest.approx(whole, abs=0.02)
    assert sampled[0] != whole


def test_rbf_keeps_its_digits_where_kernels_are_nearly_the_identity() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((400, 96)).astype(np.float32) for _ in range(2))
    want = ckasim_rbf(x.astype(np.float64), y.astype(np.float64))
    assert similarity(x, y, "ckasim-rbf") == pytest.approx(want, abs=1e-6)
    assert want > 0.5


def test_rbf_survives_a_layer_whose_rows_mostly_repeat() -> None:
    x = torch.zeros(50, 3)
    x[0] = 1
    found = score_layers(MemoryRows([x, *layers(50)]), [parse("ckasim-rbf")]).scored["ckasim-rbf"].values
    assert found[0].isnan().all(), "half of all distances are 0: there is no bandwidth"
    assert found[:, 0].isnan().all()
    assert found[1, 1] == pytest.approx(1)
    with pytest.warns(UserWarning, match="ckasim-rbf of x or y is not defined and given as 0: most pairs of rows"):
        assert similarity(x, layers(50)[0], "ckasim-rbf") == 0


@pytest.mark.parametrize("ratio", [1, 30, 300, 3000])
@pytest.mark.parametrize("every", [2, 15])
def test_rbf_of_rows_with_massive_activations(ratio: float, every: int) -> None:
    """Some rows lie together, thousands of times farther out than the others are wide, as in many a decoder."""
    found = []
    for k, m in enumerate(related(300, 10, 7)):
        far = np.random.default_rng(k).standard_normal(m.shape[1])
        m[::every] += ratio * np.linalg.norm(m, axis=1).mean() * far / np.linalg.norm(far)
        found.append(m.astype(np.float32))
    want = ckasim_rbf(*(m.astype(np.float64) for m in found))
    assert similarity(*found, "ckasim-rbf") == pytest.approx(want, abs=1e-6)
    assert similarity(found[0], found[0], "ckasim-rbf") == pytest.approx(1, abs=1e-6)


def test_minibatch_with_one_batch_is_debiased() -> None:
    assert score(256, "ckasim-minibatch") == pytest.approx(score(256, "ckasim-debiased"), abs=1e-7)
    assert score(257, "ckasim-minibatch") != pytest.approx(score(257, "ckasim-debiased"), abs=1e-7)


def test_minibatch_of_many_rows_is_the_ratio_of_mean_hsics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BATCH", 40)
    monkeypatch.setattr(kernel, "SPAN", 80)
    x, y = (m.double().numpy() for m in layers(150))
    sums = np.zeros(3)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(3)).numpy()
    for span in (order[:75], order[75:]):
        for batch in (span[:38], span[38:]):
            a, b = linear_kernel(x[batch]), linear_kernel(y[batch])
            sums += [hsic1(a, b), hsic1(a, a), hsic1(b, b)]
    assert score(150, "ckasim-minibatch", seed=3) == pytest.approx(sums[0] / np.sqrt(sums[1] * sums[2]), abs=1e-9)


@pytest.mark.parametrize("n", [1000, 2050])
def test_minibatch_is_close_to_debiased_for_many_rows(n: int) -> None:
    """Also when rows just outgrow a span: a batch of a few rows would drown the others in noise."""
    want = ckasim_debiased(*(m.double().numpy() for m in layers(n)))
    drawn = [score(n, "ckasim-minibatch", seed=k) for k in range(3)]
    assert len(set(drawn)) == 3
    assert drawn == pytest.approx([want] * 3, abs=0.02)


def test_minibatch_sees_what_varies_along_an_ordered_corpus() -> None:
    g = torch.Generator().manual_seed(0)
    topic = torch.randn(4, 8, generator=g).repeat_interleave(1024, 0) * 5
    rows = MemoryRows([topic + torch.randn(4096, 8, generator=g) for _ in range(2)])
    scored = score_layers(rows, [parse("ckasim-minibatch"), parse("ckasim-debiased")]).scored
    batched, whole = (float(s.values[0, 1]) for s in scored.values())
    assert whole > 0.9
    assert batched == pytest.approx(whole, abs=0.02)


@pytest.mark.parametrize("n", [4, 255, 2048, 2049, 5000, 6145])
def test_spans_cover_all_rows_and_are_alike(n: int) -> None:
    plan = kernel._batch_plan(MemoryRows([torch.zeros(n, 1)]), 0)
    rows = [r for item in plan for r in range(item["start"], item["stop"])]
    lengths = [item["stop"] - item["start"] for item in plan]
    assert rows == list(range(n))
    assert max(lengths) <= 2048
    assert max(lengths) - min(lengths) <= 1
