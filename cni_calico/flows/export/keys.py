"""PURE: what flows are counted by, as upstream's collector names it: both ends, the port, and the policy that decided.

Rule: nothing is guessed. A side whose end is neither a workload of this node nor the host itself has no key, nor has a
decision that no policy made; the host is an end of this kind where its host endpoint has decided. A hit of a kind that
the collector does not know is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Network, ip_address
from typing import Any, NamedTuple

from cni_calico.flows.deciders import END, FIRST, REFUSED, Decider
from cni_calico.flows.names import EndName
from cni_calico.flows.network_sets import SetOf
from cni_calico.flows.packets import ICMP, ICMPV6
from cni_calico.flows.query import PROTOCOLS
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.services import ServiceOf

NONE = "-"
PRIVATE, PUBLIC = "pvt", "pub"
NO_MATCH = "__NO_MATCH__"
_MOST_MADE = 20_000
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))


class EndType(IntEnum):
    WORKLOAD = 1
    HOST = 2
    NETWORK_SET = 3
    NETWORK = 4


class ReportingSide(IntEnum):
    SOURCE = 1
    DESTINATION = 2


class FlowAction(IntEnum):
    ALLOW = 1
    DENY = 2
    PASS = 3


class HitKind(IntEnum):
    CALICO = 1
    GLOBAL = 2
    STAGED = 3
    STAGED_GLOBAL = 4
    STAGED_KUBERNETES = 5
    KUBERNETES = 6
    PROFILE = 9
    END_OF_TIER = 10
    CLUSTER = 11


KINDS = {
    "NetworkPolicy": HitKind.CALICO,
    "GlobalNetworkPolicy": HitKind.GLOBAL,
    "StagedNetworkPolicy": HitKind.STAGED,
    "StagedGlobalNetworkPolicy": HitKind.STAGED_GLOBAL,
    "StagedKubernetesNetworkPolicy": HitKind.STAGED_KUBERNETES,
    "KubernetesNetworkPolicy": HitKind.KUBERNETES,
    "KubernetesClusterNetworkPolicy": HitKind.CLUSTER,
    "Profile": HitKind.PROFILE,
}


class PolicyHit(NamedTuple):
    """``rule``: from 0; -1: none of its rules."""

    kind: HitKind
    namespace: str
    name: str
    tier: str
    action: FlowAction | None
    rule: int
    trigger: PolicyHit | None = None


class FlowEnd(NamedTuple):
    type: EndType
    namespace: str
    name: str


class ExportedService(NamedTuple):
    """``port_name``: NONE if it has none. ``port``: to which connections are sent."""

    namespace: str
    name: str
    port_name: str
    port: int


class ExportKey(NamedTuple):
    """``port`` is 0 for ICMP. ``pending``: the hits with the staged policies, () if there are none. ``service``: to
    which it was sent, as far as that is known.
    """

    source: FlowEnd
    destination: FlowEnd
    port: int
    protocol: str
    reporter: ReportingSide
    action: FlowAction
    hits: tuple[PolicyHit, ...]
    pending: tuple[PolicyHit, ...] = ()
    service: ExportedService | None = None


def hit_of(decider: Decider) -> PolicyHit | None:
    """None for a policy of a kind that the collector does not know."""
    action = FlowAction.ALLOW if decider.action == "Allow" else FlowAction.DENY
    if decider.index == END and not decider.tier:
        return PolicyHit(HitKind.PROFILE, "", NO_MATCH, "", action, 0)
    kind = KINDS.get(decider.kind)
    if kind is None:
        return None
    if decider.index == END:
        last = PolicyHit(kind, decider.namespace, decider.name, decider.tier, None, 0)
        return PolicyHit(HitKind.END_OF_TIER, "", "", decider.tier, action, -1, last)
    index = -1 if decider.index == REFUSED else decider.index
    return PolicyHit(kind, decider.namespace, decider.name, decider.tier, action, index)


@lru_cache(maxsize=10_000)
def network_of(address: bytes) -> FlowEnd:
    """What an address is called that nobody here has."""
    found = ip_address(address)
    private = found.version == 4 and any(found in network for network in _PRIVATE)
    return FlowEnd(EndType.NETWORK, NONE, PRIVATE if private else PUBLIC)


def hits_of(decider: Decider, passed: Iterable[Mapping[str, Any]]) -> tuple[PolicyHit, ...]:
    """Those that acted, in order; ``passed``: the steps before it, as documents have them. None at all if the policy
    that decided is of a kind that the collector does not know.
    """
    last = hit_of(decider)
    if last is None:
        return ()
    return (*filter(None, map(_pass_hit, passed)), last)


def _pass_hit(step: Mapping[str, Any]) -> PolicyHit | None:
    if step.get("endOfTier"):
        return PolicyHit(HitKind.END_OF_TIER, "", "", step["tier"], FlowAction.PASS, -1)
    kind = KINDS.get(step["kind"])
    if kind is None:
        return None
    return PolicyHit(kind, step["namespace"], step["name"], step["tier"], FlowAction.PASS, step["rule"])


PendingOf = Callable[[FlowRecord, bool], tuple[Decider, Iterable[Mapping[str, Any]]] | None]


class DecidedSide(NamedTuple):
    """``by_host``: it is the host's own."""

    reporter: ReportingSide
    decider: Decider
    denied: bool
    by_host: bool


