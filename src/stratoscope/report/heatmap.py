"""Heatmaps of layers × layers as in wu2020 Fig. 1 and phang2021 Fig. 1: layer 0 lower left, one scale a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from stratoscope.core.matrix import Layer, Matrix
from stratoscope.report.axes import Block, blocks, color_range, constant_layers, shorten
from stratoscope.report.render import INK, MUTED, Picture, style

SIDE = 5.4
"""Inches the longer side of the cells takes at most."""
LEFT, RIGHT, TOP, BOTTOM = 0.66, 0.14, 0.36, 0.56
"""Inches around the cells for ticks, model names and title."""
BAR = 0.62
"""Inches at the right for the colour bar and its labels."""
TICK = 0.15
"""Inches a tick label needs; where cells are smaller, labels are thinned."""


def heatmap(matrix: Matrix) -> Figure:
    """Draw one matrix; rows are the first argument and increase upwards, columns the second.

    Values are coloured on [0, 1], widened only where they leave it; NaN is hatched and named in the caption.
    """
    rows, columns = matrix.values.shape
    cell = min(SIDE / max(rows, columns), 0.36)
    width = LEFT + cell * columns + RIGHT + BAR
    text = textwrap.fill(caption(matrix), width=int(width * 16))
    foot = 0.14 + 0.15 * (text.count("\n") + 1)
    height = foot + BOTTOM + cell * rows + TOP
    with style():
        figure = Picture(figsize=(width, height))
        axes = figure.add_axes(_relative((LEFT, foot + BOTTOM, cell * columns, cell * rows), width, height))
        image = _cells(axes, matrix, cell)
        axes.set_title(matrix.measure, loc="left", fontweight="bold", color=INK, pad=5, parse_math=False)
        bar = figure.add_axes(_relative((width - BAR, foot + BOTTOM, 0.12, cell * rows), width, height))
        figure.colorbar(image, cax=bar)
        bar.tick_params(length=2, width=0.5, labelsize=6.5)
        bar.set_ylabel(matrix.measure, parse_math=False)
        for spine in bar.spines.values():
            spine.set_visible(False)
        figure.text(0.2 / width, foot / height, text, va="top", fontsize=7, color=MUTED, parse_math=False)
    return figure


def caption(matrix: Matrix) -> str:
    """What a reader must know to read the picture, including which layers have no value."""
    words = "Rows: first argument; columns: second. Lowest layer lower left; layer 0 is the output of the embeddings."
    gone = constant_layers(matrix)
    if gone:
        names = ", ".join(f"{shorten(layer.model, 24)}:{layer.index}" for layer in gone)
        many = len(gone) > 1
        words += f" Hatched: {names} {'are' if many else 'is'} constant on these rows, so no similarity exists."
    there = np.ix_(*([layer not in gone for layer in axis] for axis in (matrix.rows, matrix.columns)))
    if np.isnan(matrix.values[there]).any():
        words += " Other hatched cells: no value."
    return words


def _cells(axes: Axes, matrix: Matrix, cell: float) -> AxesImage:
    low, high = color_range([matrix])
    colors = mpl.colormaps["viridis"].with_extremes(bad=(0, 0, 0, 0))
    axes.patch.set(facecolor="#e4e4e7", hatch="/////", edgecolor="#a1a1aa")
    image = axes.imshow(
        np.ma.masked_invalid(matrix.values), origin="lower", cmap=colors, vmin=low, vmax=high, interpolation="nearest"
    )
    across, up = blocks(matrix.columns), blocks(matrix.rows)
    axes.set_xticks(*_ticks(across, matrix.columns, cell), fontsize=6.5)
    axes.set_yticks(*_ticks(up, matrix.rows, cell), fontsize=6.5)
    axes.tick_params(length=2, width=0.5, pad=1.5)
    for block in across:
        where = ((block.start + block.stop) / 2 - 0.5, -0.24 / cell - 0.5)
        name = shorten(block.model, _room(block, cell))
        axes.text(*where, name, ha="center", va="top", fontweight="bold", parse_math=False)
    for block in up:
        where = (-0.3 / cell - 0.5, (block.start + block.stop) / 2 - 0.5)
        name = shorten(block.model, _room(block, cell))
        axes.text(*where, name, ha="right", va="center", rotation=90, fontweight="bold", parse_math=False)
    for block in across[1:]:
        axes.axvline(block.start - 0.5, color="white", linewidth=1.0)
    for block in up[1:]:
        axes.axhline(block.start - 0.5, color="white", linewidth=1.0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _ticks(on_axis: list[Block], axis: Sequence[Layer], cell: float) -> tuple[list[int], list[str]]:
    """Positions and layer numbers to label: every layer where there is room, else every second, third, sixth ..."""
    step = next((s for s in (1, 2, 3, 4, 6, 12) if s * cell >= TICK), 24)
    at = []
    for block in on_axis:
        last = block is on_axis[-1]
        at += [k for k in range(block.start, block.stop, step) if last or step == 1 or block.stop - k > step / 2]
    return at, [str(axis[k].index) for k in at]


def _room(block: Block, cell: float) -> int:
    """Characters of a model's name that fit along its block (0.095 inches a bold letter)."""
    return int((block.stop - block.start) * cell / 0.095)


def _relative(box: tuple[float, float, float, float], width: float, height: float) -> tuple[float, float, float, float]:
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height
