"""PURE: the form of Kubernetes' own policies in files.

Rule: a field that the API server refuses or leaves out is refused, because it may be the rule that was meant. What is
in the fields is for the conversion to judge, as for stored ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.model.kubernetes.policies import ACTIONS, CLUSTER_NETWORK_POLICY, NETWORK_POLICY, TIERS
from cni_calico.model.validation.report import InvalidResource, Report

# a dict: an object with these fields; a list: of such things; a tuple: one of these texts; None: anything
_SELECTOR = {
    "matchLabels": None,
    "matchExpressions": [{"key": None, "operator": ("In", "NotIn", "Exists", "DoesNotExist"), "values": None}],
}
_PEER = {"podSelector": _SELECTOR, "namespaceSelector": _SELECTOR, "ipBlock": {"cidr": None, "except": None}}
_PORTS = [{"protocol": ("TCP", "UDP", "SCTP"), "port": None, "endPort": None}]
_SUBJECT = {"namespaces": _SELECTOR, "pods": {"namespaceSelector": _SELECTOR, "podSelector": _SELECTOR}}
_DESTINATION = {"destinationPort": {"number": None, "range": {"start": None, "end": None}}}
_CLUSTER_RULE = {
    **{"name": None, "action": tuple(ACTIONS)},
    "protocols": [{**dict.fromkeys(("tcp", "udp", "sctp"), _DESTINATION), "destinationNamedPort": None}],
}
_HEAD = dict.fromkeys(("apiVersion", "kind", "metadata", "status"))
FORMS: Mapping[str, dict[str, Any]] = {
    NETWORK_POLICY: {
        **_HEAD,
        "spec": {
            "podSelector": _SELECTOR,
            "policyTypes": [("Ingress", "Egress")],
            "ingress": [{"from": [_PEER], "ports": _PORTS}],
            "egress": [{"to": [_PEER], "ports": _PORTS}],
        },
    },
    CLUSTER_NETWORK_POLICY: {
        **_HEAD,
        "spec": {
            **{"tier": tuple(TIERS), "priority": None, "subject": _SUBJECT},
            "ingress": [{**_CLUSTER_RULE, "from": [_SUBJECT]}],
            "egress": [
                {**_CLUSTER_RULE, "to": [{**_SUBJECT, "nodes": _SELECTOR, "networks": None, "domainNames": None}]}
            ],
        },
    },
}


def require_form(kind: str, document: Mapping[str, Any], namespace: str) -> None:
    """``kind``: one of FORMS; ``document``: with a metadata.name; ``namespace``: in which it is meant to be, "" for
    none. Raises InvalidResource, which names every field that is wrong.
    """
    report = Report(str(document["kind"]))
    report.name("metadata.name", document["metadata"]["name"])
    if namespace:
        report.name("metadata.namespace", namespace)
    _check(report, FORMS[kind], document, "")
    spec = document.get("spec")
    if kind == CLUSTER_NETWORK_POLICY and isinstance(spec, Mapping) and spec.get("tier") is None:
        report.wrong("spec.tier", None, f"must be one of {', '.join(TIERS)}")
    if report.problems:
        raise InvalidResource(report.text())


def _check(report: Report, form: Any, value: Any, at: str) -> None:
    """What has another type the conversion refuses."""
    if isinstance(form, dict) and isinstance(value, Mapping):
        for name, its in value.items():
            here = f"{at}.{name}" if at else str(name)
            if name in form:
                _check(report, form[name], its, here)
            else:
                report.wrong(here, its, f"is no field there, only {', '.join(form)}")
    elif isinstance(form, list) and isinstance(value, list):
        for number, one in enumerate(value):
            _check(report, form[0], one, f"{at}[{number}]")
    elif isinstance(form, tuple) and value is not None and value not in form:
        report.wrong(at, value, f"must be one of {', '.join(form)}")
