"""Numbers read off matrices: splits, localization, drift and rankings, on matrices done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from measures.layer_cases import related
from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Interval, spread
from stratoscope.measures.score import score_layers
from stratoscope.measures.structure import (
    best_split,
    best_splits,
    drift,
    findings,
    localization,
    localization_curves,
    rank_neurons,
)
from stratoscope.measures.table import parse
from stratoscope.results.comparison import Comparison
from stratoscope.statistics.rows import MemoryRows


def matrix(values: np.ndarray, *models: str, measure: str = "ckasim", first: int = 0) -> Matrix:
    models = models or ("base",)
    depth = len(values) // len(models)
    axis = tuple(Layer(m, k + first) for m in models for k in range(depth))
    return Matrix(measure, axis, axis, values)


def blocks(depth: int, start: int, *, within: float, between: float) -> np.ndarray:
    upper = np.arange(depth) >= start
    values = np.where(upper[:, None] == upper, within, between)
    return np.where(np.eye(depth, dtype=bool), 1.0, values)


@pytest.mark.parametrize("start", [2, 3, 5, 6])
def test_two_blocks_are_found(start: int) -> None:
    split = best_split(matrix(blocks(8, start, within=0.9, between=0.2)))
    assert split is not None
    assert split.start == start
    assert (split.within, split.between, split.contrast) == pytest.approx((0.9, 0.2, 0.7))


def test_a_split_names_layers_not_positions() -> None:
    split = best_split(matrix(blocks(6, 3, within=0.9, between=0.2), first=4))
    assert split is not None
    assert split.start == 7


def test_the_diagonal_does_not_count() -> None:
    values = blocks(6, 3, within=0.5, between=0.5)
    split = best_split(matrix(values))
    assert split is not None
    assert split.contrast == pytest.approx(0, abs=1e-12)


def test_any_smooth_matrix_has_a_best_split() -> None:
    k = np.arange(13)
    split = best_split(matrix(np.exp(-np.abs(k[:, None] - k) / 6)))
    assert split is not None
    assert 2 <= split.start <= 11
    assert 0.1 < split.contrast < 0.4


def test_asymmetric_scores_are_averaged_over_both_directions() -> None:
    values = blocks(6, 3, within=0.8, between=0.3)
    tilt = np.triu(np.full((6, 6), 0.1), 1)
    a, b = best_split(matrix(values)), best_split(matrix(values + tilt - tilt.T))
    assert a is not None
    assert b is not None
    assert (a.start, a.within, a.between) == pytest.approx((b.start, b.within, b.between))


def test_absent_layers_do_not_count() -> None:
    values = blocks(7, 4, within=0.9, between=0.1)
    values[0], values[:, 0] = np.nan, np.nan
    split = best_split(matrix(values))
    assert split is not None
    assert (split.start, split.contrast) == (4, pytest.approx(0.8))


def test_too_few_layers_have_no_split() -> None:
    assert best_split(matrix(np.ones((3, 3)))) is None
    absent = np.full((5, 5), np.nan)
    absent[1:4, 1:4] = 1
    assert best_split(matrix(absent)) is None


def test_a_split_needs_one_model() -> None:
    whole = matrix(np.ones((4, 4)), "a", "b")
    with pytest.raises(ValueError, match="a split needs one model's layers on both axes"):
        best_split(whole.between("a", "b"))


NEURON = np.array([[1.0, 0.5, 0.3], [0.7, 1.0, 0.1], [0.2, 0.4, 1.0]])
SV = np.array([[1.0, 0.6, 0.2], [0.6, 1.0, 0.4], [0.2, 0.4, 1.0]])


def comparison(neuron: np.ndarray = NEURON, sv: np.ndarray = SV) -> Comparison:
    infos = tuple(ModelInfo(m, m, "bert", len(neuron), 4, "x") for m in ("base",))
    return Comparison((matrix(neuron, measure="neuronsim"), matrix(sv, measure="svsim")), infos, {})


def test_localization_by_hand() -> None:
    """Row means without the diagonal: neuronsim .4 .4 .3, svsim .4 .5 .3."""
    assert localization(comparison()) == {"base": pytest.approx([0.0, -0.1, 0.0])}


def test_localization_standardised_by_hand() -> None:
    a, b = np.array([0.4, 0.4, 0.3]), np.array([0.4, 0.5, 0.3])
    want = (a - a.mean()) / a.std() - (b - b.mean()) / b.std()
    assert localization(comparison(), standardise=True) == {"base": pytest.approx(want.tolist())}


def test_localization_leaves_absent_layers_out() -> None:
    neuron, sv = NEURON.copy(), SV.copy()
    for values in (neuron, sv):
        values[2], values[:, 2] = np.nan, np.nan
    found = localization(comparison(neuron, sv))["base"]
    assert found[:2] == pytest.approx([0.5 - 0.6, 0.7 - 0.6])
    assert found[2] is None


def test_controls_count_neither_as_layers_nor_as_others() -> None:
    """With a control of two layers beside it, a model has the localization it has alone."""
    rng = np.random.default_rng(0)
    both = []
    for own in (NEURON, SV):
        values = rng.uniform(0, 1, (5, 5))
        values[:3, :3] = own
        both.append(values)
    axis = (*(Layer("base", k) for k in range(3)), Layer("noise", 0), Layer("noise", 1))
    models = (ModelInfo("base", "base", "bert", 3, 4, "x"), ModelInfo("noise", "base", "bert", 2, 4, "x", "control"))
    matrices = tuple(Matrix(m, axis, axis, v) for m, v in zip(("neuronsim", "svsim"), both, strict=True))
    whole = Comparison(matrices, models, {})
    for standardise in (False, True):
        alone = localization(comparison(), standardise=standardise)
        assert localization(whole, standardise=standardise) == {"base": pytest.approx(alone["base"])}
    single, sv = (values[3:, 3:] for values in both)
    own = [single[0, 1] - sv[0, 1], single[1, 0] - sv[1, 0]]
    assert findings(whole)["localization_alone"] == {"noise": pytest.approx(own)}, (
        "a control has the score it has alone"
    )
    assert "localization_alone" not in findings(comparison())


def test_findings_hold_the_chance_level_of_localization() -> None:
    """svsim of noise, 21 rows for 4 neurons, is 0.39; in units of mean svsim's spread if standardised."""
    whole = replace(comparison(), data={"rows": 21})
    assert findings(whole)["localization_chance"] == pytest.approx(0.388, abs=1e-3)
    assert findings(whole, standardise=True)["localization_chance"] == pytest.approx(
        0.388 / np.std([0.4, 0.5, 0.3]), 0.01
    )
    assert "localization_chance" not in findings(comparison())


