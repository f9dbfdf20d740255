"""The report in a real browser: opened, clicked through, by keyboard, without scripts, in light, dark and on paper."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answers.models import cancelling
from browser import CHROMIUM, Browser
from onnx import NodeProto, helper
from support import TARGET, bisect_trt, chain, has, node_tag, overflowing, read_json, save, script

from bisect_trt.report.page import write_report
from bisect_trt.report.result import result_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (on Debian: apt-get install chromium)"
    ),
]
HOSTILE = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    + "x" * 400
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a comparison of every tensor of a chain that overflows, in the network and alone."""
    folder = tmp_path_factory.mktemp("layers")
    overflowing(folder / "model.onnx", 30, 5)
    options = [*TARGET, "--isolate", "--report", "report.html"]
    assert bisect_trt("layerwise", "model.onnx", *options, cwd=folder).status == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a comparison whose marks hide the failure."""
    folder = tmp_path_factory.mktemp("hidden")
    cancelling(folder / "model.onnx")
    assert (
        bisect_trt(
            "layerwise", "model.onnx", "--onnxrt", "--report", "report.html", cwd=folder
        ).status
        == 3
    )
    return folder / "report.html"


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a search; its probes are repeated until there are 200."""
    folder = tmp_path_factory.mktemp("search")
    chain(folder / "model.onnx", 20)
    check = script(
        folder / "check.sh", f"if {has(node_tag(3), node_tag(11))}; then exit 1; fi; exit 125"
    )
    options = ["-o", "o.onnx", "--json", "r.json", "--check", check, "{model}"]
    result = bisect_trt("reduce", "model.onnx", *options, cwd=folder).ended(3).result
    probes = result["report"]["probes"]
    many = (
        {**probes[n % len(probes)], "number": n + 1, "reason": f"reason {n}"} for n in range(200)
    )
    result["report"]["probes"] = [*many]
    result["probes"]["run"] = 200
    write_report(result_of(result), folder / "report.html")
    return folder / "report.html"


def branching(path: Path, length: int) -> Path:
    """Blocks of four branches that are added up, 5 nodes a block; halfway a product is too large for fp16."""
    weights = {"half": 0.5, "quarter": 0.25, "large": 9e4, "small": 1e-5}
    nodes: list[NodeProto] = []
    last = "x"
    for block in range(length // 5):
        ends = [f"/block.{block}/branch.{branch}/out" for branch in range(4)]
        nodes += [
            helper.make_node("Mul", [last, "quarter"], [end], name=end.replace("out", "Mul"))
            for end in ends
        ]
        last = f"/block.{block}/Sum_output_0"
        nodes.append(helper.make_node("Sum", ends, [last], name=f"/block.{block}/Sum"))
        if block == length // 10:
            nodes.append(helper.make_node("Div", [last, "small"], ["big_out"], name="big"))
            nodes.append(helper.make_node("Mul", ["big_out", "small"], ["small_out"], name="small"))
            last = "small_out"
    return save(path, nodes, weights)


def fits(browser: Browser) -> bool:
    """Whether nothing makes the page itself scroll sideways."""
    return bool(
        browser.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    )


@pytest.mark.slow
def test_a_large_model_loads_at_once_and_shows_the_region_that_matters(
    browser: Browser, tmp_path: Path
) -> None:
    branching(tmp_path / "model.onnx", 5000)
    bisect_trt("layerwise", "model.onnx", *TARGET, "--report", "report.html", cwd=tmp_path).ended(0)
    page = tmp_path / "report.html"
    assert page.stat().st_size < 2e6
    browser.open(page)
    assert browser.computed() < 1
    assert browser.problems == []
    assert "big" in browser.evaluate("document.querySelector('#graph article').textContent")


@pytest.mark.parametrize(
    ("width", "dark"), [(400, False), (1400, True)], ids=["narrow and light", "wide and dark"]
)
def test_it_opens_without_a_network_at_any_width(
    browser: Browser, layers: Path, hidden: Path, search: Path, width: int, dark: bool
) -> None:
    for page in (layers, hidden, search):
        browser.open(page, width=width, dark=dark)
        assert browser.problems == []
        assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]
        assert fits(browser)
        assert width > 400 or browser.evaluate(NOTHING_SCROLLS)
        shade = browser.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        )
        assert (max(shade) < 60) == dark
        assert browser.evaluate(LOW_CONTRAST) == []


