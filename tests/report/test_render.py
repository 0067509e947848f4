from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

from stratoscope.report.curves import drift, localization
from stratoscope.report.heatmap import heatmap
from stratoscope.report.render import FORMATS, render

SCRIPT = """
import hashlib, sys
sys.path.insert(0, {tests!r})
from report_cases import build
from stratoscope.report.heatmap import heatmap
from stratoscope.report.render import FORMATS, render
figure = heatmap(build()["neuronsim"])
print(*[hashlib.sha256(render(figure, kind)).hexdigest() for kind in FORMATS])
"""


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_input_gives_the_same_bytes(comparison, kind):
    for draw in (lambda: heatmap(comparison["ckasim"]), lambda: localization(comparison), lambda: drift(comparison)):
        assert render(draw(), kind) == render(draw(), kind)


def test_another_process_on_another_day_gives_the_same_bytes(comparison):
    import stratoscope.core

    source = str(Path(stratoscope.core.__file__).parents[2])
    env = os.environ | {"PYTHONHASHSEED": "77", "SOURCE_DATE_EPOCH": "86400", "PYTHONPATH": source}
    code = SCRIPT.format(tests=str(Path(__file__).parent))
    there = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    figure = heatmap(comparison["neuronsim"])
    assert there.stdout.split() == [hashlib.sha256(render(figure, kind)).hexdigest() for kind in FORMATS]


def test_user_settings_neither_leak_in_nor_change(comparison):
    before = render(heatmap(comparison["ckasim"]), "png")
    with mpl.rc_context({"font.size": 30.0, "axes.facecolor": "red", "image.origin": "upper", "savefig.bbox": "tight"}):
        mine = dict(mpl.rcParams)
        assert render(heatmap(comparison["ckasim"]), "png") == before
        assert dict(mpl.rcParams) == mine


def test_pyplot_is_never_needed_and_a_notebook_still_shows_the_figure(comparison):
    figure = heatmap(comparison["ckasim"])
    assert figure._repr_png_()[:4] == b"\x89PNG"
    code = "import sys, stratoscope.report.write; sys.exit('matplotlib.pyplot' in sys.modules)"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
