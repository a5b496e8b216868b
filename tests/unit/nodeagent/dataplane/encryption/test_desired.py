"""Who is a peer, who is plain and why, and which network is whose."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from cni_calico.model.host import HostInterface
from cni_calico.model.resources import Node
from cni_calico.model.wireguard import render_public_key, with_published_address, with_published_key
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption, desired_encryption, mark_of
from tests.unit.nodeagent.fabric import INTERFACES, NODES, block, node, pool, snapshot

FELIX = FelixSettings(wireguard_enabled=True, wireguard_enabled_v6=True)
KEYS = {name: render_public_key(bytes((number,)) * 32) for number, name in enumerate(("n1", "n2", "n3"), 1)}
POOL = pool("10.65.0.0/16", "Always")
ADDRESSES = {"n1": "10.65.1.7", "n2": "10.65.2.7", "n3": "10.65.3.7"}


def keyed(made: Node, key: str | None = None, address: str | None = None, family: int = 4) -> Node:
    name = made.metadata.name
    told = with_published_key(made, family, KEYS[name] if key is None else key)
    return with_published_address(told, family, ip_address(address or ADDRESSES[name]))


ALL = {name: keyed(each) for name, each in NODES.items()}


def wanted(
    nodes: dict[str, Node] = ALL, family: int = 4, felix: FelixSettings = FELIX, **more: Any
) -> DesiredEncryption:
    return desired_encryption(snapshot(POOL, pool("fd65::/64"), nodes=nodes, **more), INTERFACES, felix, family)


def networks(*texts: str) -> frozenset[Any]:
    return frozenset(map(ip_network, texts))


def test_three_nodes() -> None:
    found = wanted()
    assert (found.name, found.port, found.mtu, found.mark, found.table, found.priority) == (
        "wireguard.cali",
        51820,
        1440,
        0x200000,
        1,
        99,
    )
    assert str(found.address) == "10.65.1.7" and not found.plain and not found.problems and not found.impossible
    second = next(peer for peer in found.peers if peer.node == "n2")
    assert (second.key, str(second.endpoint)) == (bytes((2,)) * 32, "10.0.0.2:51820")
    assert set(second.networks) == networks("10.65.2.0/26")  # its tunnels' addresses are in it
    assert second.allowed == networks("10.65.2.0/26", "10.0.0.2/32")
    assert found.own == networks("10.65.1.0/26")


def test_ipv6_is_a_device_of_its_own() -> None:
    nodes = {name: with_published_key(each, 6, KEYS[name]) for name, each in NODES.items()}
    found = wanted(nodes, 6)
    assert (found.name, found.port, found.mtu) == ("wg-v6.cali", 51821, 1420)
    assert {str(peer.endpoint) for peer in found.peers} == {"[fd00::2]:51821", "[fd00:9::3]:51821"}
    assert len(wanted(nodes, 4).plain) == 2


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (NODES["n2"], "it has no key"),
        (keyed(NODES["n2"], "!"), "its key is none: not the base64 of 32 bytes"),
        (keyed(NODES["n2"], render_public_key(bytes(32))), "its key is none: all zero"),
        (keyed(NODES["n2"], KEYS["n1"]), "it has this node's key"),
        (keyed(node("n2", None, "fd00::2/64")), "it has no IPv4 address"),
    ],
)
def test_a_node_that_is_no_peer(second: Node, why: str) -> None:
    """Its networks are those that go plain."""
    found = wanted({**ALL, "n2": second})
    assert found.plain["n2"].startswith(why) and [peer.node for peer in found.peers] == ["n3"]
    assert found.plain_networks == networks("10.65.2.0/26")


def test_of_two_nodes_with_one_key_neither_is_a_peer() -> None:
    found = wanted({**ALL, "n3": keyed(NODES["n3"], KEYS["n2"])})
    assert not found.peers and set(found.plain) == {"n2", "n3"}
    assert all(why.startswith("another node has the same key") for why in found.plain.values())


def test_a_block_whose_node_is_gone() -> None:
    found = wanted({"n1": ALL["n1"], "n2": ALL["n2"]})
    assert found.plain == {"n3": "there is no Node of this name"}


def test_an_address_that_was_lent() -> None:
    """It is sent to who has it; so is a tunnel's address that was borrowed, and this node's own stays here."""
    blocks = (
        block("10.65.1.0/26", "n1", n3="10.65.1.9"),
        block("10.65.2.0/26", "n2", n1="10.65.2.9"),
        block("10.65.3.0/26", "n3"),
    )
    found = wanted(blocks=blocks)
    by_node = {peer.node: set(peer.networks) for peer in found.peers}
    assert by_node == {"n2": networks("10.65.2.0/26"), "n3": networks("10.65.3.0/26", "10.65.1.9/32")}
    assert found.own == networks("10.65.1.0/26", "10.65.2.9/32")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("10.65.2.9", "the WireGuard address 10.65.2.9 of node n3 is node n2's: it is not sent to n3"),
        ("10.65.1.9", "the WireGuard address 10.65.1.9 of node n3 is node n1's: it is not sent to n3"),
        ("8.8.8.8", "the WireGuard address 8.8.8.8 of node n3 is in no pool: it is not sent to that node"),
    ],
)
def test_an_address_that_a_node_only_claims(address: str, why: str) -> None:
    found = wanted({**ALL, "n3": keyed(NODES["n3"], address=address)})
    assert found.problems == (why,)
    assert {peer.node: set(peer.networks) for peer in found.peers}["n3"] == networks("10.65.3.0/26")


def test_a_hosts_address_that_is_a_pods_is_not_allowed() -> None:
    """Else packets to that pod would be encrypted for the node that claims it, because its network is the longest."""
    found = wanted({**ALL, "n3": keyed(node("n3", "10.65.2.9/32"))})
    assert {peer.node: peer.allowed for peer in found.peers}["n3"] == networks("10.65.3.0/26")


def test_an_address_of_two_hosts_is_neithers() -> None:
    found = wanted({**ALL, "n3": keyed(node("n3", "10.0.0.2/24"))})
    assert not any(peer.hosts for peer in found.peers)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mark_mask": 0x1F}, "NftablesMarkMask 0x1f has fewer than 6 bits"),
        ({"route_tables": ((254, 255),)}, "RouteTableRanges has no table for it"),
    ],
)
def test_what_is_not_possible(changes: dict[str, Any], why: str) -> None:
    found = wanted(felix=replace(FELIX, **changes))
    assert found.impossible == why and not found.peers


def test_a_node_without_an_address_of_the_family() -> None:
    found = wanted({**ALL, "n1": node("n1", None, "fd00::1/64")})
    assert found.impossible == "this node has no IPv4 address"


@pytest.mark.parametrize(("mtu", "used", "said"), [(1300, 1300, 0), (9000, 9000, 1), (300, 576, 1)])
def test_an_mtu_that_is_asked_for(mtu: int, used: int, said: int) -> None:
    found = wanted(felix=replace(FELIX, wireguard_mtu=mtu))
    assert found.mtu == used and len(found.problems) == said


def test_an_mtu_too_small_for_ipv6() -> None:
    nodes = {name: with_published_key(each, 6, KEYS[name]) for name, each in NODES.items()}
    found = wanted(nodes, 6, replace(FELIX, wireguard_mtu_v6=1200))
    assert found.mtu == 1280 and "1200 is too small for IPv6" in found.problems[0]


def test_host_encryption_is_said_not_to_be_supported() -> None:
    found = wanted(felix=replace(FELIX, wireguard_hosts=True))
    assert "is not supported" in found.problems[0] and found.peers == wanted().peers


def test_marks_are_upstreams() -> None:
    assert [mark_of(mask) for mask in (0xFFFF0000, 0xFC000000, 0x1F)] == [0x200000, 0x80000000, 0]


def test_disabled() -> None:
    found = wanted(felix=FelixSettings())
    assert not found.enabled and not found.peers


def test_a_device_that_others_change_is_another_value() -> None:
    """So that it is looked at when the kernel says so, and not only at the next resync."""
    device = HostInterface(12, "wireguard.cali", True, 1440)
    records = snapshot(POOL, nodes=ALL)
    there, changed, gone = (
        desired_encryption(records, (*INTERFACES, *more), FELIX, 4)
        for more in ([device], [replace(device, mtu=1300)], [])
    )
    assert there.found == device and there != changed and there != gone


def test_the_order_of_records_is_none() -> None:
    assert wanted() == wanted(dict(reversed(ALL.items())))
