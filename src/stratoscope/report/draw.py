"""Pictures by matplotlib: the same picture gives the same bytes on every run, whatever the user's own settings are."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, ScalarFormatter

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.matrix import Matrix
from stratoscope.report.labels import number, shorten
from stratoscope.report.outline import sections_of
from stratoscope.report.pictures import (
    PALETTE,
    SCALE,
    Axis,
    Bars,
    Boxes,
    Curves,
    Group,
    Heads,
    Heatmap,
    Level,
    Line,
    Panels,
    Patterns,
    Picture,
    Sizes,
    Stacks,
)
from stratoscope.results.result import Result

FORMATS = ("png", "svg", "pdf")
DPI = 200
INK, MUTED, RULE, GAP, HATCH = "#1f2430", "#5c6370", "#e4e4e7", "#e4e4e7", "#a1a1aa"
MARKERS = "osD^vPX*"
SLANTED = 26
"""Letters of a category that stands aslant, for want of room."""
MARKERS_ON = 3
"""From one line of a colour to the next: they differ in their markers."""
DASHES = {"solid": "-", "dash": "--", "dot": ":"}
TICK_INCHES = 0.15
"""Room a tick label needs; where cells are smaller, labels are thinned."""
LETTER_INCHES = 0.085
"""Width of a bold letter."""
LARGEST_CELL_INCHES, NUMBERED_CELL_INCHES = 0.36, 0.24
"""A cell is never larger; and has room for its number from this size on."""
LEFT, RIGHT, BOTTOM = 0.56, 0.12, 0.46
"""Inches around the cells for ticks and names."""
FACET_INCHES = 2.3
"""Width of curves beside others."""
BAR = 0.6
"""Inches at the right for the colour bar and its labels."""


@dataclass(frozen=True)
class Look:
    """Where a figure is to be seen."""

    titled: bool
    font: float
    side: float
    """Inches of the longer side of a heatmap alone."""
    panel: float
    """Inches of a panel among others."""
    width: float
    """Inches of the widest figure; panels beyond it begin a new line."""
    curves: tuple[float, float]
    """Inches of curves, bars and boxes."""


LOOKS = {
    "screen": Look(True, 8.0, 5.4, 1.75, 15.5, (6.2, 3.7)),
    "paper": Look(False, 7.5, 2.3, 1.02, 6.9, (3.35, 2.4)),
}
"""On a screen with titles; in a paper without, one column (3.35 inches) or two (6.9) wide."""

_STYLE: dict[str, Any] = {
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    **{
        f"{axis}tick.{name}": value
        for axis in "xy"
        for name, value in (("color", MUTED), ("major.size", 2.0), ("major.width", 0.5), ("major.pad", 1.5))
    },
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,
    "svg.hashsalt": "stratoscope",
    "pdf.fonttype": 42,
}
_UNDATED: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


class Drawing(Figure):
    """A figure that a notebook shows even when pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        return render(self, "png")


def figure(*pictures: Picture, style: str = "screen") -> Figure:
    """Draw pictures of one file together: heatmaps below each other on one colour scale, curves side by side."""
    if style not in LOOKS:
        raise unknown_name("style of figures", style, LOOKS)
    look, first = LOOKS[style], pictures[0]
    with _settings(look):
        if isinstance(first, Patterns):
            return _grid([("", first.panels())], look, first.title, side=look.side / 2)
        if isinstance(first, Heads):
            first = first.heatmap()
        if isinstance(first, Curves):
            return _curves([p for p in pictures if isinstance(p, Curves)], look)
        if isinstance(first, Panels):
            lines = [(p.label, p.panels) for p in pictures if isinstance(p, Panels)]
            return _grid(lines, look, first.title, side=look.panel)
        if isinstance(first, Heatmap):
            side = look.side if len(first.columns.names) <= 30 else max(look.side, 5.4)
            return _grid([("", (replace(first, title=""),))], look, first.title, side=side)
        if isinstance(first, Bars):
            return _bars(first, look)
        if isinstance(first, Boxes):
            return _boxes(first, look)
    raise TypeError(f"no drawing for a {type(first).__name__}")


def heatmap(matrix: Matrix) -> Figure:
    """Draw one matrix; rows are the first argument and increase upwards, columns the second."""
    return figure(Heatmap.of(matrix, id="matrix"))


def first_figure(result: Result) -> Figure:
    """Draw the first picture of a result's page."""
    first = sections_of(result).first
    if first is None:
        raise StratoscopeError(f"{result.kind().what} without anything to draw")
    return figure(first)


