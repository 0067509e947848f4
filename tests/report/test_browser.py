"""Every page in a real browser: open, point, switch, filter, follow links, on a phone, in the dark, on paper."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import report_cases as cases

from stratoscope.core.matrix import Matrix
from stratoscope.core.value import Value
from stratoscope.report.labels import shown
from stratoscope.report.page import page
from stratoscope.report.pictures import PALETTE

HOSTILE = ("base", "<img src=x onerror=window.hacked=1>", "<b>&lt;</b></script ><script>window.hacked=2</script>")
SCALE = "const a = document.getElementById(arguments[0])._fullLayout.coloraxis; return [a.cmin, a.cmax]"


def cell(matrix: Matrix, row: tuple[str, int], column: tuple[str, int]) -> str:
    """What must be said of a cell."""
    block = matrix.between(row[0], column[0])
    low, high = (np.nan if e is None else float(e[row[1], column[1]]) for e in (block.low, block.high))
    value = shown(Value(float(block.values[row[1], column[1]]), low, high))
    return f"{row[0]}:{row[1]} × {column[0]}:{column[1]} = {value}"


@pytest.fixture(scope="module")
def comparison():
    return cases.comparison()


@pytest.fixture(scope="module")
def study():
    return cases.study(other=7)


@pytest.fixture(scope="module")
def pages(comparison, study):
    """Each page once: the text is the same on every run."""
    made = {"comparison": comparison, "study": study}
    made |= {name: make() for name, make in cases.KINDS.items() if name not in made}
    return {name: page(result) for name, result in made.items()}


@pytest.mark.parametrize("kind", cases.KINDS)
def test_every_page_opens_draws_complains_of_nothing_and_asks_for_nothing(reader, pages, kind):
    reader.open(pages[kind])
    plots = reader.shown(".plot")
    drawn = reader.run(
        "return [...document.querySelectorAll('.plot')].filter(p => p.querySelector('svg')).map(p => p.id)"
    )
    assert plots
    assert drawn == plots
    assert reader.complaints() == []
    assert reader.requests() == [reader.driver.current_url]


def test_pointing_reads_a_cell_and_layer_zero_is_lower_left(reader, pages, comparison):
    reader.open(pages["comparison"])
    said = cell(comparison["ckasim"], ("base", 3), ("tuned", 8))
    assert reader.point("similarity-ckasim", 13 + 8, 3) == said
    assert reader.readout("similarity-ckasim") == said
    assert reader.point("similarity-ckasim", 0, 0).startswith("base:0 × base:0: no value")
    below = (
        "const y = document.getElementById('picture-similarity-ckasim')._fullLayout.yaxis; return y.c2p(0) > y.c2p(5)"
    )
    assert reader.run(below)


def test_switching_the_measure_changes_heatmap_drift_and_table(reader, pages, comparison):
    reader.open(pages["comparison"])
    reader.choose("#switch-measure", "neuronsim")
    assert reader.shown(".plot") == ["picture-similarity-neuronsim", "picture-drift-neuronsim", "picture-localization"]
    said = cell(comparison["neuronsim"], ("tuned", 5), ("base", 3))
    assert reader.point("similarity-neuronsim", 3, 13 + 5) == said
    block = comparison["neuronsim"].between("base", "tuned")
    drift = 1 - np.diag(block.values)
    value = shown(Value(drift[7], 1 - block.high[7, 7], 1 - block.low[7, 7]))
    assert reader.point("drift-neuronsim", 7, drift[7]) == f"tuned, layer 7: {value}"
    tables = reader.run(
        "return [...document.querySelectorAll('#section-blocks table')]"
        ".filter(t => t.offsetParent).map(t => t.innerText)"
    )
    assert len(tables) == 1
    assert f"{comparison.findings['blocks']['neuronsim']['tuned']['contrast']:.3f}" in tables[0]


def test_one_pair_of_models_alone_keeps_the_colours_and_the_table_says_the_same(reader, pages, comparison):
    reader.open(pages["comparison"])
    picture = "[data-picture='similarity-ckasim']"
    before = reader.run(SCALE, "picture-similarity-ckasim")
    reader.choose(f"{picture} .view", "2,1")
    assert reader.run("return document.getElementById('picture-similarity-ckasim').data[0].z.length") == 7
    assert reader.point("similarity-ckasim", 12, 6) == cell(comparison["ckasim"], ("mini", 6), ("tuned", 12))
    assert reader.run(SCALE, "picture-similarity-ckasim") == before
    reader.driver.find_element("css selector", f"{picture} .values summary").click()
    reader.run("return new Promise(requestAnimationFrame)")
    rows = reader.run(
        "return [...document.querySelectorAll(arguments[0] + ' .values tr')]"
        ".map(r => [...r.cells].map(c => c.textContent))",
        picture,
    )
    assert rows[0][1] == "tuned:0"
    assert f"mini:6 × tuned:12 = {rows[7][13]}" == cell(comparison["ckasim"], ("mini", 6), ("tuned", 12))
    reader.choose("#switch-measure", "svsim")
    assert reader.run("return document.getElementById('picture-similarity-svsim').data[0].z.length") == 7


def test_the_panels_of_a_study_share_one_scale_and_follow_unit_and_measure(reader, pages, study):
    reader.open(pages["study"])

    def said(unit: str, measure: str) -> str:
        return cell(study[unit][measure], ("ft-1", 9), ("base", 4))

    assert reader.point("panels-cls-ckasim", 4, 9, subplot="x2y2") == said("cls", "ckasim")
    scale = reader.run(SCALE, "picture-panels-cls-ckasim")
    reader.choose("#switch-measure", "ckasim-debiased")
    assert reader.point("panels-cls-ckasim-debiased", 4, 9, subplot="x2y2") == said("cls", "ckasim-debiased")
    assert reader.run(SCALE, "picture-panels-cls-ckasim-debiased") == scale
    reader.choose("#switch-unit", "mean")
    assert reader.point("panels-mean-ckasim-debiased", 4, 9, subplot="x2y2") == said("mean", "ckasim-debiased")
    other = cell(study["mean"]["ckasim-debiased"], ("ft-1", 9), ("other", 2))
    assert reader.point("panels-mean-ckasim-debiased", 2, 9, subplot="x5y5") == other
    dashes = reader.run("return document.getElementById('picture-localization').data.map(t => [t.name, t.line.dash])")
    assert [name for name, dash in dashes if dash != "solid"] == ["ft-2 (own layers)"]
    assert reader.complaints() == []


def test_pointing_at_depth_says_value_change_and_agreement(reader, pages):
    depth = cases.depth()
    reader.open(pages["depth"])
    got = reader.point("skip", 4, 2)
    for fact in (
        "blocks 3",
        "5",
        f"{depth.skip[2, 4]:.3f}",
        f"{100 * (depth.skip[2, 4] - 0.912):.2f}"[1:],
        f"{depth.skip_agreement[2, 4]:.3f}",
    ):
        assert fact in got
    assert "not a span" in reader.point("skip", 2, 4)
    point = depth.curve("tunedorig").points[6]
    assert reader.point("truncation", 6, point.value) == f"TUNEDORIG, layer 6: {shown(point)}"
    marks = reader.run("return document.getElementById('picture-skip').layout.shapes.length")
    assert marks == int((depth.skip >= 0.912 - 0.01 - 1e-9).sum())


def test_both_drawings_have_one_palette(reader, pages):
    reader.open(pages["depth"])
    got = reader.run(
        "return document.getElementById('picture-truncation').data.filter(t => t.marker).map(t => t.line.color)"
    )
    assert got == [PALETTE[2], PALETTE[0], PALETTE[1]]


def test_statements_are_filtered_by_verdict_and_by_text(reader, pages):
    reader.open(pages["study"])
    assert len(reader.shown(".statements tbody tr")) == 8
    reader.driver.find_element("css selector", "button[data-verdict='does-not-hold']").click()
    left = reader.shown(".statements tbody tr")
    assert left == ["statement-phang2021-two-blocks-base-ft-1-cls", "statement-phang2021-two-blocks-base-ft-2-mean"]
    assert reader.run("return document.getElementById('matches').textContent") == "2 of 8"
    reader.driver.find_element("id", "find").send_keys("MEAN blocks")
    assert reader.shown(".statements tbody tr") == left[1:]
    reader.driver.find_element("css selector", "button[data-verdict='does-not-hold']").click()
    reader.driver.find_element("id", "find").clear()
    reader.driver.find_element("id", "find").send_keys("section 5.1")
    assert len(reader.shown(".statements tbody tr")) == 2


def test_a_link_to_a_statement_shows_and_opens_it_even_when_filtered_away(reader, pages):
    id = "statement-wu2020-top-changes-more-base-ft-2-mean"
    opened = (
        f"const r = document.getElementById('{id}');"
        "return [r.querySelector('details').open, r.hidden, r.getBoundingClientRect().top]"
    )
    reader.open(pages["study"], height=500, hash=f"#{id}")
    is_open, hidden, top = reader.run(opened)
    assert (is_open, hidden) == (True, False)
    assert 0 <= top < 500
    reader.driver.find_element("id", "find").send_keys("nothing like this")
    assert reader.shown(".statements tbody tr") == []
    reader.run("document.querySelector('nav a').click()")
    reader.run(f"location.hash = '#{id}'; return new Promise(r => setTimeout(r, 50))")
    assert id in reader.shown(".statements tbody tr")
    source = reader.driver.find_element("css selector", f"#{id} td:last-child a").get_attribute("href")
    assert reader.run("return document.getElementById(arguments[0]).textContent", source.split("#")[1]).startswith("Wu")


def test_links_lead_to_every_section_and_unfold_what_is_folded(reader, pages):
    reader.open(pages["comparison"], hash="#section-provenance")
    assert reader.run("return document.getElementById('section-provenance').open")
    hrefs = reader.run("return [...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    assert reader.run("return arguments[0].every(id => document.getElementById(id))", hrefs)
    sections = reader.run("return [...document.querySelectorAll('section')].map(s => s.id)")
    assert sorted(hrefs) == sorted(sections)


@pytest.mark.parametrize(("kind", "dark"), [("comparison", False), ("study", True), ("depth", False), ("cut", True)])
def test_a_phone_shows_everything_without_scrolling_sideways(reader, kind, dark):
    names = ("base", "x" * 80, "mini")
    made = {
        "comparison": lambda: cases.comparison(names),
        "study": lambda: cases.study((*names, "<script>window.hacked=1</script>"), layers=7),
        "depth": lambda: cases.depth(name="x" * 80),
        "cut": cases.cut,
    }
    reader.open(page(made[kind]()), width=420, height=800, dark=dark)
    reader.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert reader.run("return document.documentElement.scrollWidth") <= 420
    rights = reader.run(
        "return [...document.querySelectorAll('svg.main-svg')].map(s => s.getBoundingClientRect().right)"
    )
    assert max(rights) <= 420
    back, ink = reader.run(
        "const s = getComputedStyle(document.body);"
        "return [s.backgroundColor, s.color].map(c => c.match(/[0-9]+/g).map(Number).reduce((a, b) => a + b))"
    )
    assert (back < ink) == dark
    assert reader.run("return window.hacked === undefined")
    assert reader.complaints() == []


def test_printed_in_the_dark_it_is_a_light_report_with_everything_unfolded(reader, pages):
    reader.open(pages["study"], dark=True)
    seen = (
        "window.seen = [];"
        "window.addEventListener('beforeprint', () => window.seen.push("
        "  document.getElementById('section-models').open,"
        "  document.getElementById('picture-truncation').layout.font.color,"
        "  document.getElementById('picture-truncation').layout.width))"
    )
    reader.run(seen)
    pdf = reader.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(pdf["data"]).startswith(b"%PDF")
    unfolded, ink, width = reader.run("return window.seen")
    assert unfolded
    assert ink == "#1b2030"
    assert width <= 700
    assert not reader.run("return document.getElementById('section-models').open")
    assert reader.complaints() == []


def test_the_measure_is_reached_and_changed_by_keyboard(reader, pages):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    reader.open(pages["comparison"])
    reached = []
    for _ in range(40):
        ActionChains(reader.driver).send_keys(Keys.TAB).perform()
        reached.append(reader.run("return document.activeElement.id"))
        if reached[-1] == "switch-measure":
            break
    assert {"find", "switch-measure"} <= set(reached)
    ActionChains(reader.driver).send_keys(Keys.ARROW_DOWN).perform()
    assert "picture-similarity-ckasim-debiased" in reader.shown(".plot")
    assert reader.run(SCALE, "picture-similarity-ckasim-debiased")[0] < 0


def test_hostile_names_are_shown_and_never_run(reader):
    # Without the policy, so that escaping alone must hold.
    text = page(cases.comparison(HOSTILE))
    start, stop = text.index("<meta http-equiv"), text.index('<meta name="viewport"')
    reader.open(text[:start] + text[stop:])
    got = reader.point("similarity-ckasim", 26 + 6, 13 + 5)
    assert got.startswith(f"{HOSTILE[1]}:5× {HOSTILE[2]}:6 = ")
    assert reader.readout("similarity-ckasim").startswith(f"{HOSTILE[1]}:5 × {HOSTILE[2]}:6 = ")
    for value in ("0,1", "1,2", "2,2"):
        reader.choose("[data-picture='similarity-ckasim'] .view", value)
    reader.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert reader.run("return document.querySelectorAll('img').length") == 0
    assert reader.run("return document.scripts.length") == 3
    assert reader.run("return window.hacked === undefined")
    assert HOSTILE[2] in reader.run("return document.querySelector('h1').innerText")
    assert reader.complaints() == []


def test_the_policy_stops_what_escaping_might_miss(reader, pages):
    hole = '<img src="data:," onerror="window.hacked=1"><script>window.hacked=2</script></main>'
    reader.open(pages["comparison"].replace("</main>", hole, 1))
    assert reader.shown(".plot")
    assert reader.run("return window.hacked === undefined")
    assert any("Content Security Policy" in entry["message"] for entry in reader.complaints())


CLICK = (
    "document.getElementById(arguments[0])"
    ".emit('plotly_click', {points: [{x: arguments[1], y: arguments[2], curveNumber: 0}]})"
)


def test_a_cell_opens_its_heads_and_a_pair_of_heads_opens_what_both_attend_to(reader, pages):
    result = cases.attention()
    reader.open(pages["attention"])
    reader.run(CLICK, "picture-similarity-js", 5, 2)  # base:3 × <tuned>:2
    heads = result.heads("base", 3, "<tuned>", 2).to_numpy()
    drawn = reader.run("return document.getElementById('picture-heads-js').data[0].z")
    np.testing.assert_allclose(drawn, heads, atol=1e-5)
    reader.point("heads-js", 2, 1)
    said = f"base:3 head 2 × <tuned>:2 head 3 = {shown(Value(float(heads[1, 2])))}"
    assert reader.readout("heads-js") == said
    reader.run(CLICK, "picture-heads-js", 2, 1)
    left, right = reader.run("return document.getElementById('picture-patterns').data.map((d) => d.z)")
    weights = result.patterns[0].weights / 255
    np.testing.assert_allclose(left, weights[2 * 2 + 1], atol=1e-6)  # layers of base have two heads
    np.testing.assert_allclose(right, weights[4 * 2 + 3 + 2], atol=1e-6)  # those of the other three
    names = reader.run("return document.getElementById('picture-patterns').layout.annotations.map((a) => a.text)")
    assert names == ["<b>base:3 head 2</b>", "<b>&lt;tuned&gt;:2 head 3</b>"]
    axis = "const y = document.getElementById('picture-patterns')._fullLayout.yaxis; "
    assert reader.run(axis + "return y.d2p('Birds') < y.d2p('sing')")  # the first word is at the top
    reader.run(CLICK, "picture-similarity-js", 4, 0)
    empty = reader.run("return document.getElementById('picture-heads-js').data[0].z.map((row) => row[0])")
    assert empty == [None, None]  # the head that has no similarity
    assert reader.complaints() == []


def test_a_sentence_of_a_hundred_words_is_drawn_whole_and_zooms(reader, pages):
    result = cases.attention(2)
    words = tuple(f"word{k % 60}" for k in range(100))
    weights = np.full((sum(result.heads_of), 100, 100), 2, np.uint8)
    weights[:, np.arange(100), np.arange(100)] = 200
    long = cases.replace(result, patterns=(cases.Pattern(words, words, weights),))
    reader.open(page(long))
    first = "const d = document.getElementById('picture-patterns').data[0]; "
    assert reader.run(first + "return [new Set(d.x).size, d.z.length]") == [100, 100]  # repeated words are not merged
    ticks = "return [...document.querySelectorAll('#picture-patterns .xtick')].map((t) => t.textContent)"
    seen = {f"word{k}" for k in range(10, 30)}
    assert not seen <= set(reader.run(ticks))  # labels are thinned
    reader.run("return Plotly.relayout('picture-patterns', {'xaxis.range': [9.5, 29.5]}).then(() => true)")
    assert seen <= set(reader.run(ticks))