@pytest.mark.parametrize("missing", ["neuronsim", "svsim"])
def test_localization_says_what_it_needs(missing: str) -> None:
    whole = comparison()
    part = Comparison(tuple(m for m in whole.matrices if m.measure != missing), whole.models, {})
    with pytest.raises(StratoscopeError, match=f"localization needs neuronsim and svsim; '{missing}' is not in this"):
        localization(part)


def test_findings_are_plain_and_complete() -> None:
    own = blocks(5, 2, within=0.9, between=0.3)
    cross = np.arange(25).reshape(5, 5) / 25
    values = np.block([[own, cross], [cross.T, own]])
    values[5], values[:, 5] = np.nan, np.nan
    infos = tuple(ModelInfo(m, m, "bert", 5, 4, "x") for m in ("base", "tuned"))
    found = findings(Comparison((matrix(values, "base", "tuned"),), infos, {}))
    assert found["blocks"]["ckasim"]["base"] == pytest.approx(
        {"start": 2, "within": 0.9, "between": 0.3, "contrast": 0.6}
    )
    assert found["blocks"]["ckasim"]["tuned"]["start"] in (2, 3)
    (pair,) = found["drift"]["ckasim"]
    assert (pair["first"], pair["second"], pair["layers"]) == ("base", "tuned", [0, 1, 2, 3, 4])
    assert pair["drift"] == [None, *(1 - np.diag(cross)[1:])], "drift is 1 - similarity"
    assert (pair["low"], pair["high"], pair["unchanged"]) == (None, None, False)
    assert "localization" not in found


