"""The pages of a study and of a depth result in a real browser; skipped, with the reason, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import test_browser
from study_cases import add_localization, add_other, make_depth, make_study, quartered

from stratoscope.report.depthpage import depth_page
from stratoscope.report.studypage import study_page

pytestmark = test_browser.pytestmark
browser = test_browser.reader


def show(browser, tmp_path, text, **how):
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    browser.driver.get("about:blank")
    browser.complaints()
    browser.requests()
    browser.open(path, **how)
    return browser


def point(browser, box, subplot, across, up):
    """Move the mouse to a place of a subplot, given from its lower left in parts of its sides; return the label."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.run("document.getElementById(arguments[0]).scrollIntoView({block: 'center'})", box)
    x, y, width, height = browser.run(
        "const r = document.querySelector(`#${arguments[0]} .draglayer .${arguments[1]} .nsewdrag`)"
        ".getBoundingClientRect(); return [r.left, r.top, r.width, r.height]",
        box,
        subplot,
    )
    label = f"const t = document.querySelector('#{box} .hoverlayer text'); return t && t.textContent"
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 1, "y": 1})
    WebDriverWait(browser.driver, 10).until(lambda _: not browser.run(label))
    there = {"x": x + across * width, "y": y + (1 - up) * height}
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **there})
    WebDriverWait(browser.driver, 10).until(lambda _: browser.run(label))
    return browser.run(label)


def test_hovering_a_cell_of_the_panels_and_a_point_of_the_depth_curves(browser, tmp_path):
    parts = make_study()
    show(browser, tmp_path, study_page(parts))

    def said(measure, unit="cls"):
        block = parts.comparisons[unit][measure].between("ft-1", "base")
        value, low, high = block.values[9, 4], block.low[9, 4], block.high[9, 4]
        return f"FT–ORIG, ft-1:9 × base:4 = {value:.3f} [{low:.3f}, {high:.3f}]"

    assert point(browser, "panels", "x2y2", 4.5 / 13, 9.5 / 13) == said("ckasim")
    assert browser.readout() == said("ckasim")
    assert point(browser, "panels", "xy", 0.5 / 13, 0.5 / 13).endswith("base:0 × base:0: no value (a constant layer)")
    scale = "const a = document.getElementById('panels')._fullLayout.coloraxis; return [a.cmin, a.cmax]"
    before = browser.run(scale)
    browser.choose("measure", "ckasim-debiased")
    assert point(browser, "panels", "x2y2", 4.5 / 13, 9.5 / 13) == said("ckasim-debiased")
    assert browser.run(scale) == before
    browser.choose("unit", "1")
    assert point(browser, "panels", "x2y2", 4.5 / 13, 9.5 / 13) == said("ckasim-debiased", "mean")
    shown = browser.run(
        "return [...document.querySelectorAll('#blocks [data-unit]')].filter(d => !d.hidden).map(d => d.innerText)"
    )
    assert len(shown) == 1
    assert f"{parts.comparisons['mean'].findings['blocks']['ckasim-debiased']['ft-2']['contrast']:.3f}" in shown[0]
    low, high = browser.run("return document.getElementById('truncation')._fullLayout.yaxis.range")
    p = parts.depth.curves[2].points[6]
    got = point(browser, "truncation", "xy", 6.4 / 12.8, (p.value - low) / (high - low))
    assert got == f"TUNEDORIG, layer 6: {p.value:.3f} [{p.low:.3f}, {p.high:.3f}]"
    assert browser.complaints() == []
    assert [u for u in browser.requests() if not u.startswith(("data:", "blob:"))] == [browser.driver.current_url]


def test_hovering_another_family_of_other_depth_and_the_localization_of_the_control(browser, tmp_path):
    block = quartered(0.7, 0.6, 0.2) + np.arange(7) / 1000
    parts = add_localization(add_other(make_study(), block))
    show(browser, tmp_path, study_page(parts))
    titles = "return [...document.querySelectorAll('#panels .annotation-text')].map(t => t.textContent)"
    place = [t for t in browser.run(titles) if "–" in t].index("FT–OTHER") + 1
    # Row = layer 9 of 13 of FT, column = layer 2 of 7 of the other model.
    got = point(browser, "panels", f"x{place}y{place}", 2.5 / 7, 9.5 / 13)
    assert got == f"FT–OTHER, ft-1:9 × other:2 = {block[9, 2]:.3f}"
    low, high = browser.run("return document.getElementById('localization')._fullLayout.yaxis.range")
    left, right = browser.run("return document.getElementById('localization')._fullLayout.xaxis.range")
    got = point(browser, "localization", "xy", (9 - left) / (right - left), (0.1 - low) / (high - low))
    assert got == "ft-1, layer 9: 0.100"
    dashes = browser.run("return document.getElementById('localization').data.map(t => [t.name, t.line.dash])")
    assert [name for name, dash in dashes if dash != "solid"] == ["random (own layers)"]
    assert browser.complaints() == []


def test_hovering_the_skip_triangle(browser, tmp_path):
    depth = make_depth()
    show(browser, tmp_path, depth_page(depth))
    # Row = first block 3, column = last block 5, from the lower left.
    got = point(browser, "skip", "xy", 4.5 / 12, 2.5 / 12)
    value, same = depth.skip[2, 4], depth.skip_agreement[2, 4]
    want = (
        f"without blocks 3-5 = {value:.3f}, −{(0.912 - value) * 100:.1f} points, {same * 100:.1f} % predicted as before"
    )
    assert got == want
    assert browser.run("return document.getElementById('skip-readout').textContent") == want
    assert point(browser, "skip", "xy", 2.5 / 12, 4.5 / 12) == "first 5, last 3: not a span"
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_a_study_without_scrolling_sideways(browser, tmp_path, dark):
    names = ("base", "x" * 80, "<script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>")
    show(browser, tmp_path, study_page(make_study(names, layers=7)), width=375, height=800, dark=dark)
    assert browser.run("return document.documentElement.scrollWidth") == 375
    rights = browser.run(
        "return [...document.querySelectorAll('svg.main-svg')].map(s => s.getBoundingClientRect().right)"
    )
    assert max(rights) <= 375
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.run("return window.hacked === undefined")
    assert browser.complaints() == []
