from __future__ import annotations

import math

import numpy as np
import pytest
import report_cases as cases

from stratoscope.core.matrix import Layer, Matrix
from stratoscope.core.value import Value
from stratoscope.report.outline import sections_of
from stratoscope.report.pictures import Axis, Bar, Bars, Box, Boxes, Heatmap, Table, color_range, missing_note


def matrix(values, rows, columns=None, measure="ckasim"):
    def axis(depths):
        return tuple(Layer(name, k) for name, n in depths.items() for k in range(n))

    return Matrix(measure, axis(rows), axis(columns or rows), np.asarray(values, dtype=np.float64))


def test_models_are_groups_on_an_axis():
    axis = Axis.of([Layer("a", 0), Layer("a", 4), Layer("b", 0)])
    assert axis.names == ("a:0", "a:4", "b:0")
    assert axis.ticks == ("0", "4", "0")
    assert [(g.name, g.start, g.stop) for g in axis.groups] == [("a", 0, 2), ("b", 2, 3)]


def test_the_scale_is_zero_to_one_unless_exceeded():
    assert color_range([np.array([0.4, 1 + 1e-9, np.nan])]) == (0.0, 1.0)
    assert color_range([np.array([-0.12, 1.0])]) == pytest.approx((-0.15, 1.0))
    assert color_range([np.array([1.31])]) == pytest.approx((0.0, 1.35))
    assert color_range([np.array([np.nan])]) == (0.0, 1.0)


def test_constant_layers_are_named_and_a_single_missing_value_is_not_one():
    values = np.full((4, 4), 0.5)
    values[0], values[:, 0] = np.nan, np.nan
    assert "layer 0 of a, constant" in missing_note(matrix(values, {"a": 2, "b": 2}))
    values[2], values[:, 2] = np.nan, np.nan
    assert "layer 0, constant" in missing_note(matrix(values, {"a": 2, "b": 2}))
    one = np.eye(2)
    one[0, 1] = np.nan
    assert "constant" not in missing_note(matrix(one, {"a": 2}))
    assert "no value" in missing_note(matrix(one, {"a": 2}))
    assert missing_note(matrix(np.eye(2), {"a": 2})) == ""


def test_a_heatmap_is_tidy_with_both_ends_of_its_intervals():
    m = cases.comparison()["ckasim"].between("base", "mini")
    frame = Heatmap.of(m, id="x").tidy()
    assert list(frame) == ["row_model", "row_layer", "column_model", "column_layer", "value", "low", "high"]
    assert len(frame) == 13 * 7
    one = frame[(frame["row_layer"] == "3") & (frame["column_layer"] == "5")].iloc[0]
    assert (one["value"], one["low"], one["high"]) == (m.values[3, 5], m.low[3, 5], m.high[3, 5])


@pytest.mark.parametrize("kind", cases.KINDS)
def test_every_picture_of_every_kind_has_data_a_caption_and_an_id_of_its_own(kind):
    sections = sections_of(cases.KINDS[kind]())
    pictures = [*sections.pictures, *(t for s in sections.sections for t in s.tables)]
    assert len({p.id for p in pictures}) == len(pictures)
    for p in pictures:
        assert len(p.tidy())
        assert p.caption
        assert "\n" not in p.caption
        known = {s.name: s.options for s in sections.switches}
        assert all(value in known[name] for name, value in p.when.items())


def test_boxes_are_quartiles_and_the_furthest_values_near_them():
    box = Box.of("a", [1.0, 2.0, 3.0, 4.0, 5.0, 100.0, math.nan])
    assert (box.low, box.quarter, box.median, box.three_quarters, box.high) == (1.0, 2.25, 3.5, 4.75, 5.0)
    assert math.isnan(Box.of("empty", []).median)
    assert len(Boxes(id="b", title="", boxes=(box,), y="y").tidy()) == 1


def test_bars_and_tables_are_tidy():
    bars = Bars(id="b", title="", categories=("x", "y"), bars=(Bar("s", (Value(1.0), Value(2.0, 1.5, 2.5))),), y="m")
    assert bars.tidy()["high"].tolist()[1] == 2.5
    table = Table(id="t", title="", head=("name", "v"), rows=(("a", Value(0.5, 0.4, 0.6)), ("b", 3)))
    assert list(table.tidy()) == ["name", "v", "v low", "v high"]
    assert table.texts() == [["a", "0.500 [0.400, 0.600]"], ["b", "3"]]
    assert [table.is_number(k) for k in (0, 1)] == [False, True]
