"""The page in a real browser: Debian's Chromium; skipped, with the reason, where it is not installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratoscope.core.matrix import Layer
from stratoscope.report.axes import shorten
from stratoscope.report.page import page

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
ABSENT = [str(p) for p in (CHROMIUM, DRIVER) if not p.exists()]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=f"no {' and no '.join(ABSENT)}: install Debian's chromium-driver")

FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --force-device-scale-factor=1"""
HOSTILE = ("base", "<img src=x onerror=window.hacked=1>", "<b>&lt;</b></script ><script>window.hacked=2</script>")


class Reader:
    """What a person does with the page: choose, point, read."""

    def __init__(self, driver):
        self.driver = driver

    def run(self, script, *args):
        return self.driver.execute_script(script, *args)

    def open(self, path, *, width=1280, height=1400, dark=False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.driver.get(path.as_uri())

    def point_at(self, i, j):
        """Move the mouse to row i, column j counted from the LOWER LEFT of what is drawn; return the label's text."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.run("document.getElementById('heatmap').scrollIntoView({block: 'center'})")
        x, y, width, height = self.run(
            "const r = document.querySelector('#heatmap .nsewdrag').getBoundingClientRect();"
            "return [r.left, r.top, r.width, r.height]"
        )
        rows, columns = self.run(
            "const d = document.getElementById('heatmap').data[0].z; return [d.length, d[0].length]"
        )
        there = {"x": x + (j + 0.5) * width / columns, "y": y + height - (i + 0.5) * height / rows}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 1, "y": 1})
        WebDriverWait(self.driver, 10).until(lambda _: not self.label())
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **there})
        WebDriverWait(self.driver, 10).until(lambda _: self.label())
        return self.label()

    def label(self):
        return self.run("const t = document.querySelector('#heatmap .hoverlayer text'); return t && t.textContent")

    def readout(self):
        return self.run("return document.getElementById('readout').textContent")

    def choose(self, name, value):
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_element("id", name)).select_by_value(value)

    def complaints(self):
        return self.driver.get_log("browser")

    def requests(self):
        """Addresses the page asked for, itself included."""
        log = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in log if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_page_load_timeout(60)
    yield Reader(driver)
    driver.quit()


@pytest.fixture
def opened(reader, comparison, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(comparison, descriptions={"neuronsim": "best matching neuron"}), encoding="utf-8")
    reader.driver.get("about:blank")
    reader.complaints()
    reader.requests()
    reader.open(path)
    return reader


def said(comparison, measure, row, column):
    """The text a cell must show."""
    matrix = comparison[measure]
    i, j = matrix.rows.index(Layer(*row)), matrix.columns.index(Layer(*column))
    interval = "" if matrix.low is None else f" [{matrix.low[i, j]:.3f}, {matrix.high[i, j]:.3f}]"
    return f"{row[0]}:{row[1]} × {column[0]}:{column[1]} = {matrix.values[i, j]:.3f}{interval}"


def test_hovering_reads_the_cell_and_layer_zero_is_lower_left(opened, comparison):
    assert opened.point_at(0, 0) == "base:0 × base:0: no value (a constant layer)"
    assert opened.point_at(3, 13 + 8) == said(comparison, "ckasim", ("base", 3), ("tuned", 8))
    assert opened.readout() == said(comparison, "ckasim", ("base", 3), ("tuned", 8))


def test_switching_the_measure_changes_what_is_read(opened, comparison):
    opened.choose("measure", "neuronsim")
    here = opened.point_at(13 + 5, 3)
    assert here == said(comparison, "neuronsim", ("tuned", 5), ("base", 3))
    assert opened.point_at(3, 13 + 5) == said(comparison, "neuronsim", ("base", 3), ("tuned", 5))
    assert opened.run("return document.getElementById('description').textContent") == "best matching neuron"
    shown = opened.run(
        "return [...document.querySelectorAll('#blocks > div')].filter(d => !d.hidden).map(d => d.innerText)"
    )
    contrast = comparison.findings["blocks"]["neuronsim"]["tuned"]["contrast"]
    assert len(shown) == 1
    assert f"{contrast:.3f}" in shown[0]
    drawn = opened.run("return document.getElementById('drift').data.at(-1).y")
    assert drawn[0] is None
    assert drawn[1:] == pytest.approx(comparison.findings["drift"]["neuronsim"][0]["same_layer"][1:], abs=1e-6)
    opened.choose("measure", "svsim")
    assert opened.point_at(13 + 5, 3) == said(comparison, "svsim", ("tuned", 5), ("base", 3))


def test_switching_the_view_shows_one_pair_on_the_same_colours(opened, comparison):
    names = opened.run("return [...document.getElementById('view').options].map(o => o.textContent)")
    assert names[:4] == ["All models", "base", "tuned", "mini"]
    assert len(names) == 1 + 3 + 6
    before = opened.run("const t = document.getElementById('heatmap').data[0]; return [t.zmin, t.zmax]")
    opened.choose("measure", "neuronsim")
    opened.choose("view", "2,1")
    assert opened.point_at(6, 12) == said(comparison, "neuronsim", ("mini", 6), ("tuned", 12))
    assert opened.run("return document.getElementById('heatmap').data[0].z.length") == 7
    assert opened.run("const t = document.getElementById('heatmap').data[0]; return [t.zmin, t.zmax]") == before
    opened.choose("view", "all")
    assert opened.point_at(13, 26 + 6) == "tuned:0 × mini:6: no value (a constant layer)"


def test_the_table_of_values_says_the_same(opened, comparison):
    opened.choose("view", "1,0")
    opened.driver.find_element("css selector", "#values summary").click()
    opened.run("return new Promise(requestAnimationFrame)")
    rows = opened.run(
        "return [...document.querySelectorAll('#values tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert rows[0][:2] == ["row × column", "base:0"]
    assert rows[6][0] == "tuned:5"
    assert rows[6][4] == f"{comparison['ckasim'].at(('tuned', 5), ('base', 3)):.3f}"


def test_the_selects_are_reached_and_changed_by_keyboard(opened):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    seen = []
    for _ in range(3):
        ActionChains(opened.driver).send_keys(Keys.TAB).perform()
        seen.append(opened.run("return document.activeElement.id"))
    assert "measure" in seen
    assert "view" in seen
    opened.run("document.getElementById('measure').focus()")
    ActionChains(opened.driver).send_keys(Keys.ARROW_DOWN).perform()
    assert opened.run("return document.getElementById('measure').value") == "ckasim-debiased"
    assert opened.run("return document.getElementById('heatmap').data[0].zmin") < 0


def test_no_complaint_and_no_request_but_the_page_itself(opened):
    opened.choose("measure", "neuronsim")
    opened.point_at(5, 5)
    assert opened.complaints() == []
    assert [url for url in opened.requests() if not url.startswith(("data:", "blob:"))] == [opened.driver.current_url]


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_everything_without_scrolling_sideways(reader, make_comparison, tmp_path, dark):
    path = tmp_path / "phone.html"
    path.write_text(page(make_comparison(("base", "x" * 80, "mini"))), encoding="utf-8")
    reader.open(path, width=375, height=800, dark=dark)
    assert reader.run("return document.documentElement.scrollWidth") == 375
    right = reader.run("return document.querySelector('#heatmap svg').getBoundingClientRect().right")
    assert right <= 375
    back, ink = reader.run(
        "const s = getComputedStyle(document.body);"
        "return [s.backgroundColor, s.color].map(c => c.match(/[0-9]+/g).map(Number).reduce((a, b) => a + b))"
    )
    assert (back < ink) == dark


def test_hostile_names_are_shown_and_never_run(reader, make_comparison, tmp_path):
    path = tmp_path / "hostile.html"
    # Without the policy, so that escaping alone must hold.
    text = page(make_comparison(HOSTILE))
    start, stop = text.index("<meta http-equiv"), text.index('<meta name="viewport"')
    path.write_text(text[:start] + text[stop:], encoding="utf-8")
    reader.driver.get("about:blank")
    reader.complaints()
    reader.open(path)
    assert reader.point_at(13 + 5, 26 + 6).startswith(f"{HOSTILE[1]}:5× {HOSTILE[2]}:6= ")
    names = reader.run("return [...document.querySelectorAll('#localization .legendtext')].map(t => t.textContent)")
    assert names == [shorten(n, 34) for n in HOSTILE]
    assert reader.readout().startswith(f"{HOSTILE[1]}:5 × {HOSTILE[2]}:6 = ")
    for value in ("0,1", "1,2", "2,2"):
        reader.choose("view", value)
    reader.driver.find_element("css selector", "#values summary").click()
    assert reader.run("return document.querySelectorAll('img').length") == 0
    assert reader.run("return document.scripts.length") == 3
    assert reader.run("return window.hacked === undefined")
    assert HOSTILE[2] in reader.run("return document.querySelector('h1').innerText")
    assert reader.complaints() == []


def test_the_policy_stops_what_escaping_might_miss(reader, comparison, tmp_path):
    path = tmp_path / "injected.html"
    hole = '<img src="data:," onerror="window.hacked=1"><script>window.hacked=2</script></main>'
    path.write_text(page(comparison).replace("</main>", hole, 1), encoding="utf-8")
    reader.open(path)
    assert reader.point_at(1, 1)
    assert reader.run("return window.hacked === undefined")
    assert any("Content Security Policy" in entry["message"] for entry in reader.complaints())
