"""PURE: tunnels' packets between nodes: accepted only from known nodes, and kept out of connection tracking.

Rule: only if this node has such a tunnel. An unknown node is cut off.

    input        2     tunnels       VXLAN and IPIP from an address that is no node's: drop
    prerouting  -299   notrack-in    VXLAN and WireGuard from a node: not tracked
    output      -300   notrack-out   VXLAN and WireGuard to a node: not tracked

WireGuard itself keeps strangers out, so that its packets from elsewhere are left to the host's own rules.

The packets that carry pods' packets would otherwise be tracked too: an entry for each pair of nodes and flow hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cni_calico.model.resources import Network
from cni_calico.netfilter.rules import AddressInSet, IsProtocol, NftRule, NoTrack, PortIn
from cni_calico.netfilter.tables import BaseHook, NftChain
from cni_calico.nodeagent.policing.tables.chains import drop_and_tell
from cni_calico.nodeagent.policing.tables.matches import NETWORKS, Match
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.cover import minimal_cover
from cni_calico.policy.wanted import Members, SetChange

NODES = "tunnel-nodes"
KNOWN_NODES = "tunnels"
NOTRACK = ("notrack-in", "notrack-out")
TUNNEL_CHAINS = (KNOWN_NODES, *NOTRACK)
UNKNOWN_VXLAN, UNKNOWN_IPIP = "VXLAN from an unknown node", "IPIP from an unknown node"  # comments of rules
_UDP, _IPIP = 17, 4
_IPIP_PACKET: Match = (IsProtocol(_IPIP),)


@dataclass(frozen=True, slots=True)
class Tunnels:
    """``vxlan``: the families in which this node has VXLAN. ``nodes``: the addresses and networks of all nodes.

    ``other_ports``: UDP ports that VXLAN devices still have, besides the one that is to be. ``wireguard``: the UDP port
    of encrypted packets by family, 0: there are none.
    """

    vxlan: frozenset[int] = frozenset()
    ipip: bool = False
    nodes: frozenset[Network] = field(default_factory=frozenset)
    other_ports: frozenset[int] = frozenset()
    wireguard: tuple[int, int] = (0, 0)

    def wireguard_port(self, family: int) -> int:
        return self.wireguard[family == 6]

    def members(self) -> Members:
        """``nodes`` as the members of a set."""
        single = frozenset(net.network_address.packed for net in self.nodes if net.prefixlen == net.max_prefixlen)
        wide = ((net.network_address.packed, net.prefixlen) for net in self.nodes if net.prefixlen < net.max_prefixlen)
        return Members(single, minimal_cover(wide))


def change_of_nodes(before: Tunnels, after: Tunnels) -> SetChange:
    """The change of the set of nodes."""
    old, new = before.members(), after.members()
    added = Members(new.addresses - old.addresses, new.nets - old.nets)
    return SetChange(added, Members(old.addresses - new.addresses, old.nets - new.nets))


def render_tunnels(
    family: int, tunnels: Tunnels, settings: FilterSettings, *, has_networks: bool, can_notrack: bool
) -> list[NftChain]:
    """``has_networks``: there are networks among the nodes of this family, in a separate set."""
    rules = tuple(_unknown(family, tunnels, settings, has_networks))
    chains = [NftChain(KNOWN_NODES, rules, BaseHook("input", 2))] if rules else []
    untracked = _datagrams(family, tunnels, settings)
    if can_notrack and untracked:
        into, out = (
            tuple(NftRule((*one, AddressInSet(is_source, NODES)), (NoTrack(),)) for one in untracked)
            for is_source in (True, False)
        )
        chains.append(NftChain(NOTRACK[0], into, BaseHook("prerouting", -299)))
        chains.append(NftChain(NOTRACK[1], out, BaseHook("output", -300)))
    return chains


def between_nodes(
    family: int, tunnels: Tunnels, settings: FilterSettings, *, is_source: bool, has_networks: bool
) -> Iterator[Match]:
    """Matches of packets of this node's tunnels from (``is_source``) or to another node."""
    kinds = _datagrams(family, tunnels, settings)
    kinds += [_IPIP_PACKET] if family == 4 and tunnels.ipip else []
    for kind in kinds:
        for name in (NODES, *((NODES + NETWORKS,) if has_networks else ())):
            yield (*kind, AddressInSet(is_source, name))


def _datagrams(family: int, tunnels: Tunnels, settings: FilterSettings) -> list[Match]:
    found = _vxlan(settings, tunnels) if family in tunnels.vxlan else []
    port = tunnels.wireguard_port(family)
    return [*found, (IsProtocol(_UDP), PortIn(False, port, port))] if port else found


def _vxlan(settings: FilterSettings, tunnels: Tunnels) -> list[Match]:
    """One match for each port: while it changes, a device has the old one until the rules for the new one stand."""
    ports = (settings.vxlan_port, *sorted(tunnels.other_ports - {settings.vxlan_port}))
    return [(IsProtocol(_UDP), PortIn(False, port, port)) for port in ports]


def _unknown(family: int, tunnels: Tunnels, settings: FilterSettings, has_networks: bool) -> Iterator[NftRule]:
    names = (NODES, NODES + NETWORKS) if has_networks else (NODES,)
    unknown = tuple(AddressInSet(True, name, negated=True) for name in names)
    if family in tunnels.vxlan:
        for one in _vxlan(settings, tunnels):
            yield drop_and_tell(settings, one + unknown, UNKNOWN_VXLAN)
    if family == 4 and tunnels.ipip:
        yield drop_and_tell(settings, _IPIP_PACKET + unknown, UNKNOWN_IPIP)