class KeyMaker:
    """``decider_of``, ``name_of``: what numbers stand for, None if unknown; ``shared``: what a workload's name is for
    others. ``passed_by``: the steps that passed a connection on before that decided, None if nobody knows. ``is_here``:
    whether the address of an end that has a name is one of this node's; others' sides are told by their own nodes.
    ``pending``: what would decide about a side (ingress: True) with the staged policies, and the steps before it.
    ``set_of``: the network set in which an address is that has no name, for somebody in a namespace.
    ``service_of``: the service to which a connection was sent. ``host_of``: the node's name for an address of the
    host itself, "" for others, and for all where what host endpoints decide is not told.
    """

    def __init__(
        self,
        decider_of: Callable[[int], Decider | None],
        name_of: Callable[[int], EndName | None],
        shared: Callable[[EndName], str],
        passed_by: Callable[[FlowRecord, Decider], Iterable[Mapping[str, Any]] | None] = lambda record, decider: None,
        is_here: Callable[[bytes], bool] = lambda address: True,
        pending: PendingOf = lambda record, ingress: None,
        set_of: SetOf = lambda address, namespace: None,
        service_of: ServiceOf = lambda record: None,
        host_of: Callable[[bytes], str] = lambda address: "",
    ) -> None:
        self._decider_of, self._name_of, self._shared, self._is_here = decider_of, name_of, shared, is_here
        self._passed_by, self._pending, self._set_of, self._service_of = passed_by, pending, set_of, service_of
        self._host_of = host_of
        self._made: dict[tuple[object, ...], tuple[ExportKey, ...]] = {}

    def forget(self) -> None:
        """Names, or the rules in force, may be others now."""
        self._made.clear()

    def keys(self, record: FlowRecord) -> tuple[ExportKey, ...]:
        """One for each side that decided here, the source's first."""
        ends = record.source_end or record.source, record.destination_end or record.destination
        here = self._is_here(record.source), self._is_here(record.destination)
        hosts = self._host_names(record)
        decided = record.egress, record.ingress, record.denied_by, record.denied
        service = self._service(record)
        asked = *ends, *here, *hosts, record.dport, record.protocol, *decided, service
        made = self._made.get(asked)
        if made is None:
            made = self._make(record, service, hosts)
            if all(number < FIRST or self._decider_of(number) for number in record.numbers()):
                if len(self._made) >= _MOST_MADE:
                    self._made.clear()
                self._made[asked] = made
        return made

    def _service(self, record: FlowRecord) -> ExportedService | None:
        found = self._service_of(record)
        if found is None:
            return None
        return ExportedService(found.namespace, found.name, found.port or NONE, record.asked_port)

    def hosts(self, record: FlowRecord) -> tuple[str, str]:
        """What the host is called as its source and as its destination, "" where that is not the host."""
        names = self._host_names(record)
        decided = {one.reporter for one in self._sides(record, names) if one.by_host} if any(names) else ()
        return names[0] * (ReportingSide.SOURCE in decided), names[1] * (ReportingSide.DESTINATION in decided)

    def _host_names(self, record: FlowRecord) -> tuple[str, str]:
        """A workload's address is no host's."""
        return (
            "" if record.source_end else self._host_of(record.source),
            "" if record.destination_end else self._host_of(record.destination),
        )

    def _sides(self, record: FlowRecord, hosts: tuple[str, str]) -> list[DecidedSide]:
        """The source's first. ``hosts``: as ``_host_names``."""
        denier = self._decider_of(record.denied_by) if record.denied else None
        sides = []
        if hosts[0] or (self._name_of(record.source_end) is not None and self._is_here(record.source)):
            out = denier if denier is not None and not denier.ingress else self._allowing(record.egress)
            if out is not None and not out.ingress:
                sides.append(DecidedSide(ReportingSide.SOURCE, out, out is denier, bool(hosts[0])))
        here = hosts[1] or (self._name_of(record.destination_end) is not None and self._is_here(record.destination))
        if here and (not record.denied or denier is not None):
            into = denier if denier is not None else self._allowing(record.ingress)
            if into is not None and into.ingress:
                sides.append(DecidedSide(ReportingSide.DESTINATION, into, into is denier, bool(hosts[1])))
        return sides

    def _make(
        self, record: FlowRecord, service: ExportedService | None, hosts: tuple[str, str]
    ) -> tuple[ExportKey, ...]:
        source, destination = self._name_of(record.source_end), self._name_of(record.destination_end)
        sides = self._sides(record, hosts)
        if not sides:
            return ()
        named = self.hosts(record) if any(hosts) else hosts
        ends = [
            FlowEnd(EndType.HOST, NONE, host) if host else self._end(name, address, other)
            for host, name, address, other in (
                (named[0], source, record.source, destination),
                (named[1], destination, record.destination, source),
            )
        ]
        port = 0 if record.protocol in (ICMP, ICMPV6) else record.dport
        protocol = PROTOCOLS.get(record.protocol, str(record.protocol))
        made = []
        for one in sides:
            hits = hits_of(one.decider, self._passed_by(record, one.decider) or ())
            action = FlowAction.DENY if one.denied else FlowAction.ALLOW
            would = self._pending(record, one.reporter is ReportingSide.DESTINATION)
            pending = () if would is None else hits_of(*would)
            made.append(ExportKey(ends[0], ends[1], port, protocol, one.reporter, action, hits, pending, service))
        return tuple(made)

    def _allowing(self, number: int) -> Decider | None:
        return self._decider_of(number) if number else None

    def _end(self, name: EndName | None, address: bytes, other: EndName | None) -> FlowEnd:
        """``other``: who talks with it."""
        if name is not None:
            return FlowEnd(EndType.WORKLOAD, name.namespace or NONE, self._shared(name))
        within = self._set_of(address, "" if other is None else other.namespace)
        if within is None:
            return network_of(address)
        return FlowEnd(EndType.NETWORK_SET, within.namespace or NONE, within.name)