NOTHING_SCROLLS = (
    "[...document.querySelectorAll('.scroll')].every(e => e.scrollWidth <= e.clientWidth)"
)
LOW_CONTRAST = """
(() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll("body *:not(svg *):not(script):not(style)")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push(e.outerHTML.slice(0, 120));
  }
  return low;
})()
"""
"""Elements whose text is too faint to read: WCAG 2.1's contrast ratio under 4.5."""


def test_the_node_at_fault_tells_of_itself(browser: Browser, layers: Path) -> None:
    browser.open(layers)
    told = browser.evaluate("document.querySelector('#graph article').innerText")
    for words in ("Mul", "big", "float32[2, 3]", "Reads", "Makes", "reference", "does not match"):
        assert words in told


OVERLAPS = """
(() => {
  const boxes = [...document.querySelectorAll("#region .node rect")].map((e) => e.getBBox());
  return boxes.filter((a, i) => boxes.slice(i + 1).some((b) =>
    a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height)).length;
})()
"""
"""How many nodes of the picture lie over another one."""


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a comparison of a model with branches."""
    folder = tmp_path_factory.mktemp("branches")
    branching(folder / "model.onnx", 100)
    bisect_trt("layerwise", "model.onnx", *TARGET, "--report", "report.html", cwd=folder).ended(0)
    return folder / "report.html"


@pytest.mark.parametrize("width", [400, 1280])
def test_the_graph_around_the_answer(browser: Browser, branches: Path, width: int) -> None:
    browser.open(branches, width=width)
    assert browser.problems == []
    assert fits(browser)

    def texts(selector: str) -> list[str]:
        script = "[...document.querySelectorAll('#region %s')].map(e => e.textContent)"
        return [str(text) for text in browser.evaluate(script % selector)]

    # Of 102 nodes: big, the sum and its branches before it, the product and the next branches.
    assert texts(".node.answer title") == ["big"]
    products = [f"/block.{block}/branch.{branch}/Mul" for block in (10, 11) for branch in range(4)]
    assert sorted(texts(".node title")) == sorted(["big", "small", "/block.10/Sum", *products])
    assert "102 nodes" in texts("figcaption")[0]
    # The product of an infinite value is wrong too.
    assert {"big_out", "small_out"} <= set(texts(".wrong title"))
    assert "/block.10/Sum_output_0" in texts(".match title")
    assert browser.evaluate(OVERLAPS) == 0
    size = browser.evaluate(
        "getComputedStyle(document.querySelector('#region .edge text')).fontSize"
    )
    assert float(size.removesuffix("px")) >= 11
    # The answer is in view, in the right half where there is one.
    visible = browser.evaluate(
        "(() => { const a = document.querySelector('#region .answer').getBoundingClientRect(),"
        " b = document.querySelector('#region .scroll').getBoundingClientRect();"
        " return [a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom, b.left]; })()"
    )
    assert visible[0]
    assert (visible[1] > width / 2) == (width > 1000)


def test_the_curve_by_mouse_and_keyboard(browser: Browser, layers: Path) -> None:
    browser.open(layers)
    x, y = browser.centre("#plot")
    browser.mouse("mouseMoved", x, y)
    told = browser.evaluate("document.querySelector('#readout').innerText")
    assert re.search(r"[\d.]+ of the tolerance", told)
    assert browser.evaluate("document.querySelectorAll('#plot path.line').length") == 1
    browser.evaluate("document.querySelector('#plot svg').focus()")
    browser.key("Home")
    first = browser.evaluate("document.querySelector('#readout').innerText")
    assert first.startswith("Add a0_out")
    browser.key("ArrowRight")
    assert browser.evaluate("document.querySelector('#readout').innerText").startswith("Add a1_out")


def rows(browser: Browser, column: int) -> list[str]:
    """What the rows that are shown say in a column."""
    script = "[...document.querySelectorAll('#probes tbody tr')].filter(r => !r.hidden).map(r => r.cells[%d].dataset.value)"
    return [str(value) for value in browser.evaluate(script % column)]


def test_probes_are_sorted_and_filtered(browser: Browser, search: Path) -> None:
    assert search.stat().st_size < 2e6
    browser.open(search)
    assert rows(browser, 0) == [str(number + 1) for number in range(200)]
    browser.click("#probes th.units button")
    units = list(map(int, rows(browser, 2)))
    assert units == sorted(units)
    browser.click("#probes th.units button")
    assert list(map(int, rows(browser, 2))) == units[::-1]
    assert (
        browser.evaluate("document.querySelector('#probes th.units').getAttribute('aria-sort')")
        == "descending"
    )
    browser.evaluate("document.querySelector('#by-verdict').value = 'FAIL'")
    browser.evaluate("document.querySelector('#by-verdict').dispatchEvent(new Event('change')), 0")
    assert set(rows(browser, 1)) == {"FAIL"}
    browser.evaluate("document.querySelector('#by-text').focus()")
    browser.type("reason 1")
    shown = rows(browser, 5)
    assert shown
    assert all(value.startswith("reason 1") for value in shown)
    assert (
        browser.evaluate("document.querySelector('#shown').textContent") == f"{len(shown)} of 200"
    )


def test_a_command_is_copied(browser: Browser, search: Path) -> None:
    browser.open(search)
    # It says so for a second and a half, which may be over before the page is asked again.
    observed = "new MutationObserver(() => said.push(button.textContent)).observe(button, {childList: true}), 0"
    browser.evaluate(f"said = [], button = document.querySelector('.command button'), {observed}")
    browser.click(".command button")
    assert browser.until("said.length > 0")
    assert browser.evaluate("said[0]") == "Copied"


def test_without_scripts_the_answer_the_nodes_and_the_tables_are_there(
    browser: Browser, layers: Path
) -> None:
    browser.open(layers, script=False)
    shown = browser.evaluate("document.body.innerText")
    for words in (
        "First mismatch: Mul 'big'",
        "Nodes of the answer",
        "Where errors begin",
        "big_out",
        "Environment",
    ):
        assert words in shown
    for words in ("Contains", "Copy"):  # what would do nothing is not shown
        assert words not in shown


def test_names_run_no_script(browser: Browser, layers: Path, tmp_path: Path) -> None:
    result = read_json(next(layers.parent.glob(".bisect-trt/*/result.json")))
    write_report(result_of(poisoned(result)), tmp_path / "report.html")
    browser.open(tmp_path / "report.html", width=400)
    browser.evaluate("document.querySelector('#plot svg').focus()")
    browser.key("End")
    assert browser.problems == []
    assert browser.evaluate("document.title") != "taken"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert "<img" in browser.evaluate("document.querySelector('#graph').innerText")
    assert fits(browser)


def poisoned(value: Any) -> Any:
    """The same with every text that a model or a check may choose made hostile."""
    chosen = (
        "name",
        "op",
        "domain",
        "tensor",
        "title",
        "reason",
        "tail",
        "path",
        "why",
        "step",
        "what",
        "command",
    )
    if isinstance(value, dict) and "schema" not in value:
        replaced = {
            key: HOSTILE if key in chosen and isinstance(each, str) else poisoned(each)
            for key, each in value.items()
        }
        named = {HOSTILE: HOSTILE}
        whole = {
            "answers": [HOSTILE] * 2,
            "lines": [HOSTILE],
            "attributes": named,
            "environment": named,
        }
        return replaced | {key: each for key, each in whole.items() if key in value}
    if isinstance(value, dict):
        return {key: poisoned(each) for key, each in value.items()}
    return [poisoned(each) for each in value] if isinstance(value, list) else value


AXE = importlib.util.find_spec("axe_core_python")
BROKEN = """axe.run(document, {resultTypes: ["violations"]}).then(
  r => r.violations.map(v => [v.id, ...v.nodes.map(n => n.html.slice(0, 120))]))"""


@pytest.mark.slow
@pytest.mark.skipif(AXE is None, reason="axe-core is not installed (pip install axe-core-python)")
@pytest.mark.parametrize("width", [390, 1400])
def test_no_rule_of_accessibility_is_broken(
    browser: Browser, layers: Path, hidden: Path, search: Path, width: int
) -> None:
    """axe-core's rules, on reports; light and dark differ in contrast alone, which is measured above."""
    assert AXE is not None
    assert AXE.origin is not None
    rules = Path(AXE.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    for page in (layers, hidden, search):
        browser.open(page, width=width)
        browser.evaluate(f"{rules};0")
        assert browser.evaluate(BROKEN) == [], page
        assert fits(browser)
