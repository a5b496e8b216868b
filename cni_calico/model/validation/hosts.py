"""PURE: rules for host endpoints, node statuses, names of tiers and the configuration of Calico's controllers.

Rule: each function checks one kind's spec and records in the report what is wrong. Source: upstream's validation.
"""

from __future__ import annotations

import re

from cni_calico.model import names
from cni_calico.model.documents.tiers import TIERS
from cni_calico.model.validation.policy import check_protocol
from cni_calico.model.validation.report import SWITCH, Report, Spec

CLASSES = ("Agent", "BGP", "Routes")
LEVELS = ("None", "Debug", "Info", "Warning", "Error", "Fatal", "Panic")
DAY_S = 86400
_TIER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_host_endpoint(report: Report, spec: Spec) -> None:
    if not report.string("spec.node", spec.get("node")):
        report.wrong("spec.node", spec.get("node"), "must be given")
    interface = report.string("spec.interfaceName", spec.get("interfaceName"))
    addresses = report.list("spec.expectedIPs", spec.get("expectedIPs"))
    if not interface and not addresses:
        report.wrong("spec.interfaceName", spec.get("interfaceName"), "either it or expectedIPs must be given")
    if interface and interface != "*" and not names.valid_host_ifname(interface):
        report.wrong("spec.interfaceName", interface, "is not a valid interface name")
    for i, raw in enumerate(addresses):
        report.address(f"spec.expectedIPs[{i}]", raw)
    report.names("spec.profiles", spec.get("profiles"))
    for i, raw in enumerate(report.list("spec.ports", spec.get("ports"))):
        at = f"spec.ports[{i}]"
        port = report.object(at, raw)
        if not report.string(f"{at}.name", port.get("name")):
            report.wrong(f"{at}.name", port.get("name"), "must be given")
        report.number(f"{at}.port", port.get("port", 0), 1, 65535)
        if port.get("protocol") is None:
            report.wrong(f"{at}.protocol", None, "must be given")
        check_protocol(report, f"{at}.protocol", port.get("protocol"))


def check_node_status(report: Report, spec: Spec) -> None:
    report.string("spec.node", spec.get("node"))
    for i, raw in enumerate(report.list("spec.classes", spec.get("classes"))):
        if raw not in CLASSES:
            report.wrong(f"spec.classes[{i}]", raw, "must be one of " + ", ".join(CLASSES))
    report.number("spec.updatePeriodSeconds", spec.get("updatePeriodSeconds"), 0, DAY_S)


def check_controllers(report: Report, spec: Spec) -> None:
    report.choice("spec.logSeverityScreen", spec.get("logSeverityScreen"), LEVELS)
    report.choice("spec.healthChecks", spec.get("healthChecks"), SWITCH)
    for field in ("prometheusMetricsPort", "debugProfilePort"):
        report.number(f"spec.{field}", spec.get(field), 0, 65535)
    report.duration("spec.etcdV3CompactionPeriod", spec.get("etcdV3CompactionPeriod"))
    for name, raw in report.object("spec.controllers", spec.get("controllers")).items():
        controller = report.object(f"spec.controllers.{name}", raw)
        report.duration(f"spec.controllers.{name}.reconcilerPeriod", controller.get("reconcilerPeriod"))
        if name == "node":
            _check_node_controller(report, controller)
        elif name == "loadBalancer":
            at = "spec.controllers.loadBalancer.assignIPs"
            report.choice(at, controller.get("assignIPs"), ("AllServices", "RequestedServicesOnly"))
        elif name == "policyMigration":
            report.choice("spec.controllers.policyMigration.enabled", controller.get("enabled"), SWITCH)


def _check_node_controller(report: Report, controller: Spec) -> None:
    at = "spec.controllers.node"
    report.duration(f"{at}.leakGracePeriod", controller.get("leakGracePeriod"))
    report.choice(f"{at}.syncLabels", controller.get("syncLabels"), SWITCH)
    endpoint = report.object(f"{at}.hostEndpoint", controller.get("hostEndpoint"))
    for field in ("autoCreate", "createDefaultHostEndpoint"):
        report.choice(f"{at}.hostEndpoint.{field}", endpoint.get(field), SWITCH)
    names: set[str] = set()
    for i, raw in enumerate(report.list(f"{at}.hostEndpoint.templates", endpoint.get("templates"))):
        where = f"{at}.hostEndpoint.templates[{i}]"
        _check_template(report, where, report.object(where, raw), names)


def _check_template(report: Report, at: str, template: Spec, names: set[str]) -> None:
    """A template makes host endpoints for matching interfaces; ``names`` are those of the templates before it."""
    generated = report.string(f"{at}.generateName", template.get("generateName"))
    report.name(f"{at}.generateName", generated)
    if generated in names:
        report.wrong(f"{at}.generateName", generated, "is another template's too")
    names.add(generated)
    cidrs = report.list(f"{at}.interfaceCIDRs", template.get("interfaceCIDRs"))
    for i, raw in enumerate(cidrs):
        report.network(f"{at}.interfaceCIDRs[{i}]", raw)
    pattern = report.string(f"{at}.interfacePattern", template.get("interfacePattern"))
    if pattern:
        try:
            re.compile(pattern)
        except re.error as e:
            report.wrong(f"{at}.interfacePattern", pattern, f"is not a regular expression: {e}")
    if not cidrs and not pattern:
        report.wrong(f"{at}.interfaceCIDRs", None, "either it or interfacePattern must be given")
    report.selector(f"{at}.nodeSelector", template.get("nodeSelector"))
    for key, value in report.object(f"{at}.labels", template.get("labels")).items():
        report.label(f"{at}.labels", key, value)


# -- tiers ------------------------------------------------------------------------------------------------------------


def check_tier_name(report: Report, spec: Spec, name: str) -> None:
    """A tier's name is part of its policies' names and of a label's value; the tiers of every cluster keep
    their order.
    """
    if not _TIER_NAME.fullmatch(name):
        report.wrong("metadata.name", name, "must consist of lower case letters, digits and '-', at most 63 of them")
    if name in TIERS and spec.get("order") != TIERS[name][0]:
        report.wrong("spec.order", spec.get("order"), f"must be {TIERS[name][0]} for tier {name}")
