"""Which BGP sessions of nodes their host endpoints cut, as far as records tell.

Rule: judged as ``calicoctl policy explain`` judges a connection, by the sessions that the agents make of the same
records. What only the node knows is left to the agent's status: its environment, Secrets, and users' BIRD files. Where
no session needs more than failsafe ports, policies are not even read. Of many nodes some are judged: who writes waits
for it, and what cuts one cuts the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from cni_calico.ctl.listing import read_kind
from cni_calico.ctl.policy.host_records import TrafficEnd, host_records
from cni_calico.ctl.policy.hosts import (
    HostGate,
    HostVerdict,
    asked_at,
    gates,
    judge,
    read_views,
)
from cni_calico.ctl.policy.interfaces import NodeHosts
from cni_calico.ctl.policy.records import PolicyRecords, load_hosts, load_stored
from cni_calico.ctl.session import Session
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Node
from cni_calico.nodeagent.bgp.config.lifelines import BGP_PORT, desired_lifelines
from cni_calico.nodeagent.bgp.config.peers import desired_peers, node_address
from cni_calico.nodeagent.bgp.config.records import BgpRecords, parse_records
from cni_calico.nodeagent.bgp.config.snapshot import snapshot_of
from cni_calico.policy.explain import Packet
from cni_calico.policy.failsafe import FailsafePort, is_failsafe
from cni_calico.policy.lifelines import TCP, Lifeline, describe_cut

MOST = 20  # nodes that are judged
NodeSessions = dict[str, tuple[Lifeline, ...]]  # what needs a verdict, by node


def read_cut_sessions(session: Session, written: Collection[ResourceKey] = ()) -> list[str]:
    """A sentence for each session that is cut, of nodes with host endpoints: first those whose host endpoints were
    ``written``. Raises CalicoError.
    """
    hosts = load_hosts(session)
    if not hosts.records:
        return []
    by_turn = sorted(host_records(hosts).items(), key=lambda item: item[0] not in written)
    chosen = list(dict.fromkeys(host.node for _, host in by_turn if host.node in hosts.nodes))[:MOST]
    found = read_views(session, hosts, chosen)
    views = {name: found[name] for name in chosen}
    lines = read_sessions(session, hosts.nodes, views)
    if not any(lines.values()):
        return []
    return list(describe_cut_sessions(load_stored(session), views, lines))


def read_sessions(session: Session, nodes: Mapping[str, Node], views: Mapping[str, NodeHosts]) -> NodeSessions:
    """What the sessions of the nodes with host endpoints need besides failsafe ports."""
    configurations, peers = (  # what cannot be read the agents leave out as well
        [record for _, record in read_kind(session, kind, decode_resource)] for kind in ("BGPConfiguration", "BGPPeer")
    )
    found: NodeSessions = {}
    for name, view in views.items():
        if name not in nodes:
            continue
        records = _without_passwords(parse_records(name, configurations, peers))
        if _is_usual(records, view):
            continue
        snapshot = snapshot_of(records, name, nodes=nodes.values())
        lines = desired_lifelines(snapshot, desired_peers(snapshot).peers)
        found[name] = tuple(lines if any(not _is_open(view, line, nodes[name]) for line in lines) else ())
    return found


def _is_usual(records: BgpRecords, view: NodeHosts) -> bool:
    """Whether every session is BGP on its own port, which is a failsafe port: then no peers have to be decided."""
    ports = records.global_listen_port or any(records.listen_ports.values())
    if ports or any(spec.port or spec.bfd for spec in records.peers):
        return False
    usual = FailsafePort(TCP, BGP_PORT)
    return usual in view.felix.failsafe_inbound and usual in view.felix.failsafe_outbound


def _without_passwords(records: BgpRecords) -> BgpRecords:
    """Secrets are the agents'; a session without its password would be left out."""
    peers = tuple(replace(spec, password=None) for spec in records.peers)
    return replace(records, peers=peers, configuration=replace(records.configuration, mesh_password=None))


def _is_open(view: NodeHosts, line: Lifeline, node: Node) -> bool:
    own = node_address(node, line.other.version)
    ports = view.felix.failsafe_inbound if line.direction == "ingress" else view.felix.failsafe_outbound
    return own is None or is_failsafe(ports, line.direction, line.packet(own))


def describe_cut_sessions(
    records: PolicyRecords, views: Mapping[str, NodeHosts], sessions: Mapping[str, tuple[Lifeline, ...]]
) -> Iterator[str]:
    """One graph is made for all."""
    known = [name for name in sessions if name in records.nodes]
    passed = [(name, line, *_path(records.nodes[name], views[name], line)) for name in known for line in sessions[name]]
    if not passed:
        return
    asked = {key for _, _, path, _ in passed for key in asked_at(path, views)}
    wanted = records.graph(asked).wanted()
    alive: set[object] = set()
    cut: dict[object, tuple[str, Lifeline, HostVerdict]] = {}
    for name, line, path, packet in passed:
        purpose = (name, line.purpose)
        refusal = next((one for one in judge(wanted, path, packet, views) if not one.passes), None)
        if refusal is None:
            alive.add(purpose)
        else:
            cut.setdefault(purpose, (name, line, refusal))
    for which, (name, line, refusal) in cut.items():
        if which not in alive:
            yield describe_cut(line, refusal.gate.key, f"node {name}")


def _path(node: Node, view: NodeHosts, line: Lifeline) -> tuple[list[HostGate], Packet]:
    """The stages at this end that a connection passes, and its first packet."""
    own = node_address(node, line.other.version)
    assert own is not None  # the session has one
    name = node.metadata.name
    here, there = TrafficEnd(name, (own,), None, name), TrafficEnd("", (line.other,))
    packet = line.packet(own)
    ends = (here, there) if line.direction == "egress" else (there, here)
    return gates({name: view}, *ends, packet, ""), packet
