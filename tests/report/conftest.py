"""One browser for all tests of pages: Debian's Chromium; skipped, with the reason, where it is not installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --force-device-scale-factor=1"""


class Reader:
    """What a person does with the page: open, choose, point, read."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def run(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def open(self, text: str, *, width: int = 1280, height: int = 1400, dark: bool = False, hash: str = "") -> Reader:
        """Show a page, with the logs of earlier ones gone."""
        path = self.folder / "report.html"
        path.write_text(text, encoding="utf-8")
        self.driver.get("about:blank")
        self.complaints(), self.requests()
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.driver.get(path.as_uri() + hash)
        return self

    def point(self, picture: str, x: float, y: float, *, subplot: str = "xy") -> str:
        """Move the mouse to a place in the data of a picture; return the text of the label that appears."""
        from selenium.webdriver.support.ui import WebDriverWait

        box = f"picture-{picture}"
        self.run("document.getElementById(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", box)
        there = self.run(
            "const [id, plot, x, y] = arguments, box = document.getElementById(id), all = box._fullLayout;"
            "const place = /x(\\d*)y(\\d*)/.exec(plot), xa = all['xaxis' + place[1]], ya = all['yaxis' + place[2]];"
            "const r = box.querySelector(`.draglayer .${plot} .nsewdrag`).getBoundingClientRect();"
            "return {x: r.left + xa.c2p(x), y: r.top + ya.c2p(y)}",
            box,
            subplot,
            x,
            y,
        )
        label = f"const t = document.querySelector('#{box} .hoverlayer text'); return t && t.textContent"
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 1, "y": 1})
        WebDriverWait(self.driver, 10).until(lambda _: not self.run(label))
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **there})
        WebDriverWait(self.driver, 10).until(lambda _: self.run(label))
        return str(self.run(label))

    def readout(self, picture: str) -> str:
        script = "return document.querySelector(`[data-picture='${arguments[0]}'] .readout`).textContent"
        return str(self.run(script, picture))

    def choose(self, selector: str, value: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_element("css selector", selector)).select_by_value(value)

    def shown(self, selector: str) -> list[str]:
        """Ids of elements that are seen."""
        script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent).map(e => e.id)"
        return list(self.run(script, selector))

    def complaints(self) -> list[Any]:
        return list(self.driver.get_log("browser"))

    def requests(self) -> list[str]:
        """Addresses the page asked for, itself included."""
        log = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in log if m["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "blob:", "about:"))]


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    missing = [str(p) for p in (CHROMIUM, DRIVER) if not p.exists()]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: install Debian's chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_page_load_timeout(60)
    yield Reader(driver, tmp_path_factory.mktemp("page"))
    driver.quit()
