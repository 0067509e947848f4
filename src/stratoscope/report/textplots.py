"""The picture of a decoder cut at every layer: perplexity over depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stratoscope.report.axes import printable
from stratoscope.report.write import write_figures


def perplexity_figure(name: str, points: Sequence[tuple[float, float, float]]) -> Figure:
    """Perplexity (value, low, high) with 0, 1, ..., L blocks, on a logarithmic axis."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    values, low, high = zip(*points, strict=True)
    layers = range(len(points))
    axes.plot(layers, values, marker="o", color="#0072b2")
    axes.fill_between(layers, low, high, color="#0072b2", alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer the language-model head reads (0 = embeddings)")
    axes.set_ylabel("perplexity")
    axes.set_title(f"{printable(name)}: truncated at every layer", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def write_perplexity(folder: Path, name: str, points: Sequence[tuple[float, float, float]]) -> list[Path]:
    """Write the figure in three formats."""
    return write_figures(folder, iter([("perplexity", perplexity_figure(name, points))]))
