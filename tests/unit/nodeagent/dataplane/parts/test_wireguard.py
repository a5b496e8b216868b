"""The part on a kernel that follows WireGuard's rules: what is written, what is said, what another's is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from errno import EADDRINUSE, EPERM
from ipaddress import ip_address, ip_network
from types import SimpleNamespace
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import host_routes, routing_rules, sysctl
from cni_calico.kernel.filter import nft
from cni_calico.kernel.netlink.routes import TABLE_MAIN
from cni_calico.kernel.wireguard import device as door
from cni_calico.log import SILENT
from cni_calico.model.host import HostRoute, RoutingRule
from cni_calico.model.wireguard import WireguardChange, WireguardDevice, WireguardPeer, render_public_key
from cni_calico.nodeagent.dataplane.apply import Applier
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption
from cni_calico.nodeagent.dataplane.parts import wireguard
from cni_calico.nodeagent.dataplane.parts.encryption import AfterRoutes, Encryption
from cni_calico.nodeagent.dataplane.parts.routes import Routes
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.fakes.wireguard import FakeWireguard
from tests.unit.nodeagent.dataplane.encryption.test_steps import NAME, NETWORK, key, peer
from tests.unit.nodeagent.fabric import FELIX

WANTED = DesiredEncryption(
    4,
    NAME,
    mtu=1440,
    port=51820,
    mark=0x200000,
    table=1,
    priority=99,
    address=ip_address("10.65.1.7"),
    peers=(peer(),),
    own=frozenset((ip_network("10.65.1.0/26"),)),
)
RULE = RoutingRule(4, 99, 1, 0x200000, 0x200000, invert=True)
OTHERS = RoutingRule(4, 100, 7)


class Host:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wireguard = FakeWireguard()
        self.tables: dict[int, set[HostRoute]] = {1: set(), 2: set(), TABLE_MAIN: set()}
        self.writes: list[str] = []
        self.written: Callable[[], None] = lambda: None  # called after each write
        self.rules = [OTHERS]
        self.scripts: list[str] = []
        self.now = 100.0
        self.failing: set[int] = set()  # tables whose routes cannot be set
        for name in ("read_device", "ensure_link", "remove_device"):
            monkeypatch.setattr(door, name, getattr(self.wireguard, name))
        monkeypatch.setattr(door, "change_device", self._change_device)
        monkeypatch.setattr(host_routes, "read_host_routes", self._read)
        monkeypatch.setattr(host_routes, "apply_host_routes", self._apply)
        monkeypatch.setattr(
            routing_rules, "read_rules", lambda family, deadline: [r for r in self.rules if family == 4]
        )
        monkeypatch.setattr(routing_rules, "ensure_rule", lambda rule, deadline: self.rules.append(rule))
        monkeypatch.setattr(routing_rules, "remove_rule", lambda rule, deadline: self.rules.remove(rule))
        monkeypatch.setattr(sysctl, "ensure", lambda *_: None)
        monkeypatch.setattr(nft, "usable", lambda deadline: True)
        monkeypatch.setattr(nft, "has_table", lambda *_: "chain" in "".join(self.scripts[-1:]))
        monkeypatch.setattr(nft, "read_table", lambda *_: self.scripts[-1:])
        monkeypatch.setattr(nft, "apply_script", lambda script, deadline: self.scripts.append(script))
        self.restart()

    def restart(self) -> None:
        encryption = Encryption(SILENT, lambda: self.now)
        self.parts = Applier([encryption, Routes(lambda: self.now), AfterRoutes(encryption)])

    @property
    def routes(self) -> set[HostRoute]:
        return self.tables[1]

    def _change_device(self, name: str, change: WireguardChange, deadline: Deadline) -> None:
        self.wireguard.change_device(name, change, deadline)
        for one in change.peers:
            allowed = "" if one.allowed is None else f" {' '.join(sorted(map(str, one.allowed)))}"
            self.writes.append(f"peer {one.public_key[0]}{' removed' if one.remove else allowed}")
        self.written()

    def _read(
        self, deadline: Deadline, *, table: int = TABLE_MAIN, families: Any = (4, 6), names: Any = None
    ) -> list[HostRoute]:
        return [route for route in self.tables[table] if route.dst.version in families]

    def _apply(self, add: Any, remove: Any, deadline: Deadline, *, table: int = TABLE_MAIN) -> list[Any]:
        if table in self.failing:
            return [(route, KernelError("cannot change route")) for route in (*add, *remove)]
        routes, name = self.tables[table], "main" if table == TABLE_MAIN else f"table {table}"
        for one in add:
            routes -= {route for route in routes if route.dst == one.dst}
            routes.add(one)
            self.writes.append(f"{name}: {one.dst} {one.device or one.kind}")
            self.written()
        for one in routes.intersection(remove):
            routes.discard(one)
            self.writes.append(f"{name}: {one.dst} removed")
            self.written()
        return []

    def apply(self, *wanted: DesiredEncryption, full: bool = False, routes: frozenset[HostRoute] = frozenset()) -> Pass:
        self.writes.clear()
        desired = Desired(encryption=wanted, routes=routes)
        return self.parts.apply(desired, FELIX, Deadline.after(5), full=full)

    def settle(self) -> None:
        self.apply(WANTED)
        self.wireguard.shake(NAME, key(2), 50)
        self.apply(WANTED)


@pytest.fixture
def wireguard_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    yield Host(monkeypatch)


def test_from_nothing(wireguard_host: Host) -> None:
    done = wireguard_host.apply(WANTED)
    device = wireguard_host.wireguard.devices[NAME]
    assert (device.port, device.mark, len(device.peers)) == (51820, 0x200000, 1)
    assert done.public_keys == {4: device.public_key} and device.public_key
    assert RULE in wireguard_host.rules and done.pending == 1 and not done.failed
    wireguard_host.wireguard.shake(NAME, key(2), 50)
    assert not wireguard_host.apply(WANTED).pending
    assert HostRoute(NETWORK, NAME, scope="link", protocol=3) in wireguard_host.routes


def test_another_key_of_a_node_is_named_and_counted(wireguard_host: Host) -> None:
    """It is followed all the same, however often."""
    said: list[str] = []
    log: Any = SimpleNamespace(info=said.append, warning=said.append)
    encryption = Encryption(log, lambda: wireguard_host.now)
    wireguard_host.parts = Applier([encryption, Routes(lambda: wireguard_host.now), AfterRoutes(encryption)])
    wireguard_host.settle()
    assert not said
    for count, number in enumerate((9, 8, 2), 1):
        wireguard_host.now += 1
        done = wireguard_host.apply(replace(WANTED, peers=(peer(number),)))
        assert done.encryption[4]["renewed"] == count
        assert wireguard_host.apply(replace(WANTED, peers=(peer(number),))).encryption[4]["renewed"] == count
        assert [one.public_key for one in wireguard_host.wireguard.devices[NAME].peers] == [key(number)]
    assert said == [f"node n2 has another key for IPv4 (change {count} since this start)" for count in (1, 2, 3)]


def test_nothing_is_written_when_nothing_has_changed(wireguard_host: Host) -> None:
    wireguard_host.settle()
    before = len(wireguard_host.wireguard.changes), len(wireguard_host.scripts)
    for full in (False, True):
        assert wireguard_host.apply(WANTED, full=full).changed == []
    assert (len(wireguard_host.wireguard.changes), len(wireguard_host.scripts)) == before


def test_pods_reach_other_nodes_through_the_tunnel(wireguard_host: Host) -> None:
    """By a table that only this node's networks ask; both go with encryption."""
    node = ip_network("10.0.0.2/32")
    wanted = replace(WANTED, host_table=2, peers=(replace(peer(), host=True),))
    wireguard_host.apply(wanted)
    assert not wireguard_host.tables[2] and len(wireguard_host.rules) == 2  # not before the handshake
    wireguard_host.wireguard.shake(NAME, key(2), 50)
    wireguard_host.apply(wanted)
    assert wireguard_host.tables[2] == {HostRoute(node, NAME, scope="link", protocol=3)}
    [rule] = [rule for rule in wireguard_host.rules if rule.source]
    assert str(rule) == "98: from 10.65.1.0/26 lookup 2"
    assert not wireguard_host.apply(wanted, full=True).changed
    wireguard_host.apply(replace(wanted, enabled=False, peers=(), own=frozenset()))
    assert not wireguard_host.tables[2] and not any(rule.source for rule in wireguard_host.rules)


