from __future__ import annotations

import io
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread

from stratoscope.report.heatmap import caption, heatmap
from stratoscope.report.render import DPI, render


def pixels(figure, image_axes):
    """The rendered panel, first index from the bottom up, so that [0, 0] is the lower-left cell."""
    whole = imread(io.BytesIO(render(figure, "png")))[::-1, :, :3]
    width, height = figure.get_size_inches() * DPI
    box = image_axes.get_position()
    return whole[round(box.y0 * height) : round(box.y1 * height), round(box.x0 * width) : round(box.x1 * width)]


def cell_color(figure, axes, i, j, shape):
    area = pixels(figure, axes)
    return area[int((i + 0.5) * area.shape[0] / shape[0]), int((j + 0.5) * area.shape[1] / shape[1])]


def expected(value, low=0.0, high=1.0):
    return np.array(mpl.colormaps["viridis"]((value - low) / (high - low))[:3])


def images(figure):
    return [axes.images[0] for axes in figure.axes if axes.images]


def test_layer_zero_is_lower_left_and_rows_go_up_columns_right(make_matrix):
    values = np.array([[0.0, 0.9, 0.5], [0.3, 0.1, 0.7]])
    figure = heatmap(make_matrix(values, {"m": 2}, {"k": 3}))
    axes = figure.axes[0]
    for i in range(2):
        for j in range(3):
            got = cell_color(figure, axes, i, j, values.shape)
            assert np.abs(got - expected(values[i, j])).max() < 0.02, (i, j)


def test_rows_are_the_first_argument(make_matrix):
    figure = heatmap(make_matrix(np.zeros((2, 3)), {"first": 2}, {"second": 3}))
    axes = figure.axes[0]
    turned = {t.get_text(): t.get_rotation() for t in axes.texts}
    assert turned == {"second": 0.0, "first": 90.0}
    assert len(axes.get_yticks()) == 2
    assert len(axes.get_xticks()) == 3


def test_models_are_blocks_with_separators_and_their_own_layer_numbers(make_matrix):
    figure = heatmap(make_matrix(np.eye(5), {"a": 3, "b": 2}))
    axes = figure.axes[0]
    assert sorted(t.get_text() for t in axes.texts) == ["a", "a", "b", "b"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0", "1", "2", "0", "1"]
    upright, flat = axes.lines
    assert list(upright.get_xdata()) == [2.5, 2.5]
    assert list(flat.get_ydata()) == [2.5, 2.5]


def test_many_layers_are_labelled_thinly_and_every_model_from_zero(make_matrix):
    figure = heatmap(make_matrix(np.zeros((75, 75)), {"a": 25, "b": 25, "c": 25}))
    labels = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert labels.count("0") == 3
    assert labels[-1] == "24"
    assert len(labels) < 40
    inches = figure.axes[0].get_position().width * figure.get_size_inches()[0]
    gaps = np.diff(figure.axes[0].get_xticks()) * inches / 75
    assert gaps.min() >= 0.14


def test_the_scale_is_zero_to_one_unless_exceeded(make_matrix):
    (image,) = images(heatmap(make_matrix([[0.4, 0.5], [0.5, 1 + 1e-9]], {"a": 2})))
    assert image.get_clim() == (0.0, 1.0)
    (image,) = images(heatmap(make_matrix([[1.0, -0.12], [-0.12, 1.0]], {"a": 2})))
    assert image.get_clim() == pytest.approx((-0.15, 1.0))
    (image,) = images(heatmap(make_matrix([[1.0, 1.31], [0.2, 1.0]], {"a": 2})))
    assert image.get_clim() == pytest.approx((0.0, 1.35))


def test_a_constant_layer_is_hatched_and_named(make_matrix):
    values = np.full((3, 3), 0.8)
    values[0], values[:, 0] = np.nan, np.nan
    matrix = make_matrix(values, {"base": 3})
    figure = heatmap(matrix)
    axes = figure.axes[0]
    assert axes.patch.get_hatch()
    color = cell_color(figure, axes, 0, 2, (3, 3))
    assert np.ptp(color) < 0.05, "a missing value is grey, not a colour of the scale"
    assert "Hatched: base:0 is constant on these rows" in caption(matrix)
    assert any("base:0 is constant" in t.get_text().replace("\n", " ") for t in figure.texts)


def test_a_single_missing_value_is_not_called_a_constant_layer(make_matrix):
    words = caption(make_matrix([[1.0, np.nan], [0.3, 1.0]], {"a": 2}))
    assert "constant" not in words
    assert "Other hatched cells: no value." in words
    assert "hatched" not in caption(make_matrix(np.eye(2), {"a": 2}))


def test_a_matrix_without_any_value_is_still_drawn(make_matrix):
    (image,) = images(heatmap(make_matrix(np.full((2, 2), np.nan), {"a": 2})))
    assert image.get_clim() == (0.0, 1.0)


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("name", ["$x^", "_hidden", "a\nb\x00", "名前", "x" * 300, "\udcff"])
def test_any_model_name_can_be_drawn(make_matrix, name):
    drawn = render(heatmap(make_matrix(np.eye(2), {name: 2})), "svg")
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_plot_of_a_matrix_is_the_heatmap(make_matrix):
    matrix = make_matrix(np.eye(2), {"a": 2})
    assert render(matrix.plot(), "svg") == render(heatmap(matrix), "svg")
