from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from stratoscope.core.errors import StratoscopeError
from stratoscope.report.curves import drift, localization
from stratoscope.report.heatmap import heatmap
from stratoscope.report.render import render


def test_localization_draws_each_model_over_its_own_layers_with_a_gap_where_constant(comparison):
    axes = localization(comparison).axes[0]
    lines = {line.get_label().strip(): line for line in axes.lines}
    assert list(lines) == ["base", "tuned", "mini"]
    scores = comparison.findings["localization"]["mini"]
    drawn = lines["mini"].get_ydata()
    assert np.isnan(drawn[0])
    assert list(lines["mini"].get_xdata()) == list(range(7))
    np.testing.assert_array_equal(drawn[1:], scores[1:])
    assert axes.get_xlim()[0] < 0, "the missing layer 0 keeps its place"
    assert axes.get_xlim()[1] > 12


def test_a_controls_localization_is_dashed_and_says_that_it_is_over_its_own_layers(comparison):
    found = dict(comparison.findings)
    scores = found["localization"].pop("mini")
    whole = dataclasses.replace(comparison, findings=found | {"localization_alone": {"mini": scores}})
    lines = localization(whole).axes[0].lines
    assert [line.get_label().strip() for line in lines] == ["base", "tuned", "mini (own layers)"]
    assert [line.get_linestyle() for line in lines] == ["-", "-", "--"]
    np.testing.assert_array_equal(lines[2].get_ydata()[1:], scores[1:])


def test_drift_has_one_panel_a_measure_on_one_scale(comparison):
    figure = drift(comparison)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(comparison)
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    drawn = figure.axes[0].lines[0].get_ydata()
    want = [comparison["ckasim"].at(("base", k), ("tuned", k)) for k in range(13)]
    np.testing.assert_array_equal(drawn, want)


def test_bands_are_drawn_where_there_are_intervals_and_only_there(comparison):
    panels = dict(zip(comparison, drift(comparison).axes, strict=True))
    assert not panels["svsim"].collections
    (band,) = panels["ckasim"].collections
    matrix = comparison["ckasim"].between("base", "tuned")
    edge = band.get_paths()[0].vertices
    at_8 = sorted(edge[edge[:, 0] == 8][:, 1])
    assert at_8[0] == pytest.approx(matrix.low[8, 8])
    assert at_8[-1] == pytest.approx(matrix.high[8, 8])


def test_chosen_layers_keep_their_numbers(some_layers):
    for figure in (drift(some_layers), localization(some_layers)):
        assert list(figure.axes[0].lines[0].get_xdata()) == [4, 8, 12]
    ticks = [t.get_text() for t in heatmap(some_layers["ckasim"]).axes[0].get_xticklabels()]
    assert ticks == ["4", "8", "12"] * 2


@pytest.mark.parametrize("depth", [1, 2, 7, 13])
def test_ticks_are_layers_and_never_between_two(make_findings, depth):
    same = [{"first": "a", "second": "b", "same_layer": [1.0] * depth}]
    figure = drift(make_findings({"drift": {"ckasim": same}}, depth=depth))
    ticks = figure.axes[0].get_xticks()
    assert (ticks == ticks.round()).all()
    assert 0 in ticks


def test_names_that_matplotlib_would_read_as_mathematics_or_hide_are_shown(make_comparison):
    figure = localization(make_comparison(("$x^", "_hidden", "mini")))
    assert [t.get_text().strip() for t in figure.legends[0].get_texts()] == ["$x^", "_hidden", "mini"]
    assert render(figure, "svg")


def test_absent_findings_say_what_to_do(comparison):
    bare = dataclasses.replace(comparison, findings={})
    with pytest.raises(StratoscopeError, match="no localization scores; compare again with both neuronsim and svsim"):
        localization(bare)
    with pytest.raises(StratoscopeError, match="no drift curves; compare at least two models with equally many layers"):
        drift(bare)
