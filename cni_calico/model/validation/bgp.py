"""PURE: rules for BGP peers, BGP configuration and BGP filters.

Rule: each function checks one kind's spec and records in the report what is wrong. Source: upstream's validation.
"""

from __future__ import annotations

import re
from typing import Any

from cni_calico.model.validation.report import SEVERITIES, SWITCH, Report, Spec

_COMMUNITY = re.compile(r"(\d{1,10}):(\d{1,10})(?::(\d{1,10}))?")
_PORT_DIGITS = 5
_PRIORITY_MAX = (1 << 31) - 2


def _check_port(report: Report, at: str, raw: Any) -> None:
    report.number(at, raw, 1, 65535)


def _check_password(report: Report, at: str, raw: Any) -> None:
    if raw is None:
        return
    reference = report.object(f"{at}.secretKeyRef", report.object(at, raw).get("secretKeyRef"))
    for field in ("name", "key"):
        if not reference.get(field):
            report.wrong(f"{at}.secretKeyRef.{field}", reference.get(field), "must be given")


def valid_community(text: object) -> bool:
    """Whether a text is aa:nn with 16-bit numbers, or aa:nn:mm with 32-bit numbers."""
    match = _COMMUNITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return False
    parts = [int(part) for part in match.groups() if part is not None]
    return max(parts) < (1 << 16 if len(parts) == 2 else 1 << 32)


# -- peers ------------------------------------------------------------------------------------------------------------


def check_peer(report: Report, spec: Spec) -> None:
    peer_ip = report.string("spec.peerIP", spec.get("peerIP"))
    if peer_ip:
        _check_peer_ip(report, peer_ip)
    for field in ("nodeSelector", "peerSelector", "localWorkloadSelector"):
        report.selector(f"spec.{field}", spec.get(field))
    for field, others in (
        ("nodeSelector", ("node",)),
        ("peerSelector", ("peerIP", "asNumber")),
        ("localWorkloadSelector", ("peerIP", "peerSelector")),
    ):
        for other in others:
            if spec.get(field) and spec.get(other):
                report.wrong(f"spec.{field}", spec[field], f"cannot be given together with {other}")
    if not peer_ip and not spec.get("peerSelector") and not spec.get("localWorkloadSelector"):
        report.wrong("spec.peerIP", spec.get("peerIP"), "either peerIP or peerSelector must be given")
    if spec.get("localWorkloadSelector") and not spec.get("asNumber"):
        report.wrong("spec.asNumber", spec.get("asNumber"), "must be given together with localWorkloadSelector")
    if spec.get("keepOriginalNextHop") is True and spec.get("nextHopMode"):
        report.wrong(
            "spec.keepOriginalNextHop", True, "is the older form of nextHopMode and cannot be given together with it"
        )
    if spec.get("reachableBy") and not peer_ip:
        report.wrong("spec.reachableBy", spec["reachableBy"], "has no meaning without peerIP")
    if peer_ip and not spec.get("asNumber"):
        report.odd("spec.asNumber", spec.get("asNumber"), "must be given unless the peer is a node of this cluster")
    report.as_number("spec.asNumber", spec.get("asNumber"))
    report.as_number("spec.localASNumber", spec.get("localASNumber"))
    report.choice("spec.sourceAddress", spec.get("sourceAddress"), ("UseNodeIP", "None"))
    report.choice("spec.nextHopMode", spec.get("nextHopMode"), ("Auto", "Self", "Keep"))
    report.choice("spec.reversePeering", spec.get("reversePeering"), ("Auto", "Manual"))
    report.boolean("spec.keepOriginalNextHop", spec.get("keepOriginalNextHop"))
    for field in ("maxRestartTime", "keepaliveTime"):
        report.duration(f"spec.{field}", spec.get(field))
    report.number("spec.numAllowedLocalASNumbers", spec.get("numAllowedLocalASNumbers"), 0, (1 << 31) - 1)
    report.number("spec.ttlSecurity", spec.get("ttlSecurity"), 0, 255)
    if spec.get("reachableBy"):
        gateway = report.address("spec.reachableBy", spec["reachableBy"])
        if gateway is not None and peer_ip and (gateway.version == 6) != (peer_ip.count(":") > 1):
            report.wrong("spec.reachableBy", spec["reachableBy"], "must be of the family of peerIP")
    _check_password(report, "spec.password", spec.get("password"))
    for i, name in enumerate(report.list("spec.filters", spec.get("filters"))):
        report.name(f"spec.filters[{i}]", name)


