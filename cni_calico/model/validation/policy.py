"""PURE: rules for policies, staged ones too, profiles, tiers and network sets.

Rule: each function checks one kind's spec and records in the report what is wrong. The verdicts are those of upstream's
validation (tests/golden/verdicts), so that upstream can read whatever is stored here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

from cni_calico.model.selector_forms import mentions_global
from cni_calico.model.selectors import InvalidSelector, parse_selector
from cni_calico.model.validation.report import Report, Spec

ACTIONS = ("Allow", "Deny", "Log", "Pass")
DIRECTIONS = ("Ingress", "Egress")
PROTOCOLS = ("TCP", "UDP", "ICMP", "ICMPv6", "SCTP", "UDPLite")
WITH_PORTS = {"TCP", "UDP", "SCTP", "6", "17", "132"}
STAGED_ACTIONS = ("Set", "Delete", "Learn", "Ignore")
HINTS = ("AssumeNeededOnEveryNode",)
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
EVERYWHERE = ("0.0.0.0/0", "::/0")
PORT_MAX = 65535
_PORT_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_BESIDE_SERVICES = ("selector", "notSelector", "namespaceSelector", "serviceAccounts", "nets", "notNets")


def check_policy(report: Report, spec: Spec) -> None:
    """NetworkPolicy and GlobalNetworkPolicy."""
    report.string("spec.tier", spec.get("tier"))
    check_order(report, "spec.order", spec.get("order"))
    types = report.list("spec.types", spec.get("types"))
    for i, raw in enumerate(types):
        if raw not in DIRECTIONS:
            report.wrong(f"spec.types[{i}]", raw, "must be one of " + ", ".join(DIRECTIONS))
        elif raw in types[:i]:
            report.wrong(f"spec.types[{i}]", raw, "is given more than once")
    for i, raw in enumerate(report.list("spec.performanceHints", spec.get("performanceHints"))):
        if raw not in HINTS:
            report.wrong(f"spec.performanceHints[{i}]", raw, "must be one of " + ", ".join(HINTS))
    for field in ("selector", "namespaceSelector", "serviceAccountSelector"):
        _refuse_global(report, f"spec.{field}", spec.get(field))
    _check_host_flags(report, spec, types)
    is_global = report.kind.endswith("GlobalNetworkPolicy")
    for direction in ("ingress", "egress"):
        _check_rules(report, spec, direction, is_global=is_global)


def _check_host_flags(report: Report, spec: Spec, types: Any) -> None:
    for field in ("doNotTrack", "preDNAT", "applyOnForward"):
        report.boolean(f"spec.{field}", spec.get(field))
    if spec.get("doNotTrack") is True and spec.get("preDNAT") is True:
        report.wrong("spec.preDNAT", True, "cannot be given together with doNotTrack")
    if spec.get("preDNAT") is True and (spec.get("egress") or "Egress" in types):
        report.wrong("spec.preDNAT", True, "concerns incoming packets only: such a policy has no egress")
    for field in ("doNotTrack", "preDNAT"):
        if spec.get(field) is True and spec.get("applyOnForward") is not True:
            report.wrong("spec.applyOnForward", spec.get("applyOnForward"), f"must be true where {field} is")


def check_staged_policy(report: Report, spec: Spec) -> None:
    """StagedNetworkPolicy and StagedGlobalNetworkPolicy."""
    report.choice("spec.stagedAction", spec.get("stagedAction"), STAGED_ACTIONS)
    if spec.get("stagedAction") == "Delete":
        for field, value in spec.items():
            if field not in ("stagedAction", "tier") and value:
                report.wrong(f"spec.{field}", value, "cannot be given where stagedAction is Delete")
        return
    check_policy(report, spec)


def check_staged_kubernetes_policy(report: Report, spec: Spec) -> None:
    """StagedKubernetesNetworkPolicy: Kubernetes' own fields are left to its API server."""
    report.choice("spec.stagedAction", spec.get("stagedAction"), STAGED_ACTIONS)
    if spec.get("stagedAction") == "Delete":
        for field, value in spec.items():
            if field != "stagedAction" and value:
                report.wrong(f"spec.{field}", value, "cannot be given where stagedAction is Delete")
    report.object("spec.podSelector", spec.get("podSelector"))
    for field in ("ingress", "egress"):
        report.list(f"spec.{field}", spec.get(field))
    for i, raw in enumerate(report.list("spec.policyTypes", spec.get("policyTypes"))):
        if raw not in DIRECTIONS:
            report.wrong(f"spec.policyTypes[{i}]", raw, "must be one of " + ", ".join(DIRECTIONS))


