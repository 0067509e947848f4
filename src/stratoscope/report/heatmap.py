"""Heatmaps of layers × layers as in wu2020 Fig. 1 and phang2021 Fig. 1: layer 0 lower left, one scale a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.result import Comparison, Layer, Matrix
from stratoscope.report.axes import Block, blocks, color_range, constant_layers, shorten
from stratoscope.report.render import INK, MUTED, Picture, style

COLUMNS = 3
"""Panels side by side before a new row begins."""
LEFT, RIGHT, TOP, BOTTOM = 0.66, 0.14, 0.36, 0.56
"""Inches around each panel for ticks, model names and title."""
BAR = 0.62
"""Inches at the right for the colour bar and its labels."""
TICK = 0.15
"""Inches a tick label needs; where cells are smaller, labels are thinned."""


def heatmap(matrix: Matrix) -> Figure:
    """Draw one matrix; rows are the first argument and increase upwards, columns the second.

    Values are coloured on [0, 1], widened only where they leave it; NaN is hatched and named in the caption.
    """
    return _draw([matrix], side=5.4)


def panels(what: Comparison | Sequence[Matrix], *, measure: str | None = None) -> Figure:
    """Draw several matrices on one colour scale.

    Of a comparison: every pair of its models under one measure (the first, unless named), rows from the later model,
    so that two models give ORIG-ORIG, FT-ORIG and FT-FT (phang2021 Fig. 1).
    """
    if isinstance(what, Comparison):
        whole = what[measure] if measure else what.matrices[0]
        names = whole.models
        what = [whole.between(row, column) for i, row in enumerate(names) for column in names[: i + 1]]
    if not what:
        raise StratoscopeError(
            "expected at least one matrix to draw, got none; pass a comparison or a list of matrices"
        )
    return _draw(list(what), side=2.5)


def caption(matrices: Sequence[Matrix]) -> str:
    """What a reader must know to read the picture, including which layers have no value."""
    words = "Rows: first argument; columns: second. Lowest layer lower left; layer 0 is the output of the embeddings."
    gone = list(dict.fromkeys(layer for m in matrices for layer in constant_layers(m)))
    if gone:
        names = ", ".join(f"{shorten(layer.model, 24)}:{layer.index}" for layer in gone)
        many = len(gone) > 1
        words += f" Hatched: {names} {'are' if many else 'is'} constant on these rows, so no similarity exists."
    if any(np.isnan(m.values[np.ix_(*_kept(m, gone))]).any() for m in matrices):
        words += " Other hatched cells: no value."
    return words


def _kept(matrix: Matrix, gone: list[Layer]) -> tuple[list[int], list[int]]:
    rows = [i for i, r in enumerate(matrix.rows) if r not in gone]
    return rows, [j for j, c in enumerate(matrix.columns) if c not in gone]


def _draw(matrices: list[Matrix], *, side: float) -> Figure:
    """Lay the panels out in inches, so that cells are square and equal in all of them."""
    cell = min(side / max(max(m.values.shape) for m in matrices), 0.36)
    columns = min(len(matrices), COLUMNS)
    lines = [matrices[k : k + columns] for k in range(0, len(matrices), columns)]
    wide = LEFT + RIGHT + cell * max(m.values.shape[1] for m in matrices)
    heights = [TOP + BOTTOM + cell * max(m.values.shape[0] for m in line) for line in lines]
    width = columns * wide + BAR
    text = textwrap.fill(caption(matrices), width=int(width * 16))
    foot = 0.14 + 0.15 * (text.count("\n") + 1)
    height = sum(heights) + foot
    low, high = color_range(matrices)
    measures = list(dict.fromkeys(m.measure for m in matrices))

    with style():
        figure = Picture(figsize=(width, height))
        bottom = height
        for line, tall in zip(lines, heights, strict=True):
            bottom -= tall
            for k, matrix in enumerate(line):
                box = (k * wide + LEFT, bottom + BOTTOM, cell * matrix.values.shape[1], cell * matrix.values.shape[0])
                axes = figure.add_axes(_relative(box, width, height))
                image = _panel(axes, matrix, low=low, high=high, cell=cell)
                title = matrix.measure if len(matrices) == 1 else _pair(matrix, with_measure=len(measures) > 1)
                axes.set_title(title, loc="left", fontweight="bold", color=INK, pad=5, parse_math=False)
        bar = figure.add_axes(
            _relative((width - BAR, foot + BOTTOM, 0.12, height - foot - TOP - BOTTOM), width, height)
        )
        figure.colorbar(image, cax=bar)
        bar.tick_params(length=2, width=0.5, labelsize=6.5)
        bar.set_ylabel(measures[0] if len(measures) == 1 else "similarity", parse_math=False)
        for spine in bar.spines.values():
            spine.set_visible(False)
        figure.text(0.2 / width, foot / height, text, va="top", fontsize=7, color=MUTED, parse_math=False)
    return figure


def _panel(axes: Axes, matrix: Matrix, *, low: float, high: float, cell: float) -> AxesImage:
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


def _pair(matrix: Matrix, *, with_measure: bool) -> str:
    rows, columns = ("+".join(b.model for b in blocks(axis)) for axis in (matrix.rows, matrix.columns))
    name = f"{shorten(rows, 16)} – {shorten(columns, 16)}"
    return f"{name}, {matrix.measure}" if with_measure else name


def _relative(box: tuple[float, float, float, float], width: float, height: float) -> tuple[float, float, float, float]:
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height
