"""The page of ``calicoctl policy diff --html`` in a real browser: readable, light and dark, small and large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.ctl.main import run
from tests.e2e.page.browser import Browser, running_browser
from tests.e2e.page.test_picture import CONTRAST
from tests.unit.ctl.policy.shop import endpoints_file, policy, write

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("review")
    for name, peer in (("old", "web"), ("new", "cache")):
        (root / name).mkdir()
        write(root / name / "all.yaml", policy("database", "app == 'db'", [(f"app == '{peer}'", [5432])]))
    sides = ["--dir", f"{root}/old", "--with", f"{root}/new", "--endpoints", endpoints_file(root)]
    assert run(["policy", "diff", *sides, "--html", f"{root}/page.html"], {}) == 1
    return root / "page.html"


@pytest.fixture(scope="module")
def review_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.mark.parametrize("width", [1200, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(review_browser: Browser, review: Path, scheme: str, width: int) -> None:
    reader = review_browser
    reader.open(review, scheme=scheme, width=width, height=1200)
    assert [event["request"]["url"] for event in reader.of("Network.requestWillBeSent")] == [review.as_uri()]
    assert reader.of("Runtime.exceptionThrown") == [] and reader.of("Log.entryAdded") == []
    assert reader.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert min(reader.evaluate(CONTRAST)) >= 4.5
    assert reader.evaluate("document.querySelectorAll('tbody tr').length") == 2
    colour = "getComputedStyle(document.querySelector('td.{}')).color"
    assert reader.evaluate(colour.format("denied")) != reader.evaluate(colour.format("allowed"))
