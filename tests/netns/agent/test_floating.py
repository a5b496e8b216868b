"""Floating IPs: packets to them reach the workload, from wherever they come, until the mapping goes."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general
from cni_calico.model.resources import IPNAT, Metadata, Resource, WorkloadEndpoint
from tests.deadlines import until
from tests.netns.agents import Store, key_of, running
from tests.netns.namespaces import Namespace, namespace
from tests.unit.nodeagent.fabric import NODES, pool, workload

pytestmark = pytest.mark.netns

OWN = {4: "10.65.1.5", 6: "fd65::1:5"}
FLOATING = {4: "192.0.2.50", 6: "2001:db8::50"}
SECOND = {4: "192.0.2.51", 6: "2001:db8::51"}
ASKER = {4: "10.65.1.6", 6: "fd65::1:6"}  # another pod
OUTSIDE = {4: "10.0.0.9", 6: "fd00::9"}
GATEWAY = {4: "169.254.1.1", 6: "fe80::1"}
PORT = 5001
ENABLED = Resource("FelixConfiguration", Metadata("default"), {"floatingIPs": "Enabled"})


def endpoint(*external: str) -> WorkloadEndpoint:
    nats = tuple(IPNAT(ip_address(OWN[6 if ":" in each else 4]), ip_address(each)) for each in external)
    made = workload("w", "calia", f"{OWN[4]}/32", f"{OWN[6]}/128")
    return replace(made, ip_nats=nats)


@contextmanager
def pod_behind(host: Namespace, name: str, addresses: dict[int, str]) -> Iterator[Namespace]:
    """A pod as the CNI plugin makes it."""
    with namespace("pod") as ns:
        host.do("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", ns.name)
        host.do("link", "set", name, "addrgenmode", "none")
        host.do("addr", "add", "fe80::1/64", "dev", name, "nodad")
        host.set_sysctl(f"ipv4/conf/{name}/proxy_arp", "1")
        host.do("link", "set", name, "up")
        ns.do_all(
            "link set eth0 up",
            f"addr add {addresses[4]}/32 dev eth0",
            f"addr add {addresses[6]}/128 dev eth0 nodad",
            f"route add {GATEWAY[4]} dev eth0 scope link",
            f"route add default via {GATEWAY[4]} dev eth0",
            f"route add ::/0 via {GATEWAY[6]} dev eth0",
        )
        yield ns


@pytest.fixture
def told_outside(host_n1: Namespace) -> Iterator[Namespace]:
    """Another host, in the node's network, that has been told the way to the floating IPs."""
    with namespace("outside") as ns:
        host_n1.do("link", "set", "veth-eth0", "netns", ns.name)
        ns.do_all(
            "link set veth-eth0 up",
            f"addr add {OUTSIDE[4]}/24 dev veth-eth0",
            f"addr add {OUTSIDE[6]}/64 dev veth-eth0 nodad",
            "route add 192.0.2.0/24 via 10.0.0.1",
            "route add 2001:db8::/64 via fd00::1",
        )
        host_n1.set_sysctl("ipv6/conf/eth0/accept_dad", "0")
        yield ns


@pytest.fixture
def floating_pod(host_n1: Namespace, told_outside: Namespace) -> Iterator[Namespace]:
    host_n1.do("link", "del", "calia")
    with pod_behind(host_n1, "calia", OWN) as made:
        yield made


@pytest.fixture
def floating_store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store.db")
    made.put(NODES["n1"], pool("10.65.0.0/16"), pool("fd65::/64"), endpoint(FLOATING[4], FLOATING[6]))
    return made


SERVER = f"""
import socket
with socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    while True:
        connection, peer = server.accept()
        with connection:
            connection.sendall(peer[0].encode())
"""


@contextmanager
def serving(pod: Namespace) -> Iterator[None]:
    """Whoever connects is told from where."""
    server = subprocess.Popen(["nsenter", f"--net={pod.path}", sys.executable, "-S", "-c", SERVER])
    try:
        yield
    finally:
        server.kill()
        server.wait()


def _connect(address: str) -> str:
    """What is answered, "" for nothing."""
    try:
        with socket.create_connection((address, PORT), 10) as connection:
            return connection.recv(100).decode().removeprefix("::ffff:")
    except OSError:
        return ""


def told(ns: Namespace, address: str) -> str:
    """From where the pod says that a connection to this address comes."""
    found = [""]

    def answered() -> bool:
        found.append(ns.call(_connect, address))
        return bool(found[-1])

    until(answered, f"an answer of {address}", 90)
    return found[-1]


def translated(ns: Namespace, destination: str) -> int:
    """How many connections to it are tracked."""

    family, attribute = ("ip6", 4) if ":" in destination else ("ip", 2)

    def count() -> int:
        with Nfnetlink() as netlink:
            found = 0
            for payload in netlink.dump(1 << 8 | 1, general(family), "list", Deadline.after(5)):
                ip = wire.attributes(wire.attributes(wire.attributes(payload, GENERAL_BYTES)[1])[1])
                found += ip[attribute] == ip_address(destination).packed
            return found

    return int(ns.call(count))


def routed(ns: Namespace, address: str) -> bool:
    version = 6 if ":" in address else 4
    return any(r["dst"] == address and r["dev"] == "calia" for r in ns.routes(version))


