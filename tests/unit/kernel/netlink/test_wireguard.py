"""Our bytes about WireGuard devices and routing rules, as pyroute2 reads them and as we do."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import nlmsg
from pyroute2.netlink.generic.wireguard import wgmsg
from pyroute2.netlink.rtnl.fibmsg import fibmsg

from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import rules, wireguard
from cni_calico.kernel.netlink.families import GENERIC, decode_family
from cni_calico.kernel.netlink.wire import HEADER, Request, nested
from cni_calico.model.host import RoutingRule
from cni_calico.model.wireguard import PeerChange, PrivateKey, WireguardChange, WireguardEndpoint

KEYS = [number.to_bytes(32, "big") for number in range(1, 2001)]


def read(request: Request, kind: type[nlmsg]) -> Any:
    header = HEADER.pack(HEADER.size + len(request.body), request.kind, request.flags, 1, 0)
    message = kind(header + request.body)
    message.decode()
    return message


def test_a_change_as_pyroute2_reads_it() -> None:
    peer = PeerChange(
        KEYS[0],
        endpoint=WireguardEndpoint(ip_address("192.0.2.1"), 51820),
        allowed=frozenset({ip_network("10.65.1.0/26"), ip_network("fd00:65::/122")}),
        keepalive_s=25,
    )
    change = WireguardChange(PrivateKey(bytes(range(32))), 51820, 0x200000, (peer, PeerChange(KEYS[1], remove=True)))
    [request] = wireguard.set_device(28, "wireguard.cali", change)
    message = read(request, wgmsg)
    assert (request.kind, message["cmd"], message["version"]) == (28, 1, 1)
    assert message.get_attr("WGDEVICE_A_IFNAME") == "wireguard.cali"
    assert message.get_attr("WGDEVICE_A_LISTEN_PORT") == 51820
    assert message.get_attr("WGDEVICE_A_FWMARK") == 0x200000
    first, second = message.get_attr("WGDEVICE_A_PEERS")
    assert first.get_attr("WGPEER_A_FLAGS") == 2 and second.get_attr("WGPEER_A_FLAGS") == 1 | 4
    assert first.get_attr("WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL") == 25
    assert first.get_attr("WGPEER_A_ENDPOINT")["addr"] == "192.0.2.1"
    assert first.get_attr("WGPEER_A_ENDPOINT")["port"] == 51820
    allowed = [
        (one.get_attr("WGALLOWEDIP_A_FAMILY"), one.get_attr("WGALLOWEDIP_A_CIDR_MASK"))
        for one in first.get_attr("WGPEER_A_ALLOWEDIPS")
    ]
    assert allowed == [(2, 26), (10, 122)]


def test_many_peers_are_few_messages_and_each_is_there_once() -> None:
    peers = tuple(
        PeerChange(key, allowed=frozenset(ip_network((0x0A000000 + (i * 5 + n) * 64, 26)) for n in range(5)))
        for i, key in enumerate(KEYS[:1000])
    )
    requests = wireguard.set_device(28, "wg", WireguardChange(port=7, peers=peers))
    assert all(len(request.body) <= wireguard.MESSAGE_BYTES + GENERIC.size for request in requests)
    assert len(requests) < 25
    found = wireguard.decode_device(request.body for request in requests)
    assert [(peer.public_key, peer.allowed) for peer in found.peers] == [(p.public_key, p.allowed) for p in peers]


def test_only_the_first_part_of_a_peer_replaces_what_it_had() -> None:
    wide = frozenset(ip_network((0x0A000000 + number * 64, 26)) for number in range(1500))
    requests = wireguard.set_device(28, "wg", WireguardChange(peers=(PeerChange(KEYS[0], allowed=wide),)))
    flags = [
        peer.get_attr("WGPEER_A_FLAGS") for each in requests for peer in read(each, wgmsg).get_attr("WGDEVICE_A_PEERS")
    ]
    assert len(flags) > 1 and flags == [2] + [4] * (len(flags) - 1)
    [peer] = wireguard.decode_device(request.body for request in requests).peers
    assert peer.allowed == wide


def test_a_change_of_nothing_is_one_message() -> None:
    assert len(wireguard.set_device(28, "wg", WireguardChange())) == 1


NETWORKS = st.builds(
    lambda n, length: ip_network((n, length), strict=False), st.integers(0, 2**32 - 1), st.integers(0, 32)
)
NETWORKS_V6 = st.builds(
    lambda n, length: ip_network((n.to_bytes(16, "big"), length), strict=False),
    st.integers(0, 2**128 - 1),
    st.integers(0, 128),
)
PLACES = st.builds(WireguardEndpoint, st.ip_addresses(), st.integers(1, 65535))
CHANGES = st.builds(
    PeerChange,
    st.binary(min_size=32, max_size=32),
    endpoint=st.none() | PLACES,
    allowed=st.frozensets(NETWORKS | NETWORKS_V6, max_size=5),
    keepalive_s=st.none() | st.integers(0, 65535),
)


@given(st.lists(CHANGES, max_size=5, unique_by=lambda change: change.public_key))
def test_a_change_comes_back(changes: list[PeerChange]) -> None:
    """The kernel answers with the same attributes."""
    requests = wireguard.set_device(28, "wg", WireguardChange(peers=tuple(changes)))
    found = wireguard.decode_device(request.body for request in requests)
    assert [(p.public_key, p.endpoint, p.allowed, p.keepalive_s) for p in found.peers] == [
        (c.public_key, c.endpoint, c.allowed, c.keepalive_s or 0) for c in changes
    ]


@given(st.binary(max_size=200), st.booleans())
def test_whatever_comes(payload: bytes, is_peer: bool) -> None:
    if is_peer:
        payload = nested(8, nested(0, payload))
    for decode in (
        lambda data: wireguard.decode_device([GENERIC.pack(0, 1, 0) + data]),
        rules.decode_rule,
        decode_family,
    ):
        try:
            decode(payload)
        except KernelError:
            pass


RULES = st.builds(
    RoutingRule,
    family=st.just(4),
    priority=st.integers(1, 32765),
    table=st.integers(1, 2**32 - 1),
    mark=st.integers(0, 2**32 - 1),
    mask=st.just(0xFFFFFFFF),
    invert=st.booleans(),
    source=st.none() | NETWORKS.filter(lambda network: network.prefixlen > 0),
)


@given(RULES)
def test_a_rule_comes_back(rule: RoutingRule) -> None:
    assert rules.decode_rule(rules.add_rule(rule).body) == rule


def test_upstreams_rule_as_pyroute2_reads_it() -> None:
    rule = RoutingRule(4, 99, 1, 0x200000, 0x200000, invert=True)
    assert str(rule) == "99: not from all fwmark 0x200000/0x200000 lookup 1"
    message = read(rules.add_rule(rule), fibmsg)
    assert (message["family"], message["action"], message["flags"], message["table"]) == (2, 1, 2, 1)
    attributes = {name: message.get_attr(f"FRA_{name}") for name in ("PRIORITY", "FWMARK", "FWMASK", "TABLE")}
    assert attributes == {"PRIORITY": 99, "FWMARK": 0x200000, "FWMASK": 0x200000, "TABLE": 1}


def test_a_private_key_has_no_text() -> None:
    key = PrivateKey(b"secret-secret-secret-secret-secr")
    change = WireguardChange(private_key=key)
    assert "secret" not in f"{key} {key!r} {change}" and b"secret".hex() not in f"{change}"
    with pytest.raises(TypeError):
        key.__reduce__()
