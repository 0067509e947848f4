from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from study_cases import add_other, make_comparison, make_study, quartered

from stratoscope.report.render import FORMATS, render
from stratoscope.report.studyparts import panels
from stratoscope.report.studyplots import drift_figure, panel_figure


def words(figure):
    return " ".join(t.get_text() for t in figure.texts).replace("\n", " ")


def test_every_panel_of_both_measures_on_one_scale():
    parts = make_study()
    figure = panel_figure(parts, "cls")
    *squares, bar = figure.axes
    assert len(squares) == 10
    assert len({id(axes.images[0].norm) for axes in squares}) == 1
    assert (squares[0].images[0].norm.vmin, squares[0].images[0].norm.vmax) == (0.0, 1.0)
    wanted = [p for m in parts.comparisons["cls"].matrices for p in panels(parts, m)]
    for axes, panel in zip(squares, wanted, strict=True):
        (image,) = axes.images
        assert image.origin == "lower", "layer 0 at the lower left"
        np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), panel.matrix.values)
        assert axes.get_title(loc="left") == panel.title
        assert axes.get_xlabel() == panel.matrix.columns[0].model
        assert axes.get_ylabel() == panel.matrix.rows[0].model
        assert [t.get_text() for t in axes.get_xticklabels()] == ["0", "2", "4", "6", "8", "10", "12"]
    assert bar.get_label() == "scale"


def test_squares_are_equal_and_square_and_do_not_overlap():
    *squares, _ = panel_figure(make_study(), "cls").axes
    figure = squares[0].figure
    inches = [axes.get_position().bounds for axes in squares]
    width, height = figure.get_size_inches()
    sides = {(round(w * width, 6), round(h * height, 6)) for _, _, w, h in inches}
    assert sides == {(1.75, 1.75)}
    render(figure, "png")
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for k, one in enumerate(boxes):
        assert not [other for other in boxes[k + 1 :] if one.overlaps(other)]


def test_another_model_is_drawn_on_the_same_scale_as_wide_as_it_is_deep():
    parts = add_other(make_study(), quartered(0.7, 0.6, -0.2))
    figure = panel_figure(parts, "mean")
    axes = figure.axes[4]
    assert (axes.get_title(loc="left"), axes.get_ylabel(), axes.get_xlabel()) == ("FT–OTHER", "ft-1", "other")
    assert axes.images[0].get_array().shape == (13, 7)
    assert axes.images[0].norm is figure.axes[0].images[0].norm
    assert axes.images[0].norm.vmin == pytest.approx(-0.2)
    width, height = figure.get_size_inches()
    box = axes.get_position()
    assert box.width * width / 7 == pytest.approx(box.height * height / 13), "cells are square"
    assert "ORIG: base; FT: ft-1; OTHER: other. The first name of a title is on the rows." in words(figure)
    render(figure, "png")
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for k, one in enumerate(boxes):
        assert not [other for other in boxes[k + 1 :] if one.overlaps(other)]


def inches(axes):
    width, height = axes.figure.get_size_inches()
    box = axes.get_position()
    return pytest.approx((box.width * width, box.height * height))


@pytest.mark.parametrize(("columns", "wide"), [(7, 7 / 13 * 1.75), (25, 25 / 13 * 1.75), (61, 3.5)])
def test_other_models_leave_the_panels_their_size(columns, wide):
    parts = make_study()
    for name in ("other", "third"):
        parts = add_other(parts, quartered(0.7, 0.6, 0.2, columns=columns), name=name)
    figure = panel_figure(parts, "mean")
    *panels_drawn, _ = figure.axes
    assert len(panels_drawn) == 14
    for axes in panels_drawn:
        assert inches(axes) == ((wide, wide / columns * 13) if "OTHER" in axes.get_title(loc="left") else (1.75, 1.75))
    render(figure, "png")
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for k, one in enumerate(boxes):
        assert not [other for other in boxes[k + 1 :] if one.overlaps(other)]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_constant_layer_is_marked_only_where_it_is():
    parts = make_study()
    cls, mean = panel_figure(parts, "cls"), panel_figure(parts, "mean")
    assert [t.get_text() for t in cls.axes[0].texts] == ["constant"]
    assert cls.axes[0].patch.get_hatch()
    assert "layer 0 is constant on these rows" in words(cls)
    assert not mean.axes[0].texts
    assert "constant on these rows" not in words(mean)


def test_negative_debiased_values_widen_the_one_scale():
    parts = make_study(bias=0.0, sharp=4.0)
    low = min(np.nanmin(m.values) for m in parts.comparisons["cls"].matrices)
    norms = {(a.images[0].norm.vmin, a.images[0].norm.vmax) for a in panel_figure(parts, "cls").axes[:-1]}
    assert len(norms) == 1
    ((vmin, _),) = norms
    assert vmin <= low < 0


def test_drift_has_bands_integer_ticks_and_one_scale():
    parts = make_study()
    figure = drift_figure(parts, "cls")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ckasim", "ckasim-debiased"]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    block = parts.comparisons["cls"]["ckasim"].between("ft-2", "base")
    drawn = figure.axes[0].lines[1].get_ydata()
    assert np.isnan(drawn[0])
    np.testing.assert_allclose(drawn[1:], 1 - np.diag(block.values)[1:])
    edge = np.concatenate([p.vertices for p in figure.axes[0].collections[1].get_paths()])
    at_9 = edge[edge[:, 0] == 9][:, 1]
    assert (at_9.min(), at_9.max()) == (pytest.approx(1 - block.high[9, 9]), pytest.approx(1 - block.low[9, 9]))
    assert all(float(t).is_integer() for t in figure.axes[0].get_xticks())
    assert [t.get_text().strip() for t in figure.legends[0].get_texts()] == ["ft-1", "ft-2"]


def test_no_drift_without_common_layers():
    parts = make_study()
    one = make_comparison(("base", "ft-1"))
    matrix = one["ckasim"]
    keep = [k for k, r in enumerate(matrix.rows) if r.model == "base" or r.index < 5]
    cut = dataclasses.replace(
        matrix,
        rows=tuple(matrix.rows[k] for k in keep),
        columns=tuple(matrix.rows[k] for k in keep),
        values=matrix.values[np.ix_(keep, keep)],
        low=None,
        high=None,
    )
    units = {"cls": dataclasses.replace(one, matrices=(cut,))}
    parts = dataclasses.replace(parts, comparisons=units, tuned=("ft-1",), control=None)
    assert drift_figure(parts, "cls") is None
    assert render(panel_figure(parts, "cls"), "svg")


@pytest.mark.parametrize("layers", [5, 25])
def test_any_depth_and_hostile_names_render(layers):
    parts = make_study(("$x^", "_hidden", "y" * 80, "</svg>"), layers=layers)
    for figure in (panel_figure(parts, "mean"), drift_figure(parts, "mean")):
        assert all(render(figure, kind) for kind in FORMATS)
