"""PURE: the records of policy as values: tiers, policies, profiles, network sets, and everything that has labels.

Rule: a value has everything that the calculation needs from a record and nothing else, so the record can be dropped. A
record that cannot be understood raises Wrong; the graph decides what happens then. Staged kinds have no value here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, get_args

from cni_calico.model.documents.fields import (
    JSON,
    Wrong,
    parse_bool,
    parse_object,
    parse_objects,
    parse_text,
    parse_text_map,
    without_zone,
)
from cni_calico.model.documents.fields import parse_texts as parse_text_list
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.nodes import NODE_ADDRESSES, inherited_labels
from cni_calico.model.names import IFNAME_MAX, valid_policed_ifname
from cni_calico.model.resources import Network, Resource, WorkloadEndpoint
from cni_calico.model.selector_forms import NAMESPACE, ORCHESTRATOR, SERVICE_ACCOUNT
from cni_calico.model.selectors import InvalidSelector, Selector
from cni_calico.policy.packed_nets import parse_packed_nets
from cni_calico.policy.rules import PROTOCOLS, SetSources, parse_rules, parsing_rules
from cni_calico.policy.sources import ACCOUNT_PREFIX, NAMESPACE_PREFIX, SetSource, policy_selecting
from cni_calico.policy.steps import Steps, finish
from cni_calico.policy.wanted import (
    UNLIMITED,
    EndAction,
    PackedNet,
    PackedPort,
    PacketLimits,
    PolicyId,
    PolicyKind,
    PolicyReach,
    WantedPolicy,
)

DEFAULT_TIER = "default"
LAST = math.inf  # the order of records without one
HINT_EVERYWHERE = "AssumeNeededOnEveryNode"
_KINDS: Mapping[str, PolicyKind] = {kind: kind for kind in get_args(PolicyKind)}
HTTP_WARNING = (
    "its http matches are not the packet filter's: where nobody checks requests, the rules that have them allow by "
    "addresses and ports alone"
)
POLICY_KINDS = tuple(kind for kind in _KINDS if kind != "Profile")
_DIRECTIONS = ("Ingress", "Egress")
_BURST = 5
_INHERITED = (NAMESPACE_PREFIX, ACCOUNT_PREFIX)  # labels that only profiles give


@dataclass(frozen=True, slots=True)
class TierRecord:
    name: str
    order: float = LAST
    end: EndAction = "Deny"


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """``hint``: keep it on every node.

    ``sources``: the sets that its rules name. ``warnings``: in words, what is not as its author may think.
    """

    wanted: WantedPolicy
    order: float
    selector: Selector = field(compare=False)
    sources: Mapping[str, SetSource] = field(compare=False)
    hint: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def id(self) -> PolicyId:
        return self.wanted.id

    @property
    def rank(self) -> tuple[float, str]:
        """The policy's place within its tier."""
        return self.order, f"{self.id.name}/{self.id.namespace}/{self.id.kind}"


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """A profile's rules, and the labels that it gives to its endpoints. ``warnings``: as of a policy."""

    wanted: WantedPolicy
    labels: Mapping[str, str]
    sources: Mapping[str, SetSource] = field(compare=False)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedPort:
    name: str
    protocol: int
    port: int


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a selector can select: an endpoint of any node, a host endpoint, a network set.

    ``labels`` are its own, ``profiles`` the profiles from which it inherits more, in order.
    """

    labels: frozenset[tuple[str, str]]
    profiles: tuple[str, ...] = ()
    addresses: tuple[bytes, ...] = ()
    nets: tuple[PackedNet, ...] = ()
    ports: tuple[NamedPort, ...] = ()

    def with_labels(self, labels: frozenset[tuple[str, str]], profiles: tuple[str, ...]) -> Labelled:
        return Labelled(labels, profiles, self.addresses, self.nets, self.ports)


def packed(nets: tuple[Network, ...]) -> tuple[tuple[bytes, ...], tuple[PackedNet, ...]]:
    """(single addresses, wider networks), each once."""
    single = {net.network_address.packed: None for net in nets if net.prefixlen == net.max_prefixlen}
    wide = {(net.network_address.packed, net.prefixlen): None for net in nets if net.prefixlen < net.max_prefixlen}
    return tuple(single), tuple(wide)


# -- tiers, policies, profiles ----------------------------------------------------------------------------------------


def _parse_order(raw: Any, at: str) -> float:
    if raw is None:
        return LAST
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        raise Wrong(at, "a number", raw)
    try:
        order = float(raw)
    except OverflowError:
        order = math.inf
    if not math.isfinite(order):
        raise Wrong(at, "a number", raw)
    return order


def parse_tier(resource: Resource) -> TierRecord:
    order = _parse_order(resource.spec.get("order"), "spec.order")
    return TierRecord(resource.metadata.name, order, "Pass" if resource.spec.get("defaultAction") == "Pass" else "Deny")


def policy_id(key: ResourceKey) -> PolicyId:
    """Of a policy's key."""
    return PolicyId(_KINDS[key.kind], key.name, key.namespace)


