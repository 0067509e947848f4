"""Curves over layers: localization scores (wu2020 Fig. 3 and 7) and the same-layer similarity of two models."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stratoscope.core.errors import StratoscopeError
from stratoscope.report.axes import color_range, shorten
from stratoscope.report.render import MARKERS, MUTED, PALETTE, Picture, style
from stratoscope.report.series import ALONE, Series, alone_series, drift_series, in_order, localization_series
from stratoscope.results.comparison import Comparison

COLUMNS = 3
"""Panels side by side before a new row begins."""


def localization(comparison: Comparison) -> Figure:
    """Draw every model's localization score over its layers, a control's dashed; a constant layer leaves a gap."""
    scores, alone = localization_series(comparison), alone_series(comparison)
    if not scores:
        raise StratoscopeError(
            "this result has no localization scores; compare again with both neuronsim and svsim among the measures"
        )
    with style():
        figure = Picture(figsize=(5.4, 3.4), layout="constrained")
        axes = _axes(
            figure,
            (1, 1, 1),
            "z-scored neuronsim − svsim" if comparison.provenance.get("standardise") else "mean neuronsim − mean svsim",
        )
        for k, (model, series) in enumerate(scores.items()):
            _line(axes, series, label=shorten(model, 28), k=k)
        for k, (model, series) in enumerate(alone.items(), start=len(scores)):
            _line(axes, series, label=f"{shorten(model, 28)}{ALONE}", k=k, dashed=True)
        axes.set_title("Localization score by layer", loc="left", fontweight="bold")
        _legend(figure)
    return figure


def drift(comparison: Comparison) -> Figure:
    """Draw the similarity of equal layers of two models, one panel a measure, with intervals where there are any."""
    found = in_order(comparison.findings.get("drift", {}), comparison)
    if not found:
        raise StratoscopeError("this result has no drift curves; compare at least two models with equally many layers")
    columns = min(len(found), COLUMNS)
    rows = -(-len(found) // columns)
    low, high = color_range([comparison[m] for m in found])
    with style():
        size = (max(5.4, 2.9 * columns), 0.7 + 2.3 * rows if len(found) > 1 else 3.4)
        figure = Picture(figsize=size, layout="constrained")
        for place, (measure, pairs) in enumerate(found.items(), start=1):
            axes = _axes(figure, (rows, columns, place), "similarity")
            for k, pair in enumerate(pairs):
                name = f"{shorten(pair['first'], 24)} and {shorten(pair['second'], 24)}"
                label = name if place == 1 else None
                _line(axes, drift_series(comparison[measure], pair), label=label, k=k)
            axes.set_ylim(low - 0.03, high + 0.03)
            axes.set_title(measure, loc="left", fontweight="bold", parse_math=False)
        _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    for text in figure.legend(loc="outside lower center", ncols=3, frameon=False).get_texts():
        text.set_parse_math(False)


def _axes(figure: Figure, place: tuple[int, int, int], label: str) -> Axes:
    axes: Axes = figure.add_subplot(*place)
    axes.set_xlabel("layer (0 = embeddings)")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 3, 4, 6, 10]))
    axes.grid(axis="y", color="#e4e4e7", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2, width=0.5, colors=MUTED)
    return axes


def _line(axes: Axes, series: Series, *, label: str | None, k: int, dashed: bool = False) -> None:
    color = PALETTE[k % len(PALETTE)]
    axes.set_xlim(-0.4, max(axes.get_xlim()[1] if axes.lines else 0, max(series.layers) + 0.4))
    look: dict[str, Any] = {"color": color, "marker": MARKERS[k % len(MARKERS)], "markersize": 3.5, "linewidth": 1.4}
    look["linestyle"] = "--" if dashed else "-"
    (line,) = axes.plot(series.layers, series.values, **look)
    # matplotlib hides labels that begin with an underscore, so a name that does gets a blank before it.
    line.set_label("_" if label is None else f" {label}")
    if series.low is not None and series.high is not None:
        axes.fill_between(series.layers, series.low, series.high, color=color, alpha=0.2, linewidth=0)
