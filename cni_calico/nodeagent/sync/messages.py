"""What is in force as messages of policy sync and of drivers (felix.proto), each as its bytes.

Rule: whoever judges by the messages judges as the packet filter does; what a rule asks of requests and identities comes
with it as it is written. A text that is not UTF-8, as JSON may have it, becomes one that equals nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Address
from itertools import islice, zip_longest
from typing import Any

from google.protobuf.message import DecodeError

from cni_calico.model.selectors import Labels
from cni_calico.policy.rules import PROTOCOLS
from cni_calico.policy.wanted import (
    PORT_SET,
    UNLIMITED,
    Action,
    Members,
    Packed,
    PeerTexts,
    PolicyId,
    SetChange,
    WantedClass,
    WantedEndpoint,
    WantedPolicy,
    WantedRule,
    WantedTier,
)
from cni_calico.slim_grpc import slim_messages

with slim_messages():
    from cni_calico.nodeagent.sync import felix_pb2 as pb

MOST_MEMBERS = 82_200  # of a message: the longest ones are just below the 4 MiB that gRPC's clients accept
PROFILE = "Profile"
_ACTIONS: Mapping[Action, str] = {"Allow": "allow", "Deny": "deny", "Pass": "next-tier", "Log": "log"}
_NAMES = {number: name for name, number in PROTOCOLS.items()}


def parse_request(data: bytes) -> None:
    """A SyncRequest, which has no content. Raises ValueError."""
    _parse(pb.SyncRequest, data)


def parse_report(data: bytes) -> None:
    """A report of what a reader has counted, of which nothing is used. Raises ValueError."""
    _parse(pb.DataplaneStats, data)


def _parse(kind: Any, data: bytes) -> None:
    try:
        kind.FromString(data)
    except DecodeError as e:
        raise ValueError(f"it is no message: {e}") from e


def encode_receipt() -> bytes:
    """The answer to a report."""
    data: bytes = pb.ReportResult(successful=True).SerializeToString()
    return data


def encode_in_sync() -> bytes:
    return encode_envelope(in_sync=pb.InSync())


# -- sets -------------------------------------------------------------------------------------------------------------


def encode_set(name: str, members: Members) -> Iterator[bytes]:
    """The whole set; what is too much for one message follows as changes."""
    kind = pb.IPSetUpdate.IP_AND_PORT if name.startswith(PORT_SET) else pb.IPSetUpdate.NET
    texts = _texts_of(members)
    first = list(islice(texts, MOST_MEMBERS))
    yield encode_envelope(ipset_update=pb.IPSetUpdate(id=name, type=kind, members=first))
    while more := list(islice(texts, MOST_MEMBERS)):
        yield encode_envelope(ipset_delta_update=pb.IPSetDeltaUpdate(id=name, added_members=more))


def encode_set_change(name: str, change: SetChange) -> Iterator[bytes]:
    """What goes comes first, so that a reader never has more than it should."""
    for field, members in (("removed_members", change.removed), ("added_members", change.added)):
        texts = _texts_of(members)
        while some := list(islice(texts, MOST_MEMBERS)):
            yield encode_envelope(ipset_delta_update=pb.IPSetDeltaUpdate(id=name, **{field: some}))


def encode_set_removal(name: str) -> bytes:
    return encode_envelope(ipset_remove=pb.IPSetRemove(id=name))


def _texts_of(members: Members) -> Iterator[str]:
    for address in members.addresses:
        yield f"{render_address(address)}/{8 * len(address)}"
    for address, prefix in members.nets:
        yield f"{render_address(address)}/{prefix}"
    for address, protocol, port in members.ports:
        yield f"{render_address(address)},{_NAMES.get(protocol, protocol)}:{port}"


def render_address(packed: Packed) -> str:
    """As people write it."""
    if len(packed) == 4:  # three times as fast as IPv4Address
        return f"{packed[0]}.{packed[1]}.{packed[2]}.{packed[3]}"
    return str(IPv6Address(packed))


# -- policies and profiles --------------------------------------------------------------------------------------------


def encode_policy(wanted: WantedPolicy) -> bytes:
    """A policy or a profile."""
    inbound, outbound = _rules(wanted.ingress), _rules(wanted.egress)
    if wanted.id.kind == PROFILE:
        profile = pb.Profile(inbound_rules=inbound, outbound_rules=outbound)
        return encode_envelope(active_profile_update=pb.ActiveProfileUpdate(id=_profile_id(wanted.id), profile=profile))
    policy = pb.Policy(
        inbound_rules=inbound,
        outbound_rules=outbound,
        untracked=wanted.reach == "raw",
        pre_dnat=wanted.reach == "beforeNat",
        namespace=utf8(wanted.id.namespace),
        tier=utf8(wanted.tier),
    )
    return encode_envelope(active_policy_update=pb.ActivePolicyUpdate(id=_policy_id(wanted.id), policy=policy))


def encode_policy_removal(policy: PolicyId) -> bytes:
    if policy.kind == PROFILE:
        return encode_envelope(active_profile_remove=pb.ActiveProfileRemove(id=_profile_id(policy)))
    return encode_envelope(active_policy_remove=pb.ActivePolicyRemove(id=_policy_id(policy)))


def _policy_id(policy: PolicyId) -> Any:
    return pb.PolicyID(name=utf8(policy.name), namespace=utf8(policy.namespace), kind=policy.kind)


def _profile_id(profile: PolicyId) -> Any:
    return pb.ProfileID(name=utf8(profile.name))


def _rules(rules: Iterable[WantedRule] | None) -> list[Any]:
    """Without those that exist in neither family."""
    return [_rule(rule) for rule in rules or () if rule.families]


def _rule(rule: WantedRule) -> Any:
    source, destination = rule.source, rule.destination
    message = pb.Rule(
        action=_ACTIONS[rule.action],
        ip_version=pb.IPVersion.Name(rule.families[0]) if len(rule.families) == 1 else pb.ANY,
        src_net=map(str, source.nets),
        src_ports=_ports(source.ports),
        src_named_port_ip_set_ids=source.port_sets,
        src_ip_set_ids=source.sets,
        not_src_net=map(str, source.not_nets),
        not_src_ports=_ports(source.not_ports),
        not_src_ip_set_ids=source.not_sets,
        not_src_named_port_ip_set_ids=source.not_port_sets,
        dst_net=map(str, destination.nets),
        dst_ports=_ports(destination.ports),
        dst_named_port_ip_set_ids=destination.port_sets,
        dst_ip_set_ids=destination.sets,
        dst_ip_port_set_ids=destination.service_sets,
        not_dst_net=map(str, destination.not_nets),
        not_dst_ports=_ports(destination.not_ports),
        not_dst_ip_set_ids=destination.not_sets,
        not_dst_named_port_ip_set_ids=destination.not_port_sets,
    )
    if rule.protocol is not None:
        message.protocol.number = rule.protocol
    if rule.not_protocol is not None:
        message.not_protocol.number = rule.not_protocol
    for icmp, field in ((rule.icmp, "icmp"), (rule.not_icmp, "not_icmp")):
        if icmp is not None:
            message.MergeFrom(_icmp(icmp, field))
    for texts, side in ((source.texts, "src"), (destination.texts, "dst")):
        if texts is not None:
            message.MergeFrom(_original(texts, side))
    if rule.http is not None:
        exact = [pb.HTTPMatch.PathMatch(exact=utf8(path)) for path in rule.http.exact]
        prefixes = [pb.HTTPMatch.PathMatch(prefix=utf8(path)) for path in rule.http.prefixes]
        message.http_match.methods.extend(map(utf8, rule.http.methods))
        message.http_match.paths.extend(exact + prefixes)
    for key, text in rule.annotations:
        message.metadata.annotations[utf8(key)] = utf8(text)
    return message


def _icmp(icmp: tuple[int, int | None], field: str) -> Any:
    kind, code = icmp
    found: dict[str, Any] = {f"{field}_type": kind}
    if code is not None:
        found = {f"{field}_type_code": pb.IcmpTypeAndCode(type=kind, code=code)}
    return pb.Rule(**found)


def _original(texts: PeerTexts, side: str) -> Any:
    found: dict[str, Any] = {
        f"original_{side}_selector": utf8(texts.selector),
        f"original_not_{side}_selector": utf8(texts.not_selector),
        f"original_{side}_namespace_selector": utf8(texts.namespace_selector),
        f"original_{side}_service": utf8(texts.service),
        f"original_{side}_service_namespace": utf8(texts.service_namespace),
    }
    if texts.accounts or texts.account_selector:
        names = list(map(utf8, texts.accounts))
        match = pb.ServiceAccountMatch(selector=utf8(texts.account_selector), names=names)
        found[f"{side}_service_account_match"] = match
    return pb.Rule(**found)


def _ports(ranges: Iterable[tuple[int, int]]) -> list[Any]:
    return [pb.PortRange(first=low, last=high) for low, high in ranges]


# -- workloads --------------------------------------------------------------------------------------------------------


def encode_endpoint(endpoint: WantedEndpoint, its: WantedClass) -> bytes:
    """``its``: the endpoint's class."""
    nets = [f"{render_address(address)}/{8 * len(address)}" for address in endpoint.addresses]
    message = pb.WorkloadEndpoint(
        state="active",
        name=endpoint.interface,
        mac=utf8(endpoint.mac),
        profile_ids=[utf8(profile.name) for profile in its.profiles],
        ipv4_nets=[net for net in nets if ":" not in net],
        ipv6_nets=[net for net in nets if ":" in net],
        tiers=encode_tiers(its.ingress, its.egress),
        allow_spoofed_source_prefixes=map(str, endpoint.spoofing),
    )
    if (endpoint.ingress_limits, endpoint.egress_limits) != (UNLIMITED, UNLIMITED):
        ingress, egress = endpoint.ingress_limits, endpoint.egress_limits
        controls = pb.QoSControls(
            ingress_packet_rate=ingress.packet_rate,
            egress_packet_rate=egress.packet_rate,
            ingress_packet_burst=ingress.packet_burst,
            egress_packet_burst=egress.packet_burst,
            ingress_max_connections=ingress.max_connections,
            egress_max_connections=egress.max_connections,
        )
        message.qos_controls.CopyFrom(controls)
    update = pb.WorkloadEndpointUpdate(id=_endpoint_id(endpoint), endpoint=message)
    return encode_envelope(workload_endpoint_update=update)


