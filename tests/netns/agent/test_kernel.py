"""The agent's doors to the kernel against ``ip -j``: routes, tunnel devices, neighbours, notifications."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network

import pytest

from cni_calico.errors import KernelError
from cni_calico.kernel.host_routes import apply_host_routes, read_host_routes
from cni_calico.kernel.interfaces import read_default_interface, read_interfaces
from cni_calico.kernel.monitor import FORWARD, RULES, SETTINGS, Monitor
from cni_calico.kernel.monitor import NEIGHBOURS as NEIGHBOURS_OF
from cni_calico.kernel.routing_rules import ensure_rule, read_rules, remove_rule
from cni_calico.kernel.tunnels import apply_vteps, change_tunnel, create_tunnel, read_tunnels, read_vteps, remove_tunnel
from cni_calico.model.host import ForwardingEntry, HostInterface, HostRoute, NeighbourEntry, RoutingRule, TunnelDevice
from tests.deadlines import soon
from tests.netns.namespaces import Namespace, namespace
from tests.netns.startups import VXLAN_DEVICE as V4
from tests.netns.startups import add_card

pytestmark = pytest.mark.netns

WAITS_S = 60.0

V6 = replace(
    V4,
    name="vxlan-v6.calico",
    mtu=1430,
    address=ip_address("fd65::1:0"),
    local=ip_address("fd00::1"),
    mac="66:00:00:00:00:02",
)
ROUTES = (
    HostRoute(ip_network("10.65.2.0/26"), "eth0", ip_address("10.0.0.2")),
    HostRoute(ip_network("10.65.9.0/26"), "eth0", ip_address("10.77.0.2"), onlink=True),
    HostRoute(ip_network("10.65.1.0/26"), kind="blackhole"),
    HostRoute(ip_network("10.65.1.5/32"), "calia", scope="link", protocol=3),
    HostRoute(ip_network("10.65.1.6/32"), "calia", scope="link", protocol=3, source=ip_address("10.0.0.1")),
    HostRoute(ip_network("fd65::2:0/122"), "eth0", ip_address("fd00::2")),
    HostRoute(ip_network("fd65::1:0/122"), kind="blackhole"),
    HostRoute(ip_network("fd65::1:5/128"), "calia", protocol=3),
)


@pytest.fixture
def host_with_routes() -> Iterator[Namespace]:
    with namespace("agent") as ns:
        add_card(ns, "eth0", "10.0.0.1/24", "fd00::1/64")
        add_card(ns, "calia")
        ns.do("route", "add", "default", "via", "10.0.0.254")
        ns.do("route", "add", "10.65.7.0/26", "via", "10.0.0.7", "proto", "bird", "metric", "1024")
        yield ns


def _routes(add: list[HostRoute], remove: list[HostRoute]) -> tuple[list[str], list[HostRoute]]:
    failed = [str(error) for _, error in apply_host_routes(add, remove, soon())]
    return failed, read_host_routes(soon())


def _dropped(route: HostRoute) -> HostRoute:
    return replace(route, onlink=False)


def test_interfaces_are_read_as_ip_shows_them(host_with_routes: Namespace) -> None:
    read: tuple[HostInterface, ...] = host_with_routes.call(read_interfaces, soon())
    shown = {entry["ifname"]: entry for entry in host_with_routes.ip("addr", "show")}
    assert {interface.name for interface in read} == set(shown)
    for interface in read:
        entry = shown[interface.name]
        assert (interface.index, interface.mtu, interface.mac) == (entry["ifindex"], entry["mtu"], entry["address"])
        assert interface.up == ("UP" in entry["flags"])
        assert interface.kind == entry.get("linkinfo", {}).get("info_kind", "")
        assert {str(a) for a in interface.addresses} == {f"{i['local']}/{i['prefixlen']}" for i in entry["addr_info"]}
    assert host_with_routes.call(read_default_interface, 4, soon()) == "eth0"
    assert host_with_routes.call(read_default_interface, 6, soon()) == ""


def test_routes_are_added_read_and_removed(host_with_routes: Namespace) -> None:
    before = host_with_routes.routes(4), host_with_routes.routes(6)
    failed, read = host_with_routes.call(_routes, list(ROUTES), [])
    assert failed == []
    assert {_dropped(route) for route in ROUTES} <= {_dropped(route) for route in read}
    shown = {entry["dst"]: entry for entry in (*host_with_routes.routes(4), *host_with_routes.routes(6))}
    assert (shown["10.65.2.0/26"]["gateway"], shown["10.65.2.0/26"]["protocol"]) == ("10.0.0.2", "80")
    assert shown["10.65.9.0/26"]["flags"] == ["onlink"]
    assert shown["10.65.1.0/26"]["type"] == "blackhole"
    assert (shown["10.65.1.5"]["scope"], shown["10.65.1.6"]["prefsrc"]) == ("link", "10.0.0.1")
    assert shown["fd65::1:0/122"]["type"] == "blackhole"
    assert host_with_routes.call(_routes, list(ROUTES), [])[0] == []  # again: replaced by themselves
    failed, read = host_with_routes.call(_routes, [], list(ROUTES))
    assert failed == []
    assert (host_with_routes.routes(4), host_with_routes.routes(6)) == before
    assert host_with_routes.call(_routes, [], list(ROUTES))[0] == []  # absent is success


def test_a_route_moves_to_another_interface(host_with_routes: Namespace) -> None:
    add_card(host_with_routes, "calib")
    old = ROUTES[3]
    new = replace(old, device="calib")
    host_with_routes.call(_routes, [old], [])
    failed, read = host_with_routes.call(_routes, [new], [old])
    assert failed == []
    assert new in read and old not in read


def test_one_bad_route_does_not_stop_the_others(host_with_routes: Namespace) -> None:
    bad = HostRoute(ip_network("10.65.8.0/26"), "eth0", ip_address("192.0.2.1"))  # the gateway is nowhere
    gone = HostRoute(ip_network("10.65.8.64/26"), "eth9")
    failed, read = host_with_routes.call(_routes, [bad, gone, *ROUTES], [])
    assert len(failed) == 2 and any("10.65.8.64/26 dev eth9: no such interface" in text for text in failed)
    assert ROUTES[0] in read


def _make(device: TunnelDevice) -> dict[str, TunnelDevice]:
    create_tunnel(device, soon())
    return read_tunnels([device.name], soon())


def _change(device: TunnelDevice) -> dict[str, TunnelDevice]:
    change_tunnel(device, soon())
    return read_tunnels([device.name], soon())


@pytest.mark.parametrize("device", [V4, V6], ids=["v4", "v6"])
def test_vxlan_devices(host_with_routes: Namespace, device: TunnelDevice) -> None:
    assert host_with_routes.call(read_tunnels, [device.name], soon()) == {}
    assert host_with_routes.call(_make, device) == {device.name: device}
    (shown,) = host_with_routes.ip("addr", "show", "dev", device.name)
    data = shown["linkinfo"]["info_data"]
    assert (data["id"], data["port"], data["link"], data["learning"]) == (4096, 4789, "eth0", False)
    assert data["local" if device is V4 else "local6"] == str(device.local)
    assert (shown["mtu"], shown["address"]) == (device.mtu, device.mac)
    assert f"{device.address}/{32 if device is V4 else 128}" in host_with_routes.addresses(device.name)
    changed = replace(device, mtu=1300, mac="66:00:00:00:00:99", address=ip_address(int(device.address) + 1))
    assert host_with_routes.call(_change, changed) == {device.name: changed}
    host_with_routes.call(remove_tunnel, device.name, soon())
    host_with_routes.call(remove_tunnel, device.name, soon())
    assert host_with_routes.link(device.name) is None


def test_tampering_with_a_device_shows(host_with_routes: Namespace) -> None:
    host_with_routes.call(create_tunnel, V4, soon())
    host_with_routes.do("addr", "add", "10.65.1.77/32", "dev", "vxlan.calico")
    assert host_with_routes.call(read_tunnels, ["vxlan.calico"], soon())["vxlan.calico"].more_addresses
    host_with_routes.do("link", "set", "vxlan.calico", "down", "mtu", "1200")
    host_with_routes.call(change_tunnel, V4, soon())
    assert host_with_routes.call(read_tunnels, ["vxlan.calico"], soon()) == {"vxlan.calico": V4}


def test_a_device_that_cannot_be_made_says_why(host_with_routes: Namespace) -> None:
    with pytest.raises(KernelError, match=r"cannot make vxlan\.calico: no interface eth9"):
        host_with_routes.call(create_tunnel, replace(V4, parent="eth9"), soon())
    host_with_routes.call(create_tunnel, V4, soon())
    with pytest.raises(KernelError, match=r"cannot make vxlan\.calico: File exists"):
        host_with_routes.call(create_tunnel, V4, soon())


NEIGHBOURS = [
    NeighbourEntry("vxlan.calico", ip_address("10.65.2.0"), "66:00:00:00:00:02"),
    NeighbourEntry("vxlan.calico", ip_address("10.65.3.0"), "66:00:00:00:00:03"),
]
ENTRIES = [
    ForwardingEntry("vxlan.calico", "66:00:00:00:00:02", ip_address("10.0.0.2")),
    ForwardingEntry("vxlan.calico", "66:00:00:00:00:03", ip_address("10.0.9.3")),
]


def _vteps(neighbours: tuple[list[NeighbourEntry], ...], entries: tuple[list[ForwardingEntry], ...]) -> object:
    failures = apply_vteps(neighbours, entries, soon())
    return [str(failure) for failure in failures], read_vteps(["vxlan.calico"], soon())


def test_vteps(host_with_routes: Namespace) -> None:
    host_with_routes.call(create_tunnel, V4, soon())
    assert host_with_routes.call(_vteps, (NEIGHBOURS, []), (ENTRIES, [])) == ([], (set(NEIGHBOURS), set(ENTRIES)))
    shown = host_with_routes.run("bridge", "fdb", "show", "dev", "vxlan.calico").stdout
    assert "66:00:00:00:00:03 dst 10.0.9.3 self permanent" in shown
    assert {(e["dst"], e["lladdr"]) for e in host_with_routes.ip("neigh", "show", "dev", "vxlan.calico")} == {
        ("10.65.2.0", "66:00:00:00:00:02"),
        ("10.65.3.0", "66:00:00:00:00:03"),
    }
    moved = replace(ENTRIES[0], remote=ip_address("10.0.0.22"))
    assert host_with_routes.call(_vteps, ([], [NEIGHBOURS[1]]), ([moved], ENTRIES)) == ([], ({NEIGHBOURS[0]}, {moved}))
    assert host_with_routes.call(_vteps, ([], [NEIGHBOURS[1]]), ([], [ENTRIES[1]]))[0] == []  # absent is success
    host_with_routes.call(remove_tunnel, "vxlan.calico", soon())
    assert host_with_routes.call(_vteps, (NEIGHBOURS, []), (ENTRIES, [])) == (
        [],
        (set(), set()),
    )  # nothing to hold them


def _rules_noticed(command: list[str]) -> tuple[bool, bool, set[str]]:
    """(before, after) the command, and what is to be looked at."""
    import subprocess

    monitor = Monitor("calico")
    monitor.drain()
    before = monitor.wait(0)
    subprocess.run(command, check=True)
    return before, monitor.wait(0.5), monitor.take_changed()


@pytest.mark.parametrize(
    ("command", "noticed"),
    [
        ("nft flush table ip calico", {RULES}),
        ("nft delete table ip calico", {RULES}),
        ("nft add rule ip calico c accept", {RULES}),
        ("nft add element ip calico s { 10.0.0.1 }", {RULES}),
        ("nft add table ip6 calico", {RULES}),
        ("nft flush ruleset", {RULES}),
        ("nft add table ip other", set()),
        ("nft add rule ip calico-nat c accept", set()),
        ("iptables-nft -A INPUT -j ACCEPT", set()),
        ("iptables-nft -A FORWARD -j ACCEPT", {FORWARD}),
        ("iptables-nft -P FORWARD DROP", {FORWARD}),
        ("nft list ruleset", set()),
    ],
)
def test_notifications_of_our_table(host_with_routes: Namespace, command: str, noticed: set[str]) -> None:
    if command.startswith("iptables"):
        host_with_routes.run("iptables-nft", "-A", "INPUT", "-j", "RETURN")
    else:
        host_with_routes.run("nft", "delete table ip filter", check=False)
    host_with_routes.run(
        "nft",
        "add table ip calico; add chain ip calico c; add rule ip calico c drop; add table ip calico-nat;"
        "add chain ip calico-nat c; add set ip calico s { type ipv4_addr; }",
    )
    before, after, changed = host_with_routes.call(_rules_noticed, command.split())
    assert (before, after, changed) == (False, bool(noticed), noticed)


def test_a_nudge_is_no_news_and_hides_none() -> None:
    monitor = Monitor()
    try:
        found = []
        for calls in ((monitor.nudge,), (monitor.nudge, monitor.nudge), (monitor.nudge, monitor.wake, monitor.nudge)):
            for call in calls:
                call()
            began = time.monotonic()
            found.append(monitor.wait(WAITS_S))
            assert time.monotonic() < began + WAITS_S
        assert found == [False, False, True]
    finally:
        monitor.close()


def _noticed(command: list[str]) -> tuple[bool, bool]:
    """(before, after) the command."""
    import subprocess

    monitor = Monitor()
    before = monitor.wait(0)
    subprocess.run(command, check=True)
    return before, monitor.wait(0.5)


@pytest.mark.parametrize(
    ("command", "noticed"),
    [
        ("ip route add 10.65.2.0/26 via 10.0.0.2 proto 80", True),
        ("ip route del 10.65.7.0/26", False),  # BIRD's
        ("ip link set calia mtu 1400", True),
        ("ip addr add 10.1.0.1/24 dev eth0", True),
        ("ip neigh add 10.0.0.9 lladdr 66:00:00:00:00:09 dev eth0 nud permanent", True),
        ("ip neigh add 10.0.0.9 lladdr 66:00:00:00:00:09 dev eth0 nud reachable", False),
        ("sh -c 'f=/proc/sys/net/ipv4/conf/calia/forwarding; echo $((1 - $(cat $f))) > $f'", True),
        ("true", False),
    ],
)
def test_notifications(host_with_routes: Namespace, command: str, noticed: bool) -> None:
    import shlex

    assert host_with_routes.call(_noticed, shlex.split(command)) == (False, noticed)


def _changed_by(command: list[str]) -> set[str]:
    import subprocess

    monitor = Monitor(devices=("eth0", "gone0"))
    subprocess.run(command, check=True)
    assert monitor.wait(5)
    return monitor.take_changed()


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("ip link set calia mtu 1400", set()),
        ("ip link set eth0 mtu 1400", {NEIGHBOURS_OF}),
        ("ip link del eth0", {NEIGHBOURS_OF, SETTINGS}),
        ("ip neigh add 10.0.0.9 lladdr 66:00:00:00:00:09 dev eth0 nud permanent", {NEIGHBOURS_OF}),
    ],
)
def test_a_pods_interface_says_nothing_of_the_tunnels_neighbours(
    host_with_routes: Namespace, command: str, changed: set[str]
) -> None:
    assert host_with_routes.call(_changed_by, command.split()) >= changed
    assert changed or NEIGHBOURS_OF not in host_with_routes.call(_changed_by, command.replace("1400", "1410").split())


TABLE = (
    HostRoute(ip_network("10.65.1.0/26"), kind="throw", protocol=3),
    HostRoute(ip_network("10.65.0.0/16"), kind="prohibit", protocol=3),
    HostRoute(ip_network("10.65.2.0/26"), "eth0", scope="link", protocol=3),
    HostRoute(ip_network("fd65::1:0/122"), kind="throw", protocol=3),
    HostRoute(ip_network("fd65::2:0/122"), "eth0", protocol=3),
)


def _table(add: list[HostRoute], remove: list[HostRoute]) -> tuple[list[str], list[HostRoute]]:
    failed = [str(error) for _, error in apply_host_routes(add, remove, soon(), table=1)]
    return failed, read_host_routes(soon(), table=1)


def test_another_tables_routes(host_with_routes: Namespace) -> None:
    """They are none of the main table's; a throw takes the place of a route, and the other way round."""

    def of_others() -> list[object]:
        """Without those that an interface gets by itself, a moment after it is up."""
        found = host_with_routes.call(read_host_routes, soon())
        return [route for route in found if not route.dst.is_link_local]

    before = of_others()
    assert {route.device for route in before} == {"eth0"}
    for names in ({}, {1: "lo"}):  # what somebody has read before an interface came
        found = host_with_routes.call(partial(read_host_routes, names=names), soon())
        assert [route for route in found if not route.dst.is_link_local] == before
    assert host_with_routes.call(_table, [], []) == ([], [])
    failed, found = host_with_routes.call(_table, list(TABLE), [])
    assert not failed and set(found) == set(TABLE)
    for version in (4, 6):
        shown = host_with_routes.ip(f"-{version}", "route", "show", "table", "1")
        kinds = {(entry["dst"], entry.get("type", "unicast")) for entry in shown}
        assert kinds == {(str(route.dst), route.kind) for route in TABLE if route.dst.version == version}
    other = [
        replace(TABLE[2], kind="throw", device="", scope="global"),
        replace(TABLE[0], kind="unicast", device="eth0", scope="link"),
        replace(TABLE[4], kind="throw", device=""),
        replace(TABLE[3], kind="unicast", device="eth0"),
    ]
    failed, found = host_with_routes.call(_table, other, [TABLE[1]])
    assert not failed and set(found) == set(other)
    assert host_with_routes.call(_table, [], found) == ([], [])
    assert of_others() == before


