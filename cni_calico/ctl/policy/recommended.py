"""Policies that allow what recorded flows have used, and nothing else.

Rule: what a flow would need is opened only if both of its ends are known; what is left out is counted, with the reason.
One policy per workload: pods with equal labels, without those that its owner gives each pod. Labels are those that
flows tell, also of pods that are gone; without these those of now.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from cni_calico.ctl.policy.flow_ends import (
    NO_FLOW,
    FlowEnds,
    SeenConnections,
    ToldWorkload,
    Uncertain,
    has_labels_of_now,
    parse_point,
)
from cni_calico.ctl.policy.networks_around import NetworksAround
from cni_calico.ctl.policy.recorded_workloads import LearntWorkloads
from cni_calico.ctl.policy.records import PolicyRecords, workload_name
from cni_calico.ctl.policy.workload_selectors import StableLabels, shortest_selector, stable_labels
from cni_calico.errors import InvalidConfig
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Resource
from cni_calico.policy.judge.classes import packed_net
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import Packed, Wanted

MOST_NETS = 20  # single addresses outside, of one direction of a workload and protocol
_NAMES = {1: "ICMP", 6: "TCP", 17: "UDP", 58: "ICMPv6", 132: "SCTP", 136: "UDPLite"}
_SETS = ("NetworkSet", "GlobalNetworkSet")
_DNS = ("kube-system", frozenset({("k8s-app", "kube-dns")}))
_DENIED = "denied (--include-denied learns them)"
_REASON = "not decided by a policy"
_ORDER = 1000
STAGED_KIND = "StagedNetworkPolicy"

SetOfNets = tuple[IPv4Network | IPv6Network, str, StableLabels]  # namespace "": a global one


@dataclass(frozen=True, slots=True)
class KnownWorkload:
    """Pods with equal labels."""

    namespace: str
    labels: StableLabels


@dataclass(frozen=True, slots=True)
class NetworkPeer:
    """A network set (with labels), or one address."""

    namespace: str = ""
    labels: StableLabels = frozenset()
    address: Packed = b""


RulePeer = KnownWorkload | NetworkPeer
RuleName = tuple[str, RulePeer, int]  # direction, peer, protocol


@dataclass(slots=True)
class LearntRule:
    """``ports``: of the destination, or ICMP's types; 0 for a protocol without."""

    ports: dict[int, SeenConnections] = field(default_factory=dict)


@dataclass(slots=True)
class RecommendedPolicy:
    """``document``: without its rules; ``rules``: by direction, each with what is known of it."""

    document: dict[str, Any]
    rules: dict[str, list[tuple[dict[str, Any], str]]]

    @property
    def whole(self) -> dict[str, Any]:
        """As it is applied."""
        found = {direction: [rule for rule, _ in its] for direction, its in self.rules.items()}
        return {**self.document, "spec": {**self.document["spec"], **found}}

    @property
    def enforced(self) -> dict[str, Any]:
        """As it would be if it were enforced."""
        spec = {name: value for name, value in self.whole["spec"].items() if name != "stagedAction"}
        return {**self.document, "kind": "NetworkPolicy", "spec": spec}