def encode_endpoint_removal(endpoint: WantedEndpoint) -> bytes:
    return encode_envelope(workload_endpoint_remove=pb.WorkloadEndpointRemove(id=_endpoint_id(endpoint)))


def _endpoint_id(endpoint: WantedEndpoint) -> Any:
    return pb.WorkloadEndpointID(
        orchestrator_id=utf8(endpoint.orchestrator),
        workload_id=utf8(endpoint.workload),
        endpoint_id=utf8(endpoint.endpoint),
    )


def encode_tiers(ingress: tuple[WantedTier, ...], egress: tuple[WantedTier, ...]) -> list[Any]:
    """Both directions' tiers as messages TierInfo."""
    return [_tier(*pair) for pair in _joined(ingress, egress)]


def _joined(
    ingress: tuple[WantedTier, ...], egress: tuple[WantedTier, ...]
) -> Iterator[tuple[WantedTier | None, WantedTier | None]]:
    """Both directions' tiers as one list that keeps the order of each: it is the same where both have a tier."""
    inward = {tier.name: place for place, tier in enumerate(ingress)}
    done = 0
    for tier in egress:
        place = inward.get(tier.name)
        if place is None:
            yield None, tier
            continue
        yield from zip_longest(ingress[done:place], ())
        yield ingress[place], tier
        done = place + 1
    yield from zip_longest(ingress[done:], ())


