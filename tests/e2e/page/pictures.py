"""The pictures of docs/flows.md: ``python -m tests.e2e.page.pictures [DIRECTORY]``, by default docs/images/flows.

Rule: they are of the page as it is, with flows that are always the same.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cni_calico.ctl.flows.page.serve import FlowPage
from cni_calico.ctl.flows.places import HostFlows
from tests.e2e.page.browser import running_browser
from tests.fakes.recorder import ScriptedRecorder, address, end_of_tier, flow, nothing_stored, pod, rule

DIRECTORY = Path(__file__).parents[3] / "docs" / "images" / "flows"
COUNT, SIZE = 240, {"width": 1180, "height": 700}
BEGIN = datetime(2026, 11, 26, 14, 0, tzinfo=UTC)
WEB = [pod("shop", f"web-7d9-{name}", f"10.65.0.{i}") for i, name in enumerate(("x2k4", "p9wd"), 9)]
API, DB = pod("shop", "api-5c9-q1z8", "10.65.0.12"), pod("shop", "db-0", "10.65.0.14")
DNS, PROMETHEUS = pod("kube-system", "coredns-6f6b-7lqsn", "10.65.0.3"), pod("metrics", "prometheus-0", "10.65.0.20")
PARTNER, SCANNER = address("192.0.2.7"), address("198.51.100.23")


def flows() -> Iterator[dict[str, Any]]:
    """The oldest first."""
    chance = random.Random(7)
    when = BEGIN
    for number in range(COUNT):
        when += timedelta(milliseconds=chance.choice([90, 400, 1100, 2600, 5200]))
        yield _one(chance, 32768 + number, f"{when.isoformat(timespec='milliseconds')}")
    when += timedelta(milliseconds=300)
    yield _flow(
        WEB[0], DB, 5432, 40112, when.isoformat(timespec="milliseconds"), end_of_tier("ingress", "shop", "database")
    )


def _one(chance: random.Random, port: int, when: str) -> dict[str, Any]:
    web = chance.choice(WEB)
    match chance.choices(range(6), (30, 22, 30, 8, 4, 2))[0]:
        case 0:
            return _flow(web, API, 8080, port, when, rule("ingress", "shop", "api", 0))
        case 1:
            return _flow(API, DB, 5432, port, when, rule("ingress", "shop", "database", 0))
        case 2:
            allowed = rule("ingress", "kube-system", "dns", 0)
            return _flow(chance.choice([*WEB, API]), DNS, 53, port, when, allowed, protocol="udp")
        case 3:
            return _flow(PROMETHEUS, web, 9090, port, when, rule("ingress", "shop", "metrics", 1))
        case 4:
            return _flow(API, PARTNER, 443, port, when, rule("egress", "shop", "to-partners", 1))
        case _:
            return _flow(SCANNER, web, 22, port, when, end_of_tier("ingress", "shop", "web"))


def _flow(
    source: dict[str, Any],
    destination: dict[str, Any],
    to: int,
    port: int,
    when: str,
    decided: dict[str, Any],
    **other: Any,
) -> dict[str, Any]:
    here = (
        [rule("egress", "shop", "default-egress", 0)]
        if "namespace" in source and decided["direction"] == "ingress"
        else []
    )
    ends = {**source, "port": port}, {**destination, "port": to}
    return flow(*ends, *here, decided, start=when, last=when, **other)


def main(directory: Path) -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        recorder = ScriptedRecorder(work)
        recorder.flows = list(flows())
        try:
            with running_browser(Path(work)) as browser, FlowPage(HostFlows(recorder.path), "", nothing_stored) as page:
                for name, scheme, keys in (("table", "light", ("j", "Enter")), ("matrix", "dark", ("m",))):
                    browser.open(page.access.address, scheme=scheme, **SIZE)
                    browser.until(f"document.querySelectorAll('tr.flow').length === {len(recorder.flows)}")
                    browser.until("document.getElementById('counts').textContent.startsWith('241 flows')")
                    browser.press(*keys)
                    if name == "matrix":
                        browser.click("#group")
                    height = browser.evaluate("document.querySelector('main').getBoundingClientRect().bottom") - 44
                    clip = {"x": 0, "y": 0, "width": SIZE["width"], "height": height, "scale": 1}
                    (directory / f"{name}.png").write_bytes(browser.picture(clip=clip))
        finally:
            recorder.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