def test_routes_to_other_nodes_that_failed_are_tried_again(wireguard_host: Host) -> None:
    wanted = replace(WANTED, host_table=2, peers=(replace(peer(), host=True),))
    wireguard_host.failing.add(2)
    wireguard_host.apply(wanted)
    wireguard_host.wireguard.shake(NAME, key(2), 50)
    for _ in range(2):
        assert wireguard_host.apply(wanted).failed == ["cannot change route"]
    wireguard_host.failing.clear()
    assert not wireguard_host.apply(wanted).failed and wireguard_host.tables[2]


def test_no_rule_without_an_address(wireguard_host: Host) -> None:
    """Packets of this host would have an address that nobody answers."""
    done = wireguard_host.apply(replace(WANTED, address=None))
    assert RULE not in wireguard_host.rules and "no address for it yet" in done.refused[0]
    wireguard_host.now += 10
    for _ in range(2):  # as long as there is none, whether or not anything is done
        assert wireguard_host.apply(replace(WANTED, address=None)).refused == done.refused
    wireguard_host.apply(WANTED)
    assert RULE in wireguard_host.rules
    wireguard_host.apply(replace(WANTED, address=None))
    assert wireguard_host.wireguard.links[NAME] == (1440, (WANTED.address,))  # which it keeps until there is another