def test_the_interval_of_a_drift_is_that_of_the_similarity_turned_round() -> None:
    values = np.block([[np.ones((2, 2)), np.full((2, 2), 0.8)], [np.full((2, 2), 0.8), np.ones((2, 2))]])
    whole = replace(
        matrix(values, "base", "tuned"), low=values - 0.1, high=values + 0.05, replicates=values[None] + 0.01
    )
    (found,) = findings(Comparison((whole,), (), {}))["drift"]["ckasim"]
    assert found["drift"] == pytest.approx([0.2, 0.2])
    assert (found["low"], found["high"]) == (pytest.approx([0.15, 0.15]), pytest.approx([0.3, 0.3]))
    curve = drift(whole, "base", "tuned")
    assert curve is not None
    assert curve.replicates == pytest.approx(np.full((1, 2), 0.19))


@pytest.mark.parametrize(("least", "expected"), [(0.9999, True), (0.9951, True), (0.9949, False)])
def test_practically_unchanged_is_a_finding(least: float, expected: bool) -> None:
    cross = np.ones((5, 5))
    cross[3, 3] = least
    own = np.ones((5, 5))
    whole = matrix(np.block([[own, cross], [cross.T, own]]), "base", "tuned")
    (found,) = findings(Comparison((whole,), (), {}))["drift"]["ckasim"]
    assert found["unchanged"] is expected


def test_splits_are_found_anew_on_every_resample() -> None:
    """A resample whose blocks start elsewhere has its own split; the estimate's is as `best_split` has it."""
    one, two = blocks(8, 3, within=0.9, between=0.2), blocks(8, 5, within=0.8, between=0.3)
    whole = replace(matrix(one), replicates=np.stack([one, two]))
    found = best_splits(whole)
    assert found is not None
    assert found[0].tolist() == [3, 3, 5]
    assert found[1] == pytest.approx([0.9, 0.9, 0.8])
    assert found[2] == pytest.approx([0.2, 0.2, 0.3])
    alone = best_splits(matrix(one))
    assert alone is not None
    assert [of.shape for of in alone] == [(1,)] * 3


@pytest.mark.parametrize("standardise", [False, True])
def test_localization_has_an_interval_where_both_measures_share_their_resamples(standardise: bool) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.02, (2, 50, 3, 3))
    how = Interval(0.95, "bootstrap", 100)
    whole = comparison()
    matrices = tuple(
        replace(m, replicates=m.values + e, interval=how) for m, e in zip(whole.matrices, noise, strict=True)
    )
    curve = localization_curves(replace(whole, matrices=matrices), standardise=standardise)["base"]
    assert curve.values.tolist() == localization(whole, standardise=standardise)["base"]
    one = replace(whole, matrices=tuple(replace(m, values=m.replicates[7]) for m in matrices))
    assert curve.replicates is not None
    assert curve.replicates[7] == pytest.approx(localization(one, standardise=standardise)["base"])
    low, high = spread(curve.values, curve.replicates, how)
    assert (curve.low, curve.high) == (pytest.approx(low), pytest.approx(high))
    other = replace(matrices[1], interval=Interval(0.95, "jackknife", 50))
    apart = localization_curves(replace(whole, matrices=(matrices[0], other)), standardise=standardise)["base"]
    assert (apart.low, apart.replicates, apart.interval) == (None, None, None)


def test_findings_have_no_drift_between_models_of_unequal_depth() -> None:
    axis = (Layer("a", 0), Layer("a", 1), Layer("b", 0))
    values = np.eye(3)
    found = findings(Comparison((Matrix("ckasim", axis, axis, values),), (), {}))
    assert found["drift"] == {}
    assert found["blocks"]["ckasim"] == {}


