"""PURE: rules for host endpoints, node statuses and the configuration of Calico's controllers.

Rule: each function looks at one kind's spec and tells the report what is wrong. Source: upstream's validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.model import names
from cni_calico.model.validation.report import Report

Spec = Mapping[str, Any]

CLASSES = ("Agent", "BGP", "Routes")
LEVELS = ("None", "Debug", "Info", "Warning", "Error", "Fatal")
DAY_S = 86400


def check_host_endpoint(report: Report, spec: Spec) -> None:
    if not report.string("spec.node", spec.get("node")):
        report.wrong("spec.node", spec.get("node"), "must be given")
    interface = report.string("spec.interfaceName", spec.get("interfaceName"))
    addresses = report.list("spec.expectedIPs", spec.get("expectedIPs"))
    if not interface and not addresses:
        report.wrong("spec.interfaceName", spec.get("interfaceName"), "either it or expectedIPs must be given")
    if interface and interface != "*" and not names.valid_ifname(interface):
        report.wrong("spec.interfaceName", interface, "is not a valid interface name")
    for i, raw in enumerate(addresses):
        report.address(f"spec.expectedIPs[{i}]", raw)
    for i, raw in enumerate(report.list("spec.profiles", spec.get("profiles"))):
        report.string(f"spec.profiles[{i}]", raw)
    for i, raw in enumerate(report.list("spec.ports", spec.get("ports"))):
        at = f"spec.ports[{i}]"
        port = report.object(at, raw)
        if not report.string(f"{at}.name", port.get("name")):
            report.wrong(f"{at}.name", port.get("name"), "must be given")
        report.number(f"{at}.port", port.get("port", 0), 1, 65535)
        if port.get("protocol") is None:
            report.wrong(f"{at}.protocol", None, "must be given")


def check_node_status(report: Report, spec: Spec) -> None:
    report.string("spec.node", spec.get("node"))
    for i, raw in enumerate(report.list("spec.classes", spec.get("classes"))):
        if raw not in CLASSES:
            report.wrong(f"spec.classes[{i}]", raw, "must be one of " + ", ".join(CLASSES))
    report.number("spec.updatePeriodSeconds", spec.get("updatePeriodSeconds"), 0, DAY_S)


def check_controllers(report: Report, spec: Spec) -> None:
    report.choice("spec.logSeverityScreen", spec.get("logSeverityScreen"), LEVELS)
    report.choice("spec.healthChecks", spec.get("healthChecks"), ("Enabled", "Disabled"))
    report.number("spec.prometheusMetricsPort", spec.get("prometheusMetricsPort"), 0, 65535)
    report.duration("spec.etcdV3CompactionPeriod", spec.get("etcdV3CompactionPeriod"))
    for name, raw in report.object("spec.controllers", spec.get("controllers")).items():
        controller = report.object(f"spec.controllers.{name}", raw)
        report.duration(f"spec.controllers.{name}.reconcilerPeriod", controller.get("reconcilerPeriod"))
