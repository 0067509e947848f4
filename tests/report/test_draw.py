from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import report_cases as cases
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from test_pictures import matrix

import stratoscope.core
from stratoscope.core.errors import StratoscopeError, UnknownNameError
from stratoscope.core.value import Value
from stratoscope.report import draw
from stratoscope.report.outline import sections_of
from stratoscope.report.pictures import SCALE, Bar, Bars, Box, Boxes, Heatmap
from stratoscope.results.cutting.pruned import Pruned

SCRIPT = """
import hashlib, sys
sys.path[:0] = {tests!r}
import report_cases as cases
from stratoscope.report import draw
figure = draw.heatmap(cases.comparison()["neuronsim"])
print(*[hashlib.sha256(draw.render(figure, kind)).hexdigest() for kind in draw.FORMATS])
"""


def every_picture(style="screen"):
    """One figure of each kind of picture."""
    found = {}
    for make in cases.SMALL.values():
        for p in sections_of(make()).pictures:
            found.setdefault(type(p).__name__, p)
    found["Boxes"] = Boxes(id="b", title="t", boxes=(Box.of("one", [1, 2, 3]), Box.of("none", [])), y="score")
    bars = (Bar("first", (Value(1.0, 0.8, 1.2), Value(2.0))), Bar("second", (Value(0.5), Value(0.1))))
    found["Two"] = Bars(id="c", title="t", categories=("x", "y"), bars=bars, y="score")
    return {name: draw.figure(p, style=style) for name, p in found.items()}


def area(figure, axes):
    """The rendered cells, first index from the bottom up, so that [0, 0] is the lower-left corner."""
    whole = imread(io.BytesIO(draw.render(figure, "png")))[::-1, :, :3]
    width, height = figure.get_size_inches() * draw.DPI
    box = axes.get_position()
    return whole[round(box.y0 * height) : round(box.y1 * height), round(box.x0 * width) : round(box.x1 * width)]


def color_at(pixels, i, j, shape):
    return pixels[int((i + 0.5) * pixels.shape[0] / shape[0]), int((j + 0.5) * pixels.shape[1] / shape[1])]


def test_layer_zero_is_lower_left_rows_go_up_and_colours_are_the_shared_scale():
    values = np.array([[0.0, 1.0, 0.5], [0.25, 0.125, 0.75]])
    figure = draw.heatmap(matrix(values, {"m": 2}, {"k": 3}))
    pixels = area(figure, figure.axes[0])
    for (i, j), value in np.ndenumerate(values):
        want = np.array(to_rgb(SCALE[round(value * (len(SCALE) - 1))]))
        assert np.abs(color_at(pixels, i, j, values.shape) - want).max() < 0.02, (i, j)


def test_models_are_blocks_with_separators_and_their_own_layer_numbers():
    figure = draw.heatmap(matrix(np.zeros((5, 3)), {"a": 3, "b": 2}, {"first": 3}))
    axes = figure.axes[0]
    assert {t.get_text(): t.get_rotation() for t in axes.texts} == {"first": 0.0, "a": 90.0, "b": 90.0}
    assert [t.get_text() for t in axes.get_yticklabels()] == ["0", "1", "2", "0", "1"]
    (flat,) = axes.lines
    assert list(flat.get_ydata()) == [2.5, 2.5]


def test_many_layers_are_labelled_thinly_and_every_model_from_zero():
    figure = draw.heatmap(matrix(np.zeros((75, 75)), {"a": 25, "b": 25, "c": 25}))
    labels = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert labels.count("0") == 3
    assert labels[-1] == "24"
    inches = figure.axes[0].get_position().width * figure.get_size_inches()[0]
    assert (np.diff(figure.axes[0].get_xticks()) * inches / 75).min() >= 0.14


def test_a_missing_layer_is_hatched_grey_and_said_to_be_constant():
    values = np.full((3, 3), 0.8)
    values[0], values[:, 0] = np.nan, np.nan
    figure = draw.heatmap(matrix(values, {"base": 3}))
    axes = figure.axes[0]
    assert axes.patch.get_hatch()
    assert np.ptp(color_at(area(figure, axes), 0, 2, (3, 3))) < 0.05
    assert "constant" in [t.get_text() for t in axes.texts]


def test_panels_have_one_scale_and_measures_below_each_other():
    panels = [p for p in sections_of(cases.SMALL["study"]()).pictures if p.stem == "panels-cls"]
    figure = draw.figure(*panels)
    images = [a.images[0] for a in figure.axes if a.images]
    assert len(images) == 12
    assert len({image.get_clim() for image in images}) == 1
    titles = [a.get_title(loc="left") for a in figure.axes if a.images]
    assert titles[:6] == ["ORIG–ORIG", "FT–ORIG", "FT–FT", "FT[1]–FT[2]", "FT–OTHER", "RANDOM–RANDOM"]
    assert {"ckasim", "ckasim-debiased"} <= {t.get_text() for t in figure.texts}


def test_the_skip_matrix_outlines_spans_and_writes_numbers_and_leaves_other_cells_empty():
    depth = cases.depth()
    (skip,) = [p for p in sections_of(depth).pictures if p.id == "skip"]
    axes = draw.figure(skip).axes[0]
    assert len(axes.patches) == int((depth.skip >= 0.902 - 1e-9).sum())
    assert len(axes.texts) == 78
    assert not axes.patch.get_hatch()


