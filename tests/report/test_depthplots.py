from __future__ import annotations

import numpy as np
import pytest
from study_cases import make_depth

from stratoscope.core.errors import StratoscopeError
from stratoscope.report.depthplots import skip_range, skipping, truncation
from stratoscope.report.render import FORMATS, render


def words(figure):
    return " ".join(t.get_text() for t in figure.texts).replace("\n", " ")


def test_curves_lines_and_caption():
    depth = make_depth()
    figure = truncation(depth)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    for curve in depth.curves:
        drawn = lines[curve.name.upper()]
        assert list(drawn.get_xdata()) == list(range(13))
        np.testing.assert_array_equal(drawn.get_ydata(), [p.value for p in curve.points])
    assert np.isnan(lines["UNTUNED"].get_ydata()[0]), "the absent layer 0 leaves a gap"
    for label, level in (("whole model 0.912", 0.912), ("bag of words 0.804", 0.804), ("majority 0.509", 0.509)):
        assert list(lines[label].get_ydata()) == [level, level]
    assert axes.get_xlim() == (-0.4, 12.4)
    assert all(float(t).is_integer() for t in axes.get_xticks())
    assert axes.get_ylabel() == "accuracy"
    assert "The head keeps its own pooler" in words(figure)
    assert len({lines[c.name.upper()].get_color() for c in depth.curves}) == 3


def test_bands_reach_the_ends_of_the_intervals():
    depth = make_depth(half_width=0.02)
    band = truncation(depth).axes[0].collections[0]
    edge = np.concatenate([p.vertices for p in band.get_paths()])
    at_5 = edge[edge[:, 0] == 5][:, 1]
    assert at_5.min() == pytest.approx(depth.curves[0].points[5].low)
    assert at_5.max() == pytest.approx(depth.curves[0].points[5].high)


def test_the_triangle_has_first_upwards_last_across_and_block_1_lower_left():
    depth = make_depth()
    axes, bar = skipping(depth).axes
    (image,) = axes.images
    assert image.origin == "lower"
    assert image.get_extent() == [0.5, 12.5, 0.5, 12.5]
    drawn = np.ma.filled(image.get_array(), np.nan)
    np.testing.assert_array_equal(drawn, depth.skip)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("last block skipped", "first block skipped")
    assert list(axes.get_xticks()) == list(axes.get_yticks()) == list(range(1, 13))
    numbers = {t.get_position(): t.get_text() for t in axes.texts}
    assert len(numbers) == 78
    assert numbers[(3, 1)] == f"{depth.skip[0, 2]:.2f}"[1:]
    assert bar.get_ylabel() == "accuracy"
    assert (image.norm.vmin, image.norm.vmax) == skip_range(depth)


def test_outlined_cells_are_those_within_one_point():
    depth = make_depth()
    axes = skipping(depth).axes[0]
    outlined = {(round(p.get_y() + 0.42), round(p.get_x() + 0.42)) for p in axes.patches}
    within = {(i + 1, j + 1) for i in range(12) for j in range(i, 12) if depth.skip[i, j] >= 0.902}
    assert outlined == within
    assert 0 < len(within) < 78


@pytest.mark.parametrize("blocks", [1, 2, 24])
def test_any_depth_renders_and_labels_are_thinned(blocks):
    depth = make_depth(blocks, name="_$x^" + "y" * 60)
    for figure in (truncation(depth), skipping(depth)):
        assert all(render(figure, kind) for kind in FORMATS)
    if blocks == 24:
        assert not skipping(depth).axes[0].texts


def test_the_scale_covers_gains_and_a_flat_matrix():
    best = make_depth(2, skip=np.array([[0.99, 0.4], [np.nan, 0.9]]), skip_agreement=None)
    assert skip_range(best) == (0.4, 1.0)
    flat = make_depth(1, skip=np.array([[0.9]]), skip_agreement=None, majority=0.9)
    low, high = skip_range(flat)
    assert low < high


def test_nothing_to_draw_says_what_to_do():
    bare = make_depth(curves=(), skip=None, skip_agreement=None)
    with pytest.raises(StratoscopeError, match="no truncation curves; run 'stratoscope depth' again"):
        truncation(bare)
    with pytest.raises(StratoscopeError, match="no skip matrix; run 'stratoscope depth' again without leaving it out"):
        skipping(bare)
