"""Sums over pairs of heads against scipy, and scores of layers against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attention_cases import SLOW, awkward, flat, sentence, slow_similarity

from stratoscope.core.errors import StratoscopeError
from stratoscope.measures.attention.distances import distance_sums
from stratoscope.measures.attention.layers import HeadAxis, group_weights, matched, score_panel, weighted
from stratoscope.measures.attention.mixtures import mixture_sums
from stratoscope.measures.attention.rows import Doubles, HeadRows
from stratoscope.measures.attention.standardise import unit_rows
from stratoscope.measures.attention.sums import COUNTS, PAIRS, SCATTER, SKIPPED, TOTAL, HeadSums, full
from stratoscope.measures.attention.table import MEASURES, attention_measure, attention_measures
from stratoscope.measures.similarity import similarity

EVERYTHING = frozenset(PAIRS)


def sums_of(*parts: HeadRows, wanted: frozenset[str] = EVERYTHING) -> HeadSums:
    sums = HeadSums(wanted)
    for part in parts:
        sums.update(part)
    return sums


def heads_of(name: str, sums: HeadSums) -> Doubles:
    of_heads = attention_measure(name).of_heads
    assert of_heads is not None
    return full(of_heads(sums.sums))


@pytest.mark.parametrize("name", SLOW)
def test_every_pair_of_heads_agrees_with_scipy(name: str) -> None:
    sentences = awkward()
    found, slow = heads_of(name, sums_of(flat(sentences))), slow_similarity(name, sentences)
    np.testing.assert_allclose(found, slow, atol=1e-6, rtol=0)
    assert np.isnan(slow).any() == (name == "pearson")  # the uniform head has no correlation with any


@pytest.mark.parametrize("name", SLOW)
def test_a_head_is_1_to_itself_and_nearly_to_its_twin(name: str) -> None:
    similar = heads_of(name, sums_of(flat(awkward())))
    own = np.delete(similar.diagonal(), 2) if name == "pearson" else similar.diagonal()
    np.testing.assert_allclose(own, 1, atol=1e-6)
    assert 0.9999 < similar[4, 5] < 1 + 1e-7


@pytest.mark.parametrize("name", SLOW)
def test_sentences_add_up_however_they_are_cut(name: str) -> None:
    sentences = awkward()
    whole = heads_of(name, sums_of(flat(sentences)))
    one_by_one = heads_of(name, sums_of(*(flat([s]) for s in sentences)))
    added = heads_of(name, sums_of(flat(sentences[:2])) + sums_of(flat(sentences[2:])))
    np.testing.assert_allclose(one_by_one, whole, atol=1e-7)
    np.testing.assert_allclose(added, whole, atol=1e-7)
    # the mean is over sentences or rows, not over sentences' means: a shorter corpus gives another
    assert np.nanmax(np.abs(heads_of(name, sums_of(flat(sentences[:3]))) - whole)) > 1e-3


def test_a_long_sentence_in_parts_gives_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = flat(awkward())
    whole = sums_of(rows).sums
    for module in ("sums", "distances"):
        monkeypatch.setattr(f"stratoscope.measures.attention.{module}.DOUBLES", 7 * len(rows.values))
    assert len(list(rows.chunks(7))) > len(rows.words)
    for name, value in sums_of(rows).sums.items():
        np.testing.assert_allclose(value, whole[name], rtol=0, atol=1e-6 * len(rows.lengths))  # of a mean: 1e-6


def test_rows_may_be_shorter_than_their_sentence() -> None:
    """Causal rows: the row of word i has i targets; a row of one target has no correlation."""
    rng = np.random.default_rng(0)
    rows = [rng.dirichlet(np.ones(n), size=3).astype(np.float32) for n in range(1, 9)]
    sums = sums_of(HeadRows(np.concatenate(rows, axis=1), np.arange(1, 9), np.array([8])))
    slow = np.mean([np.corrcoef(r)[0, 1] for r in rows[1:]])
    assert heads_of("pearson", sums)[0, 1] == pytest.approx(slow, abs=1e-6)
    assert sums.sums[SKIPPED].tolist() == [1, 1, 1]
    padded = np.zeros((3, 8, 8), np.float32)
    for k, r in enumerate(rows):
        padded[:, k, : k + 1] = r
    for name in ("frobenius", "frobenius-normalised", "js"):  # zeros that both have change nothing
        np.testing.assert_allclose(heads_of(name, sums), slow_similarity(name, [padded]), atol=1e-6)


def test_rows_that_do_not_vary_are_skipped_and_counted() -> None:
    sums = sums_of(flat(awkward()))
    words = 1 + 2 + 3 + 25 + 300
    assert sums.sums[COUNTS].tolist() == [5, words, sum(n * n for n in (1, 2, 3, 25, 300))]
    assert sums.sums[SKIPPED][2] == words  # uniform, up to rounding
    assert sums.sums[SKIPPED][3] == 1  # one-hot: only the sentence of one word


def test_a_row_that_varies_by_rounding_alone_has_no_correlation() -> None:
    """Softmax and sums over sub-words leave a few units of rounding; a thousand of them are attention."""
    noise = np.array([1, -1, 0, 2, -2, 1, -1]) * np.finfo(np.float32).eps / 7
    values = np.float32([1 / 7 + noise, 1 / 7 + 1000 * noise, np.arange(7) / 21])
    sums = sums_of(HeadRows(values, np.array([7]), np.array([1])))
    assert sums.sums[SKIPPED].tolist() == [1, 0, 0]
    correlation = heads_of("pearson", sums)
    assert np.isnan(correlation[0]).all()
    assert correlation[1, 2] == pytest.approx(np.corrcoef(values[1], values[2])[0, 1], abs=1e-6)


def test_numpy_and_the_compiled_kernel_give_the_same_numbers() -> None:
    pytest.importorskip("numba")
    rows = flat([sentence(n, seed=n, heads=30) for n in (1, 9, 40, 120)])
    n = len(rows.lengths)
    plain, compiled = (mixture_sums(rows.values, compiled=c) / n for c in (False, True))
    js = [s.diagonal() / 4 + s.diagonal()[:, None] / 4 - full(s) / 2 for s in (plain, compiled)]
    np.testing.assert_allclose(js[1], js[0], atol=1e-7)
    assert js[0].max() > 0.5
    threaded = mixture_sums(rows.values, compiled=True, threads=3) / n
    np.testing.assert_array_equal(threaded, compiled)
    v = rows.values.astype(np.float64)
    x = v[3] + v[17]
    assert compiled[3, 17] == pytest.approx(np.sum(x[x > 0] * np.log(x[x > 0])) / n, abs=2e-7)


def test_distances_are_the_same_with_and_without_the_compiled_kernel() -> None:
    pytest.importorskip("numba")
    sentences = [sentence(n, seed=n, heads=30) for n in (1, 9, 40, 120)]
    rows, weights = flat(sentences), np.array([[1.0, 1, 1, 1], [0.5, 2, 3, 0]])
    plain, compiled = (distance_sums(rows, weights, compiled=c) for c in (False, True))
    np.testing.assert_allclose(np.triu(compiled), np.triu(plain), atol=2e-6, rtol=0)  # of sums of four sentences
    np.testing.assert_array_equal(distance_sums(rows, weights, compiled=True, threads=3), compiled)
    apart = [np.linalg.norm(s[3].astype(np.float64) - s[17].astype(np.float64)) for s in sentences]
    assert compiled[:, 3, 17] == pytest.approx(weights @ apart, abs=1e-6)
    twins = [np.linalg.norm(s[4].astype(np.float64) - s[5].astype(np.float64)) for s in sentences]
    assert compiled[0, 4, 5] == pytest.approx(sum(twins), rel=1e-6)  # nothing cancels: better than products
    assert 0 < sum(twins) < 1e-3


def test_unit_rows_are_the_same_with_and_without_the_compiled_kernel() -> None:
    pytest.importorskip("numba")
    rows = flat([sentence(n, seed=n, heads=9) for n in (1, 2, 9, 120)])
    (plain, varied), (compiled, also) = (unit_rows(rows, 1e-6, compiled=c) for c in (False, True))
    np.testing.assert_allclose(compiled, plain, atol=2e-7)
    np.testing.assert_array_equal(also, varied)
    assert not varied[2].any()  # uniform
    assert not varied[:, 0].any()  # one target
    assert varied[3, 1:].all()
    for one, other in zip(unit_rows(rows, 1e-6, compiled=True, threads=3), (compiled, also), strict=True):
        np.testing.assert_array_equal(one, other)


def test_sums_of_different_kinds_are_not_added() -> None:
    with pytest.raises(ValueError, match="same sums"):
        HeadSums(frozenset({"distance"})) + HeadSums(EVERYTHING)


# --- layers ------------------------------------------------------------------------------------------------------

AXIS = HeadAxis((3, 4, 2))


def layered(seed: int, sizes: tuple[int, ...] = (4, 9, 17, 2, 30, 6, 11, 5)) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.full(n, 0.4), size=(sum(AXIS.heads), n)).astype(np.float32) for n in sizes]


def panels(sums: HeadSums, weights: Doubles | None = None) -> list[dict[str, Doubles]]:
    """Sums of every layer's panel for each resample, as a study makes them from one group of sentences."""
    packed = AXIS.pack(sums.sums)
    found = []
    for layer in range(len(AXIS.heads)):
        a, b = AXIS.span(layer)
        groups = {k: v[None, a:b].reshape(1, *AXIS.shape(layer)) for k, v in packed.items() if k in PAIRS}
        groups |= {k: v[None] for k, v in packed.items() if k not in PAIRS}
        found.append(weighted(groups, np.ones((1, 1)) if weights is None else weights))
    return found