def render(drawn: Figure, kind: str) -> bytes:
    """A figure as PNG, SVG or PDF without dates or version strings."""
    buffer = io.BytesIO()
    with _settings(LOOKS["screen"]):
        drawn.savefig(buffer, format=kind, dpi=DPI, metadata=_UNDATED[kind])
    return buffer.getvalue()


@contextmanager
def _settings(look: Look) -> Iterator[None]:
    """Our look, for the time of drawing only."""
    with mpl.style.context(["default", _STYLE, {"font.size": look.font}]):
        yield


def _grid(lines: Sequence[tuple[str, tuple[Heatmap, ...]]], look: Look, title: str, *, side: float) -> Figure:
    """Heatmaps in lines, each line with its label at the left, and one colour bar for all."""
    margin = 0.26 if any(label for label, _ in lines) else 0.02
    above = 0.26 if any(p.title for _, line in lines for p in line) else 0.06
    head = 0.28 if look.titled and title else 0.04
    up = max(len(p.rows.names) for _, line in lines for p in line)
    placed = [
        part
        for label, line in lines
        for part in _wrapped([_Placed(label, p, _cell(p, side, up), side) for p in line], look.width - margin - BAR)
    ]
    right = margin + max(sum(p.width for p in line) for line in placed)
    tall = [max(p.high for p in line) for line in placed]
    width, height = max(right + BAR, 2.2), head + sum(t + above + BOTTOM for t in tall)
    drawn, bottom, image = Drawing(figsize=(width, height)), height - head, None
    for line, t in zip(placed, tall, strict=True):
        bottom -= above + t + BOTTOM
        left = margin
        if line[0].label:
            middle = (bottom + BOTTOM + t / 2) / height
            drawn.text(0.1 / width, middle, line[0].label, rotation=90, va="center", ha="left", fontweight="bold")
        for p in line:
            box = (left + LEFT, bottom + BOTTOM, p.wide, p.high)
            axes = drawn.add_axes(_relative(box, width, height), label=f"{p.label} {p.picture.title} {left} {bottom}")
            image = _cells(axes, p.picture, p.cell)
            if p.picture.title:
                short = shorten(p.picture.title, int((p.width - 0.2) / LETTER_INCHES))
                axes.set_title(short, loc="left", fontweight="bold", fontsize=look.font, pad=4)
            left += p.width
    bar = drawn.add_axes(_relative((right + 0.02, BOTTOM, 0.12, height - head - above - BOTTOM), width, height))
    assert image is not None
    drawn.colorbar(image, cax=bar)
    bar.tick_params(labelsize=6.5)
    units = dict.fromkeys(p.unit for _, line in lines for p in line)
    bar.set_ylabel(next(iter(units)) if len(units) == 1 else "similarity", fontsize=7)
    bar.spines[:].set_visible(False)
    if look.titled and title:
        short = shorten(title, int(width / LETTER_INCHES))
        drawn.text(0.1 / width, 1 - 0.08 / height, short, va="top", fontsize=9, fontweight="bold")
    return drawn


@dataclass(frozen=True)
class _Placed:
    """A heatmap in a line; lengths in inches."""

    label: str
    picture: Heatmap
    cell: float
    side: float

    @property
    def wide(self) -> float:
        return self.cell * len(self.picture.columns.names)

    @property
    def high(self) -> float:
        return self.cell * len(self.picture.rows.names)

    @property
    def width(self) -> float:
        """With what is around the cells; a narrow panel has room for its title."""
        return LEFT + max(self.wide, 0.6 * self.side if self.picture.title else 0) + RIGHT


