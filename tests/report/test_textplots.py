"""Perplexity over depth, drawn."""

from __future__ import annotations

from pathlib import Path

from stratoscope.report.textplots import perplexity_figure, write_perplexity

POINTS = [(900.0, 800.0, 1000.0), (90.0, 80.0, 100.0), (9.0, 8.0, 10.0)]


def test_every_depth_is_a_point_on_a_logarithmic_axis(tmp_path: Path) -> None:
    axes = perplexity_figure("$x$<b>", POINTS).axes[0]
    (line,) = axes.lines
    assert list(line.get_ydata()) == [900, 90, 9]
    assert axes.get_yscale() == "log"
    assert {p.suffix for p in write_perplexity(tmp_path, "m", POINTS)} == {".png", ".svg", ".pdf"}
    assert (tmp_path / "figures" / "perplexity.png").stat().st_size > 1000