def scores(sums: HeadSums) -> dict[str, Doubles]:
    """(layers, layers) of every measure."""
    n = len(AXIS.heads)
    found = {m.name: np.full((n, n), math.nan) for m in MEASURES}
    for layer, panel in enumerate(panels(sums)):
        for name, both in score_panel(AXIS, layer, panel, MEASURES).items():
            found[name][layer, layer:], found[name][layer:, layer] = both[0, :, 0], both[0, :, 1]
    return found


@pytest.mark.parametrize("name", SLOW)
def test_a_layer_is_the_mean_over_heads_of_the_best_partner(name: str) -> None:
    sentences = layered(0)
    found, slow = scores(sums_of(flat(sentences)))[name], slow_similarity(name, sentences)
    s = AXIS.starts
    for i in range(3):
        for j in range(3):
            block = slow[s[i] : s[i + 1], s[j] : s[j + 1]]
            assert found[i, j] == pytest.approx(block.max(axis=1).mean(), abs=1e-6)
    assert abs(found[0, 1] - found[1, 0]) > 1e-4  # each layer's own heads are averaged


@pytest.mark.parametrize("name", ["svsim", "pwsim", "ckasim"])
def test_distributed_scores_are_those_of_word_pairs_by_heads(name: str) -> None:
    sentences = layered(1)
    rows = flat(sentences)
    found = scores(sums_of(rows))[name]
    s, pairs = AXIS.starts, rows.values.T.astype(np.float64)
    for i in range(3):
        for j in range(3):
            x, y = pairs[:, s[i] : s[i + 1]], pairs[:, s[j] : s[j + 1]]
            assert found[i, j] == pytest.approx(similarity(x, y, name), abs=1e-6)
    np.testing.assert_allclose(found.diagonal(), 1, atol=1e-9)