def test_a_device_that_was_deleted_is_made_again(wireguard_host: Host) -> None:
    wireguard_host.settle()
    old = wireguard_host.wireguard.devices[NAME].public_key
    wireguard_host.wireguard.devices.clear()
    done = wireguard_host.apply(WANTED, full=True)
    assert done.public_keys[4] not in (b"", old) and wireguard_host.wireguard.devices[NAME].peers


def test_a_key_that_is_to_be_replaced_is_so_once(wireguard_host: Host) -> None:
    """The Node says the old one for a while; peers and routes stay."""
    wireguard_host.settle()
    old, before = wireguard_host.wireguard.devices[NAME].public_key, set(wireguard_host.routes)
    asked = replace(WANTED, renew=render_public_key(old))
    new = wireguard_host.apply(asked).public_keys[4]
    assert new != old and wireguard_host.wireguard.devices[NAME].peers and wireguard_host.routes == before
    assert wireguard_host.apply(asked, full=True).public_keys == {4: new}


def test_a_rule_with_other_parameters_goes(wireguard_host: Host) -> None:
    wireguard_host.settle()
    wireguard_host.apply(replace(WANTED, priority=98))
    assert wireguard_host.rules == [OTHERS, replace(RULE, priority=98)]


def test_another_name(wireguard_host: Host) -> None:
    wireguard_host.settle()
    wireguard_host.apply(replace(WANTED, name="wg.two"))
    assert set(wireguard_host.wireguard.devices) == {"wg.two"}


def test_another_name_since_the_last_start(wireguard_host: Host) -> None:
    """The device with the key that the Node tells goes, by a start that keeps another and by one that keeps none."""
    for enabled in (True, False):
        wireguard_host.settle()
        told = render_public_key(wireguard_host.wireguard.devices[NAME].public_key)
        wireguard_host.wireguard.ensure_link("hosts", 1420, (), Deadline.after(5))
        wireguard_host.wireguard.devices["hosts"] = WireguardDevice(key(7))
        wireguard_host.restart()
        wanted = replace(WANTED, name="other.name", told=told, others=(NAME, "hosts"), enabled=enabled)
        wireguard_host.apply(wanted)
        wireguard_host.now += 61
        wireguard_host.apply(wanted)
        assert set(wireguard_host.wireguard.devices) == {"hosts"} | ({"other.name"} if enabled else set())
        wireguard_host.wireguard.devices.clear()
        wireguard_host.restart()


def test_a_kernel_without_wireguard(wireguard_host: Host) -> None:
    """No key is told, or others would send what nobody can read."""
    wireguard_host.wireguard.supported = False
    done = wireguard_host.apply(WANTED)
    assert done.public_keys == {4: b""} and "modprobe wireguard" in done.refused[0] and RULE not in wireguard_host.rules
    wireguard_host.wireguard.supported = True
    assert not wireguard_host.apply(WANTED).refused


def test_a_host_that_forbids_it(wireguard_host: Host) -> None:
    """Nobody is told a key; it is tried again with each pass."""
    wireguard_host.wireguard.refuses["ensure_link"] = KernelError("cannot create interface", errno=EPERM)
    for _ in range(2):
        done = wireguard_host.apply(WANTED)
        assert done.public_keys == {4: b""} and "cannot create interface" in done.refused[0]
    wireguard_host.wireguard.refuses.clear()
    assert wireguard_host.apply(WANTED).public_keys[4]


def test_an_interface_of_others(wireguard_host: Host) -> None:
    wireguard_host.wireguard.foreign.add(NAME)
    done = wireguard_host.apply(WANTED)
    assert done.public_keys == {4: b""} and "not WireGuard's" in done.refused[0]
    assert not wireguard_host.apply(replace(WANTED, enabled=False)).failed  # it is not ours to remove


def test_a_tunnel_of_the_hosts_own(wireguard_host: Host) -> None:
    """It is neither taken over nor removed."""
    mine = WireguardDevice(key(7), 51820, 0, (WireguardPeer(key(8)),))
    wireguard_host.wireguard.devices[NAME] = mine
    done = wireguard_host.apply(WANTED)
    assert done.public_keys == {4: b""} and "which nobody here gave it" in done.refused[0]
    off = replace(WANTED, enabled=False, peers=(), own=frozenset(), mark=0)
    for _ in range(2):
        wireguard_host.apply(off)
        wireguard_host.now += 60
    assert wireguard_host.wireguard.devices == {NAME: mine} and not wireguard_host.wireguard.changes


