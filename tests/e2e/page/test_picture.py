"""The page of ``calicoctl show --html`` in a real browser: readable, light and dark, small and large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.ctl.main import run
from tests.e2e.page.browser import Browser, running_browser
from tests.unit.ctl.picture.clusters import fill

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(600)]
SIZES = (5, 14, 500)
CONTRAST = """(() => {
  const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b };
  const back = light(getComputedStyle(document.querySelector("section")).backgroundColor);
  return ["h1", "h2", "p.soft", "td", "th"].map(name => light(getComputedStyle(document.querySelector(name)).color))
    .map(text => (Math.max(text, back) + .05) / (Math.min(text, back) + .05));
})()"""
OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll("svg text")].map(t => [t.textContent, t.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([, b]) => meet(a, b)).map(([two]) => [one, two]));
})()"""
OUTSIDE = """(() => {
  const box = document.querySelector("svg").getBoundingClientRect();
  return [...document.querySelectorAll("svg circle, svg text, svg rect")].map(item => item.getBoundingClientRect())
    .filter(b => b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1)
    .length;
})()"""
SEARCH = """(() => {
  const field = document.querySelector("input");
  field.value = "NODE-120"; field.dispatchEvent(new Event("input"));
  const shown = [...document.querySelectorAll("tbody tr")].filter(row => row.getClientRects().length);
  return shown.map(row => row.cells[0].innerText);
})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    directory = tmp_path_factory.mktemp("pages")
    for count in SIZES:
        fill(directory / f"{count}.db", count)
        environ = {"DATASTORE_TYPE": "local", "DATASTORE_PATH": str(directory / f"{count}.db")}
        assert run(["show", "--html", str(directory / f"{count}.html")], environ) == 0
    return {count: directory / f"{count}.html" for count in SIZES}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.mark.parametrize("width", [1200, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("count", SIZES)
def test_it_can_be_read(browser: Browser, pages: dict[int, Path], count: int, scheme: str, width: int) -> None:
    browser.open(pages[count], scheme=scheme, width=width, height=1800)
    asked = [event["request"]["url"] for event in browser.of("Network.requestWillBeSent")]
    assert asked == [pages[count].as_uri()]
    assert browser.of("Runtime.exceptionThrown") == [] and browser.of("Log.entryAdded") == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert min(browser.evaluate(CONTRAST)) >= 4.5
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 26)"
    assert dark == (scheme == "dark")
    assert browser.evaluate(OVERLAPS) == []
    assert browser.evaluate(OUTSIDE) == 0
    assert browser.evaluate("document.querySelectorAll('svg .node').length") == count
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == count


def test_one_can_search_for_a_node(browser: Browser, pages: dict[int, Path]) -> None:
    browser.open(pages[500], scheme="light", width=1200, height=1800)
    assert browser.evaluate(SEARCH) == ["node-120"]