class Recommender:
    """``add`` each flow of ``calicoctl flows``, then ``policies``. ``left_out``: connections by reason; ``closed``:
    what is not opened, in words; ``of_now``: connections learnt that do not tell the labels of an end.
    """

    def __init__(self, records: PolicyRecords, wanted: Wanted, namespace: str, *, include_denied: bool) -> None:
        self.left_out: Counter[str] = Counter()
        self.closed: list[str] = []
        self.of_now = 0
        self._namespace, self._include_denied = namespace, include_denied
        endpoints = records.endpoints
        addresses = {key: wanted.endpoints[key].addresses for key in wanted.endpoints.keys() & endpoints.keys()}
        self._workload = {
            key: KnownWorkload(key.namespace, stable_labels(endpoints[key].metadata.labels)) for key in addresses
        }
        told = LearntWorkloads(addresses, self._learn_workload)
        self._ends = FlowEnds(endpoints, addresses, lambda key: self._workload[key], told)
        self._called: dict[KnownWorkload, str] = {}
        for key in sorted(addresses, key=str):
            self._called.setdefault(self._workload[key], workload_name(key, endpoints[key]))
        sets = list(_sets_of(records))
        self._sets = NetworksAround((packed_net(net), (space, labels)) for net, space, labels in sets)
        self._all: dict[str, set[StableLabels]] = {}  # what a selector may select in a namespace; "": of global sets
        for one in self._called:
            self._all.setdefault(one.namespace, set()).add(one.labels)
        for _, space, labels in sets:
            self._all.setdefault(space, set()).add(labels)
        self._learnt: dict[KnownWorkload, dict[RuleName, LearntRule]] = {}
        self._outside: dict[Packed, NetworkPeer] = {}

    def add(self, flow: Mapping[str, Any]) -> None:
        """Raises InvalidConfig for what is no flow."""
        try:
            count, last = int(flow.get("connections", 1)), str(flow["last"])
            ends = flow["source"], flow["destination"]
            if any("reason" in one for one in flow["decided"]):
                self.left_out[_REASON] += count
                return
            if flow["verdict"] == "denied" and not self._include_denied:
                self.left_out[_DENIED] += count
                return
            try:
                source, destination = (self._ends.find(end) for end in ends)
            except Uncertain as e:
                self.left_out[str(e)] += count
                return
            protocol, port, _ = parse_point(flow, len(source.address))
            reporter = str(flow.get("reporter"))
        except NO_FLOW as e:
            raise InvalidConfig(f"cannot learn: a line is no flow as 'calicoctl flows' writes it: {e!r}") from e
        if any(map(has_labels_of_now, ends, (source, destination))):
            self.of_now += count
        for direction, own, other in (("egress", source, destination), ("ingress", destination, source)):
            if own.key is not None and own.key.namespace == self._namespace:
                peer = self._outside_peer(other.address) if other.key is None else self._workload[other.key]
                rules = self._learnt.setdefault(self._workload[own.key], {})
                rule = rules.setdefault((direction, peer, protocol), LearntRule())
                rule.ports.setdefault(port, SeenConnections()).add(reporter, count, last)

    def _learn_workload(self, key: ResourceKey, told: ToldWorkload) -> None:
        """One that is gone, or had other labels."""
        one = self._workload[key] = KnownWorkload(told.namespace, stable_labels(dict(told.labels)))
        self._called.setdefault(one, told.name)
        self._all.setdefault(one.namespace, set()).add(one.labels)

    def _outside_peer(self, address: Packed) -> NetworkPeer:
        """The smallest network set that has the address and can be selected, else the address."""
        known = self._outside.get(address)
        if known is None:
            its = (one for one in self._sets.of(address) if one[0] in ("", self._namespace))
            space, labels = next(its, ("", frozenset()))
            known = NetworkPeer(space, labels) if labels else NetworkPeer(address=address)
            self._outside[address] = known
        return known

    # -- out ----------------------------------------------------------------------------------------------------------

    def policies(self, kind: str) -> Iterator[RecommendedPolicy]:
        names: set[str] = set()
        learnt = [one for one in self._called if one.namespace == self._namespace and one in self._learnt]
        for workload in sorted(learnt, key=lambda one: self._called[one]):
            selector = self._selector(workload)
            name = _free_name(selector, self._called[workload], names)
            rules = self._learnt[workload]
            spec: dict[str, Any] = {"order": _ORDER, "selector": selector, "types": ["Ingress", "Egress"]}
            if kind == STAGED_KIND:
                spec["stagedAction"] = "Set"
            yield RecommendedPolicy(
                {
                    "apiVersion": "projectcalico.org/v3",
                    "kind": kind,
                    "metadata": {"name": name, "namespace": self._namespace},
                    "spec": spec,
                },
                {
                    "ingress": list(self._rules(workload, "ingress", rules)),
                    "egress": [*self._rules(workload, "egress", rules), *self._dns()],
                },
            )

    def expectations(self) -> list[dict[str, Any]]:
        """What was learnt, as ``calicoctl policy test`` asks for it, for ends that labels or an address stand for."""
        found: dict[str, dict[str, Any]] = {}
        for workload, rules in self._learnt.items():
            for (direction, peer, protocol), rule in rules.items():
                ends = [self._expected(one) for one in (workload, peer)]
                if None in ends:
                    continue
                source, destination = ends if direction == "egress" else ends[::-1]
                for port in rule.ports:
                    one = {"from": source, "to": destination, "protocol": _NAMES.get(protocol, protocol)}
                    if protocol in WITH_PORTS:
                        one["port"] = port
                    elif protocol in ICMP.values():
                        one["icmp"] = {"type": port, "code": 0}
                    found[str(one)] = {**one, "expect": "allowed"}
        return [found[name] for name in sorted(found)]

    def _expected(self, end: RulePeer) -> Any:
        """None for what stands for other ends, too."""
        if isinstance(end, NetworkPeer):
            return str(ip_address(end.address)) if end.address else None
        others = self._all[end.namespace] - {end.labels}
        if not end.labels or any(end.labels < one for one in others):
            return None
        return {"namespace": end.namespace, "labels": dict(sorted(end.labels))}

    def _selector(self, one: KnownWorkload | NetworkPeer) -> str:
        return shortest_selector(one.labels, self._all.get(one.namespace, ()))

    def _rules(
        self, workload: KnownWorkload, direction: str, learnt: Mapping[RuleName, LearntRule]
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """The most used first."""
        entities: list[tuple[dict[str, Any], int, LearntRule]] = []
        singles: dict[int, dict[Packed, LearntRule]] = {}
        for (way, peer, protocol), rule in learnt.items():
            if way != direction:
                continue
            if isinstance(peer, NetworkPeer) and peer.address:
                singles.setdefault(protocol, {})[peer.address] = rule
            else:
                entities.append((self._entity(peer), protocol, rule))
        for protocol, its in singles.items():
            if len(its) > MOST_NETS:
                called, name = f"{workload.namespace}/{self._called[workload]}", _NAMES.get(protocol, protocol)
                count = sum(map(_connections, its.values()))
                self.closed.append(
                    f"{called}: {direction} {name} with {len(its)} addresses outside ({count} connections): "
                    "put them into a network set"
                )
            else:
                entities += [(entity, protocol, rule) for entity, rule in _by_ports(its)]
        entities.sort(key=lambda one: (-_connections(one[2]), str(one[0]), one[1]))
        for entity, protocol, rule in entities:
            yield from _rules_of(direction, entity, protocol, rule)

    def _entity(self, peer: RulePeer) -> dict[str, Any]:
        selector = self._selector(peer)
        if isinstance(peer, NetworkPeer) and not peer.namespace:
            return {"selector": selector, "namespaceSelector": "global()"}
        if peer.namespace == self._namespace:
            return {"selector": selector}
        return {"selector": selector, "namespaceSelector": f"projectcalico.org/name == '{peer.namespace}'"}

    def _dns(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Always: names are looked up seldom, and nothing works without."""
        space, labels = _DNS
        entity: dict[str, Any] = {}
        if any(labels <= one for one in self._all.get(space, ())):
            entity = {"selector": "k8s-app == 'kube-dns'", "namespaceSelector": f"projectcalico.org/name == '{space}'"}
        for protocol in ("UDP", "TCP"):
            yield {"action": "Allow", "protocol": protocol, "destination": {**entity, "ports": [53]}}, "DNS"


def _by_ports(its: Mapping[Packed, LearntRule]) -> Iterator[tuple[dict[str, Any], LearntRule]]:
    """Single addresses; those of a family with the same ports in one rule."""
    same: dict[tuple[int, tuple[int, ...]], list[Packed]] = {}
    for address, rule in its.items():
        same.setdefault((len(address), tuple(sorted(rule.ports))), []).append(address)
    for addresses in same.values():
        joined = LearntRule()
        for address in addresses:
            for port, one in its[address].ports.items():
                for reporter, number in one.seen.items():
                    joined.ports.setdefault(port, SeenConnections()).add(reporter, number, one.last)
        yield {"nets": sorted(str(ip_network(address)) for address in addresses)}, joined


def _rules_of(
    direction: str, entity: dict[str, Any], protocol: int, rule: LearntRule
) -> Iterator[tuple[dict[str, Any], str]]:
    known = f"{_connections(rule)} connection{'' if _connections(rule) == 1 else 's'}"
    known += f", last {max(one.last for one in rule.ports.values())}"
    made: dict[str, Any] = {"action": "Allow", "protocol": _NAMES.get(protocol, protocol)}
    made["source" if direction == "ingress" else "destination"] = dict(entity)
    if protocol in WITH_PORTS:
        destination = made.setdefault("destination", {})
        destination["ports"] = list(_joined(rule.ports))
        yield made, known
    elif protocol in ICMP.values():
        for kind in sorted(rule.ports):
            yield {**made, "icmp": {"type": kind}}, known
    else:
        yield made, known


def _connections(rule: LearntRule) -> int:
    return sum(one.connections for one in rule.ports.values())


def _joined(ports: Iterable[int]) -> Iterator[int | str]:
    """Adjacent ones as ranges."""
    listed = sorted(ports)
    begin = 0
    for at in range(len(listed)):
        if at + 1 == len(listed) or listed[at + 1] != listed[at] + 1:
            yield listed[at] if at == begin else f"{listed[begin]}:{listed[at]}"
            begin = at + 1


def _free_name(selector: str, called: str, names: set[str]) -> str:
    """After the value of the first label, else the first pod; a name that Kubernetes accepts."""
    found = re.search(r"""== ['"]([^'"]+)['"]""", selector)
    base = re.sub(r"[^a-z0-9-]+", "-", (found.group(1) if found else called).lower()).strip("-")[:40].strip("-")
    name = wanted = f"recommended-{base or 'workload'}"
    number = 1
    while name in names:
        number += 1
        name = f"{wanted}-{number}"
    names.add(name)
    return name


def _sets_of(records: PolicyRecords) -> Iterator[SetOfNets]:
    """The networks of network sets."""
    for key, record in records.records.items():
        if isinstance(key, ResourceKey) and key.kind in _SETS and isinstance(record, Resource):
            labels = stable_labels(record.metadata.labels)
            for text in record.spec.get("nets") or ():
                try:
                    yield ip_network(text, strict=False), key.namespace, labels
                except ValueError:
                    continue  # the graph says what is wrong with it