def parse_policy(key: ResourceKey, resource: Resource) -> PolicyRecord:
    """A policy of any enforced kind. Raises Wrong."""
    return finish(parsing_policy(key, resource))


def parsing_policy(key: ResourceKey, resource: Resource) -> Steps[PolicyRecord]:
    """As ``parse_policy``, a rule at each step."""
    spec = resource.spec
    sources: SetSources = {}
    identity = policy_id(key)
    texts = {
        name: parse_text(spec.get(name) or "", f"spec.{name}")
        for name in ("tier", "selector", "namespaceSelector", "serviceAccountSelector")
    }
    try:
        selector = yield from policy_selecting(
            texts["selector"], texts["namespaceSelector"], texts["serviceAccountSelector"], key.namespace
        )
    except InvalidSelector as e:
        raise Wrong("spec", f"selectors that can be read ({e})", texts["selector"]) from e
    types = _parse_types(spec.get("types"))
    ingress = yield from parsing_rules(spec.get("ingress"), "spec.ingress", key.namespace, "ingress", sources)
    egress = yield from parsing_rules(spec.get("egress"), "spec.egress", key.namespace, "egress", sources)
    reach = _parse_reach(identity, spec)
    wanted = WantedPolicy(
        identity,
        texts["tier"] or DEFAULT_TIER,
        ingress if "Ingress" in types else None,
        egress if "Egress" in types and reach != "beforeNat" else None,
        reach,
    )
    if (ingress and wanted.ingress is None) or (egress and wanted.egress is None):  # their sets are not needed
        used = {name for rule in wanted.rules() for name in rule.set_ids()}
        sources = {name: source for name, source in sources.items() if name in used}
    return PolicyRecord(
        wanted,
        _parse_order(spec.get("order"), "spec.order"),
        selector,
        sources,
        hint=HINT_EVERYWHERE in parse_text_list(spec.get("performanceHints") or (), "spec.performanceHints"),
        warnings=_http_warnings(wanted) + _untyped_warnings(wanted, spec.get("types")),
    )


def _flag(spec: JSON, name: str) -> bool:
    return spec.get(name) is not None and parse_bool(spec[name], f"spec.{name}")


def _parse_reach(policy: PolicyId, spec: JSON) -> PolicyReach:
    """The policy with its fields doNotTrack, preDNAT and applyOnForward, which only global policies have; combinations
    that upstream's agent refuses are refused here too.
    """
    if policy.kind != "GlobalNetworkPolicy":
        return "own"
    untracked, before_nat, forward = (_flag(spec, name) for name in ("doNotTrack", "preDNAT", "applyOnForward"))
    if untracked and before_nat:
        raise Wrong("spec.preDNAT", "not given together with doNotTrack", True)
    if (untracked or before_nat) and not forward:
        raise Wrong("spec.applyOnForward", f"true where {'preDNAT' if before_nat else 'doNotTrack'} is", False)
    if before_nat and (spec.get("egress") or "Egress" in (spec.get("types") or ())):
        raise Wrong("spec.preDNAT", "a policy without egress: it concerns incoming packets only", True)
    if untracked:
        return "raw"
    return "beforeNat" if before_nat else "forward" if forward else "own"


def _parse_types(raw: Any) -> tuple[str, ...]:
    """A record stored without types governs both directions."""
    types = parse_text_list(raw or (), "spec.types")
    for i, item in enumerate(types):
        if item not in _DIRECTIONS:
            raise Wrong(f"spec.types[{i}]", " or ".join(_DIRECTIONS), item)
    return types or _DIRECTIONS


def _http_warnings(wanted: WantedPolicy) -> tuple[str, ...]:
    if not any(rule.http for rule in wanted.rules()):
        return ()
    return (HTTP_WARNING,)


def _untyped_warnings(wanted: WantedPolicy, types: Any) -> tuple[str, ...]:
    """Of a policy that says nothing about a direction, not even that it governs it."""
    silent = [name for name, rules in (("ingress", wanted.ingress), ("egress", wanted.egress)) if rules == ()]
    if types or not silent:
        return ()
    return (f"it has no types, so it governs ingress and egress: without rules for {' and '.join(silent)}",)


def parse_profile(key: ResourceKey, resource: Resource) -> ProfileRecord:
    sources: SetSources = {}
    spec = resource.spec
    ingress = parse_rules(spec.get("ingress"), "spec.ingress", "", "ingress", sources)
    egress = parse_rules(spec.get("egress"), "spec.egress", "", "egress", sources)
    labels = parse_text_map(spec.get("labelsToApply") or {}, "spec.labelsToApply")
    wanted = WantedPolicy(PolicyId("Profile", key.name), "", ingress, egress)
    return ProfileRecord(wanted, labels, sources, _http_warnings(wanted))


