"""The agent on a real etcd, by itself, keeps the host's status there: what a script that watches the hosts sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_host_status import AT, stored
from tests.deadlines import until
from tests.e2e.forks import forks_in
from tests.e2e.host import etcd_in
from tests.netns.agents import EtcdStore
from tests.netns.namespaces import namespace
from tests.netns.nodes import Node
from tests.netns.startups import add_card

pytestmark = [pytest.mark.netns, pytest.mark.etcd]


@pytest.fixture
def reporting_node(tmp_path: Path, bundle: Path) -> Iterator[Node]:
    """After start-up, which stores ``reportingInterval: 0s``."""
    with ExitStack() as stack:
        ns = stack.enter_context(namespace("status"))
        add_card(ns, "eth0", "10.0.0.1/24")
        etcd = stack.enter_context(etcd_in(ns, tmp_path))
        forks = stack.enter_context(forks_in(ns))
        made = Node(ns, "n1", tmp_path / "n1", EtcdStore(etcd.client_url, forks), bin_dir=bundle)
        made.root.mkdir()
        made.calico_node("-startup")
        stack.callback(made.end)
        yield made


def keys(node: Node) -> dict[str, tuple[Any, int]]:
    """By name: (value, lease)."""
    return node.ns.call(stored, node.store.environ()["ETCD_ENDPOINTS"])


def test_it_is_reported_while_the_agent_runs(reporting_node: Node) -> None:
    reporting_node.more = {"FELIX_REPORTINGINTERVALSECS": "1", "FELIX_REPORTINGTTLSECS": "5"}
    reporting_node.run("-felix").until_applied()
    until(lambda: f"{AT}/status" in keys(reporting_node), "the first report", 30)
    until(lambda: not keys(reporting_node)[f"{AT}/status"][0]["first_update"], "it is renewed", 30)
    found = keys(reporting_node)
    status, lease = found[f"{AT}/status"]
    assert set(found) == {f"{AT}/status", f"{AT}/last_reported_status"}
    assert lease and set(status) == {"time", "uptime", "first_update"} and status["uptime"] > 0
    assert datetime.fromisoformat(status["time"].replace("Z", "+00:00")) <= datetime.now(UTC)
    until(lambda: keys(reporting_node)[f"{AT}/status"][0]["uptime"] > status["uptime"], "and again", 30)
    again, same = keys(reporting_node)[f"{AT}/status"]
    assert same == lease and again["time"] > status["time"]
    last, without = keys(reporting_node)[f"{AT}/last_reported_status"]
    assert without == 0 and last["uptime"] >= again["uptime"]

    assert reporting_node.stop()[0] == 0
    left = keys(reporting_node)[f"{AT}/last_reported_status"]
    until(lambda: f"{AT}/status" not in keys(reporting_node), "the lease is over", 30)
    assert keys(reporting_node) == {f"{AT}/last_reported_status": left}


def test_not_by_default(reporting_node: Node) -> None:
    reporting_node.run("-felix").until_applied()
    assert keys(reporting_node) == {}
    reporting_node.stop()
