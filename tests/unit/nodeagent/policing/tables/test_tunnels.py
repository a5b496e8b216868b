"""Tunnels' packets: the set of nodes and the chains follow what this node has."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.netfilter.rules import NoTrack, PortIn
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.policing.feed.parameters import select_tunnels
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.nodeagent.policing.tables.tunnels import (
    NODES,
    NOTRACK,
    TUNNEL_CHAINS,
    Tunnels,
    between_nodes,
    render_tunnels,
)
from cni_calico.nodeagent.view.snapshot import Snapshot
from tests.unit.nodeagent.fabric import FELIX, pool, snapshot
from tests.unit.nodeagent.fabric import NODES as FABRIC

N1, N2, N6 = (ip_network(text) for text in ("10.0.0.1/32", "10.0.0.2/32", "fd00::2/128"))
OUTSIDE = ip_network("192.0.2.0/24")
BOTH = Tunnels(frozenset((4, 6)), True, frozenset((N1, N2, N6)))


def chains(goal: Goal, family: int) -> set[str]:
    return {name for name in goal.tables.of[FILTER[family]].chains if name in TUNNEL_CHAINS}


def test_chains_and_nodes_follow() -> None:
    goal = Goal(FilterSettings())
    assert chains(goal, 4) == chains(goal, 6) == set()
    goal.use_tunnels(BOTH)
    assert chains(goal, 4) == chains(goal, 6) == set(TUNNEL_CHAINS)
    tables = goal.tables.of
    assert tables[FILTER[4]].elements[NODES] == {N1.network_address.packed, N2.network_address.packed}
    assert tables[FILTER[6]].elements[NODES] == {N6.network_address.packed}
    assert len(tables[FILTER[4]].chains["tunnels"].rules) == 2 and len(tables[FILTER[6]].chains["tunnels"].rules) == 1
    goal.use_tunnels(Tunnels(frozenset(), True, frozenset((N2, OUTSIDE))))
    assert chains(goal, 4) == {"tunnels"} and chains(goal, 6) == set()
    assert tables[FILTER[4]].elements[NODES] == {N2.network_address.packed}
    assert f"{NODES}/n" in tables[FILTER[4]].sets
    goal.use_tunnels(Tunnels())
    assert chains(goal, 4) == set() and f"{NODES}/n" not in tables[FILTER[4]].sets
    fresh = Goal(FilterSettings())
    assert tables == fresh.tables.of


def test_other_parameters_leave_them() -> None:
    goal = Goal(FilterSettings())
    goal.use_tunnels(BOTH)
    goal.tables.take_touched()
    before = goal.tables.of[FILTER[4]].chains["tunnels"]
    goal.configure(FilterSettings(vxlan_port=8472))
    assert goal.tables.of[FILTER[4]].chains["tunnels"] != before
    goal.configure(FilterSettings(ipv6=False))
    assert chains(goal, 6) == set() and chains(goal, 4) == set(TUNNEL_CHAINS)
    goal.configure(FilterSettings())
    assert goal.tables.of[FILTER[4]].chains["tunnels"] == before and chains(goal, 6) == set(TUNNEL_CHAINS)


def test_a_port_that_a_device_still_has_is_guarded_like_the_new_one() -> None:
    goal = Goal(FilterSettings(vxlan_port=4790))
    goal.use_tunnels(BOTH)
    one_port = {name: goal.tables.of[FILTER[4]].chains[name] for name in TUNNEL_CHAINS}
    goal.use_tunnels(replace(BOTH, other_ports=frozenset((4789, 4790))))
    chains_of = goal.tables.of[FILTER[4]].chains
    old = Goal(FilterSettings(vxlan_port=4789))
    old.use_tunnels(BOTH)
    for name in TUNNEL_CHAINS:
        both = {*one_port[name].rules, *old.tables.of[FILTER[4]].chains[name].rules}
        assert set(chains_of[name].rules) == both and len(chains_of[name].rules) == len(both)
    goal.use_tunnels(BOTH)
    assert {name: goal.tables.of[FILTER[4]].chains[name] for name in TUNNEL_CHAINS} == one_port


def test_a_kernel_that_tracks_everything() -> None:
    goal = Goal(FilterSettings())
    goal.use_tunnels(BOTH)
    assert NoTrack() in goal.tables.of[FILTER[4]].chains[NOTRACK[0]].rules[0].actions
    goal.lack(OptionalFeature.NOTRACK, "no")
    assert chains(goal, 4) == chains(goal, 6) == {"tunnels"}
    goal.forgive()
    assert chains(goal, 4) == set(TUNNEL_CHAINS)


VXLAN = Snapshot("n1", FABRIC, (pool("10.65.0.0/16", vxlan="Always"),))


ALL = frozenset(("vxlan.calico", "vxlan-v6.calico", "tunl0"))
UNREADABLE = frozenset((ResourceKey("IPPool", "p"),))


@pytest.mark.parametrize(
    ("snapshot", "backend", "devices", "vxlan", "ipip", "count"),
    [
        (VXLAN, "bird", {"vxlan.calico"}, {4}, False, 6),
        (VXLAN, "none", ALL, set(), False, 0),
        (VXLAN, "bird", {"tunl0"}, set(), True, 6),
        (replace(VXLAN, pools=()), "bird", ALL, {4, 6}, True, 6),  # on their way out: guarded as long as they are there
        (replace(VXLAN, node="nobody"), "bird", ALL, {4, 6}, True, 6),
        (replace(VXLAN, node="nobody"), "bird", set(), set(), False, 6),
        (replace(VXLAN, unread=frozenset((ResourceKey("Node", "n9"),))), "bird", {"vxlan.calico"}, {4}, False, 6),
        (replace(VXLAN, unread=UNREADABLE), "bird", set(), set(), False, 6),  # the port may be Docker swarm's
        (replace(VXLAN, pools=(), unread=UNREADABLE), "bird", {"tunl0"}, set(), True, 6),
    ],
)
def test_which_tunnels(
    snapshot: Snapshot, backend: str, devices: frozenset[str], vxlan: set[int], ipip: bool, count: int
) -> None:
    """Only of devices that are there or are to be, whatever pools say; only to addresses that are known."""
    found = select_tunnels(snapshot, FELIX, backend, devices)
    assert (found.vxlan, found.ipip, len(found.nodes)) == (vxlan, ipip, count)
    assert all(network.prefixlen == network.max_prefixlen for network in found.nodes)


def test_only_ports_besides_the_wanted_one_are_others() -> None:
    assert not select_tunnels(VXLAN, FELIX, "bird", ALL, (4789,)).other_ports
    assert select_tunnels(VXLAN, FELIX, "bird", ALL, (4789, 4790)).other_ports == {4790}


def test_what_can_be_read_of_a_node() -> None:
    """Beside its last valid address, because it may have moved since."""
    parts = {"n2": frozenset((ip_address("10.0.0.99"), ip_address("fd00::99"))), "n9": frozenset()}
    found = select_tunnels(replace(VXLAN, parts=parts), FELIX, "bird", ALL).nodes
    assert found == select_tunnels(VXLAN, FELIX, "bird", ALL).nodes | {ip_network("10.0.0.99"), ip_network("fd00::99")}


def test_a_host_without_ipv6() -> None:
    felix = replace(FELIX, ipv6_support=False)
    assert select_tunnels(VXLAN, felix, "bird", ALL).vxlan == {4}


@pytest.mark.parametrize(
    ("environ", "spec"),
    [
        ({"FELIX_EXTERNALNODESCIDRLIST": "192.0.2.0/24,10.9.9.9/32"}, {}),
        ({}, {"externalNodesList": ["192.0.2.0/24", "10.9.9.9"]}),
    ],
)
def test_hosts_that_are_no_nodes(environ: dict[str, str], spec: dict[str, object]) -> None:
    parsed = parse_felix(environ, None, spec)
    assert not parsed.warnings
    found = select_tunnels(VXLAN, parsed.settings, "bird", ALL)
    assert {OUTSIDE, ip_network("10.9.9.9/32")} < found.nodes


def test_wireguards_packets_of_nodes_are_let_through_and_not_tracked():
    """Those of strangers are left to the host's own rules: WireGuard knows its peers by their keys."""
    felix = replace(FELIX, wireguard_enabled=True)
    found = select_tunnels(snapshot(), felix, "bird", ())
    assert found.wireguard == (51820, 0)
    settings = FilterSettings()
    [match] = between_nodes(4, found, settings, is_source=True, has_networks=False)
    assert PortIn(False, 51820, 51820) in match
    assert not list(between_nodes(6, found, settings, is_source=True, has_networks=False))
    chains = render_tunnels(4, found, settings, has_networks=False, can_notrack=True)
    assert {chain.name for chain in chains} == set(NOTRACK)
