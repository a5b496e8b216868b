"""PURE: rules for policies, profiles, tiers and network sets.

Rule: each function looks at one kind's spec and tells the report what is wrong; what is stored here is enforced by
others, so nothing is refused that upstream takes. Source: upstream's validation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cni_calico.model.validation.report import Report

Spec = Mapping[str, Any]

ACTIONS = ("Allow", "Deny", "Log", "Pass")
DIRECTIONS = ("Ingress", "Egress")
PROTOCOLS = ("TCP", "UDP", "ICMP", "ICMPv6", "SCTP", "UDPLite")
WITH_PORTS = {"TCP", "UDP", "SCTP", "6", "17", "132"}
PORT_MAX = 65535
_PORT_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def check_policy(report: Report, spec: Spec) -> None:
    """NetworkPolicy and GlobalNetworkPolicy."""
    report.string("spec.tier", spec.get("tier"))
    check_order(report, "spec.order", spec.get("order"))
    for i, raw in enumerate(report.list("spec.types", spec.get("types"))):
        if raw not in DIRECTIONS:
            report.wrong(f"spec.types[{i}]", raw, "must be one of " + ", ".join(DIRECTIONS))
    for field in ("doNotTrack", "preDNAT", "applyOnForward"):
        report.boolean(f"spec.{field}", spec.get(field))
    if spec.get("doNotTrack") is True and spec.get("preDNAT") is True:
        report.wrong("spec.preDNAT", True, "cannot be given together with doNotTrack")
    for field in ("doNotTrack", "preDNAT"):
        if spec.get(field) is True and spec.get("applyOnForward") is not True:
            report.wrong("spec.applyOnForward", spec.get("applyOnForward"), f"must be true where {field} is")
    _check_directions(report, spec)


def check_profile(report: Report, spec: Spec) -> None:
    for key, value in report.object("spec.labelsToApply", spec.get("labelsToApply")).items():
        report.label("spec.labelsToApply", key, value)
    _check_directions(report, spec)


def check_tier(report: Report, spec: Spec) -> None:
    check_order(report, "spec.order", spec.get("order"))
    report.choice("spec.defaultAction", spec.get("defaultAction"), ("Pass", "Deny"))


def check_network_set(report: Report, spec: Spec) -> None:
    _check_nets(report, "spec.nets", spec.get("nets"))
    for i, raw in enumerate(report.list("spec.allowedEgressDomains", spec.get("allowedEgressDomains"))):
        report.string(f"spec.allowedEgressDomains[{i}]", raw)


def check_order(report: Report, at: str, raw: Any) -> None:
    if raw is not None and (isinstance(raw, bool) or not isinstance(raw, (int, float))):
        report.wrong(at, raw, "must be a number")


# -- rules ------------------------------------------------------------------------------------------------------------


def _check_directions(report: Report, spec: Spec) -> None:
    for direction in ("ingress", "egress"):
        for i, raw in enumerate(report.list(f"spec.{direction}", spec.get(direction))):
            at = f"spec.{direction}[{i}]"
            _check_rule(report, at, report.object(at, raw))


def _check_rule(report: Report, at: str, rule: Spec) -> None:
    if rule.get("action") in (None, ""):
        report.wrong(f"{at}.action", rule.get("action"), "must be one of " + ", ".join(ACTIONS))
    report.choice(f"{at}.action", rule.get("action"), ACTIONS)
    for field in ("protocol", "notProtocol"):
        _check_protocol(report, f"{at}.{field}", rule.get(field))
    version = rule.get("ipVersion")
    if version is not None and (version not in (4, 6) or isinstance(version, bool)):
        report.wrong(f"{at}.ipVersion", version, "must be 4 or 6")
    for field in ("icmp", "notICMP"):
        _check_icmp(report, f"{at}.{field}", report.object(f"{at}.{field}", rule.get(field)))
    for field in ("source", "destination"):
        peer = report.object(f"{at}.{field}", rule.get(field))
        _check_peer(report, f"{at}.{field}", peer, str(rule.get("protocol")))


def _check_protocol(report: Report, at: str, raw: Any) -> None:
    text = str(raw)
    numeric = text.isdigit() and 1 <= int(text) <= 255 and not isinstance(raw, bool)
    if raw is not None and not numeric and raw not in PROTOCOLS:
        report.wrong(at, raw, "must be one of " + ", ".join(PROTOCOLS) + " or a number from 1 to 255")


def _check_icmp(report: Report, at: str, icmp: Spec) -> None:
    report.number(f"{at}.type", icmp.get("type"), 0, 254)
    report.number(f"{at}.code", icmp.get("code"), 0, 255)
    if icmp.get("code") is not None and icmp.get("type") is None:
        report.wrong(f"{at}.code", icmp["code"], "has no meaning without type")


def _check_peer(report: Report, at: str, peer: Spec, protocol: str) -> None:
    for field in ("selector", "notSelector", "namespaceSelector"):
        report.selector(f"{at}.{field}", peer.get(field))
    for field in ("nets", "notNets"):
        _check_nets(report, f"{at}.{field}", peer.get(field))
    for field in ("ports", "notPorts"):
        ports = report.list(f"{at}.{field}", peer.get(field))
        if ports and protocol not in WITH_PORTS:
            report.wrong(f"{at}.{field}", ports, "has no meaning unless the rule's protocol is TCP, UDP or SCTP")
        for i, raw in enumerate(ports):
            _check_port(report, f"{at}.{field}[{i}]", raw)
    accounts = report.object(f"{at}.serviceAccounts", peer.get("serviceAccounts"))
    report.selector(f"{at}.serviceAccounts.selector", accounts.get("selector"))
    for i, raw in enumerate(report.list(f"{at}.serviceAccounts.names", accounts.get("names"))):
        report.string(f"{at}.serviceAccounts.names[{i}]", raw)
    services = report.object(f"{at}.services", peer.get("services"))
    for field in ("name", "namespace"):
        report.string(f"{at}.services.{field}", services.get(field))


def _check_nets(report: Report, at: str, raw: Any) -> None:
    """Networks; a plain address is one too."""
    for i, item in enumerate(report.list(at, raw)):
        if isinstance(item, str) and "/" not in item:
            report.address(f"{at}[{i}]", item)
        else:
            report.network(f"{at}[{i}]", item)


def _check_port(report: Report, at: str, raw: Any) -> None:
    """A number, two with a colon between them, or a name."""
    if type(raw) is int and 0 <= raw <= PORT_MAX:
        return
    if isinstance(raw, str):
        low, colon, high = raw.partition(":")
        numbers = [int(part) for part in (low, high) if part.isdigit()]
        if colon and len(numbers) == 2 and numbers[0] <= numbers[1] <= PORT_MAX:
            return
        if not colon and (_is_port_number(raw) or (not raw.isdigit() and _PORT_NAME.fullmatch(raw))):
            return
    report.wrong(at, raw, "must be a port number, a range such as 80:90, or the name of a port")


def _is_port_number(text: str) -> bool:
    return text.isdigit() and int(text) <= PORT_MAX