def test_packed_panels_hold_every_pair_once() -> None:
    sums = sums_of(flat(layered(2)))
    whole = full(sums.sums[SCATTER])
    packed = AXIS.pack(sums.sums)[SCATTER]
    spans = [AXIS.span(k) for k in range(3)]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(packed) == 3 * 9 + 4 * 6 + 2 * 2
    found = AXIS.unpacked([packed[a:b].reshape(AXIS.shape(k)) for k, (a, b) in enumerate(spans)])
    np.testing.assert_array_equal(found, whole)


def test_a_resample_is_the_scores_of_the_groups_drawn() -> None:
    groups = [layered(k) for k in range(5)]
    parts = [AXIS.pack(sums_of(flat(g)).sums) for g in groups]
    weights = group_weights(5, 3, seed=7)
    assert weights[0].tolist() == [1] * 5
    assert weights[1:].sum(axis=1).tolist() == [5, 5, 5]
    assert (group_weights(5, 3, seed=8) != weights).any()
    drawn = [s for count, g in zip(weights[2], groups, strict=True) for s in g * int(count)]
    expected = scores(sums_of(flat(drawn)))
    a, b = AXIS.span(0)
    stacked = {k: np.stack([p[k] for p in parts]) for k in parts[0]}
    panel = {k: v[:, a:b].reshape(5, *AXIS.shape(0)) if k in PAIRS else v for k, v in stacked.items()}
    for name, both in score_panel(AXIS, 0, weighted(panel, weights), MEASURES).items():
        np.testing.assert_allclose(both[2, :, 0], expected[name][0], atol=1e-9, err_msg=name)
        np.testing.assert_allclose(both[2, :, 1], expected[name][:, 0], atol=1e-9, err_msg=name)


def test_heads_without_a_correlation_have_no_part_in_the_mean() -> None:
    nan = math.nan
    forward, backward = matched(np.array([[0.2, nan, 0.6], [nan, nan, nan]]))
    assert forward == pytest.approx(0.6)
    assert backward == pytest.approx(0.4)
    assert np.isnan(matched(np.full((2, 2), nan))[0])


def test_the_total_is_that_of_all_weights() -> None:
    sentences = layered(3)
    total = sums_of(flat(sentences)).sums[TOTAL]
    np.testing.assert_allclose(total, sum(s.shape[1] for s in sentences), rtol=1e-6)  # rows sum to 1


def test_measures_by_name() -> None:
    assert [m.name for m in attention_measures(["js", "frobenius", "js"])] == ["frobenius", "js"]
    assert attention_measures(["all"]) == MEASURES
    with pytest.raises(StratoscopeError, match="frobenius"):
        attention_measures(["frobenus"])


def test_names_are_unique() -> None:
    assert len({m.name for m in MEASURES}) == len(MEASURES) == 7
