"""An address that is given out again at once: no packet of its former owner's connections reaches the new one.

The agent's list says that the connections of the address are not removed yet, as it does while the agent is slow or
fails; and its rules let established connections pass.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.directories import POLICED_ADDRESSES
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink, general
from tests.deadlines import until
from tests.e2e.host import Node, added, cleaned
from tests.netns.namespaces import Namespace, namespace

pytestmark = pytest.mark.netns

OLD, NEW = "c0ffee" + 58 * "0", "ab" * 32
WANTED = {4: "10.65.0.77", 6: "fd00:65::77"}
PEER = {4: "192.0.2.9", 6: "2001:db8::9"}
OWN = {4: ("127.0.0.1", "127.0.0.2"), 6: ("::1", "::2")}
PORT, OTHERS = 7, 100_000
RULES = """table inet t {
  chain f { type filter hook forward priority 0; policy drop; ct state established accept; udp dport 9 accept;
            iifname "cali*" accept; }
}
"""


@pytest.fixture
def beyond_host(plain_node: Node) -> Iterator[Namespace]:
    """A host beyond the node, whose rules are in force."""
    host = plain_node.host
    with namespace("beyond") as peer:
        host.do("link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", peer.name)
        for ns, device, own, theirs in ((host, "up0", ".1", "::1"), (peer, "up1", ".9", "::9")):
            ns.do("addr", "add", f"192.0.2{own}/24", "dev", device)
            ns.do("addr", "add", f"2001:db8{theirs}/64", "dev", device, "nodad")
            ns.do("link", "set", device, "up")
        peer.do("route", "add", "10.65.0.0/16", "via", "192.0.2.1")
        peer.do("-6", "route", "add", "fd00:65::/112", "via", "2001:db8::1")
        host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
        host.run("sh", "-c", f"nft -f - <<'E'\n{RULES}\nE")
        yield peer


def _family(version: int) -> socket.AddressFamily:
    return socket.AF_INET if version == 4 else socket.AF_INET6


def _send(version: int, own: str, port: int, to: str, to_port: int) -> None:
    with socket.socket(_family(version), socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((own, port))
        s.sendto(b"x", (to, to_port))


def _arrived(version: int) -> int:
    """How many packets for the port have arrived in here, by the kernel's count."""
    name = "Udp" if version == 4 else "Udp6"
    text = Path("/proc/net/snmp" if version == 4 else "/proc/net/snmp6").read_text()
    if version == 6:
        counts = dict(line.split() for line in text.splitlines())
        return sum(int(counts[f"{name}{kind}"]) for kind in ("InDatagrams", "NoPorts"))
    head, values = (line.split() for line in text.splitlines() if line.startswith(f"{name}:"))
    found = dict(zip(head, values, strict=True))
    return int(found["InDatagrams"]) + int(found["NoPorts"])


def _tracked(packed: bytes) -> bool:
    with Nfnetlink() as netlink:
        family = general("ip" if len(packed) == 4 else "ip6")
        return any(packed in payload for payload in netlink.dump(1 << 8 | 1, family, "list", Deadline.after(30)))


