"""An endpoint that OpenStack's driver wrote: routed like any other if its interface exists.

The record and the interface are laid down as the Neutron driver and Nova leave them; the machine behind the interface
answers, and reaches the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.netns.agent.test_loop import make_store
from tests.netns.agents import Running, Store, running
from tests.netns.namespaces import Namespace, namespace

pytestmark = pytest.mark.netns

MACHINE, PORT = "4c4f5b8e-1c9f-4b57-9a4d-0d2d6ad1e7a1", "e5f2a6c4-7f6e-4a6e-8f4b-2f9a0c1d2e3f"
TAP, ABSENT = f"tap{PORT[:11]}", "tap00000000-00"
V4, V6 = "10.65.1.20", "fd65::1:20"


def endpoint(interface: str, port: str, *addresses: str) -> Write:
    name = f"n1-openstack-openstack%2f{MACHINE.replace('-', '--')}-{port.replace('-', '--')}"
    labels = {"projectcalico.org/namespace": "openstack", "projectcalico.org/orchestrator": "openstack"}
    return Write.put(
        ResourceKey("WorkloadEndpoint", name, "openstack"),
        {
            "apiVersion": "projectcalico.org/v3",
            "kind": "WorkloadEndpoint",
            "metadata": {"name": name, "namespace": "openstack", "labels": labels},
            "spec": {
                "orchestrator": "openstack",
                "workload": f"openstack/{MACHINE}",
                "node": "n1",
                "endpoint": port,
                "type": "neutron",
                "mac": "fa:16:3e:00:00:01",
                "interfaceName": interface,
                "ipNetworks": list(addresses),
                "ipv4Gateway": "10.65.1.1",
                "ipv6Gateway": "fd65::1:1",
            },
        },
    )


@pytest.fixture
def machine(host_n1: Namespace) -> Iterator[Namespace]:
    """Behind the tap; its gateway is on an interface of the DHCP agent's."""
    with namespace("machine") as ns:
        host_n1.do("link", "add", "ns-dhcp", "type", "veth", "peer", "name", "dhcp")
        host_n1.do("link", "set", "ns-dhcp", "up")
        host_n1.do("addr", "add", "10.65.1.1/32", "dev", "ns-dhcp")
        host_n1.do("link", "add", TAP, "type", "veth", "peer", "name", "ens3", "netns", ns.name)
        host_n1.do("link", "set", TAP, "up")
        ns.do("link", "set", "ens3", "up")
        ns.do("addr", "add", f"{V4}/26", "dev", "ens3")
        ns.do("route", "add", "default", "via", "10.65.1.1")
        yield ns


def routes_of(host: Namespace, interface: str) -> dict[str, tuple[Any, Any]]:
    """destination -> (scope, protocol)"""
    shown = [r for v in (4, 6) for r in host.routes(v) if r.get("dev") == interface and r["dst"] != "fe80::/64"]
    return {r["dst"]: (r.get("scope"), r.get("protocol")) for r in shown}


@pytest.mark.parametrize("prefixes", ["cali", "cali,tap"])
def test_its_endpoint_is_routed(host_n1: Namespace, machine: Namespace, tmp_path: Path, prefixes: str) -> None:
    store = make_store(tmp_path / "store.db")
    store.write(endpoint(TAP, PORT, f"{V4}/32", f"{V6}/128"), endpoint(ABSENT, "another", "10.65.1.21/32"))
    with running(host_n1, store, "n1", tmp_path / "n1", FELIX_INTERFACEPREFIX=prefixes) as agent:
        require_routed(host_n1, machine, agent)
        machine.do("link", "del", "ens3")  # Nova has removed the machine
        until(lambda: not routes_of(host_n1, TAP), "its routes are gone")
        assert agent.status()["failed"] == []
    assert not any(r["dst"] == "10.65.1.21" for r in host_n1.routes())


def require_routed(host: Namespace, machine: Namespace, agent: Running) -> None:
    until(lambda: V4 in routes_of(host, TAP), "it is routed")
    assert routes_of(host, TAP) == {V4: ("link", "boot"), V6: ("global", "boot")}
    assert host.sysctl(f"ipv4/conf/{TAP}/proxy_arp") == host.sysctl(f"ipv4/conf/{TAP}/forwarding") == "1"
    assert host.run("ping", "-c1", "-W5", V4, check=False).returncode == 0
    assert machine.run("ping", "-c1", "-W5", "10.0.0.1", check=False).returncode == 0
    assert agent.status()["failed"] == []


def test_a_tap_that_comes_later(host_n1: Namespace, tmp_path: Path, store_with_endpoint: Store) -> None:
    with running(host_n1, store_with_endpoint, "n1", tmp_path / "n1"), namespace("machine") as ns:
        assert not routes_of(host_n1, TAP)
        host_n1.do("link", "add", TAP, "type", "veth", "peer", "name", "ens3", "netns", ns.name)
        host_n1.do("link", "set", TAP, "up")
        until(lambda: routes_of(host_n1, TAP) == {V4: ("link", "boot")}, "it is routed")


@pytest.fixture
def store_with_endpoint(tmp_path: Path) -> Store:
    made = make_store(tmp_path / "store.db")
    made.write(endpoint(TAP, PORT, f"{V4}/32"))
    return made
