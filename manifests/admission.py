"""Admission policies for ``projectcalico.org/v3``: what Calico's API server did for what kubectl writes.

Rule: names, effects and words are upstream's (v3.32), so a cluster that has them from Calico's operator has the same
ones. Those that change objects are of a type that Kubernetes serves in other versions over time: ``VERSIONS``, the best
first; where it serves none of them they are left out, and agents and ``calicoctl`` do without.
"""

from __future__ import annotations

from collections.abc import Sequence

from manifests.kinds import NATIVE_GROUP, NATIVE_VERSION
from manifests.schemas import Schema

GROUP = "admissionregistration.k8s.io"
VERSIONS = ("v1", "v1beta1", "v1alpha1")
BUILTIN_TIERS = ("default", "kube-admin", "kube-baseline")
_POLICIES = ("networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "stagedglobalnetworkpolicies")
_KUBERNETES = ("stagedkubernetesnetworkpolicies",)
_HAS_BOTH = "has(object.spec.ingress) && has(object.spec.egress)"
_TYPES = f'({_HAS_BOTH}) ? ["Ingress", "Egress"] : (has(object.spec.egress) ? ["Egress"] : ["Ingress"])'
# a policy of Kubernetes with rules for egress alone forbids all ingress
_KUBERNETES_TYPES = 'has(object.spec.egress) ? ["Ingress", "Egress"] : ["Ingress"]'
_IS_STAGED_KUBERNETES = 'request.resource.resource == "stagedkubernetesnetworkpolicies"'
_TIER = '(has(object.spec.tier) && object.spec.tier != "" ? object.spec.tier : "default")'
_LABEL = "projectcalico.org/tier"
_HAS_LABEL = f'has(object.metadata.labels) && "{_LABEL}" in object.metadata.labels'


def mutating_policies(version: str) -> list[Schema]:
    """Policies with their bindings; ``version``: one of VERSIONS."""
    types = (
        f'({_IS_STAGED_KUBERNETES}) ? [JSONPatch{{op: "add", path: "/spec/policyTypes", value: {_KUBERNETES_TYPES}}}]'
        f' : [JSONPatch{{op: "add", path: "/spec/types", value: {_TYPES}}}]'
    )
    absent = (
        f"({_IS_STAGED_KUBERNETES}) ? !has(object.spec.policyTypes) || size(object.spec.policyTypes) == 0"
        " : !has(object.spec.types) || size(object.spec.types) == 0"
    )
    place = f'"/metadata/labels/" + jsonpatch.escapeKey("{_LABEL}")'
    labels = (
        f'(has(object.metadata.labels) ? [JSONPatch{{op: "add", path: {place}, value: {_TIER}}}]'
        f' : [JSONPatch{{op: "add", path: "/metadata/labels", value: {{"{_LABEL}": {_TIER}}}}}])'
    )
    tier = f'[JSONPatch{{op: "add", path: "/spec/tier", value: {_TIER}}}]'
    is_labelled = (
        f'!(has(object.spec.tier) && object.spec.tier != "" && {_HAS_LABEL}'
        f' && object.metadata.labels["{_LABEL}"] == object.spec.tier)'
    )
    return [
        *_mutating(
            version,
            "policytypes.policy.projectcalico.org",
            "set-policytypes-binding",
            (*_POLICIES, *_KUBERNETES),
            {"name": "no-types", "expression": absent},
            types,
        ),
        *_mutating(
            version,
            "tierlabel.policy.projectcalico.org",
            "set-tier-label-binding",
            _POLICIES,
            {"name": "no-label", "expression": is_labelled},
            f"{tier} + {labels}",
        ),
    ]


def validating_policies() -> list[Schema]:
    tiers = ", ".join(f'"{name}"' for name in BUILTIN_TIERS)
    name = "protect-builtin-tiers.projectcalico.org"
    validation = {
        "expression": f"!(oldObject.metadata.name in [{tiers}])",
        "messageExpression": '"The built-in tier " + oldObject.metadata.name + " cannot be deleted"',
        "reason": "Forbidden",
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": _matches(("tiers",), ("DELETE",)),
        "validations": [validation],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        _object("ValidatingAdmissionPolicy", "v1", name, spec),
        _object("ValidatingAdmissionPolicyBinding", "v1", "protect-builtin-tiers-binding.projectcalico.org", binding),
    ]


def _mutating(
    version: str, name: str, binding: str, resources: Sequence[str], condition: Schema, expression: str
) -> list[Schema]:
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": _matches(resources, ("CREATE", "UPDATE")),
        "matchConditions": [condition],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    }
    return [
        _object("MutatingAdmissionPolicy", version, name, spec),
        _object("MutatingAdmissionPolicyBinding", version, binding, {"policyName": name}),
    ]


def _matches(resources: Sequence[str], operations: Sequence[str]) -> Schema:
    rule = {
        "apiGroups": [NATIVE_GROUP],
        "apiVersions": [NATIVE_VERSION],
        "operations": list(operations),
        "resources": list(resources),
    }
    return {"resourceRules": [rule]}


def _object(kind: str, version: str, name: str, spec: Schema) -> Schema:
    return {"apiVersion": f"{GROUP}/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}