def test_a_device_of_an_agent_with_another_mark_is_taken_over(wireguard_host: Host) -> None:
    """Its key is in the Node, and stays."""
    wireguard_host.wireguard.devices[NAME] = WireguardDevice(key(7), 51820, 0x100000)
    done = wireguard_host.apply(replace(WANTED, told=render_public_key(key(7))))
    assert done.public_keys == {4: key(7)} and wireguard_host.wireguard.devices[NAME].mark == WANTED.mark


def test_a_port_that_somebody_else_has(wireguard_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is to send there, and there is no device that would send from another one; it is tried again."""
    monkeypatch.setattr(wireguard, "udp_holder", lambda port: f"dnsmasq (process {port})")
    wireguard_host.settle()
    wireguard_host.wireguard.refuses["change_device"] = KernelError("cannot set", errno=EADDRINUSE)
    done = wireguard_host.apply(replace(WANTED, port=53))
    assert done.public_keys == {4: b""} and not wireguard_host.wireguard.devices
    assert "UDP port 53 is in use by dnsmasq (process 53)" in done.refused[0]
    del wireguard_host.wireguard.refuses["change_device"]
    assert wireguard_host.apply(replace(WANTED, port=53)).public_keys[4]


def test_a_failure_that_may_pass_leaves_the_key(wireguard_host: Host) -> None:
    wireguard_host.settle()
    wireguard_host.wireguard.refuses["read_device"] = KernelError("cannot read", errno=5)
    done = wireguard_host.apply(WANTED, full=True)
    assert 4 not in done.public_keys and done.failed and done.refused


def test_one_family_does_not_stop_the_other(wireguard_host: Host) -> None:
    wireguard_host.wireguard.foreign.add("wg-v6.cali")
    other = replace(WANTED, family=6, name="wg-v6.cali", peers=(), address=ip_address("fd65::7"))
    done = wireguard_host.apply(other, WANTED)
    assert NAME in wireguard_host.wireguard.devices and len(done.failed) == 1


def test_what_is_impossible_is_said(wireguard_host: Host) -> None:
    done = wireguard_host.apply(replace(WANTED, impossible="RouteTableRanges has no table for it", peers=()))
    assert "no table" in done.refused[0] and done.public_keys == {4: b""} and not wireguard_host.wireguard.devices


def test_disabled_in_its_order(wireguard_host: Host) -> None:
    """The key goes and the routes, and the device when nobody sends any more."""
    wireguard_host.settle()
    off = replace(WANTED, enabled=False, peers=(), own=frozenset())
    done = wireguard_host.apply(off)
    assert done.public_keys == {4: b""} and done.pending and NAME in wireguard_host.wireguard.devices
    assert not any(route.device for route in wireguard_host.routes) and wireguard_host.rules == [OTHERS, RULE]
    wireguard_host.now += 10
    done = wireguard_host.apply(off)
    assert not wireguard_host.wireguard.devices and not wireguard_host.routes and wireguard_host.rules == [OTHERS]
    assert "delete table" in wireguard_host.scripts[-1] and "chain" not in wireguard_host.scripts[-1]
    assert not wireguard_host.apply(off).changed


def test_disabled_by_a_new_start(wireguard_host: Host) -> None:
    """As a variable of the agent is changed."""
    wireguard_host.settle()
    wireguard_host.restart()
    off = replace(WANTED, enabled=False, peers=(), own=frozenset())
    wireguard_host.apply(off)
    wireguard_host.now += 10
    wireguard_host.apply(off)
    assert not wireguard_host.wireguard.devices and not wireguard_host.routes and wireguard_host.rules == [OTHERS]
    assert "chain" not in wireguard_host.scripts[-1] and len(wireguard_host.scripts) == 2


def test_enabled_again_meanwhile(wireguard_host: Host) -> None:
    wireguard_host.settle()
    kept = wireguard_host.wireguard.devices[NAME].public_key
    wireguard_host.apply(replace(WANTED, enabled=False, peers=(), own=frozenset()))
    assert wireguard_host.apply(WANTED).public_keys == {4: kept}


def test_a_device_without_a_key_is_nobodys_leftover(wireguard_host: Host) -> None:
    wireguard_host.wireguard.ensure_link(NAME, 1420, (), Deadline.after(5))
    wireguard_host.apply(replace(WANTED, enabled=False, peers=()))
    assert NAME in wireguard_host.wireguard.devices


def test_off_is_nothing(wireguard_host: Host) -> None:
    assert wireguard_host.apply() == Pass(unrouted=frozenset()) and wireguard_host.scripts == []