def ranked(by: str) -> list[tuple[int, float, str, int]]:
    x, y = related(100, 4, 4)
    layers = [torch.from_numpy(m) for m in (x, y, x[:, [2, 0, 3, 1]] * [1, -2, 1, 1] + [[0, 0, 9, 0]])]
    layers[2][:, 0] += torch.from_numpy(y[:, 0])  # the twin of neuron 2 is blurred
    scored = score_layers(MemoryRows(layers), [parse("neuronsim")]).scored["neuronsim"]
    whole = Comparison(
        (matrix(scored.values.numpy(), measure="neuronsim"),),
        (ModelInfo("base", "base", "bert", 3, 4, "x"),),
        {},
        arrays={k: v.numpy() for k, v in scored.arrays.items()},
    )
    return [(n.neuron, n.score, n.layer, n.match) for n in rank_neurons(whole, "base", 0, by=by)]


def test_neurons_ranked_by_their_strongest_match() -> None:
    found = ranked("max")
    assert {n for n, *_ in found[:3]} == {0, 1, 3}
    assert {(n, layer, match) for n, _, layer, match in found[:3]} == {
        (0, "base:2", 1),
        (3, "base:2", 2),
        (1, "base:2", 3),
    }
    assert [s for _, s, *_ in found[:3]] == pytest.approx([1, 1, 1], abs=1e-6)
    assert found[3][1] < 1


def test_a_constant_neuron_has_no_match() -> None:
    x, y = related(100, 4, 4)
    x[:, 2] = 0.5
    scored = score_layers(MemoryRows([torch.from_numpy(x), torch.from_numpy(y)]), [parse("neuronsim")]).scored[
        "neuronsim"
    ]
    match = scored.arrays["neuronsim.match"]
    assert match[0, 1].tolist().index(-1) == 2
    assert (match[0, 1] >= 0).sum() == 3
    assert (match[1, 0] >= 0).all()
    assert 2 not in match[1, 0]


def test_neurons_ranked_by_their_weakest_match() -> None:
    x, y = related(100, 4, 4)
    best = np.abs(np.corrcoef(x.T, y.T)[:4, 4:]).max(1)
    found = ranked("min")
    scores = [s for _, s, *_ in found]
    assert scores == sorted(scores, reverse=True)
    for neuron, score, layer, _ in found:
        if neuron != 2:
            assert (layer, score) == ("base:1", pytest.approx(best[neuron], abs=1e-6))


@pytest.mark.parametrize("by", ["max", "min"])
def test_a_control_has_no_part_in_the_ranking_of_a_models_neurons(by: str) -> None:
    """The control holds layer 0 itself, the strongest match there is, and noise, the weakest."""
    x, y = related(100, 4, 4)
    noise = np.random.default_rng(5).standard_normal((100, 4))
    layers = [torch.from_numpy(m) for m in (x, y, x, noise)]
    scored = score_layers(MemoryRows(layers), [parse("neuronsim")]).scored["neuronsim"]
    axis = tuple(Layer(name, k) for name in ("base", "fresh") for k in range(2))
    whole = Comparison(
        (Matrix("neuronsim", axis, axis, scored.values.numpy()),),
        tuple(ModelInfo(n, n, "bert", 2, 4, "x", role) for n, role in (("base", "model"), ("fresh", "control"))),
        {},
        arrays={k: v.numpy() for k, v in scored.arrays.items()},
    )
    assert {n.layer for n in rank_neurons(whole, "base", 0, by=by)} == {"base:1"}
    assert {n.layer for n in rank_neurons(whole, "fresh", 0, by=by)} == {"fresh:1"}


def test_rankings_refuse_in_words() -> None:
    with pytest.raises(StratoscopeError, match=r"unknown ranking 'mean'.*choose from: max, min"):
        ranked("mean")
    with pytest.raises(
        StratoscopeError, match="ranking neurons needs neuronsim; compare again with --measure neuronsim"
    ):
        rank_neurons(comparison(), "base", 0)
    alone = np.full((1, 1, 4), 1.0)
    whole = Comparison(
        (matrix(np.ones((1, 1)), measure="neuronsim"),),
        (ModelInfo("base", "base", "bert", 1, 4, "x"),),
        {},
        arrays={"neuronsim.correlation": alone, "neuronsim.match": alone.astype(np.int32)},
    )
    with pytest.raises(StratoscopeError, match="ranking neurons of base:0 needs another layer that varies; none is in"):
        rank_neurons(whole, "base", 0)
    assert math.isclose(float(whole["neuronsim"].values[0, 0]), 1)
