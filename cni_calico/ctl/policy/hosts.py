"""Host endpoints in the answers of ``calicoctl policy``: which of them a connection passes, and what they decide. Rule:
routes are not known here; ctl/policy/interfaces.py has what is assumed instead. Where pools send all packets between
nodes through a tunnel, a connection passes the tunnel's interface. Answers name the host endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from cni_calico.ctl.ipam.records import read_pools
from cni_calico.ctl.listing import read_kind
from cni_calico.ctl.policy.host_records import TrafficEnd, host_records
from cni_calico.ctl.policy.interfaces import NodeHosts, node_hosts
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.session import Session
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address, IPPool, Node, Resource
from cni_calico.nodeagent.context.configurations import select_scoped, spec_of
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN, encapsulation_of
from cni_calico.policy.explain import Decision, Packet, asked_host, decide_host
from cni_calico.policy.failsafe import FailsafePort, is_failsafe
from cni_calico.policy.hosts import ALL_INTERFACES
from cni_calico.policy.wanted import Direction, PolicyReach, Wanted

_STAGE_TEXT = {"raw": "doNotTrack", "beforeNat": "preDNAT", "forward": "forwarded", "own": "the host itself"}


@dataclass(frozen=True, slots=True)
class HostGate:
    """One stage of one host endpoint of a node, on the way of a connection."""

    node: str
    key: ResourceKey
    reach: PolicyReach
    direction: Direction

    @property
    def title(self) -> str:
        return f"{self.direction} of HostEndpoint {self.key.name} ({_STAGE_TEXT[self.reach]})"


@dataclass(frozen=True, slots=True)
class HostVerdict:
    """``decision`` None: a failsafe port."""

    gate: HostGate
    decision: Decision | None

    @property
    def passes(self) -> bool:
        return self.decision is None or self.decision.verdict == "Allow"


def gates(
    views: Mapping[str, NodeHosts], source: TrafficEnd, destination: TrafficEnd, packet: Packet, tunnel: str
) -> list[HostGate]:
    """The host endpoints' stages, in the order in which the connection's first packet passes them. ``views``: by node,
    where there are host endpoints; ``tunnel``: the interface between the two nodes, "" without a tunnel.
    """
    found: list[HostGate] = []
    if source.node and source.node == destination.node:
        return list(_within(views[source.node], source, destination)) if source.node in views else []
    if source.node in views:
        view = views[source.node]
        uplink = view.at_address(packet.source) if source.is_host else view.at_uplink()
        out = view.at_interface(tunnel) if tunnel else uplink
        if source.is_host:
            found += _gates(source.node, out, ("raw", "own"), "egress")
        else:
            found += _gates(source.node, view.everywhere(), ("beforeNat", "forward"), "ingress")
            found += _gates(source.node, out, ("forward",), "egress")
    if destination.node in views:
        view = views[destination.node]
        uplink = view.at_address(packet.destination) if destination.is_host else view.at_uplink()
        into = view.at_interface(tunnel) if tunnel else uplink
        if destination.is_host:
            found += _gates(destination.node, into, ("raw", "beforeNat", "own"), "ingress")
        else:
            found += _gates(destination.node, into, ("raw", "beforeNat", "forward"), "ingress")
            found += _gates(destination.node, view.everywhere(), ("forward",), "egress")
    return found


def _within(view: NodeHosts, source: TrafficEnd, destination: TrafficEnd) -> Iterator[HostGate]:
    """On one node. What a host sends to itself leaves and comes in through the loopback interface."""
    node = source.node
    if source.is_host:
        if destination.is_host:
            yield from _gates(node, view.at_loopback(), ("raw", "own"), "egress")
            yield from _gates(node, view.at_loopback(), ("raw", "beforeNat", "own"), "ingress")
        return
    yield from _gates(node, view.everywhere(), ("beforeNat",), "ingress")
    if not destination.is_host:
        yield from _gates(node, view.everywhere(), ("forward",), "ingress")
        yield from _gates(node, view.everywhere(), ("forward",), "egress")


def _gates(
    node: str, key: ResourceKey | None, reaches: tuple[PolicyReach, ...], direction: Direction
) -> Iterator[HostGate]:
    if key is not None:
        yield from (HostGate(node, key, reach, direction) for reach in reaches)


def asked_at(path: list[HostGate], views: Mapping[str, NodeHosts]) -> set[ResourceKey]:
    """The host endpoints whose policies may decide at these gates: each one's own, and those of all interfaces."""
    everywhere = (views[gate.node].everywhere() for gate in path)
    return {gate.key for gate in path} | {key for key in everywhere if key is not None}


