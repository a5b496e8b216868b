"""``calicoctl policy explain``: whether a connection is allowed, and which policy and rule decide it at both ends."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace

from cni_calico.ctl.encryption.between import describe_between
from cni_calico.ctl.output.escaping import shown_lines
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.policy.claims import describe_unconfirmed, unconfirmed
from cni_calico.ctl.policy.host_records import HOST_PREFIX, TrafficEnd, host_records
from cni_calico.ctl.policy.hosts import (
    HostGate,
    HostVerdict,
    asked_at,
    gates,
    judge,
    read_tunnel,
    read_views,
)
from cni_calico.ctl.policy.masquerading import masquerading
from cni_calico.ctl.policy.named_ends import find_end, parse_host_port
from cni_calico.ctl.policy.published import SeenTranslation
from cni_calico.ctl.policy.records import PolicyRecords, load
from cni_calico.ctl.policy.seen import describe_seen
from cni_calico.ctl.policy.steps import TierStep, describe_passes, steps_of
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import describe
from cni_calico.model.documents.fields import Wrong
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Resource
from cni_calico.policy.budget import describe_size
from cni_calico.policy.explain import Decision, Packet, decide
from cni_calico.policy.graph import Graph
from cni_calico.policy.ports import WITH_PORTS
from cni_calico.policy.records import POLICY_KINDS
from cni_calico.policy.rules import parse_protocol
from cni_calico.policy.wanted import Direction, PolicyId

_UDP, _IPIP, _VXLAN_PORT = 17, 4, 4789
_ECHO = {4: (8, 0), 6: (128, 0)}
_SOURCE_PORT = 49152
_TRANSLATED = """\
Hint: through a NodePort of another node, or masqueraded, the connection arrives with that node's address, not with
{address}: ask again with --from and the node's address (docs/policy.md, "addresses that change on the way").
"""
_NODE_PORTS = range(30000, 32768)  # Kubernetes' default
_NODE_PORT = """\
Hint: if {port} is a NodePort, only doNotTrack and preDNAT policies see it. Behind them the connection is forwarded to a
pod of the service: ask again with --to and the pod.
"""
_OWN_HOST = """\
Hint: what a workload sends to its own node passes no host endpoint, except preDNAT policies of one for "*". After the
workload's egress policies the node's DefaultEndpointToHostAction decides (docs/policy.md, "addresses that change on the
way").
"""
_MASQUERADED = """\
Hint: if the pool of {address} has natOutgoing, the connection arrives with an address of node {node}: ask again with
--from and that address.
"""
_TUNNELLED = """\
Hint: where pools use VXLAN or IPIP, its packets between nodes always pass, whatever policies say.
"""
_NOT_TRACKED = """\
Hint: a doNotTrack policy allows it, so its answers need a rule of their own: ask again with the ends exchanged and the
ports too (--source-port).
"""


def explain(session: Session, arguments: Namespace) -> str:
    records = load(session, arguments)
    source = find_end(records, arguments.source, arguments.namespace)
    source, destination, outer, published = _destination(session, records, source, arguments)
    for end in (source, destination):
        if end.key is not None and (claimed := unconfirmed(records.claimed.get(end.key))):
            arguments.warn(describe_unconfirmed(end.shown, claimed))
    packet = _packet(source, destination, arguments)
    if published is not None and published.becomes is not None:
        packet = replace(packet, destination_port=published.becomes.port)
    if source.key is not None and destination.key is not None and (why := masquerading(session, packet.source)):
        arguments.warn(f"this holds for a connection to the pod itself. By a service, {why}")
    tunnel = read_tunnel(session, source, destination, packet.destination, arguments.warn)
    views = read_views(session, records, (source.node, destination.node))
    path = gates(views, source, destination, packet, tunnel)
    graph = records.graph([*(end.key for end in (source, destination) if end.key), *asked_at(path, views)])
    for key, why in graph.problems.items():
        arguments.warn(f"{describe(key)} is not in force: {why}")
    for name, count in records.over_budget.items():
        arguments.warn(f"{name} denies what it governs: {describe_size(count, records.budget)}")
    for warning in graph.facts.told_warnings():
        arguments.warn(warning)
    for end in (source, destination):
        dispute = records.dispute(end.key) if end.key is not None and end.key in records.records else ""
        if dispute:
            arguments.warn(f"{end.shown}: {dispute}")
    directions: tuple[tuple[TrafficEnd, Direction], ...] = ((source, "egress"), (destination, "ingress"))
    judged = [(end, direction, *_judged(records, graph, end, direction, packet, path)) for end, direction in directions]
    hosts = judge(graph.wanted(), path, packet, views, before_nat=outer)
    if views:
        from cni_calico.ctl.policy.lifelines import describe_cut_sessions, read_sessions

        for cut in describe_cut_sessions(records, views, read_sessions(session, records.nodes, views)):
            arguments.warn(cut)
    allowed = all(passes for *_, passes, _ in judged) and all(host.passes for host in hosts)
    encryption = ""
    if source.key is not None and destination.key is not None:
        encryption = describe_between(
            session, records.nodes, (source.node, destination.node), packet.destination.version
        )
    if arguments.output != TABLE:
        ends = [
            {
                **{"workload": end.shown, "direction": direction, "allowed": passes},
                **{"why": [line.strip() for line in lines], "steps": steps},
            }
            for end, direction, lines, passes, steps in judged
        ]
        found: dict[str, object] = {"from": str(packet.source), "to": str(packet.destination)}
        found |= {"connection": _shown(packet)}
        if published is not None:
            found |= {"published": arguments.destination, "judgedFrom": list(published.judged_from)}
        if encryption:
            found["encryption"] = encryption
        shown = [_host_document(records, graph, host) for host in hosts]
        return render_value({**found, "allowed": allowed, "ends": ends, "hosts": shown}, arguments.output)
    lines = [f"{source.shown} ({packet.source}) to {destination.shown} ({packet.destination}), {_shown(packet)}:", ""]
    if published is not None:
        lines[:0] = [f"Judged from {text}." for text in published.judged_from]
    for _, _, text, _, steps in judged:
        lines += [*text[:1], *describe_passes(steps), *text[1:]]
    lines += [line for host in hosts for line in _host_lines(records, graph, host)]
    verdict = f"The connection is {'allowed' if allowed else 'DENIED'}."
    hint = "" if published is not None else _hint(source, destination, packet, hosts)
    seen = describe_seen(packet)
    return shown_lines("\n".join([*lines, "", verdict, *filter(None, [encryption, seen]), hint]))


def _destination(
    session: Session, records: PolicyRecords, source: TrafficEnd, arguments: Namespace
) -> tuple[TrafficEnd, TrafficEnd, Packet | None, SeenTranslation | None]:
    """Both ends, the packet as it comes to a published port, and what is known of that; None without one."""
    asked = parse_host_port(arguments.destination)
    if asked is None:
        destination = find_end(records, arguments.destination, arguments.namespace)
        return _at_itself(source, destination), _at_itself(destination, source), None, None
    from cni_calico.ctl.policy.published import look_here, read_address

    if arguments.port not in (None, asked.port):
        raise InvalidConfig(f"cannot explain: --to names port {asked.port}, and --port {arguments.port}")
    arguments.port = asked.port
    host = find_end(records, str(read_address(session, asked.host)), arguments.namespace)
    source, host = _at_itself(source, host), _at_itself(host, source)
    outer = _packet(source, host, arguments)
    if outer.protocol not in WITH_PORTS:
        raise InvalidConfig(f"cannot explain: {arguments.protocol} has no ports, and --to names {asked.port}")
    published = look_here(session, outer, arguments.warn)
    if published.becomes is None:
        return source, host, outer, published
    return source, find_end(records, str(published.becomes.address), arguments.namespace), outer, published


def _hint(source: TrafficEnd, destination: TrafficEnd, packet: Packet, hosts: list[HostVerdict]) -> str:
    """What the answer does not take into account, if there is something."""
    if any(host.gate.reach == "raw" and host.passes for host in hosts):
        return _NOT_TRACKED
    if source.is_host and destination.is_host and _is_tunnelled(packet):
        return _TUNNELLED
    if destination.is_host and packet.protocol in WITH_PORTS and packet.destination_port in _NODE_PORTS:
        return _NODE_PORT.format(port=packet.destination_port)
    if destination.is_host and source.key is not None and source.node == destination.node:
        return _OWN_HOST
    if destination.is_host and source.key is not None:
        return _MASQUERADED.format(address=packet.source, node=source.node)
    is_outside = source.key is None and not source.is_host and destination.key is not None
    return _TRANSLATED.format(address=packet.source) if is_outside else ""


def _is_tunnelled(packet: Packet) -> bool:
    return packet.protocol == _IPIP or (packet.protocol, packet.destination_port) == (_UDP, _VXLAN_PORT)


def _at_itself(end: TrafficEnd, other: TrafficEnd) -> TrafficEnd:
    """A loopback address is that of the host at the other end, which uses the same address then."""
    for address in end.addresses:
        if address.is_loopback:
            if not other.is_host:
                raise CommandFailed(
                    f"cannot explain: every host has {address}: name the host at the other end ({HOST_PREFIX}NAME)"
                )
            return TrafficEnd(other.shown, (address,), None, other.node)
    if end.is_host and any(address.is_loopback for address in other.addresses):
        return TrafficEnd(end.shown, other.addresses, None, end.node)
    return end


def _packet(source: TrafficEnd, destination: TrafficEnd, arguments: Namespace) -> Packet:
    pairs = [(a, b) for a in source.addresses for b in destination.addresses if a.version == b.version]
    if not pairs:
        raise CommandFailed(f"cannot explain: {source.shown} and {destination.shown} have no IP family in common")
    try:
        protocol = parse_protocol(arguments.protocol, "--protocol")
    except Wrong as e:
        raise InvalidConfig(f"cannot explain: {e}") from e
    if protocol in WITH_PORTS and arguments.port is None:
        raise InvalidConfig(f"cannot explain: --port must be given with protocol {arguments.protocol}")
    if arguments.port is not None and not 0 < arguments.port < 65536:
        raise InvalidConfig(f"cannot explain: --port must be from 1 to 65535, got {arguments.port}")
    first, second = pairs[0]
    if protocol == 1 and first.version == 6:
        protocol = 58  # "icmp" means the ICMP of the packet's family
    port = arguments.source_port or (_SOURCE_PORT if protocol in WITH_PORTS else 0)
    return Packet(first, second, protocol, port, arguments.port or 0, _ECHO[first.version])


def _shown(packet: Packet) -> str:
    name = {6: "tcp", 17: "udp", 132: "sctp", 1: "icmp echo request", 58: "icmpv6 echo request"}.get(packet.protocol)
    named = name or f"protocol {packet.protocol}"
    return f"{named}/{packet.destination_port}" if packet.protocol in WITH_PORTS else named


def _judged(
    records: PolicyRecords, graph: Graph, end: TrafficEnd, direction: Direction, packet: Packet, path: list[HostGate]
) -> tuple[list[str], bool, list[TierStep]]:
    """The lines about one end, whether the packet passes it, and the tiers that it meets. ``path``: the stages of host
    endpoints that it passes; they are judged all together.
    """
    title = f"{direction} of {end.shown}"
    if end.is_host:
        is_policed = any((gate.node, gate.direction) == (end.node, direction) for gate in path)
        return [] if is_policed else [f"  {title}: not policed, it passes no host endpoint there"], True, []
    if end.key is None:
        return [f"  {title}: not policed, it is not a workload"], True, []
    wanted = graph.wanted()
    if end.key not in wanted.endpoints:
        return [f"  {title}: DENIED, it has no interface or no address"], False, []
    found = decide(wanted, end.key, direction, packet)
    reason = _reason(records, found) or _end_reason(records, graph, end)
    steps = steps_of(wanted, end.key, direction, packet, found)
    return _verdict_lines(records, title, found, reason), found.verdict == "Allow", steps


def _verdict_lines(records: PolicyRecords, title: str, found: Decision, reason: str) -> list[str]:
    lines = [f"  {title}: {'allowed' if found.verdict == 'Allow' else 'DENIED'} {reason}"]
    if found.policy is not None and found.rule is not None and found.policy not in records.over_budget:
        lines.append(f"    {_rule_text(records, found.policy, found.direction, found.rule)}")
    return lines + [f"    (rule {index + 1} of {policy} logs it)" for policy, index in found.logged]


def _host_lines(records: PolicyRecords, graph: Graph, host: HostVerdict) -> list[str]:
    if host.decision is None:
        return [f"  {host.gate.title}: allowed, it is a failsafe port"]
    reason = _reason(records, host.decision)
    if not reason:
        profiles = host_records(records)[host.gate.key].labelled.profiles
        missing = [name for name in profiles if name in graph.facts.missing_host_profiles]
        reason = "because no policy and no profile allows it"
        reason += f" (profile {missing[0]} does not exist)" if missing else ""
    return _verdict_lines(records, host.gate.title, host.decision, reason)


def _host_document(records: PolicyRecords, graph: Graph, host: HostVerdict) -> dict[str, object]:
    gate, lines = host.gate, _host_lines(records, graph, host)
    named = {"hostEndpoint": gate.key.name, "stage": gate.reach, "direction": gate.direction}
    return {**named, "allowed": host.passes, "why": [line.strip() for line in lines]}


def _reason(records: PolicyRecords, found: Decision) -> str:
    """The reason for the verdict; "" if nothing decided before the end."""
    if found.policy in records.over_budget:
        return f"by {found.policy}, which is over the budget: it denies what it governs"
    if found.policy is not None and found.rule is not None:
        where = f" in tier {found.tier}" if found.tier else ""
        note = " (not applied yet)" if _key(found.policy) in records.overlaid else ""
        return f"by rule {found.rule + 1} of {found.policy}{note}{where}"
    if found.tier:
        return f"at the end of tier {found.tier}: policies of it apply, and none of their rules matches"
    return ""


def _end_reason(records: PolicyRecords, graph: Graph, end: TrafficEnd) -> str:
    assert end.key is not None
    wanted = graph.wanted()
    group = wanted.classes[wanted.endpoints[end.key].class_id]
    record = records.endpoint(end.key)
    if len(group.profiles) < len(record.profiles):
        missing = record.profiles[len(group.profiles)]
        return f"because nothing else decides and its profile {missing} does not exist"
    return "because no policy and no profile allows it"


def _key(policy: PolicyId) -> ResourceKey:
    return ResourceKey(policy.kind, policy.name, policy.namespace)


def _rule_text(records: PolicyRecords, policy: PolicyId, direction: Direction, index: int) -> str:
    """The rule as it is stored, or as it was converted from Kubernetes' form."""
    record = records.records.get(_key(policy))
    rules = record.spec.get(direction) if isinstance(record, Resource) else None
    if policy.kind not in (*POLICY_KINDS, "Profile") or not rules:
        return ""
    return json.dumps(_without_empty(rules[index]), ensure_ascii=True, default=str)


def _without_empty(rule: object) -> object:
    return {k: v for k, v in rule.items() if v not in ({}, None)} if isinstance(rule, dict) else rule
