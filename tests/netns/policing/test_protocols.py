"""SCTP and UDPLite under policies, with associations and sockets of the kernel's own, on both packet filters."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import Lab, lab, socket_in

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

FILTERS = {"nftables": {}, "iptables": {"FELIX_NFTABLESMODE": "Disabled"}}
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
PORT, OTHER = 5000, 5001
REFUSED_S = 2.0  # a packet that is dropped is answered by nobody


@pytest.fixture(params=FILTERS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Two workloads, of which b lets nobody in but by policy."""
    with lab(tmp_path) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.add("a", "10.65.0.1", "fd00::1", app="a")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        made.always = FILTERS[request.param]
        yield made


def allow(protocol: str | int, *ports: int) -> dict[str, object]:
    rule = {"action": "Allow", "protocol": protocol, "source": {"selector": "app == 'a'"}}
    if ports:
        rule["destination"] = {"ports": list(ports)}
    return {"selector": "app == 'b'", "types": ["Ingress"], "ingress": [rule]}


@contextmanager
def listening(pair: Lab, version: int, port: int) -> Iterator[socket.socket]:
    b = pair.workloads["b"]
    with socket_in(b.ns, FAMILIES[version], socket.SOCK_STREAM, socket.IPPROTO_SCTP) as server:
        server.bind((b.address(version), port))
        server.listen()
        server.settimeout(20)
        yield server


def associate(pair: Lab, version: int, port: int, timeout_s: float) -> socket.socket:
    a, b = pair.workloads["a"], pair.workloads["b"]
    made = socket_in(a.ns, FAMILIES[version], socket.SOCK_STREAM, socket.IPPROTO_SCTP)
    made.settimeout(timeout_s)
    try:
        made.connect((b.address(version), port))
    except OSError:
        made.close()
        raise
    return made


@pytest.mark.kernel("sctp")
@pytest.mark.parametrize("version", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_sctp(pair: Lab, version: int) -> None:
    """Only to the port of the rule; an association that stands goes on when the rule is gone, and there is no other."""
    pair.put("GlobalNetworkPolicy", "sctp", allow("SCTP", PORT))
    pair.start(**pair.always)
    pair.until_in_force(policies=1)
    with ExitStack() as stack:
        first, _ = (stack.enter_context(listening(pair, version, port)) for port in (PORT, OTHER))
        client = stack.enter_context(associate(pair, version, PORT, 20))
        served = stack.enter_context(first.accept()[0])
        served.settimeout(20)
        client.sendall(b"asked")
        assert served.recv(100) == b"asked"
        with pytest.raises(TimeoutError):
            associate(pair, version, OTHER, REFUSED_S)
        pair.put("GlobalNetworkPolicy", "sctp", allow("SCTP", OTHER))
        until(lambda: reaches(pair, version, OTHER), "the other port is open", 60)
        assert not reaches(pair, version, PORT)
        client.sendall(b"again")
        assert served.recv(100) == b"again"
        served.sendall(b"answered")
        assert client.recv(100) == b"answered"


def reaches(pair: Lab, version: int, port: int) -> bool:
    try:
        associate(pair, version, port, REFUSED_S).close()
    except OSError:
        return False
    return True


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
