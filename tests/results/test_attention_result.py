"""Heads, partners, redundancy and columns read off a comparison of attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.model import ModelInfo
from stratoscope.core.value import Interval
from stratoscope.results.attention import Attention

LAYERS = (Layer("a", 1), Layer("a", 2), Layer("b", 1))
VALUES = np.array([[1.0, 0.8, 0.5], [0.6, 1.0, 0.3], [0.4, 0.2, 1.0]])
HEADS = np.eye(5)
"""Two heads, one head and two heads."""
for i, j, v in ((0, 2, 0.9), (1, 2, 0.7), (0, 1, 0.4), (0, 3, 0.6), (1, 4, 0.8), (3, 4, 0.95), (2, 3, 0.1)):
    HEADS[i, j] = HEADS[j, i] = v


def result(**changes: object) -> Attention:
    drawn = VALUES + np.linspace(-0.1, 0.1, 30)[:, None, None]
    js = Matrix("js", LAYERS, LAYERS, VALUES, interval=Interval(0.95, "bootstrap", 30), replicates=drawn)
    made = Attention(
        matrices=(js, replace(js, measure="ckasim", interval=None, replicates=None)),
        models=tuple(ModelInfo(name, name, "bert", 3, 8, name) for name in "ab"),
        data={},
        arrays={"js": HEADS},
        heads_of=(2, 1, 2),
    )
    return replace(made, **changes)


def test_heads_of_two_layers() -> None:
    frame = result().heads("a", 1, "b", 1)
    assert frame.to_numpy().tolist() == [[0.6, 0.0], [0.0, 0.8]]
    assert frame.index.tolist() == ["a:1 head 1", "a:1 head 2"]
    assert frame.columns.tolist() == ["b:1 head 1", "b:1 head 2"]
    assert result().heads("b", 1, "a", 2).to_numpy().tolist() == [[0.1], [0.0]]
    with pytest.raises(StratoscopeError, match="layers are 1-2"):
        result().heads("a", 3, "b", 1)


def test_the_best_partner_of_each_head_in_each_model() -> None:
    table = result().partners()
    assert len(table) == 10
    first = table[(table.model == "a") & (table.layer == 1) & (table["head"] == 1)].set_index("partner_model")
    assert first.loc["a", ["partner_layer", "partner_head", "similarity"]].tolist() == [2, 1, 0.9]  # not itself
    assert first.loc["b", ["partner_layer", "partner_head", "similarity"]].tolist() == [1, 1, 0.6]


def test_redundant_heads_are_within_their_model_and_controls_are_left_out() -> None:
    table = result().redundant()
    assert table["similarity"].tolist() == [0.95, 0.95, 0.9, 0.9, 0.7]
    assert table.iloc[2][["model", "layer", "head", "partner_layer"]].tolist() == ["a", 1, 1, 2]
    models = (result().models[0], replace(result().models[1], role="control"))
    assert result(models=models).redundant()["similarity"].tolist() == [0.9, 0.9, 0.7]


def test_a_head_without_any_similarity_has_no_partner() -> None:
    gone = HEADS.copy()
    gone[0] = gone[:, 0] = np.nan
    table = result(arrays={"js": gone}).partners()
    assert len(table) == 8
    assert not table["similarity"].isna().any()


def test_columns_are_means_over_the_rows_of_a_model_without_the_layer_itself() -> None:
    found = result().columns()
    assert found["a", "a"].values.tolist() == pytest.approx([0.6, 0.8])
    assert found["a", "b"].values.tolist() == pytest.approx([0.4])
    assert found["b", "a"].values.tolist() == pytest.approx([0.4, 0.2])
    assert np.isnan(found["b", "b"].values).all()
    curve = found["a", "b"]
    assert curve.low is not None
    assert curve.low[0] < 0.4 < curve.high[0]
    assert result().columns("ckasim")["a", "b"].low is None


def test_measures_of_layers_have_no_heads() -> None:
    with pytest.raises(StratoscopeError, match="'ckasim'"):
        result().heads("a", 1, "b", 1, measure="ckasim")
    with pytest.raises(StratoscopeError, match="js"):
        result().partners("jss")
    with pytest.raises(StratoscopeError, match="such as js"):
        result(arrays={}).redundant()
    assert repr(result()) == "Attention(js, ckasim of a, b)"
