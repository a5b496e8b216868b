"""The agent behind its own host endpoint: it hears of changes at once, whatever connection tracking has forgotten."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.log import Log
from cni_calico.nodeagent.context.agent import Context
from tests.deadlines import until
from tests.e2e.host import EtcdNode
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import NODE, Lab, private_settings

pytestmark = [pytest.mark.netns, pytest.mark.etcd]

POLICY = {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Log"}]}


@pytest.fixture
def behind_host_endpoint(etcd_node: EtcdNode, tmp_path: Path) -> Iterator[Lab]:
    """An engine on etcd, with host endpoint ``*`` in force; its client asks nothing by itself for ten minutes."""
    [url] = etcd_node.datastore.etcd_endpoints

    def open_context(log: Log) -> Context:
        from cni_calico.datastore.etcd import link as etcd_link
        from cni_calico.datastore.etcd.config import EtcdConfig
        from cni_calico.datastore.etcd.store import EtcdStore

        quiet = dict(etcd_link._OPTIONS) | {"grpc.keepalive_time_ms": 600_000}
        etcd_link._OPTIONS = tuple(quiet.items())
        return Context(private_settings(tmp_path), EtcdStore(EtcdConfig(endpoints=(url,))), log, lambda _: True)

    with ExitStack() as stack:
        lab = Lab(etcd_node.host, tmp_path, stack)
        lab.open_context = open_context
        lab.start()
        stack.callback(lab.stop)
        until(lab.standing, "the engine has decided", 60)
        etcd_node.apply("HostEndpoint", "all", {"node": NODE, "interfaceName": "*"})
        lab.until_in_force(hosts=1)
        yield lab


def forget_all(host: Namespace) -> None:
    host.run("conntrack", "-F")


def workload_leaves(node: EtcdNode, wait: Callable[[], object] = lambda: None) -> None:
    """One that has the host's own address; ``wait`` is called while it is there."""
    name = f"{NODE}-cni-c1-eth0"
    spec: dict[str, Any] = {
        "orchestrator": "cni",
        "node": NODE,
        "containerID": "c1",
        "endpoint": "eth0",
        "interfaceName": "cali1",
        "ipNetworks": ["127.0.0.1/32"],
        "profiles": ["calnet"],
    }
    before = set(node.dump())
    node.apply("WorkloadEndpoint", name, spec, "default")
    [path] = set(node.dump()) - before
    wait()
    node.put({path: None})


def tracked(node: EtcdNode) -> set[str]:
    """The numbers of the host's TCP connections, by conntrack."""
    listing = node.host.run("conntrack", "-L", "-p", "tcp", "-o", "id").stdout
    return set(re.findall(r"ESTABLISHED .* id=(\d+)", listing))


def test_a_workload_with_the_hosts_address_takes_none_of_its_connections_along(
    etcd_node: EtcdNode, behind_host_endpoint: Lab
) -> None:
    etcd_node.apply("GlobalNetworkPolicy", "p1", POLICY)
    behind_host_endpoint.until_in_force(policies=1)
    before = tracked(etcd_node)
    assert before, "the agent's connection to the datastore"
    workload_leaves(etcd_node, lambda: behind_host_endpoint.until_in_force(endpoints=1))
    behind_host_endpoint.until_in_force(endpoints=0)
    etcd_node.apply("GlobalNetworkPolicy", "p2", POLICY)
    behind_host_endpoint.until_in_force(policies=2)
    assert tracked(etcd_node) >= before


@pytest.mark.parametrize("lose", [lambda node: forget_all(node.host), workload_leaves], ids=["flush", "workload"])
def test_it_hears_of_changes_on_connections_that_are_not_tracked(
    etcd_node: EtcdNode, behind_host_endpoint: Lab, lose: Callable[[EtcdNode], None]
) -> None:
    for number in range(1, 4):
        lose(etcd_node)
        etcd_node.apply("GlobalNetworkPolicy", f"p{number}", POLICY)
        behind_host_endpoint.until_in_force(policies=number)
    etcd_node.put({path: None for path in etcd_node.dump() if "/hostendpoints/" in path})
    behind_host_endpoint.until_in_force(hosts=0)