def check_profile(report: Report, spec: Spec) -> None:
    for key, value in report.object("spec.labelsToApply", spec.get("labelsToApply")).items():
        report.label("spec.labelsToApply", key, value)
    for direction in ("ingress", "egress"):
        _check_rules(report, spec, direction, is_global=True)


def check_tier(report: Report, spec: Spec) -> None:
    check_order(report, "spec.order", spec.get("order"))
    report.choice("spec.defaultAction", spec.get("defaultAction"), ("Pass", "Deny"))


def check_network_set(report: Report, spec: Spec) -> None:
    _check_nets(report, "spec.nets", spec.get("nets"), strict=False)
    for i, raw in enumerate(report.list("spec.allowedEgressDomains", spec.get("allowedEgressDomains"))):
        report.string(f"spec.allowedEgressDomains[{i}]", raw)


def check_order(report: Report, at: str, raw: Any) -> None:
    if raw is not None and (isinstance(raw, bool) or not isinstance(raw, (int, float))):
        report.wrong(at, raw, "must be a number")


# -- rules ------------------------------------------------------------------------------------------------------------


def _check_rules(report: Report, spec: Spec, direction: str, *, is_global: bool) -> None:
    for i, raw in enumerate(report.list(f"spec.{direction}", spec.get(direction))):
        at = f"spec.{direction}[{i}]"
        rule = report.object(at, raw)
        _check_rule(report, at, rule)
        _check_services(report, at, rule, direction, is_global=is_global)
        if direction == "egress" and rule.get("http") is not None:
            report.wrong(f"{at}.http", rule["http"], "is not allowed in an egress rule")


def _check_rule(report: Report, at: str, rule: Spec) -> None:
    if rule.get("action") in (None, ""):
        report.wrong(f"{at}.action", rule.get("action"), "must be one of " + ", ".join(ACTIONS))
    report.choice(f"{at}.action", rule.get("action"), ACTIONS)
    for field in ("protocol", "notProtocol"):
        check_protocol(report, f"{at}.{field}", rule.get(field))
    version = rule.get("ipVersion")
    if version is not None and (version not in (4, 6) or isinstance(version, bool)):
        report.wrong(f"{at}.ipVersion", version, "must be 4 or 6")
    protocol = str(rule.get("protocol"))
    for field in ("icmp", "notICMP"):
        if rule.get(field) is not None and protocol not in ("ICMP", "ICMPv6"):
            report.wrong(f"{at}.{field}", rule[field], "has no meaning unless the rule's protocol is ICMP or ICMPv6")
        _check_icmp(report, f"{at}.{field}", report.object(f"{at}.{field}", rule.get(field)))
    for field in ("source", "destination"):
        peer = report.object(f"{at}.{field}", rule.get(field))
        _check_peer(report, f"{at}.{field}", peer, protocol)
    _check_families(report, at, rule)
    _check_http(report, at, rule)
    metadata = report.object(f"{at}.metadata", rule.get("metadata"))
    for key, value in report.object(f"{at}.metadata.annotations", metadata.get("annotations")).items():
        report.string(f"{at}.metadata.annotations[{key}]", value)


def check_protocol(report: Report, at: str, raw: Any) -> None:
    text = str(raw)
    numeric = (
        len(text) <= 3 and text.isascii() and text.isdigit() and 1 <= int(text) <= 255 and not isinstance(raw, bool)
    )
    if raw is not None and not numeric and raw not in PROTOCOLS:
        report.wrong(at, raw, "must be one of " + ", ".join(PROTOCOLS) + " or a number from 1 to 255")


