"""Host endpoints in the answers of ``calicoctl policy``: which of them a connection passes, and what they decide. Rule:
routes are not known here, so it is assumed that a connection passes the node's host endpoint that expects the address;
if none does, the first one for a single interface; if there is none, the one for all interfaces. Where pools send all
packets between nodes through a tunnel, it passes the tunnel's interface instead. Answers name the host endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address, Resource
from cni_calico.policy.explain import Decision, Packet, decide_host
from cni_calico.policy.failsafe import FailsafePort, is_failsafe
from cni_calico.policy.hosts import ALL_INTERFACES, HostRecord, parse_host
from cni_calico.policy.rules import Direction
from cni_calico.policy.wanted import PolicyReach, Wanted

HOST_PREFIX = "hostendpoint:"  # a text that begins with this names a host endpoint instead of a workload
_STAGE_TEXT = {"raw": "doNotTrack", "beforeNat": "preDNAT", "forward": "forwarded", "own": "the host itself"}
Failsafes = tuple[tuple[FailsafePort, ...], tuple[FailsafePort, ...]]  # (inbound, outbound)


@dataclass(frozen=True, slots=True)
class TrafficEnd:
    """One end of the connection; ``key`` is None for an address that no workload has. ``node`` is the end's node, ""
    for an address outside; a host has a node and no key.
    """

    shown: str
    addresses: tuple[Address, ...]
    key: ResourceKey | None = None
    node: str = ""

    @property
    def is_host(self) -> bool:
        return bool(self.node) and self.key is None


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


def host_records(records: PolicyRecords) -> dict[ResourceKey, HostRecord]:
    """The valid host endpoints, sorted by name."""
    found = {}
    for key, record in sorted(records.records.items(), key=lambda item: item[0].name):
        if key.kind == "HostEndpoint" and isinstance(record, Resource):
            try:
                found[key] = parse_host(record)
            except ValueError:
                continue  # the graph reports why it is not valid
    return found


def host_at(records: PolicyRecords, address: Address) -> TrafficEnd | None:
    """The host that has an address according to its host endpoints."""
    for host in host_records(records).values():
        if address.packed in host.labelled.addresses:
            return TrafficEnd(f"host {host.node}", (address,), None, host.node)
    return None


def named_host(records: PolicyRecords, name: str) -> tuple[ResourceKey, HostRecord]:
    """The HostEndpoint of a name. Raises CommandFailed if there is none or it is not valid."""
    key = ResourceKey("HostEndpoint", name)
    found = host_records(records).get(key)
    if found is None:
        raise CommandFailed(f"there is no valid HostEndpoint {name}")
    return key, found


def gates(records: PolicyRecords, source: TrafficEnd, destination: TrafficEnd, tunnel: str) -> list[HostGate]:
    """The host endpoints' stages, in the order in which the connection's first packet passes them. ``tunnel``: the
    interface between the two nodes, "" without a tunnel.
    """
    if source.node and source.node == destination.node:
        return [] if source.is_host or destination.is_host else _between_workloads(records, source.node)

    def between_nodes(end: TrafficEnd) -> ResourceKey | None:
        return _named(records, end.node, tunnel) if tunnel else _uplink(records, end)

    found: list[HostGate] = []
    if source.is_host:
        found += _gates(source.node, between_nodes(source), ("raw", "own"), "egress")
    elif source.key is not None:
        found += _gates(source.node, _everywhere(records, source.node), ("beforeNat", "forward"), "ingress")
        found += _gates(source.node, between_nodes(source), ("forward",), "egress")
    if destination.is_host:
        found += _gates(destination.node, between_nodes(destination), ("raw", "beforeNat", "own"), "ingress")
    elif destination.key is not None:
        found += _gates(destination.node, between_nodes(destination), ("raw", "beforeNat", "forward"), "ingress")
        found += _gates(destination.node, _everywhere(records, destination.node), ("forward",), "egress")
    return found


def _between_workloads(records: PolicyRecords, node: str) -> list[HostGate]:
    every = _everywhere(records, node)
    return [*_gates(node, every, ("beforeNat", "forward"), "ingress"), *_gates(node, every, ("forward",), "egress")]


def _gates(
    node: str, key: ResourceKey | None, reaches: tuple[PolicyReach, ...], direction: Direction
) -> Iterator[HostGate]:
    if key is not None:
        yield from (HostGate(node, key, reach, direction) for reach in reaches)


def _named(records: PolicyRecords, node: str, interface: str) -> ResourceKey | None:
    found = host_records(records).items()
    own = next((key for key, host in found if host.node == node and host.interface == interface), None)
    return own or _everywhere(records, node)


def _everywhere(records: PolicyRecords, node: str) -> ResourceKey | None:
    found = host_records(records).items()
    return next((key for key, host in found if host.node == node and host.interface == ALL_INTERFACES), None)


def _uplink(records: PolicyRecords, end: TrafficEnd) -> ResourceKey | None:
    found = {key: host for key, host in host_records(records).items() if host.node == end.node}
    addresses = {address.packed for address in end.addresses} if end.is_host else set()

    def rank(key: ResourceKey) -> tuple[bool, bool, str]:
        host = found[key]
        return addresses.isdisjoint(host.labelled.addresses), host.interface == ALL_INTERFACES, key.name

    own = [key for key in found if found[key].interface != ALL_INTERFACES]
    return min(own or found, key=rank, default=None)


def judge(
    wanted: Wanted, path: list[HostGate], packet: Packet, failsafes: Mapping[str, Failsafes]
) -> list[HostVerdict]:
    """The verdicts of the stages, in order; a stage that decides nothing is left out. ``failsafes``: by node."""
    found: list[HostVerdict] = []
    skipped: set[tuple[ResourceKey, Direction]] = set()
    for gate in path:
        host = wanted.hosts.get(gate.key)
        if host is None or (gate.key, gate.direction) in skipped or _is_idle(gate, host.interface):
            continue
        ports = failsafes[gate.node][gate.direction == "egress"]
        if gate.reach != "forward" and is_failsafe(ports, gate.direction, packet):
            if gate.reach == "own":
                found.append(HostVerdict(gate, None))
            continue
        decision = decide_host(wanted, gate.key, gate.reach, gate.direction, packet)
        if decision is None:
            continue
        found.append(HostVerdict(gate, decision))
        if gate.reach in ("raw", "beforeNat"):
            skipped.add((gate.key, gate.direction))
    return found


def _is_idle(gate: HostGate, interface: str) -> bool:
    return gate.reach == "raw" and interface == ALL_INTERFACES


def read_failsafes(session: Session, node: str) -> Failsafes:
    """The failsafe ports in the FelixConfigurations; a node's environment may set others."""
    from cni_calico.nodeagent.context.felix import parse_felix

    specs: list[Any] = []
    for name in (f"node.{node}", "default"):
        found = session.store.get(ResourceKey("FelixConfiguration", name), session.deadline)
        specs.append(None if found is None else found.value.get("spec"))
    settings = parse_felix({}, *specs).settings
    return settings.failsafe_inbound, settings.failsafe_outbound


def read_tunnel(
    session: Session, source: TrafficEnd, destination: TrafficEnd, address: Address, warn: Callable[[object], None]
) -> str:
    """The interface through which all connections from the node of ``source`` to the destination's address go, which
    is a workload's on another node; "" for the nodes' own network, also where only some nodes' packets go through a
    tunnel (CrossSubnet).
    """
    from cni_calico.ctl.ipam.records import read_pools
    from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN, encapsulation_of

    if not source.node or destination.key is None or source.node == destination.node:
        return ""
    corrupt: list[tuple[str, str]] = []
    pools = read_pools(session, corrupt)
    for name, why in corrupt:
        warn(f"{name}: {why}")
    for pool in pools:
        if address in pool.cidr:
            by, mode = encapsulation_of(pool)
            return {"vxlan": VXLAN[address.version], "ipip": IPIP}.get(by, "") if mode == "Always" else ""
    return ""