def _fill(version: int) -> None:
    """Entries of others, as a busy host has them."""
    for own in OWN[version]:
        with socket.socket(_family(version), socket.SOCK_DGRAM) as sender:
            sender.bind((own, 0))
            for port in range(1, 1 + OTHERS // 2):
                try:
                    sender.sendto(b"x", (OWN[version][0], port))
                except ConnectionRefusedError:
                    continue


def _connect(node: Node, peer: Namespace, version: int) -> str:
    """A connection that the old owner opens, answered by the peer, so that it is established; its address."""
    with namespace("old") as pod:
        added(node, OLD, pod, args=f"IP={WANTED[version]}")
        pod.call(_send, version, WANTED[version], PORT, PEER[version], PORT)
        peer.call(_send, version, PEER[version], PORT, WANTED[version], PORT)
        until(lambda: pod.call(_arrived, version) == 1, "the old owner has its answer")
        (node.root / "run" / POLICED_ADDRESSES).write_text(f"10.65.0.1\n{WANTED[version]}\n")
        reply = node.call("DEL", OLD, pod.path)
        assert reply.ok, reply
    return WANTED[version]


def arrives_alone(peer: Namespace, pod: Namespace, version: int, *, beside: int = 0) -> None:
    """Of a packet of the old connection and one that is allowed only this, which is sent last, so all have come."""
    peer.call(_send, version, PEER[version], PORT, WANTED[version], PORT)
    peer.call(_send, version, PEER[version], 8, WANTED[version], 9)
    until(lambda: pod.call(_arrived, version) > beside, "what is allowed arrives")
    assert pod.call(_arrived, version) == 1 + beside


@pytest.mark.never_excused
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("known", [True, False])
def test_no_packet_of_an_old_connection_arrives(
    plain_node: Node, beyond_host: Namespace, pod_ns: Namespace, version: int, known: bool
) -> None:
    """Without the list, as where no agent enforces policies, they do: so the list is what keeps them out."""
    node = plain_node
    _connect(node, beyond_host, version)
    if not known:
        (node.root / "run" / POLICED_ADDRESSES).unlink()
    added(node, NEW, pod_ns, args=f"IP={WANTED[version]}")
    assert known is not node.host.call(_tracked, socket.inet_pton(_family(version), WANTED[version]))
    arrives_alone(beyond_host, pod_ns, version, beside=0 if known else 1)
    cleaned(node, NEW)


@pytest.mark.slow
@pytest.mark.never_excused
@pytest.mark.parametrize("version", [4, 6])
def test_among_a_hundred_thousand_entries(
    plain_node: Node, beyond_host: Namespace, pod_ns: Namespace, version: int
) -> None:
    node, host = plain_node, plain_node.host
    host.do("link", "set", "lo", "up")
    host.do("addr", "add", "::2/128", "dev", "lo", "nodad")
    host.call(_fill, version)
    assert int(host.run("cat", "/proc/sys/net/netfilter/nf_conntrack_count").stdout) > OTHERS * 9 // 10
    _connect(node, beyond_host, version)
    added(node, NEW, pod_ns, args=f"IP={WANTED[version]}")
    assert not host.call(_tracked, socket.inet_pton(_family(version), WANTED[version]))
    assert int(host.run("cat", "/proc/sys/net/netfilter/nf_conntrack_count").stdout) > OTHERS * 9 // 10
    arrives_alone(beyond_host, pod_ns, version)
    cleaned(node, NEW)


def test_where_they_cannot_be_removed_the_address_is_not_used(
    plain_node: Node, beyond_host: Namespace, pod_ns: Namespace
) -> None:
    node = plain_node
    _connect(node, beyond_host, 4)
    reply = node.call("ADD", NEW, pod_ns.path, args=f"IP={WANTED[4]}", fault="conntrack.remove:before:1:fail")
    assert not reply.ok and "connections of its former owner are still open" in reply.document["msg"]
    assert not node.leftovers()
    added(node, NEW, pod_ns, args=f"IP={WANTED[4]}")
    cleaned(node, NEW)


def test_a_repeated_add_keeps_the_containers_own_connections(
    plain_node: Node, beyond_host: Namespace, pod_ns: Namespace
) -> None:
    node = plain_node
    added(node, NEW, pod_ns, args=f"IP={WANTED[4]}")
    pod_ns.call(_send, 4, WANTED[4], PORT, PEER[4], PORT)
    (node.root / "run" / POLICED_ADDRESSES).write_text(f"{WANTED[4]}\n")
    added(node, NEW, pod_ns, args=f"IP={WANTED[4]}")
    assert node.host.call(_tracked, socket.inet_pton(socket.AF_INET, WANTED[4]))
    cleaned(node, NEW)
