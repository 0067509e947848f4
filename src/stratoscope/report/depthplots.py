"""Depth in pictures: the metric at every truncation (phang2021 Fig. 3) and with every span skipped (Fig. 4)."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from stratoscope.core.errors import StratoscopeError
from stratoscope.report.axes import printable, shorten
from stratoscope.report.depthwords import POINT, ROUNDING, metric_name
from stratoscope.report.render import INK, MUTED, PALETTE, Picture, style
from stratoscope.results.depth import TUNED, TUNEDORIG, UNTUNED, Depth

LOOKS: dict[str, dict[str, Any]] = {
    UNTUNED: {"color": PALETTE[2], "marker": "D"},
    TUNED: {"color": PALETTE[0], "marker": "o"},
    TUNEDORIG: {"color": PALETTE[1], "marker": "s"},
}
READ_AS = "The head keeps its own pooler"
MOST_NUMBERS = 16
"""Blocks up to which each cell of the skip matrix has room for its number."""


def truncation(depth: Depth) -> Figure:
    """Draw the metric against the layer the head reads; bands are 95 % intervals over the validation rows."""
    if not depth.curves:
        raise StratoscopeError("this result has no truncation curves; run 'stratoscope depth' again")
    with style():
        figure = Picture(figsize=(6.2, 4.3))
        axes = figure.add_axes((0.105, 0.36, 0.865, 0.56))
        last = max(len(c.points) for c in depth.curves) - 1
        for curve in depth.curves:
            layers = range(len(curve.points))
            value, low, high = np.array([(p.value, p.low, p.high) for p in curve.points]).T
            look = LOOKS[curve.name]
            axes.fill_between(layers, low, high, color=look["color"], alpha=0.15, linewidth=0)
            axes.plot(layers, value, markersize=3.8, linewidth=1.5, label=curve.name.upper(), **look)
        full = depth.full
        axes.axhline(full.value, color=INK, linewidth=0.9, label=f"whole model {full.value:.3f}")
        error = [[full.value - full.low], [full.high - full.value]] if not math.isnan(full.low) else None
        axes.errorbar([last], [full.value], error, color=INK, marker="*", markersize=8, capsize=2.5, linewidth=0.9)
        for words, level, dashes in (
            ("bag of words", depth.bag_of_words, "--"),
            ("majority", depth.majority, ":"),
        ):
            if not math.isnan(level):
                axes.axhline(level, color=MUTED, linewidth=1.1, linestyle=dashes, label=f"{words} {level:.3f}")
        axes.set_xlim(-0.4, last + 0.4)
        axes.set_xlabel("layer the head reads (0 = embeddings)")
        axes.set_ylabel(metric_name(depth), parse_math=False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=14, integer=True, steps=[1, 2, 3, 4, 6, 10]))
        axes.grid(axis="y", color="#e4e4e7", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(length=2, width=0.5, colors=MUTED)
        axes.set_title(_title(depth, "truncated at every layer"), loc="left", fontweight="bold", parse_math=False)
        figure.legend(loc="upper center", bbox_to_anchor=(0.5375, 0.255), ncols=3, frameon=False)
        figure.text(
            0.03,
            0.12,
            textwrap.fill(f"{truncation_caption(depth)} Star: the whole model.", 118),
            va="top",
            fontsize=7,
            color=MUTED,
        )
    return figure


def truncation_caption(depth: Depth) -> str:
    """What a reader must know to read the curves."""
    ways = {
        UNTUNED: "UNTUNED reads a layer of the tuned encoder as it is",
        TUNED: "TUNED tunes the head on that layer",
        TUNEDORIG: "TUNEDORIG does so on the base model's layer",
    }
    told = "; ".join(ways[c.name] for c in depth.curves)
    words = f"{READ_AS} at every layer. {told}. Bands: 95 % intervals over the validation rows."
    if any(math.isnan(p.value) for c in depth.curves for p in c.points):
        words += " A missing point: the head reads the same vector for every row there."
    return words


def skipping(depth: Depth) -> Figure:
    """Draw the metric with blocks first to last skipped and nothing tuned; the diagonal skips single blocks."""
    if depth.skip is None:
        raise StratoscopeError("this result has no skip matrix; run 'stratoscope depth' again without leaving it out")
    blocks = len(depth.skip)
    cell = min(4.2 / blocks, 0.42)
    low, high = skip_range(depth)
    left, bottom, side = 0.62, 1.06, cell * blocks
    width, height = max(left + side + 0.95, 4.6), bottom + side + 0.36
    with style():
        figure = Picture(figsize=(width, height))
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        image = axes.imshow(
            np.ma.masked_invalid(depth.skip),
            origin="lower",
            cmap=mpl.colormaps["viridis"].with_extremes(bad=(0, 0, 0, 0)),
            vmin=low,
            vmax=high,
            extent=(0.5, blocks + 0.5, 0.5, blocks + 0.5),
            interpolation="nearest",
        )
        for i, j in np.argwhere(little_loss(depth)):
            axes.add_patch(Rectangle((j + 0.58, i + 0.58), 0.84, 0.84, fill=False, edgecolor=INK, linewidth=0.7))
        if blocks <= MOST_NUMBERS:
            for i, j in np.argwhere(~np.isnan(depth.skip)):
                level = (depth.skip[i, j] - low) / (high - low)
                ink = INK if level > 0.55 else "white"
                text = f"{depth.skip[i, j]:.2f}".replace("0.", ".")
                axes.text(j + 1, i + 1, text, ha="center", va="center", fontsize=min(6.5, cell * 18), color=ink)
        step = next((s for s in (1, 2, 3, 4, 6) if s * cell >= 0.15), 12)
        ticks = [1, *(k for k in range(step, blocks + 1, step) if k > 1)]
        axes.set_xticks(ticks)
        axes.set_yticks(ticks)
        axes.tick_params(length=2, width=0.5, pad=1.5, labelsize=6.5)
        axes.set_xlabel("last block skipped")
        axes.set_ylabel("first block skipped")
        axes.spines[:].set_visible(False)
        axes.set_title(_title(depth, "blocks skipped"), loc="left", fontweight="bold", parse_math=False)
        bar = figure.add_axes(((left + side + 0.14) / width, bottom / height, 0.12 / width, side / height))
        figure.colorbar(image, cax=bar)
        bar.tick_params(length=2, width=0.5, labelsize=6.5)
        bar.set_ylabel(metric_name(depth), parse_math=False)
        bar.spines[:].set_visible(False)
        text = textwrap.fill(skip_caption(depth), int(width * 19))
        figure.text(0.16 / width, 0.56 / height, text, va="top", fontsize=7, color=MUTED, parse_math=False)
    return figure


def skip_caption(depth: Depth) -> str:
    """What a reader must know to read the triangle."""
    return (
        f"Blocks first to last are skipped, nothing is tuned; the diagonal skips one block. Outlined: within one point "
        f"of the whole model ({depth.full.value:.3f})."
    )


def skip_range(depth: Depth) -> tuple[float, float]:
    """Colours run from the worst span, or the majority where that is lower, to the whole model or what beats it."""
    assert depth.skip is not None
    known = [*depth.skip[~np.isnan(depth.skip)], depth.full.value, depth.majority]
    known = [float(v) for v in known if not math.isnan(v)]
    low, high = math.floor(min(known) * 20) / 20, math.ceil(max(known) * 20) / 20
    return low, high if high > low else low + 0.05


def little_loss(depth: Depth) -> npt.NDArray[np.bool_]:
    """Where skipping costs a point or less."""
    assert depth.skip is not None
    with np.errstate(invalid="ignore"):
        return np.asarray(depth.skip >= depth.full.value - POINT - ROUNDING)


def _title(depth: Depth, what: str) -> str:
    return f"{shorten(depth.model.name, 24)} on {shorten(printable(str(depth.task.get('name') or 'task')), 16)}: {what}"