def _check_icmp(report: Report, at: str, icmp: Spec) -> None:
    report.number(f"{at}.type", icmp.get("type"), 0, 254)
    report.number(f"{at}.code", icmp.get("code"), 0, 255)
    if icmp.get("code") is not None and icmp.get("type") is None:
        report.wrong(f"{at}.code", icmp["code"], "has no meaning without type")


def _check_families(report: Report, at: str, rule: Spec) -> None:
    """A rule is for one IP family: its networks, protocol and ipVersion must agree."""
    version = rule.get("ipVersion") if rule.get("ipVersion") in (4, 6) else None
    for field in ("protocol", "notProtocol"):
        family = {"ICMP": 4, "ICMPv6": 6}.get(str(rule.get(field)))
        if family and version not in (None, family):
            report.wrong(f"{at}.ipVersion", version, f"must be {family} where {field} is {rule[field]}")
    seen: set[int] = set()
    for side in ("source", "destination"):
        raw = rule.get(side)
        peer: Spec = raw if isinstance(raw, Mapping) else {}
        for field in ("nets", "notNets"):
            families = _families(peer.get(field))
            if version is not None and families - {version}:
                report.wrong(f"{at}.{side}.{field}", peer[field], f"must be of IPv{version}, the rule's ipVersion")
            elif families and len(families | seen) > 1:
                report.wrong(f"{at}.{side}.{field}", peer[field], "mixes IPv4 and IPv6: split it into two rules")
            seen |= families


def _families(raw: Any) -> set[int]:
    found: set[int] = set()
    for item in raw if isinstance(raw, (list, tuple)) else ():
        try:
            found.add(ip_network(str(item), strict=False).version)
        except ValueError:
            continue  # reported elsewhere
    return found


def _check_http(report: Report, at: str, rule: Spec) -> None:
    if rule.get("http") is None:
        return
    http = report.object(f"{at}.http", rule["http"])
    if rule.get("action") in ACTIONS and rule["action"] != "Allow":
        report.wrong(f"{at}.http", rule["http"], "is only possible in a rule that allows")
    if rule.get("protocol") not in (None, "TCP", 6, "6"):
        report.wrong(f"{at}.http", rule["http"], "is only possible with protocol TCP")
    for i, raw in enumerate(report.list(f"{at}.http.methods", http.get("methods"))):
        if raw not in HTTP_METHODS:
            report.wrong(f"{at}.http.methods[{i}]", raw, "must be one of " + ", ".join(HTTP_METHODS))
    for i, raw in enumerate(report.list(f"{at}.http.paths", http.get("paths"))):
        path = report.object(f"{at}.http.paths[{i}]", raw)
        given = [value for value in (path.get("exact"), path.get("prefix")) if value]
        if len(given) != 1 or not str(given[0]).startswith("/") or set(str(given[0])) & set("?#"):
            report.wrong(f"{at}.http.paths[{i}]", raw, 'must be one of exact and prefix, a path that begins with "/"')


# -- peers ------------------------------------------------------------------------------------------------------------