def _tier(ingress: WantedTier | None, egress: WantedTier | None) -> Any:
    tier = ingress or egress
    assert tier is not None
    return pb.TierInfo(
        name=utf8(tier.name),
        ingress_policies=map(_policy_id, ingress.policies if ingress else ()),
        egress_policies=map(_policy_id, egress.policies if egress else ()),
        default_action=tier.end,
    )


# -- the cluster's identities -----------------------------------------------------------------------------------------


def encode_namespace(name: str, labels: Labels | None) -> bytes:
    """``labels`` None: it is gone."""
    its = pb.NamespaceID(name=utf8(name))
    if labels is None:
        return encode_envelope(namespace_remove=pb.NamespaceRemove(id=its))
    return encode_envelope(namespace_update=pb.NamespaceUpdate(id=its, labels=_labels(labels)))


def encode_account(namespace: str, name: str, labels: Labels | None) -> bytes:
    """A ServiceAccount; ``labels`` None: it is gone."""
    its = pb.ServiceAccountID(namespace=utf8(namespace), name=utf8(name))
    if labels is None:
        return encode_envelope(service_account_remove=pb.ServiceAccountRemove(id=its))
    return encode_envelope(service_account_update=pb.ServiceAccountUpdate(id=its, labels=_labels(labels)))


def _labels(labels: Labels) -> dict[str, str]:
    return {utf8(key): utf8(value) for key, value in labels.items()}


def utf8(text: str) -> str:
    """A text as protobuf can have it."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def encode_envelope(**payload: Any) -> bytes:
    """A ToDataplane with this field of its payload."""
    data: bytes = pb.ToDataplane(**payload).SerializeToString(deterministic=True)
    return data