def judge(
    wanted: Wanted,
    path: list[HostGate],
    packet: Packet,
    views: Mapping[str, NodeHosts],
    *,
    before_nat: Packet | None = None,
) -> list[HostVerdict]:
    """The verdicts of the stages, in order; a stage that decides nothing is left out. ``views``: by node;
    ``before_nat``: the packet as the stages before translation see it where it comes in, if that is another one.
    """
    inner = packet
    found: list[HostVerdict] = []
    skipped: set[tuple[ResourceKey, Direction]] = set()
    for gate in path:
        host = wanted.hosts.get(gate.key)
        if host is None or (gate.key, gate.direction) in skipped or _is_idle(gate, host.interface):
            continue
        is_early = gate.direction == "ingress" and gate.reach in ("raw", "beforeNat")
        packet = inner if before_nat is None or not is_early else before_nat
        if gate.reach != "forward" and is_open(gate.reach, gate.direction, views[gate.node].felix, packet):
            if gate.reach == "own":
                found.append(HostVerdict(gate, None))
            continue
        everywhere = views[gate.node].everywhere()
        asked = asked_host(wanted, gate.key, everywhere if everywhere in wanted.hosts else None, gate.reach)
        decision = decide_host(wanted, asked, gate.reach, gate.direction, packet)
        if decision is None:
            continue
        found.append(HostVerdict(replace(gate, key=asked), decision))
        if gate.reach in ("raw", "beforeNat"):
            skipped.add((gate.key, gate.direction))
    return found


def is_open(reach: PolicyReach, direction: Direction, felix: FelixSettings, packet: Packet) -> bool:
    """Whether a failsafe port lets the packet through; before connection tracking, answers from one too."""
    sides: tuple[tuple[Direction, tuple[FailsafePort, ...]], ...] = (
        ("ingress", felix.failsafe_inbound),
        ("egress", felix.failsafe_outbound),
    )
    (own, ports), (other, answered) = sides if direction == "ingress" else sides[::-1]
    return is_failsafe(ports, own, packet) or (reach == "raw" and is_failsafe(answered, other, packet.answer()))


def _is_idle(gate: HostGate, interface: str) -> bool:
    return gate.reach == "raw" and interface == ALL_INTERFACES


def read_views(session: Session, records: PolicyRecords, nodes: Iterable[str]) -> dict[str, NodeHosts]:
    """The host endpoints of those of some nodes that have any, with these nodes' parameters."""
    hosts = host_records(records)
    chosen = {host.node for host in hosts.values()}.intersection(nodes)
    felix = _read_felix(session) if chosen else {}
    return {
        name: node_hosts(hosts, name, node := records.nodes.get(name), _felix_of(felix, name, node)) for name in chosen
    }


def _read_felix(session: Session) -> dict[str, Resource]:
    """The FelixConfigurations that can be read, by name."""
    return {key.name: record for key, record in read_kind(session, "FelixConfiguration", decode_resource)}


def _felix_of(felix: Mapping[str, Resource], name: str, node: Node | None) -> FelixSettings:
    """The parameters of a node in the FelixConfigurations; its environment may set others."""
    scoped = select_scoped(felix.values(), None if node is None else node.metadata.labels)
    own, default = (spec_of(felix[key]) if key in felix else None for key in (f"node.{name}", "default"))
    return parse_felix({}, own, default, scoped).settings


def read_tunnel(
    session: Session, source: TrafficEnd, destination: TrafficEnd, address: Address, warn: Callable[[object], None]
) -> str:
    """The interface through which all connections from the node of ``source`` to the destination's address go, which
    is a workload's on another node; "" for the nodes' own network, also where only some nodes' packets go through a
    tunnel (CrossSubnet).
    """
    if not source.node or destination.key is None or source.node == destination.node:
        return ""
    corrupt: list[tuple[str, str]] = []
    pools = read_pools(session, corrupt)
    for name, why in corrupt:
        warn(f"{name}: {why}")
    return tunnel_within(pools, address) or ""


def tunnel_within(pools: Iterable[IPPool], address: Address) -> str | None:
    """The interface through which packets from other nodes come to an address of these pools; "": the nodes' own
    network; None: it depends on the nodes (CrossSubnet).
    """
    for pool in pools:
        if address in pool.cidr:
            by, mode = encapsulation_of(pool)
            if mode == "CrossSubnet":
                return None
            return {"vxlan": VXLAN[address.version], "ipip": IPIP}.get(by, "") if mode == "Always" else ""
    return ""
