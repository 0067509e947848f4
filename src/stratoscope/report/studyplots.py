"""A study in pictures: the panels of phang2021 Fig. 1 and 7 on one colour scale, biased over debiased, and drift."""

from __future__ import annotations

import textwrap

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from stratoscope.report.axes import color_range, constant_layers, shorten
from stratoscope.report.render import INK, MARKERS, MUTED, PALETTE, Picture, style
from stratoscope.report.studyparts import Panel, drift, matrices, other_roles, panels
from stratoscope.results.study import Study

SIDE = 1.75
"""Inches of the longer side of a panel of the study's own models."""
WIDEST = 2 * SIDE
"""Inches a panel with another model may take where that has more layers; beyond, its cells get smaller."""
LEFT, RIGHT, TOP, BOTTOM = 0.5, 0.1, 0.3, 0.48
"""Inches around each panel for ticks, model names and title."""
MARGIN, BAR = 0.3, 0.62
"""Inches at the left for the measure, and at the right for the colour bar."""


def panel_figure(parts: Study, unit: str) -> Figure:
    """Draw every panel of one unit: a row a measure, one colour scale for all."""
    lines = [(m.measure, panels(parts, m)) for m in matrices(parts.comparisons[unit])]
    drawn = [p.matrix for _, line in lines for p in line]
    own = SIDE / max(max(m.values.shape) for m in drawn if m.columns[0].model not in parts.across)
    cells = [min(own, WIDEST / len(p.matrix.columns)) for p in lines[0][1]]
    wide = [LEFT + max(SIDE, cell * len(p.matrix.columns)) + RIGHT for cell, p in zip(cells, lines[0][1], strict=True)]
    left, tall = [MARGIN + LEFT + sum(wide[:k]) for k in range(len(wide))], TOP + SIDE + BOTTOM
    width = MARGIN + sum(wide) + BAR
    text = textwrap.fill(panel_caption(parts, unit), int(width * 17))
    head, foot = 0.26, 0.16 + 0.14 * (text.count("\n") + 1)
    height = head + tall * len(lines) + foot
    norm = Normalize(*color_range(drawn))
    with style():
        figure = Picture(figsize=(width, height))
        for row, (measure, line) in enumerate(lines):
            bottom = height - head - tall * (row + 1) + BOTTOM
            figure.text(
                0.1 / width,
                (bottom + SIDE / 2) / height,
                measure,
                rotation=90,
                va="center",
                ha="left",
                fontweight="bold",
                parse_math=False,
            )
            for panel, cell, start in zip(line, cells, left, strict=True):
                up, across = panel.matrix.values.shape
                box = (start, bottom, cell * across, cell * up)
                axes = figure.add_axes(
                    (box[0] / width, box[1] / height, box[2] / width, box[3] / height), label=f"{measure} {panel.title}"
                )
                image = _panel(axes, panel, norm=norm, cell=cell)
        bar = figure.add_axes(
            (
                (width - BAR + 0.06) / width,
                (foot + BOTTOM) / height,
                0.12 / width,
                1 - (foot + head + BOTTOM + TOP) / height,
            ),
            label="scale",
        )
        figure.colorbar(image, cax=bar)
        bar.tick_params(length=2, width=0.5, labelsize=6.5)
        bar.spines[:].set_visible(False)
        bar.set_ylabel("CKA")
        figure.text(
            0.1 / width,
            1 - 0.1 / height,
            _title(parts, unit),
            va="top",
            fontsize=9,
            fontweight="bold",
            parse_math=False,
        )
        figure.text(0.1 / width, (foot - 0.04) / height, text, va="top", fontsize=7, color=MUTED, parse_math=False)
    return figure


def panel_caption(parts: Study, unit: str) -> str:
    """What a reader must know to read the panels."""
    roles = {"ORIG": parts.base, "FT": parts.tuned[0], **other_roles(parts)}
    words = (
        f"{'; '.join(f'{role}: {shorten(name, 32)}' for role, name in roles.items())}. The first name of a title is on "
        "the rows. Layer 0, the output of the embeddings, is at the lower left. One colour scale for all panels."
    )
    first = matrices(parts.comparisons[unit])[0]
    gone = {layer.index for panel in panels(parts, first) for layer in constant_layers(panel.matrix)}
    if gone:
        many = len(gone) > 1
        words += (
            f" Grey: layer{'s' if many else ''} {', '.join(map(str, sorted(gone)))} {'are' if many else 'is'} "
            "constant on these rows, so no similarity exists."
        )
    return words


