"""An agent that is far behind in a storm of large records, on etcd and on the embedded datastore: it does not grow with
the storm, and shrinks again.

It is stopped while they change, so that all of it is to be read at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.e2e.forks import forks_in
from tests.e2e.host import etcd_in
from tests.netns.agents import EtcdStore
from tests.netns.nodes import Node

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.takes(60), pytest.mark.timeout(600)]

RECORDS, CHANGES, SIZE = 8, 40, 240_000  # 77 MB of changes
MEGABYTE = 1024 * 1024
MAY_GROW = 30 * MEGABYTE


@pytest.fixture(params=["local", pytest.param("etcd", marks=pytest.mark.etcd)])
def stormy_node(request: pytest.FixtureRequest, agent_node: Node, tmp_path: Path) -> Iterator[Node]:
    node = agent_node
    with ExitStack() as held:
        if request.param == "etcd":
            arguments = ("--quota-backend-bytes", str(2 << 30))
            etcd = held.enter_context(etcd_in(node.ns, tmp_path, arguments=arguments))
            node.store = EtcdStore(etcd.client_url, held.enter_context(forks_in(node.ns)))
        yield node
        node.end()


def memory(pid: int, what: str) -> int:
    """VmRSS or VmHWM in bytes."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def profiles_known(node: Node) -> int:
    """As many profiles as the agent says that it knows; -1 while it does not answer."""
    program = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9091/metrics', timeout=5).read().decode())"
    page = node.ns.run("python3", "-c", program, check=False).stdout
    found = [line for line in page.splitlines() if line.startswith("felix_cluster_num_profiles ")]
    return int(float(found[0].split()[1])) if found else -1


def put(node: Node, text: str, *names: str) -> None:
    """A few at a time: etcd takes no more than 1.5 MB in one request."""
    for at in range(0, len(names), 4):
        node.store.write(*(Write.put(ResourceKey("Profile", name), profile(name, text)) for name in names[at : at + 4]))


def change(node: Node, names: list[str]) -> None:
    """All the changes, by one process."""
    if isinstance(node.store, EtcdStore):
        config = DatastoreConfig("etcdv3", etcd_endpoints=(node.store.url,))
        with forks_in(node.ns) as forks:
            forks.call(write_changes, config, names, timeout_s=200)
    else:
        write_changes(DatastoreConfig("local", path=str(node.store.path)), names)


def write_changes(config: DatastoreConfig, names: list[str]) -> None:
    store = open_datastore(config)
    for number in range(CHANGES):
        text = f"{number}" + "x" * SIZE
        for at in range(0, len(names), 4):
            writes = [Write.put(ResourceKey("Profile", name), profile(name, text)) for name in names[at : at + 4]]
            store.commit(writes, Deadline.after(60))
    store.close()


def profile(name: str, text: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-11-20T12:00:00Z"}
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": "Profile",
        "metadata": {**metadata, "annotations": {"large": text}},
        "spec": {"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]},
    }


def test_a_storm_of_large_records(stormy_node: Node) -> None:
    node = stormy_node
    names = [f"storm-{number}" for number in range(RECORDS)]
    node.calico_node("-startup")
    put(node, "", *names)
    node.run("-felix").until_applied()
    until(lambda: profiles_known(node) >= RECORDS, "the agent knows the records", 60, pause_s=0.2)
    pid = int(node.status()["pid"])
    known, before = profiles_known(node), memory(pid, "VmRSS")
    os.kill(pid, signal.SIGSTOP)
    change(node, names)
    put(node, "", "storm-after")
    os.kill(pid, signal.SIGCONT)
    until(lambda: profiles_known(node) == known + 1, "the agent has seen all of it", 120, pause_s=0.2)
    most = memory(pid, "VmHWM")
    assert most - before < MAY_GROW, f"{before / MEGABYTE:.0f} MB, then {most / MEGABYTE:.0f} MB"
    put(node, "", *names, "storm-end")
    until(lambda: profiles_known(node) == known + 2, "the agent has seen that it is over", 60, pause_s=0.2)
    until(lambda: memory(pid, "VmRSS") - before < MAY_GROW // 2, f"it shrinks ({before} bytes before)", 90, pause_s=1)
    print(
        f"{before / MEGABYTE:.0f} MB before, {most / MEGABYTE:.0f} at most, {memory(pid, 'VmRSS') / MEGABYTE:.0f} after"
    )