def _check_peer_ip(report: Report, text: str) -> None:
    """An address, "<IPv4>:<port>" or "[<IPv6>]:<port>"."""
    address, port = text, ""
    if text.startswith("["):
        address, _, port = text[1:].partition("]:")
    elif text.count(":") == 1:
        address, _, port = text.partition(":")
    found = Report("")
    found.address("", address)
    if port or address != text:
        found.number("", int(port) if port.isdecimal() and len(port) <= _PORT_DIGITS else port, 1, 65535)
    if found.problems:
        report.wrong("spec.peerIP", text, "must be an IP address, optionally as <IPv4>:<port> or [<IPv6>]:<port>")


# -- configuration ----------------------------------------------------------------------------------------------------


def check_configuration(report: Report, spec: Spec, name: str) -> None:
    report.choice("spec.logSeverityScreen", spec.get("logSeverityScreen"), SEVERITIES)
    report.boolean("spec.nodeToNodeMeshEnabled", spec.get("nodeToNodeMeshEnabled"))
    report.as_number("spec.asNumber", spec.get("asNumber"))
    _check_port(report, "spec.listenPort", spec.get("listenPort"))
    report.choice("spec.bindMode", spec.get("bindMode"), ("None", "NodeIP"))
    report.duration("spec.nodeMeshMaxRestartTime", spec.get("nodeMeshMaxRestartTime"))
    for field in ("serviceLoadBalancerAggregation", "programClusterRoutes"):
        report.choice(f"spec.{field}", spec.get(field), SWITCH)
    for version in (4, 6):
        field = f"ipv{version}NormalRoutePriority"
        report.number(f"spec.{field}", spec.get(field), 1, 2147483646)
        field = f"localWorkloadPeeringIPV{version}"
        if spec.get(field):
            report.address(f"spec.{field}", spec[field], version)
    _check_password(report, "spec.nodeMeshPassword", spec.get("nodeMeshPassword"))
    for field in ("serviceClusterIPs", "serviceExternalIPs", "serviceLoadBalancerIPs"):
        for i, block in enumerate(report.list(f"spec.{field}", spec.get(field))):
            at = f"spec.{field}[{i}]"
            report.network(f"{at}.cidr", report.object(at, block).get("cidr"))
    known = _check_communities(report, spec)
    _check_advertisements(report, spec, known)
    for i, pattern in enumerate(report.list("spec.ignoredInterfaces", spec.get("ignoredInterfaces"))):
        if not report.string(f"spec.ignoredInterfaces[{i}]", pattern):
            report.wrong(f"spec.ignoredInterfaces[{i}]", pattern, "must not be empty")
    if name != "default":
        for field in ("nodeToNodeMeshEnabled", "asNumber", "nodeMeshPassword", "nodeMeshMaxRestartTime"):
            if spec.get(field) is not None:
                report.wrong(f"spec.{field}", spec[field], 'can only be given in BGPConfiguration "default"')
    elif spec.get("nodeToNodeMeshEnabled") is False:
        for field in ("nodeMeshPassword", "nodeMeshMaxRestartTime"):
            if spec.get(field) is not None:
                report.wrong(f"spec.{field}", spec[field], "has no meaning while nodeToNodeMeshEnabled is false")


