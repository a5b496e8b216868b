"""Our rtnetlink bytes read by pyroute2, and pyroute2's read by us."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from pyroute2.netlink import nlmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.nsidmsg import nsidmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from cni_calico.kernel.netlink import addresses, links, routes
from cni_calico.kernel.netlink.wire import HEADER, Request

MAC, PEER_MAC = b"\xee" * 6, bytes.fromhex("0a1b2c3d4e5f")


def read(request: Request, kind: type[nlmsg]) -> Any:
    """The request as pyroute2 understands it."""
    header = HEADER.pack(HEADER.size + len(request.body), request.kind, request.flags, 1, 0)
    message = kind(header + request.body)
    message.decode()
    return message


def written(message: nlmsg) -> bytes:
    """The payload of a message that pyroute2 encoded."""
    message.encode()
    return bytes(message.data)[HEADER.size : message["header"]["length"]]


def test_create_veth() -> None:
    request = links.create_veth("cali1", "eth0", 7, mtu=1450, mac=MAC, peer_mac=PEER_MAC, queues=3)
    message = read(request, ifinfmsg)
    assert (message["header"]["type"], message["header"]["flags"]) == (16, 0x600)  # NEWLINK, CREATE | EXCL
    assert message.get_attr("IFLA_IFNAME") == "cali1"
    assert message.get_attr("IFLA_ADDRESS") == "ee:ee:ee:ee:ee:ee"
    assert (message.get_attr("IFLA_MTU"), message.get_attr("IFLA_TXQLEN")) == (1450, 0)
    assert (message.get_attr("IFLA_NUM_TX_QUEUES"), message.get_attr("IFLA_NUM_RX_QUEUES")) == (3, 3)
    info = message.get_attr("IFLA_LINKINFO")
    assert info.get_attr("IFLA_INFO_KIND") == "veth"
    peer = info.get_attr("IFLA_INFO_DATA").get_attr("VETH_INFO_PEER")
    assert (peer["index"], peer["flags"]) == (0, 0)
    assert peer.get_attr("IFLA_IFNAME") == "eth0"
    assert peer.get_attr("IFLA_ADDRESS") == "0a:1b:2c:3d:4e:5f"
    assert (peer.get_attr("IFLA_MTU"), peer.get_attr("IFLA_NET_NS_FD")) == (1450, 7)
    assert (peer.get_attr("IFLA_NUM_TX_QUEUES"), peer.get_attr("IFLA_NUM_RX_QUEUES")) == (3, 3)


def test_create_veth_with_the_kernels_choice_of_mac() -> None:
    message = read(links.create_veth("cali1", "eth0", 7, mtu=1450), ifinfmsg)
    peer = message.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_DATA").get_attr("VETH_INFO_PEER")
    assert message.get_attr("IFLA_ADDRESS") is None
    assert peer.get_attr("IFLA_ADDRESS") is None


def test_get_link() -> None:
    by_name, by_index = read(links.get_link("cali1"), ifinfmsg), read(links.get_link(12), ifinfmsg)
    assert (by_name["index"], by_name.get_attr("IFLA_IFNAME")) == (0, "cali1")
    assert (by_index["index"], by_index.get_attr("IFLA_IFNAME")) == (12, None)
    assert by_name.get_attr("IFLA_EXT_MASK") == by_index.get_attr("IFLA_EXT_MASK") == 8


@pytest.mark.parametrize(("up", "flags", "change"), [(True, 1, 1), (False, 0, 1), (None, 0, 0)])
def test_set_link(up: bool | None, flags: int, change: int) -> None:
    message = read(links.set_link(5, "x", up=up, mac=MAC, mtu=1400, group=9), ifinfmsg)
    assert (message["header"]["type"], message["index"]) == (19, 5)
    assert (message["flags"], message["change"]) == (flags, change)
    assert message.get_attr("IFLA_ADDRESS") == "ee:ee:ee:ee:ee:ee"
    assert [message.get_attr(f"IFLA_{name}") for name in ("MTU", "GROUP")] == [1400, 9]


def test_set_nothing_says_nothing() -> None:
    assert read(links.set_link(5, "x"), ifinfmsg)["attrs"] == []


def test_delete() -> None:
    assert read(links.delete_link(5, "x"), ifinfmsg)["index"] == 5
    message = read(links.delete_group(70000), ifinfmsg)
    assert (message["header"]["type"], message["index"], message.get_attr("IFLA_GROUP")) == (17, 0, 70000)


def test_decode_link() -> None:
    message = ifinfmsg()
    message["index"], message["flags"] = 9, 1
    message["attrs"] = [
        ("IFLA_IFNAME", "cali1"),
        ("IFLA_MTU", 1450),
        ("IFLA_ADDRESS", "ee:ee:ee:ee:ee:ee"),
        ("IFLA_LINK", 2),
        ("IFLA_LINK_NETNSID", 4),
        ("IFLA_GROUP", 77),
        ("IFLA_NUM_TX_QUEUES", 3),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "veth")]}),
    ]
    payload = written(message)
    link = links.decode_link(payload)
    assert (link.ifindex, link.name, link.up, link.mac, link.mtu) == (9, "cali1", True, MAC, 1450)
    assert (link.kind, link.peer, link.peer_netns, link.group) == ("veth", 2, 4, 77)
    assert links.decode_group(payload) == (9, 77)
    assert links.decode_listed(payload) == (9, "cali1", True, 1450)
    assert links.devconf(link, "ipv4", "forwarding") is None


def test_netns_id() -> None:
    message = read(links.get_netns_id(7), nsidmsg)
    assert (message["header"]["type"], message.get_attr("NETNSA_FD")) == (90, 7)
    answer = nsidmsg()
    answer["attrs"] = [("NETNSA_NSID", 12)]
    assert links.decode_netns_id(written(answer)) == 12


@pytest.mark.parametrize("text", ["10.65.0.1", "fd00:65::1"])
def test_addresses(text: str) -> None:
    address = ip_address(text)
    message = read(addresses.add_address(5, "eth0", address), ifaddrmsg)
    assert (message["header"]["type"], message["header"]["flags"]) == (20, 0x500)  # NEWADDR, CREATE | REPLACE
    assert (message["family"], message["index"]) == (2 if address.version == 4 else 10, 5)
    assert (message["prefixlen"], message["scope"]) == (address.max_prefixlen, 0)
    assert message["flags"] == (0 if address.version == 4 else 2)  # IFA_F_NODAD
    assert message.get_attr("IFA_LOCAL") == message.get_attr("IFA_ADDRESS") == text
    assert read(addresses.delete_address(5, "eth0", address), ifaddrmsg)["header"]["type"] == 21


@pytest.mark.parametrize(("text", "family"), [("10.65.0.1", 2), ("fd00:65::1", 10)])
def test_decode_address(text: str, family: int) -> None:
    message = ifaddrmsg()
    message["family"], message["prefixlen"], message["index"], message["flags"] = family, 24, 5, 0x80
    message["attrs"] = [("IFA_ADDRESS", text)]
    found = addresses.decode_address(written(message))
    assert found == (5, ip_address(text), 24)


HOST_ROUTE = routes.Route(ip_network("10.65.0.1/32"), 5, scope=routes.SCOPE_LINK)
DEFAULT_V6 = routes.Route(ip_network("::/0"), 6, IPv6Address("fe80::1"), metric=1024)


def test_link_route() -> None:
    message = read(routes.add_route(HOST_ROUTE, "x"), rtmsg)
    assert (message["header"]["type"], message["header"]["flags"]) == (24, 0x600)
    assert [message[name] for name in ("family", "dst_len", "table", "proto", "scope", "type")] == [
        2,
        32,
        254,
        3,
        253,
        1,
    ]
    assert [message.get_attr(f"RTA_{name}") for name in ("DST", "OIF", "GATEWAY")] == ["10.65.0.1", 5, None]


def test_default_route() -> None:
    message = read(routes.add_route(DEFAULT_V6, "x", replace=True, onlink=True), rtmsg)
    assert (message["header"]["flags"], message["flags"]) == (0x500, 4)
    assert [message[name] for name in ("family", "dst_len", "scope")] == [10, 0, 0]
    attributes = [message.get_attr(f"RTA_{name}") for name in ("DST", "OIF", "GATEWAY", "PRIORITY", "TABLE")]
    assert attributes == [None, 6, "fe80::1", 1024, 254]


def test_large_table() -> None:
    message = read(routes.delete_route(HOST_ROUTE._replace(table=70000), "x"), rtmsg)
    assert (message["header"]["type"], message["table"], message.get_attr("RTA_TABLE")) == (25, 0, 70000)


def test_match_route() -> None:
    message = read(routes.match_route(IPv4Address("10.65.0.1")), rtmsg)
    assert (message["dst_len"], message.get_attr("RTA_DST"), message["flags"]) == (32, "10.65.0.1", 0x3000)
    message = read(routes.match_route(IPv6Address("fd00::1")), rtmsg)
    assert (message["dst_len"], message.get_attr("RTA_DST"), message["flags"]) == (128, "fd00::1", 0x2000)


@pytest.mark.parametrize("route", [HOST_ROUTE, DEFAULT_V6, routes.Route(ip_network("10.0.0.0/8"), table=1000, tos=8)])
def test_decode_route(route: routes.Route) -> None:
    message = rtmsg()
    message["family"] = 2 if route.dst.version == 4 else 10
    message["dst_len"], message["table"], message["tos"] = route.dst.prefixlen, route.table % 256, route.tos
    message["proto"], message["scope"], message["type"] = route.protocol, route.scope, route.kind
    message["attrs"] = [("RTA_TABLE", route.table)]
    if route.dst.prefixlen:
        message["attrs"].append(("RTA_DST", str(route.dst.network_address)))
    if route.oif:
        message["attrs"].append(("RTA_OIF", route.oif))
    if route.gateway:
        message["attrs"].append(("RTA_GATEWAY", str(route.gateway)))
    if route.metric:
        message["attrs"].append(("RTA_PRIORITY", route.metric))
    assert routes.decode_route(written(message)) == route


def test_neighbour() -> None:
    request = addresses.set_neighbour(5, "eth0", IPv4Address("169.254.1.1"), MAC)
    message = read(request, ndmsg)
    assert (message["header"]["type"], message["header"]["flags"]) == (28, 0x500)
    assert (message["family"], message["ifindex"], message["state"]) == (2, 5, 0x80)
    assert (message.get_attr("NDA_DST"), message.get_attr("NDA_LLADDR")) == ("169.254.1.1", "ee:ee:ee:ee:ee:ee")
    answer = ndmsg()
    answer["family"], answer["ifindex"], answer["state"] = 2, 5, 0x80
    answer["attrs"] = [("NDA_DST", "169.254.1.1"), ("NDA_LLADDR", "ee:ee:ee:ee:ee:ee")]
    found = addresses.decode_neighbour(written(answer))
    assert found == (5, IPv4Address("169.254.1.1"), MAC, True)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (links.list_links(), ifinfmsg),
        (addresses.list_addresses(5), ifaddrmsg),
        (addresses.list_neighbours(), ndmsg),
        (routes.list_routes(4), rtmsg),
        (routes.list_routes(6, table=255), rtmsg),
    ],
)
def test_lists_are_dumps(request_: Request, kind: type[nlmsg]) -> None:
    message = read(request_, kind)
    assert request_.is_dump
    assert message["header"]["flags"] == 0x300