# -- what has labels --------------------------------------------------------------------------------------------------


def require_interface(record: WorkloadEndpoint) -> None:
    """Raises Wrong for an interface name that the kernel cannot have, or that nft would list as a pattern."""
    name = record.interface_name
    if name and not valid_policed_ifname(name):
        raise Wrong("spec.interfaceName", f"the name of an interface: at most {IFNAME_MAX} characters", name)


def takes_part(record: WorkloadEndpoint) -> bool:
    """An endpoint without addresses or without an interface does not count."""
    return bool(record.ip_networks and record.interface_name)


def labelled_workload(record: WorkloadEndpoint) -> Labelled | None:
    """None for an endpoint that does not count."""
    if not takes_part(record):
        return None
    addresses, nets = packed(record.ip_networks)
    found = (named_port(port.name, port.protocol, port.port) for port in record.ports)
    ports = tuple(port for port in found if port is not None)
    return Labelled(labels_of_workload(record), record.profiles, addresses, nets, ports)


def labels_of_workload(record: WorkloadEndpoint) -> frozenset[tuple[str, str]]:
    """Its own."""
    metadata = record.metadata
    own = own_labels(metadata.labels, metadata.namespace, record.orchestrator, record.service_account)
    return frozenset(own.items())


def own_labels(labels: Mapping[str, str], namespace: str, orchestrator: str, account: str) -> dict[str, str]:
    """Of a workload's endpoint: without those that only profiles give, and what the endpoint says itself counts."""
    own = {name: value for name, value in labels.items() if name != SERVICE_ACCOUNT and not name.startswith(_INHERITED)}
    own[NAMESPACE] = namespace
    if orchestrator:
        own[ORCHESTRATOR] = orchestrator
    if account:
        own[SERVICE_ACCOUNT] = account
    return own


def named_port(name: str, protocol: str, port: int) -> NamedPort | None:
    """None for a port that no rule can name."""
    number = PROTOCOLS.get(protocol.lower()) or (int(protocol) if len(protocol) <= 3 and protocol.isdecimal() else 0)
    return NamedPort(name, number, port) if name and 0 < number < 256 and 0 < port < 65536 else None


def labelled_node(document: JSON) -> Labelled:
    """A node by its labels in Kubernetes, and all addresses that Kubernetes knows of it. A text there may also be a
    name. Raises Wrong.
    """
    spec = parse_object(document.get("spec") or {}, "spec")
    addresses: dict[bytes, None] = {}
    for entry in parse_objects(spec.get("addresses") or (), "spec.addresses"):
        if entry.get("type") in NODE_ADDRESSES:
            try:
                addresses[ip_address(without_zone(str(entry.get("address")))).packed] = None
            except ValueError:
                continue
    return Labelled(frozenset(inherited_labels(document).items()), addresses=tuple(addresses))


def labelled_network_set(key: ResourceKey, resource: Resource) -> Labelled:
    """Whoever may write in one namespace cannot give a set the labels of another one, or make it look like a pod.
    Raises Wrong.
    """
    labels = dict(resource.metadata.labels)
    profiles: tuple[str, ...] = ()
    if key.namespace:
        labels = {name: value for name, value in labels.items() if not name.startswith(_INHERITED)}
        for name in (ORCHESTRATOR, SERVICE_ACCOUNT):
            labels.pop(name, None)
        labels[NAMESPACE] = key.namespace
        profiles = (f"kns.{key.namespace}",)
    addresses, nets = parse_packed_nets(resource.spec.get("nets"), "spec.nets")
    return Labelled(frozenset(labels.items()), profiles, addresses, nets)


# -- services ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServiceMembers:
    """One EndpointSlice's part of a service. ``ports``: (address, protocol, port)."""

    namespace: str
    name: str
    addresses: frozenset[bytes]
    ports: frozenset[PackedPort]


# -- limits -----------------------------------------------------------------------------------------------------------


def packet_limits(record: WorkloadEndpoint, direction: str) -> PacketLimits:
    """``direction`` is "ingress" or "egress". A value that is not a number means no limit: a typo must not cut a pod
    off.
    """
    controls = record.qos_controls
    if not controls:
        return UNLIMITED
    found = [_positive(controls.get(f"{direction}{name}")) for name in ("PacketRate", "PacketBurst", "MaxConnections")]
    rate, burst, connections = found
    return PacketLimits(rate, (burst or _BURST) if rate else None, connections)


def _positive(raw: object) -> int | None:
    return raw if type(raw) is int and 0 < raw < 1 << 32 else None