def _wrapped(line: list[_Placed], room: float) -> list[list[_Placed]]:
    """The panels of a line, in several lines of about equal number where they are wider than the room."""
    many = -(-len(line) // math.ceil(max(sum(p.width for p in line) / room, 1)))
    return [line[k : k + many] for k in range(0, len(line), many)]


def _cell(p: Heatmap, side: float, up: int) -> float:
    """Inches of a cell; a heatmap that is wider than high may take twice the room across."""
    most = LARGEST_CELL_INCHES if not p.numbers else LARGEST_CELL_INCHES * 1.17
    return min(side / up, (1 if len(p.columns.names) <= up else 2) * side / len(p.columns.names), most)


def _cells(axes: Axes, p: Heatmap, cell: float) -> AxesImage:
    axes.patch.set(**({"facecolor": GAP, "hatch": "/////", "edgecolor": HATCH} if p.hatched else {"alpha": 0}))
    colors = LinearSegmentedColormap.from_list("stratoscope", SCALE).with_extremes(bad=(0, 0, 0, 0))
    low, high = p.range
    image = axes.imshow(
        np.ma.masked_invalid(p.values), origin="lower", cmap=colors, vmin=low, vmax=high, interpolation="nearest"
    )
    for axis, side, line in ((p.columns, axes.xaxis, axes.axvline), (p.rows, axes.yaxis, axes.axhline)):
        at = _ticks(axis, cell)
        side.set_ticks(at, [axis.ticks[k] for k in at], fontsize=6.5)
        for group in axis.groups[1:]:
            line(group.start - 0.5, color="white", linewidth=1.0)
    for group in p.columns.groups:
        where = ((group.start + group.stop) / 2 - 0.5, -0.22 / cell - 0.5)
        axes.text(*where, _fitting(group, cell), ha="center", va="top", fontweight="bold", fontsize=7)
    for group in p.rows.groups:
        where = (-0.27 / cell - 0.5, (group.start + group.stop) / 2 - 0.5)
        axes.text(*where, _fitting(group, cell), ha="right", va="center", rotation=90, fontweight="bold", fontsize=7)
    axes.set_xlabel(p.columns.title)
    axes.set_ylabel(p.rows.title)
    for i, j in np.argwhere(p.marks) if p.marks is not None else ():
        axes.add_patch(Rectangle((j - 0.42, i - 0.42), 0.84, 0.84, fill=False, edgecolor=INK, linewidth=0.7))
    if p.numbers and cell >= NUMBERED_CELL_INCHES:
        for i, j in np.argwhere(~np.isnan(p.values)):
            ink = INK if (p.values[i, j] - low) / (high - low) > 0.55 else "white"
            text = f"{p.values[i, j]:.2f}".replace("0.", ".", 1)
            axes.text(j, i, text, ha="center", va="center", fontsize=min(6.5, cell * 18), color=ink)
    if p.strip and len(p.columns.names) > 2:
        label = {"facecolor": GAP, "edgecolor": "none", "pad": 0.6}
        middle, size = (len(p.columns.names) - 1) / 2, min(6.0, cell * 55)
        axes.text(middle, 0, p.strip, ha="center", va="center", fontsize=size, color=MUTED, bbox=label)
    axes.spines[:].set_visible(False)
    return image


def _ticks(axis: Axis, cell: float) -> list[int]:
    """Positions to label: every one where there is room, else every second, third, sixth ... of each group."""
    step = next((s for s in (1, 2, 3, 4, 6, 12) if s * cell >= TICK_INCHES), 24)
    groups = axis.groups or (Group("", 0, len(axis.ticks)),)
    last = groups[-1].stop
    return [
        k for g in groups for k in range(g.start, g.stop, step) if step == 1 or g.stop == last or g.stop - k > step / 2
    ]


def _fitting(group: Group, cell: float) -> str:
    return shorten(group.name, int((group.stop - group.start) * cell / LETTER_INCHES))


def _curves(pictures: Sequence[Curves], look: Look) -> Figure:
    """Curves side by side with one legend; all share their values' axis where they are of one kind."""
    across = min(len(pictures), 3)
    down = -(-len(pictures) // across)
    wide, high = look.curves
    size = (wide, high) if len(pictures) == 1 else (max(wide, FACET_INCHES * across), 0.7 + 0.66 * high * down)
    drawn = Drawing(figsize=size, layout="constrained")
    shared: Axes | None = None
    for place, p in enumerate(pictures):
        axes = drawn.add_subplot(down, across, place + 1, sharey=shared)
        shared = shared or axes
        for line in p.lines:
            _line(axes, line)
        for level in p.levels:
            _level(axes, level)
        layers = [k for line in p.lines for k in line.layers]
        if isinstance(p, Sizes):
            axes.set_xscale("log")
            axes.set_xticks(sorted(set(layers)), [f"{k:,}" for k in sorted(set(layers))], minor=False)
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.set_xlim(min([0, *layers]) - 0.4, max([1, *layers]) + 0.4)
            nbins = 13 if size[0] / across > 3 else 7
            axes.xaxis.set_major_locator(
                MaxNLocator(nbins=nbins, integer=True, min_n_ticks=1, steps=[1, 2, 3, 4, 6, 10])
            )
        if p.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(NullFormatter())
        elif p.range:
            axes.set_ylim(*p.range)
        if place // across == down - 1 or place + across >= len(pictures):
            axes.set_xlabel(p.x)
        if place % across == 0 or len({q.y for q in pictures}) > 1:
            axes.set_ylabel(p.y)
        if len(pictures) > 1:
            axes.set_title(" · ".join(p.when.values()) or p.title, loc="left", fontweight="bold", fontsize=look.font)
    return _framed(drawn, pictures[0].title, look, legend=True)


def _line(axes: Axes, line: Line) -> None:
    times, tint = divmod(line.tint, len(PALETTE))
    color, marker = PALETTE[tint], MARKERS[(tint + MARKERS_ON * times) % len(MARKERS)]
    if line.low is not None and line.high is not None:
        axes.fill_between(line.layers, line.low, line.high, color=color, alpha=0.18, linewidth=0)
    # matplotlib hides labels that begin with an underscore, so a blank stands before each.
    label, style = f" {shorten(line.name, 34)}", "--" if line.dashed else "-"
    look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 3.5, "linewidth": 1.4, "linestyle": style}
    axes.plot(line.layers, line.values, label=label, **look)


def _level(axes: Axes, level: Level) -> None:
    color = INK if level.dash == "solid" else MUTED
    label = f" {shorten(level.name, 28)} {number(level.value)}"
    axes.axhline(level.value, color=color, linewidth=1.0, linestyle=DASHES[level.dash], label=label)


def _series(k: int, number: int) -> str:
    """The colour of a series; one more than there are colours is the rest of all others."""
    return RULE if k == len(PALETTE) and number == k + 1 else PALETTE[k % len(PALETTE)]


def _bars(p: Bars, look: Look) -> Figure:
    drawn = Drawing(figsize=look.curves, layout="constrained")
    axes = drawn.add_subplot()
    stacked = isinstance(p, Stacks)
    room = 0.7 if stacked else 0.7 / len(p.bars)
    below = np.zeros(len(p.categories))
    for k, bar in enumerate(p.bars):
        at = np.arange(len(p.categories)) - 0.35 + room * ((0 if stacked else k) + 0.5)
        values = np.array([v.value for v in bar.values])
        error = np.nan_to_num([[v.value - v.low for v in bar.values], [v.high - v.value for v in bar.values]])
        color, label = _series(k, len(p.bars)), f" {shorten(bar.name, 28)}"
        axes.bar(at, values, room * 0.92, bottom=below, color=color, label=label)
        below += np.nan_to_num(values) if stacked else 0
        if error.any():
            axes.errorbar(at, values, error, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2.5)
    for level in p.levels:
        _level(axes, level)
    _categories(axes, p.categories, p.y, look)
    return _framed(drawn, p.title, look, legend=len(p.bars) > 1 or bool(p.levels))


def _boxes(p: Boxes, look: Look) -> Figure:
    drawn = Drawing(figsize=look.curves, layout="constrained")
    axes = drawn.add_subplot()
    known = [(k, b) for k, b in enumerate(p.boxes) if not math.isnan(b.median)]
    stats = [
        {"whislo": b.low, "q1": b.quarter, "med": b.median, "q3": b.three_quarters, "whishi": b.high, "fliers": []}
        for _, b in known
    ]
    drawn_boxes = axes.bxp(
        stats, positions=[k for k, _ in known], widths=0.5, patch_artist=True, showfliers=False,
        medianprops={"color": INK}, manage_ticks=False,
    )  # fmt: skip
    for patch, (k, _) in zip(drawn_boxes["boxes"], known, strict=True):
        patch.set(facecolor=PALETTE[k % len(PALETTE)], alpha=0.6, edgecolor=INK, linewidth=0.7)
    _categories(axes, [b.name for b in p.boxes], p.y, look)
    return _framed(drawn, p.title, look, legend=False)


def _categories(axes: Axes, names: Sequence[str], y: str, look: Look) -> None:
    letters = int(look.curves[0] * 0.85 / len(names) / 0.075)
    if max(map(len, names), default=0) <= letters:
        axes.set_xticks(range(len(names)), names)
    else:
        axes.set_xticks(range(len(names)), [shorten(name, SLANTED) for name in names], rotation=30, ha="right")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylabel(y)


def _framed(drawn: Figure, title: str, look: Look, *, legend: bool) -> Figure:
    """Plain axes, the title and one legend, that of the first axes."""
    for axes in drawn.axes:
        axes.grid(axis="y", color=RULE, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    if look.titled:
        letters = int(drawn.get_figwidth() / 0.075)
        drawn.suptitle(shorten(title, letters), x=0.01, ha="left", fontsize=9, fontweight="bold")
    handles, labels = drawn.axes[0].get_legend_handles_labels()
    if handles and legend:
        columns = 3 if look.titled else 2
        drawn.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=look.font - 0.5)
    return drawn


def _relative(box: tuple[float, float, float, float], width: float, height: float) -> tuple[float, float, float, float]:
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height
