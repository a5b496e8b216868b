"""SCTP and UDPLite under policies, with associations and sockets of the kernel's own, on both packet filters."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import Lab, socket_in
from tests.netns.policing.sctp import FAMILIES, associate, listening, reaches

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

FILTERS = {"nftables": {}, "iptables": {"FELIX_NFTABLESMODE": "Disabled"}}
PORT, OTHER = 5000, 5001


@pytest.fixture(params=FILTERS)
def pair(request: pytest.FixtureRequest, two_workloads: Lab) -> Lab:
    two_workloads.always = FILTERS[request.param]
    return two_workloads


def allow(protocol: str | int, *ports: int) -> dict[str, object]:
    rule = {"action": "Allow", "protocol": protocol, "source": {"selector": "app == 'a'"}}
    if ports:
        rule["destination"] = {"ports": list(ports)}
    return {"selector": "app == 'b'", "types": ["Ingress"], "ingress": [rule]}


@pytest.mark.kernel("sctp")
@pytest.mark.parametrize("version", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_sctp(pair: Lab, version: int) -> None:
    """Only to the port of the rule; an association that stands goes on when the rule is gone, and there is no other."""
    pair.put("GlobalNetworkPolicy", "sctp", allow("SCTP", PORT))
    pair.start(**pair.always)
    pair.until_in_force(policies=1)
    with ExitStack() as stack:
        first, _ = (stack.enter_context(listening(pair, "b", port, version)) for port in (PORT, OTHER))
        client = stack.enter_context(associate(pair, "a", "b", PORT, version, 20))
        served = stack.enter_context(first.accept()[0])
        served.settimeout(20)
        client.sendall(b"asked")
        assert served.recv(100) == b"asked"
        with pytest.raises(TimeoutError):
            associate(pair, "a", "b", OTHER, version)
        pair.put("GlobalNetworkPolicy", "sctp", allow("SCTP", OTHER))
        until(lambda: reaches(pair, "a", "b", OTHER, version), "the other port is open", 60)
        assert not reaches(pair, "a", "b", PORT, version)
        client.sendall(b"again")
        assert served.recv(100) == b"again"
        served.sendall(b"answered")
        assert client.recv(100) == b"answered"


@pytest.mark.slow
@pytest.mark.kernel("udplite")
@pytest.mark.parametrize("version", FAMILIES)
def test_udplite(pair: Lab, version: int) -> None:
    """As a protocol of its own: what a rule for UDP allows is not meant. Connection tracking takes every packet of it
    for invalid while it checks checksums, so it does not here (docs/policy.md).
    """
    pair.host.set_sysctl("netfilter/nf_conntrack_checksum", "0")
    pair.put("GlobalNetworkPolicy", "lite", allow("UDPLite"))
    spec = allow("UDP", PORT)
    pair.put("GlobalNetworkPolicy", "udp", {**spec, "order": 5})
    pair.start(**pair.always)
    pair.until_in_force(policies=2)
    b = pair.workloads["b"]
    with socket_in(b.ns, FAMILIES[version], socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE) as server:
        server.bind((b.address(version), PORT))
        server.settimeout(20)
        tell(pair, version, b"allowed")
        assert server.recv(100) == b"allowed"
        pair.put("GlobalNetworkPolicy", "lite", allow("TCP"))
        until(lambda: not arrives(pair, version, server), "it is denied", 60)
        assert pair.passes("a", "b", PORT, version=version)
        pair.put("GlobalNetworkPolicy", "lite", allow(136))
        until(lambda: arrives(pair, version, server), "its number is its name", 60)


def tell(pair: Lab, version: int, word: bytes) -> None:
    """From a port of its own: the first packet of a connection."""
    a, b = pair.workloads["a"], pair.workloads["b"]
    with socket_in(a.ns, FAMILIES[version], socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE) as client:
        client.bind((a.address(version), 0))
        client.sendto(word, (b.address(version), PORT))


def arrives(pair: Lab, version: int, server: socket.socket) -> bool:
    """The host itself is never policed: its packet is behind the other one."""
    tell(pair, version, b"tried")
    b = pair.workloads["b"]
    with socket_in(pair.host, FAMILIES[version], socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE) as own:
        own.sendto(b"last", (b.address(version), PORT))
    found = False
    while (word := server.recv(100)) != b"last":
        found = found or word == b"tried"
    return found