def drift_figure(parts: Study, unit: str) -> Figure | None:
    """Draw how far each tuned model moved from the base, a panel a measure; None where no layers correspond."""
    found = matrices(parts.comparisons[unit])
    series = [[drift(m, parts.base, name) for name in parts.tuned] for m in found]
    if all(s is None for line in series for s in line):
        return None
    with style():
        figure = Picture(figsize=(max(5.4, 3.1 * len(found)), 3.3), layout="constrained")
        shared: Axes | None = None
        for place, (matrix, line) in enumerate(zip(found, series, strict=True), start=1):
            axes = figure.add_subplot(1, len(found), place, sharey=shared)
            shared = shared or axes
            for k, s in enumerate(line):
                if s is None:
                    continue
                color, marker = PALETTE[k % len(PALETTE)], MARKERS[k % len(MARKERS)]
                if s.low is not None and s.high is not None:
                    axes.fill_between(s.layers, s.low, s.high, color=color, alpha=0.2, linewidth=0)
                # A label that begins with an underscore would be hidden, so a blank stands before each.
                label = f" {shorten(parts.tuned[k], 28)}" if place == 1 else "_"
                axes.plot(s.layers, s.values, color=color, marker=marker, markersize=3.5, linewidth=1.4, label=label)
                axes.set_xlim(-0.4, max(s.layers) + 0.4)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True, steps=[1, 2, 3, 4, 6, 10]))
            axes.set_xlabel("layer (0 = embeddings)")
            axes.set_title(matrix.measure, loc="left", fontsize=8, fontweight="bold", parse_math=False)
            axes.grid(axis="y", color="#e4e4e7", linewidth=0.6)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(length=2, width=0.5, colors=MUTED, labelleft=place == 1)
        figure.axes[0].set_ylabel(f"1 − CKA with {shorten(parts.base, 22)}", parse_math=False)
        figure.suptitle(
            f"Drift, {shorten(unit, 20)} rows", x=0.01, ha="left", fontsize=9, fontweight="bold", parse_math=False
        )
        for text in figure.legend(loc="outside lower center", ncols=3, frameon=False).get_texts():
            text.set_parse_math(False)
    return figure


def _panel(axes: Axes, panel: Panel, *, norm: Normalize, cell: float) -> AxesImage:
    matrix = panel.matrix
    axes.patch.set(facecolor="#e4e4e7", hatch="/////", edgecolor="#a1a1aa")
    image = axes.imshow(
        np.ma.masked_invalid(matrix.values),
        origin="lower",
        cmap=mpl.colormaps["viridis"].with_extremes(bad=(0, 0, 0, 0)),
        norm=norm,
        interpolation="nearest",
    )
    step = next((s for s in (1, 2, 3, 4, 6, 12) if s * cell >= 0.15), 24)
    for axis, layers in ((axes.xaxis, matrix.columns), (axes.yaxis, matrix.rows)):
        at = range(0, len(layers), step)
        axis.set_ticks(at, [str(layers[k].index) for k in at], fontsize=6)
    axes.tick_params(length=2, width=0.5, pad=1.5)
    room = int(SIDE / 0.078)
    axes.set_xlabel(shorten(matrix.columns[0].model, room), fontsize=7, labelpad=2, parse_math=False)
    axes.set_ylabel(shorten(matrix.rows[0].model, room), fontsize=7, labelpad=2, parse_math=False)
    axes.set_title(panel.title, loc="left", fontweight="bold", fontsize=8, color=INK, pad=4)
    if matrix.rows[0] in constant_layers(matrix) and len(matrix.columns) > 2:
        label = {"facecolor": "#e4e4e7", "edgecolor": "none", "pad": 0.6}
        middle = (len(matrix.columns) - 1) / 2
        axes.text(middle, 0, "constant", ha="center", va="center", fontsize=min(6, cell * 55), color=MUTED, bbox=label)
    axes.spines[:].set_visible(False)
    return image


def _title(parts: Study, unit: str) -> str:
    names = ", ".join(shorten(name, 24) for name in parts.tuned[:2])
    return f"{shorten(parts.base, 24)} before and after fine-tuning ({names}), {shorten(unit, 20)} rows"