def test_curves_have_bands_levels_and_a_gap_where_there_is_no_value():
    (curves,) = [p for p in sections_of(cases.depth()).pictures if p.id == "truncation"]
    axes = draw.figure(curves).axes[0]
    assert len(axes.collections) == 3
    labels = [line.get_label().strip() for line in axes.lines]
    assert labels == ["UNTUNED", "TUNED", "TUNEDORIG", "whole model 0.912", "bag of words 0.804", "majority 0.509"]
    assert np.isnan(axes.lines[0].get_ydata()[0])


def test_drift_of_several_measures_is_one_figure_on_one_axis():
    drift = [p for p in sections_of(cases.comparison()).pictures if p.stem == "drift"]
    figure = draw.figure(*drift)
    assert [a.get_title(loc="left") for a in figure.axes] == list(cases.comparison())
    assert len({a.get_ylim() for a in figure.axes}) == 1


def test_figures_for_papers_have_no_titles_and_fit_the_columns():
    for name, figure in every_picture("paper").items():
        assert figure.get_suptitle() == "", name
        assert figure.get_size_inches()[0] <= 6.9 + 1e-9, name
        sizes = [t.get_fontsize() for a in figure.axes for t in (a.xaxis.label, a.yaxis.label) if t.get_text()]
        assert all(size >= 7 for size in sizes), name
    title = "Before and after fine-tuning"
    study = sections_of(cases.SMALL["study"]()).first
    drawn = {style: [t.get_text() for t in draw.figure(study, style=style).texts] for style in draw.LOOKS}
    assert any(t.startswith(title) for t in drawn["screen"])
    assert not any(t.startswith(title) for t in drawn["paper"])


def test_an_unknown_style_names_the_choices():
    with pytest.raises(UnknownNameError, match="paper"):
        draw.figure(sections_of(cases.cut()).first, style="papers")


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_picture_gives_the_same_bytes(kind):
    for (name, one), two in zip(every_picture().items(), every_picture().values(), strict=True):
        assert draw.render(one, kind) == draw.render(two, kind), name


def test_another_process_on_another_day_gives_the_same_bytes():
    source = str(Path(stratoscope.core.__file__).parents[2])
    env = os.environ | {"PYTHONHASHSEED": "77", "SOURCE_DATE_EPOCH": "86400", "PYTHONPATH": source}
    code = SCRIPT.format(tests=[str(folder) for folder in Path(__file__).parents[:2]])
    there = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    figure = draw.heatmap(cases.comparison()["neuronsim"])
    assert there.stdout.split() == [hashlib.sha256(draw.render(figure, k)).hexdigest() for k in draw.FORMATS]


def test_user_settings_neither_leak_in_nor_change():
    m = cases.comparison(depths=(4, 4, 4))["ckasim"]
    before = draw.render(draw.heatmap(m), "png")
    with mpl.rc_context({"font.size": 30.0, "axes.facecolor": "red", "image.origin": "upper", "savefig.bbox": "tight"}):
        mine = dict(mpl.rcParams)
        assert draw.render(draw.heatmap(m), "png") == before
        assert dict(mpl.rcParams) == mine


def test_pyplot_is_never_needed_and_a_notebook_still_shows_the_figure():
    figure = cases.comparison(depths=(4, 4, 4))["ckasim"].plot()
    assert figure._repr_png_()[:4] == b"\x89PNG"
    code = (
        "import sys, stratoscope.report.write; sys.exit('matplotlib.pyplot' in sys.modules or 'torch' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("name", ["$x^", "_hidden", "a\nb\x00", "名前", "x" * 300, "\udcff"])
def test_any_model_name_can_be_drawn(name):
    result = cases.study(("base", name, "ft-2", "random"), layers=4)
    for stem in ("panels-cls", "drift-cls", "truncation"):
        pictures = [p for p in sections_of(result).pictures if p.stem == stem]
        assert ElementTree.fromstring(draw.render(draw.figure(*pictures), "svg")).tag.endswith("svg")


def test_plot_of_a_result_is_its_first_picture():
    result = cases.SMALL["perplexity"]()
    first = sections_of(result).first
    assert first.id == "perplexity"
    assert draw.render(result.plot(), "svg") == draw.render(draw.figure(first), "svg")
    chosen = sections_of(cases.comparison()).first
    assert isinstance(chosen, Heatmap)
    assert chosen.when == {"measure": "ckasim"}
    with pytest.raises(StratoscopeError, match=r"prune\.json"):
        Pruned(what={}, weights="").plot()


def test_sizes_are_apart_by_their_ratios_with_a_tick_at_each_and_lines_of_one_colour_differ():
    ((_, picture),) = [(s, p) for s in sections_of(cases.recovery()).sections for p in s.pictures]
    figure = draw.figure(picture)
    axes = figure.axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xticks().tolist() == [8, 32]
    looks = [(line.get_color(), line.get_marker()) for line in axes.lines]
    assert len(set(looks)) == len(looks) == 4
    assert len({color for color, _ in looks}) == 3  # both baselines are grey


def test_long_categories_stand_aslant_and_are_whole():
    names = ("ridge on shuffled pairs", *(f"method {k}" for k in range(9)))
    bars = Bars(id="b", title="B", caption="", categories=names, bars=(Bar("s", (Value(1),) * 10),), y="y")
    labels = draw.figure(bars).axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == list(names)
    assert labels[0].get_rotation() == 30
    few = dataclasses.replace(bars, categories=names[1:3], bars=(Bar("s", (Value(1),) * 2),))
    assert draw.figure(few).axes[0].get_xticklabels()[0].get_rotation() == 0