def _check_communities(report: Report, spec: Spec) -> set[str]:
    known = set()
    if spec.get("communities") and not spec.get("prefixAdvertisements"):
        report.wrong("spec.communities", spec["communities"], "are not used by any prefixAdvertisements")
    for i, raw in enumerate(report.list("spec.communities", spec.get("communities"))):
        at = f"spec.communities[{i}]"
        community = report.object(at, raw)
        report.name(f"{at}.name", community.get("name"))
        if not valid_community(community.get("value")):
            report.wrong(f"{at}.value", community.get("value"), "must be aa:nn or aa:nn:mm")
        known.add(str(community.get("name")))
    return known


def _check_advertisements(report: Report, spec: Spec, known: set[str]) -> None:
    for i, raw in enumerate(report.list("spec.prefixAdvertisements", spec.get("prefixAdvertisements"))):
        at = f"spec.prefixAdvertisements[{i}]"
        advertisement = report.object(at, raw)
        report.network(f"{at}.cidr", advertisement.get("cidr"))
        communities = report.list(f"{at}.communities", advertisement.get("communities"))
        if not communities:
            report.wrong(f"{at}.communities", advertisement.get("communities"), "must be given")
        for j, community in enumerate(communities):
            if str(community) not in known and not valid_community(community):
                reason = "must be aa:nn, aa:nn:mm or a name defined in spec.communities"
                report.wrong(f"{at}.communities[{j}]", community, reason)


# -- filters ----------------------------------------------------------------------------------------------------------


def check_filter(report: Report, spec: Spec) -> None:
    for direction in ("export", "import"):
        for version in (4, 6):
            field = f"spec.{direction}V{version}"
            for i, rule in enumerate(report.list(field, spec.get(field[5:]))):
                _check_filter_rule(report, f"{field}[{i}]", report.object(f"{field}[{i}]", rule), version)


def _check_filter_rule(report: Report, at: str, rule: Spec, version: int) -> None:
    if not rule.get("action"):
        report.wrong(f"{at}.action", rule.get("action"), "must be Accept or Reject")
    action = report.choice(f"{at}.action", rule.get("action"), ("Accept", "Reject"))
    operator = report.choice(f"{at}.matchOperator", rule.get("matchOperator"), ("Equal", "NotEqual", "In", "NotIn"))
    if rule.get("cidr"):
        report.network(f"{at}.cidr", rule["cidr"], version)
    if bool(rule.get("cidr")) != bool(rule.get("matchOperator")):
        report.wrong(f"{at}.matchOperator", operator or None, "cidr and matchOperator must be given together")
    lengths = report.object(f"{at}.prefixLength", rule.get("prefixLength"))
    if lengths and not rule.get("cidr"):
        report.wrong(f"{at}.prefixLength", dict(lengths), "has no meaning without cidr")
    low, high = (
        report.number(f"{at}.prefixLength.{end}", lengths.get(end), 0, 32 if version == 4 else 128)
        for end in ("min", "max")
    )
    if low is not None and high is not None and low > high:
        report.wrong(f"{at}.prefixLength.min", low, f"is greater than max, which is {high}")
    report.choice(f"{at}.source", rule.get("source"), ("RemotePeers",))
    report.choice(f"{at}.peerType", rule.get("peerType"), ("eBGP", "iBGP"))
    report.string(f"{at}.interface", rule.get("interface"))
    report.number(f"{at}.priority", rule.get("priority"), 1, _PRIORITY_MAX)
    _check_filter_matches(report, at, rule)
    if report.list(f"{at}.operations", rule.get("operations")) and action == "Reject":
        report.wrong(f"{at}.operations", rule["operations"], "can only be given with action Accept")


def _check_filter_matches(report: Report, at: str, rule: Spec) -> None:
    match = report.object(f"{at}.communities", rule.get("communities"))
    for i, value in enumerate(report.list(f"{at}.communities.values", match.get("values"))):
        if not valid_community(value):
            report.wrong(f"{at}.communities.values[{i}]", value, "must be aa:nn or aa:nn:mm")
    for i, number in enumerate(report.list(f"{at}.asPathPrefix", rule.get("asPathPrefix"))):
        report.as_number(f"{at}.asPathPrefix[{i}]", number)