@pytest.mark.parametrize("family", [4, 6])
def test_rules_are_as_ip_shows_them(host_with_routes: Namespace, family: int) -> None:
    """Twice is once; what is gone is gone; of others' rules those are read that a value can say."""
    mark = RoutingRule(family, 99, 1, 0x200000, 0x200000, invert=True)
    source = RoutingRule(family, 98, 300, source=ip_network("10.65.1.0/26" if family == 4 else "fd65::1:0/122"))
    before = host_with_routes.call(read_rules, family, soon())
    host_with_routes.do(f"-{family}", "rule", "add", "iif", "eth0", "lookup", "7", "priority", "97")
    for rule in (mark, mark, source):
        host_with_routes.call(ensure_rule, rule, soon())
    assert set(host_with_routes.call(read_rules, family, soon())) == {*before, mark, source}
    shown = {entry["priority"]: entry for entry in host_with_routes.ip(f"-{family}", "rule", "show")}
    assert "not" in shown[99] and (shown[99]["fwmark"], shown[99]["fwmask"]) == ("0x200000", "0x200000")
    assert (shown[98]["table"], shown[98]["src"], shown[98]["srclen"]) == (
        "300",
        str(source.source)[:-3].rstrip("/"),
        source.source.prefixlen,
    )
    for rule in (mark, source, source):
        host_with_routes.call(remove_rule, rule, soon())
    assert set(host_with_routes.call(read_rules, family, soon())) == set(before)
