"""PURE: whether a resource may be stored.

Rule: everything wrong is reported at once, each problem with field and value. A field that the kind does not have is
wrong too (it would be stored without effect), unless it is stored already or unknown fields are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents import codec
from cni_calico.model.documents.fields import Wrong
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import NAMESPACED_KINDS, PLURALS, ResourceKey
from cni_calico.model.resources import IPPool
from cni_calico.model.validation import bgp as validate_bgp
from cni_calico.model.validation import felix as validate_felix
from cni_calico.model.validation import hosts as validate_others
from cni_calico.model.validation import ipam as validate_ipam
from cni_calico.model.validation import policy as validate_policy
from cni_calico.model.validation.known_fields import unknown_fields
from cni_calico.model.validation.report import InvalidResource, Problem, Report

__all__ = ["InvalidResource", "Problem", "Report", "check_resource", "require_valid"]

_SELECTORS = {
    "GlobalNetworkPolicy": ("selector", "namespaceSelector", "serviceAccountSelector"),
    "NetworkPolicy": ("selector", "serviceAccountSelector"),
    "StagedGlobalNetworkPolicy": ("selector", "namespaceSelector", "serviceAccountSelector"),
    "StagedNetworkPolicy": ("selector", "serviceAccountSelector"),
}


def check_resource(
    document: Mapping[str, Any],
    *,
    old: Mapping[str, Any] | None = None,
    pools: Iterable[IPPool] = (),
    allow_unknown: bool = False,
) -> Report:
    """Problems and warnings of a resource's document.

    ``old`` is the stored resource (to check that fixed fields do not change), ``pools`` are the stored pools (for
    overlaps). With ``allow_unknown``, fields that the kind does not have only cause warnings.
    """
    kind = str(document.get("kind"))
    report = Report(kind)
    if kind not in PLURALS:
        report.wrong("kind", document.get("kind"), "is not a kind of resource known here")
        return report
    if document.get("apiVersion") != API_VERSION:
        report.wrong("apiVersion", document.get("apiVersion"), f"must be {API_VERSION}")
    metadata = report.object("metadata", document.get("metadata"))
    _check_metadata(report, kind, metadata)
    spec = report.object("spec", document.get("spec"))
    name = str(metadata.get("name"))
    _check_known(report, document, old, allow_unknown=allow_unknown)
    _check_spec(report, kind, name, spec)
    if kind == "IPPool":
        old_spec = report.object("spec", (old or {}).get("spec"))
        if old is not None:
            validate_ipam.check_pool_update(report, spec, old_spec)
        validate_ipam.check_pool_overlap(report, name, spec, pools)
    if not report.problems:
        _check_readable(report, document)
    return report


def _check_known(
    report: Report, document: Mapping[str, Any], old: Mapping[str, Any] | None, *, allow_unknown: bool
) -> None:
    for at, value, nearest in unknown_fields(document, old):
        what = f"is not a field of {report.kind}"
        hint = f'; did you mean "{nearest}"?' if nearest else ""
        if allow_unknown:
            report.odd(at, value, f"{what}; it is stored but has no effect")
        else:
            report.wrong(at, value, what + hint)


def _check_readable(report: Report, document: Mapping[str, Any]) -> None:
    """Fields that no rule above checks must at least have a shape that can be decoded."""
    metadata = document["metadata"]
    key = ResourceKey(report.kind, metadata["name"], metadata.get("namespace") or "")
    try:
        codec.decode(key, document)
    except CorruptRecord as e:
        cause = e.__cause__
        if not isinstance(cause, Wrong):
            raise
        report.wrong(cause.at, cause.got, f"must be {cause.expected}")


def require_valid(
    document: Mapping[str, Any],
    *,
    old: Mapping[str, Any] | None = None,
    pools: Iterable[IPPool] = (),
    allow_unknown: bool = False,
) -> list[Problem]:
    """Warnings of a resource that may be stored. Raises InvalidResource for one that may not."""
    report = check_resource(document, old=old, pools=pools, allow_unknown=allow_unknown)
    if report.problems:
        raise InvalidResource(report.text())
    return report.warnings


def _check_metadata(report: Report, kind: str, metadata: Mapping[str, Any]) -> None:
    report.name("metadata.name", metadata.get("name"))
    namespace = report.string("metadata.namespace", metadata.get("namespace"))
    if kind in NAMESPACED_KINDS:
        report.name("metadata.namespace", namespace)
    elif namespace:
        report.wrong("metadata.namespace", namespace, f"{kind} is not a namespaced kind")
    for key, value in report.object("metadata.labels", metadata.get("labels")).items():
        report.label("metadata.labels", key, value)
    for key, value in report.object("metadata.annotations", metadata.get("annotations")).items():
        report.string(f"metadata.annotations[{key}]", value)


def _check_spec(report: Report, kind: str, name: str, spec: Mapping[str, Any]) -> None:
    if kind in _CHECKS:
        _CHECKS[kind](report, spec)
    elif kind == "WorkloadEndpoint":
        validate_ipam.check_endpoint(report, spec, name)
    elif kind == "BGPConfiguration":
        validate_bgp.check_configuration(report, spec, name)
    if kind == "Tier":
        validate_others.check_tier_name(report, spec, name)
    for field in _SELECTORS.get(kind, ()):
        report.selector(f"spec.{field}", spec.get(field))


_CHECKS: Mapping[str, Callable[[Report, Mapping[str, Any]], None]] = {
    "IPPool": validate_ipam.check_pool,
    "IPReservation": validate_ipam.check_reservation,
    "Node": validate_ipam.check_node,
    "BGPPeer": validate_bgp.check_peer,
    "BGPFilter": validate_bgp.check_filter,
    "FelixConfiguration": validate_felix.check_felix,
    "GlobalNetworkPolicy": validate_policy.check_policy,
    "NetworkPolicy": validate_policy.check_policy,
    "StagedGlobalNetworkPolicy": validate_policy.check_staged_policy,
    "StagedNetworkPolicy": validate_policy.check_staged_policy,
    "StagedKubernetesNetworkPolicy": validate_policy.check_staged_kubernetes_policy,
    "GlobalNetworkSet": validate_policy.check_network_set,
    "NetworkSet": validate_policy.check_network_set,
    "Profile": validate_policy.check_profile,
    "Tier": validate_policy.check_tier,
    "HostEndpoint": validate_others.check_host_endpoint,
    "CalicoNodeStatus": validate_others.check_node_status,
    "KubeControllersConfiguration": validate_others.check_controllers,
}