def _check_peer(report: Report, at: str, peer: Spec, protocol: str) -> None:
    for field in ("selector", "notSelector", "namespaceSelector"):
        report.selector(f"{at}.{field}", peer.get(field))
    for field in ("selector", "notSelector"):
        _refuse_global(report, f"{at}.{field}", peer.get(field))
    spaces = peer.get("namespaceSelector")
    if _has_global(spaces) and str(spaces).strip() != "global()":
        report.wrong(f"{at}.namespaceSelector", spaces, "global() cannot be combined with other terms")
    for field in ("nets", "notNets"):
        _check_nets(report, f"{at}.{field}", peer.get(field), strict=True)
    not_nets = peer.get("notNets")
    for i, raw in enumerate(not_nets if isinstance(not_nets, (list, tuple)) else ()):
        if raw in EVERYWHERE:
            report.wrong(f"{at}.notNets[{i}]", raw, "excludes everything")
    for field in ("ports", "notPorts"):
        ports = report.list(f"{at}.{field}", peer.get(field))
        if protocol not in WITH_PORTS and any(_is_numeric(raw) or protocol != "None" for raw in ports):
            report.wrong(f"{at}.{field}", ports, "has no meaning unless the rule's protocol is TCP, UDP or SCTP")
        for i, raw in enumerate(ports):
            _check_port(report, f"{at}.{field}[{i}]", raw)
    accounts = report.object(f"{at}.serviceAccounts", peer.get("serviceAccounts"))
    report.selector(f"{at}.serviceAccounts.selector", accounts.get("selector"))
    for i, raw in enumerate(report.list(f"{at}.serviceAccounts.names", accounts.get("names"))):
        report.string(f"{at}.serviceAccounts.names[{i}]", raw)


def _check_services(report: Report, at: str, rule: Spec, direction: str, *, is_global: bool) -> None:
    """Services may only be the source of an ingress rule or the destination of an egress rule, with nothing beside
    them.
    """
    right = "source" if direction == "ingress" else "destination"
    for side in ("source", "destination"):
        peer = rule.get(side)
        if not isinstance(peer, Mapping) or peer.get("services") is None:
            continue
        here = f"{at}.{side}.services"
        services = report.object(here, peer["services"])
        name = report.string(f"{here}.name", services.get("name"))
        namespace = report.string(f"{here}.namespace", services.get("namespace"))
        if side != right:
            report.wrong(here, peer["services"], f"is only possible in the {right} of an {direction} rule")
        if not name:
            report.wrong(f"{here}.name", services.get("name"), "must be given")
        if is_global and not namespace:
            report.wrong(f"{here}.namespace", services.get("namespace"), "must be given where the policy has none")
        beside = [*_BESIDE_SERVICES, *(("ports", "notPorts") if side == "destination" else ())]
        for field in beside:
            if peer.get(field):
                report.wrong(f"{at}.{side}.{field}", peer[field], "cannot be given together with services")


def _has_global(raw: Any) -> bool:
    try:
        return isinstance(raw, str) and mentions_global(parse_selector(raw).tree)
    except InvalidSelector:
        return False  # reported elsewhere


def _refuse_global(report: Report, at: str, raw: Any) -> None:
    if _has_global(raw):
        report.wrong(at, raw, "global() is only possible in the namespaceSelector of a rule")


def _check_nets(report: Report, at: str, raw: Any, *, strict: bool) -> None:
    """Networks; a plain address counts as one too. ``strict``: no bits beyond the prefix, as upstream has it in rules
    and not in network sets.
    """
    for i, item in enumerate(report.list(at, raw)):
        if isinstance(item, str) and "/" not in item:
            report.address(f"{at}[{i}]", item)
        else:
            report.network(f"{at}[{i}]", item, strict=strict)


def _is_numeric(raw: Any) -> bool:
    return type(raw) is int or (isinstance(raw, str) and raw[:1].isdigit())


def _check_port(report: Report, at: str, raw: Any) -> None:
    """A number, a range such as 80:90, or a name."""
    if type(raw) is int and 1 <= raw <= PORT_MAX:
        return
    if isinstance(raw, str):
        low, colon, high = raw.partition(":")
        numbers = [int(part) for part in (low, high) if len(part) <= 5 and part.isascii() and part.isdigit()]
        if colon and len(numbers) == 2 and 1 <= numbers[0] <= numbers[1] <= PORT_MAX:
            return
        if not colon and (_is_port_number(raw) or (not raw.isdigit() and _PORT_NAME.fullmatch(raw))):
            return
    report.wrong(at, raw, "must be a port number, a range such as 80:90, or the name of a port")


def _is_port_number(text: str) -> bool:
    return len(text) <= 5 and text.isascii() and text.isdigit() and 1 <= int(text) <= PORT_MAX
