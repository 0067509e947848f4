"""Figures as bytes: the same figure gives the same bytes on every run, whatever the user's matplotlib settings."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import matplotlib.style
from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DPI = 200

INK = "#1f2430"
MUTED = "#5c6370"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a3e9d", "#999999")
"""Okabe and Ito's colours, the yellow darkened so that a thin line is seen on white."""
MARKERS = "osD^vPX*"

_STYLE: dict[str, Any] = {
    "font.size": 8.0,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "stratoscope",
    "pdf.fonttype": 42,
}
_UNDATED: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


class Picture(Figure):
    """A figure that a notebook shows even when pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        return render(self, "png")


@contextmanager
def style() -> Iterator[None]:
    """Our look, for the time of drawing only: the user's settings neither leak in nor change."""
    with mpl.style.context(["default", _STYLE]):
        yield


def render(figure: Figure, kind: str) -> bytes:
    """The figure as PNG, SVG or PDF without dates or version strings."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=_UNDATED[kind])
    return buffer.getvalue()