@pytest.mark.parametrize("version", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_it_leads_to_the_pod_from_everywhere(
    host_n1: Namespace,
    floating_pod: Namespace,
    told_outside: Namespace,
    floating_store: Store,
    tmp_path: Path,
    version: int,
) -> None:
    floating_store.put(ENABLED, workload("asker", "calib", f"{ASKER[4]}/32", f"{ASKER[6]}/128"))
    with (
        pod_behind(host_n1, "calib", ASKER) as asker,
        running(host_n1, floating_store, "n1", tmp_path / "n1", CALICO_NETWORKING_BACKEND="bird") as agent,
    ):
        until(lambda: routed(host_n1, FLOATING[version]), "the route", 60)
        with serving(floating_pod):
            assert told(told_outside, FLOATING[version]) == OUTSIDE[version]
            assert told(asker, FLOATING[version]) == ASKER[version]
            assert told(host_n1, FLOATING[version])
            # itself: it would drop what comes from its own address
            assert told(floating_pod, FLOATING[version]) == FLOATING[version]
        assert any("no pool that BGP announces contains them" in text for text in agent.status()["problems"])


def test_a_mapping_that_goes_ends_its_connections(
    host_n1: Namespace, floating_pod: Namespace, told_outside: Namespace, floating_store: Store, tmp_path: Path
) -> None:
    """In both families, also one that went while no agent ran; another address of the same pod keeps its own."""

    def tracked(addresses: dict[int, str]) -> list[int]:
        return [translated(host_n1, address) for address in addresses.values()]

    def are_routed(addresses: dict[int, str]) -> list[bool]:
        return [routed(host_n1, address) for address in addresses.values()]

    floating_store.put(ENABLED, endpoint(*FLOATING.values(), *SECOND.values()))
    with running(host_n1, floating_store, "n1", tmp_path / "n1"):
        until(lambda: are_routed(SECOND) == [True, True], "the routes", 60)
        host_n1.set_sysctl("netfilter/nf_conntrack_udp_timeout", "3600")  # none ends by itself
        for addresses in (FLOATING, SECOND, OWN):
            for version, address in addresses.items():
                way = ("via", "10.0.0.1") if version == 4 else ("via", "fd00::1")
                told_outside.do("route", "replace", address, *way)
                say(told_outside, host_n1, address)
        floating_store.put(endpoint(*SECOND.values()))
        until(lambda: tracked(FLOATING) == [0, 0], "the connections' end", 60)
        until(lambda: are_routed(FLOATING) == [False, False], "the routes' end", 60)
        assert are_routed(SECOND) == [True, True]
        assert tracked(SECOND) == tracked(OWN) == [1, 1]
    floating_store.put(endpoint())
    with running(host_n1, floating_store, "n1", tmp_path / "n1"):
        until(lambda: tracked(SECOND) == [0, 0], "the end of those whose mapping went meanwhile", 60)
        assert tracked(OWN) == [1, 1]
        assert "calico-floating" not in host_n1.run("nft", "list", "tables").stdout


def _say(address: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("", PORT))
        s.sendto(b"x", (address, PORT))


def say(ns: Namespace, host: Namespace, address: str) -> None:
    """Send one until the host tracks it; always from the same port, so that all are one connection."""

    def is_tracked() -> bool:
        ns.call(_say, address)
        return translated(host, address) == 1

    until(is_tracked, f"{address} is tracked", 60)


@pytest.mark.slow
def test_the_switch_and_repair(
    host_n1: Namespace, floating_pod: Namespace, floating_store: Store, tmp_path: Path
) -> None:
    """Without FloatingIPs there is nothing; what somebody removes comes back."""

    def has_table() -> bool:
        return "table ip calico-floating" in host_n1.run("nft", "list", "tables").stdout

    with running(host_n1, floating_store, "n1", tmp_path / "n1"):
        assert not has_table() and not routed(host_n1, FLOATING[4])
        floating_store.put(ENABLED)
        until(lambda: has_table() and routed(host_n1, FLOATING[4]), "the table", 60)
        host_n1.run("nft", "delete", "table", "ip", "calico-floating")
        until(has_table, "the table again", 60)
        floating_store.remove(key_of(ENABLED))
        until(lambda: not has_table() and not routed(host_n1, FLOATING[4]), "nothing", 60)


def test_what_ipam_gave_to_somebody_is_not_taken(
    host_n1: Namespace, floating_pod: Namespace, told_outside: Namespace, floating_store: Store, tmp_path: Path
) -> None:
    """An address in a pool, which nobody reserves, is used until IPAM gives it to another pod; an agent that starts
    ends nothing before it knows.
    """
    inside = "10.65.9.1"
    floating_store.put_block("10.65.9.0/26", "n2", "n2")  # its first address is taken
    floating_store.put(ENABLED, endpoint(inside, "10.65.9.0"))
    with running(host_n1, floating_store, "n1", tmp_path / "n1") as agent:
        until(lambda: routed(host_n1, inside), "the route", 60)
        assert not routed(host_n1, "10.65.9.0")
        assert any("10.65.9.0 of default/" in text and "IPAM gave it to" in text for text in agent.status()["problems"])
        told_outside.do("route", "add", f"{inside}/32", "via", "10.0.0.1")
        host_n1.set_sysctl("netfilter/nf_conntrack_udp_timeout", "3600")  # none ends by itself
        say(told_outside, host_n1, inside)
    with running(host_n1, floating_store, "n1", tmp_path / "again") as agent:
        assert routed(host_n1, inside) and translated(host_n1, inside) == 1
        assert "floating IPs of IPv4: none" not in agent.log()
        floating_store.put_block("10.65.9.0/26", "n2", "n2", "n2")
        until(lambda: not routed(host_n1, inside), "the route's end", 60)
