"""The admission policies of projectcalico.org/v3 on a real API server, in the version that it serves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cni_calico.errors import DatastoreForbidden, OutcomeUnknown, RecordRefused
from cni_calico.model.documents.tiers import TIERS
from manifests.admission import BUILTIN_TIERS, VERSIONS, mutating_policies, validating_policies
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, native_cluster, running_cluster
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = pytest.mark.kubernetes

SERVED = "v1beta1"  # by Kubernetes 1.34, if it is told to
FLAGS = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    f"--runtime-config=admissionregistration.k8s.io/{SERVED}=true",
)
NUMBERS = itertools.count()
LABEL = "projectcalico.org/tier"
RULE = [{"action": "Allow"}]


def apply(cluster: Cluster, documents: list[dict[str, Any]]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    cluster.kubectl("apply", "-f", "-", stdin=text)


@pytest.fixture(scope="module")
def admitting() -> Iterator[Cluster]:
    with running_cluster(*FLAGS) as cluster:
        cluster.apply_definitions(NATIVE_ROOT)
        cluster.ensure_namespace(NAMESPACE)
        apply(cluster, [*mutating_policies(SERVED), *validating_policies()])
        for kind in (*POLICIES, "StagedKubernetesNetworkPolicy"):
            until(partial(admits, cluster, kind), f"the admission policies know {kind}", 120)
        yield cluster


def admits(cluster: Cluster, kind: str) -> bool:
    """Whether a new policy is completed. The API server finds the kinds of a policy's rules some time after they come,
    and refuses until then.
    """
    try:
        made = create(cluster, kind, {})
    except OutcomeUnknown:
        return False
    has_label = kind not in POLICIES or LABEL in made["metadata"].get("labels", {})
    return bool(made["spec"].get("types" if kind in POLICIES else "policyTypes")) and has_label


def create(cluster: Cluster, kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    plural = f"{kind.lower().removesuffix('y')}ies"
    inside = "" if "Global" in kind else f"/namespaces/{NAMESPACE}"
    body = {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind,
        "metadata": {"name": f"p{next(NUMBERS)}", **metadata},
        "spec": spec,
    }
    created: dict[str, Any] = cluster.request("POST", f"{NATIVE_ROOT}{inside}/{plural}", body)
    return created


POLICIES = ("NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy")


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({}, ["Ingress"]),
        ({"ingress": RULE}, ["Ingress"]),
        ({"egress": RULE}, ["Egress"]),
        ({"ingress": RULE, "egress": RULE}, ["Ingress", "Egress"]),
        ({"egress": []}, ["Egress"]),
        ({"types": [], "egress": RULE}, ["Egress"]),
        ({"types": ["Ingress"], "egress": RULE}, ["Ingress"]),
    ],
)
def test_types_are_those_of_the_rules(admitting: Cluster, kind: str, spec: Any, types: Any) -> None:
    assert create(admitting, kind, spec)["spec"]["types"] == types


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({}, ["Ingress"]),
        ({"ingress": [{}]}, ["Ingress"]),
        ({"egress": [{}]}, ["Ingress", "Egress"]),
        ({"policyTypes": ["Egress"], "egress": [{}]}, ["Egress"]),
    ],
)
def test_types_of_staged_policies_of_kubernetes(admitting: Cluster, spec: Any, types: Any) -> None:
    made = create(admitting, "StagedKubernetesNetworkPolicy", spec)
    assert made["spec"]["policyTypes"] == types and LABEL not in made["metadata"].get("labels", {})


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(
    ("spec", "labels", "tier"),
    [
        ({}, None, "default"),
        ({"tier": ""}, {"a": "b"}, "default"),
        ({"tier": "sec"}, None, "sec"),
        ({"tier": "sec"}, {"a": "b", LABEL: "other"}, "sec"),
    ],
)
def test_the_tier_is_a_label(admitting: Cluster, kind: str, spec: Any, labels: Any, tier: str) -> None:
    given = {} if labels is None else {"labels": labels}
    made = create(admitting, kind, spec, **given)
    assert made["spec"]["tier"] == tier
    assert made["metadata"]["labels"] == {**(labels or {}), LABEL: tier}


def test_a_policy_that_moves_to_another_tier_gets_its_label(admitting: Cluster) -> None:
    name = create(admitting, "GlobalNetworkPolicy", {})["metadata"]["name"]
    path = f"{NATIVE_ROOT}/globalnetworkpolicies/{name}"
    moved = admitting.request("PATCH", path, {"spec": {"tier": "sec"}}, content_type="application/merge-patch+json")
    assert moved["metadata"]["labels"] == {LABEL: "sec"}


def test_the_static_tiers_stay(admitting: Cluster) -> None:
    for name in (*BUILTIN_TIERS, "own"):
        spec = {"defaultAction": TIERS[name][1]} if name in TIERS else {}
        body = {"apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": {"name": name}, "spec": spec}
        admitting.request("POST", f"{NATIVE_ROOT}/tiers", body)
    for name in BUILTIN_TIERS:
        with pytest.raises((DatastoreForbidden, RecordRefused), match=f"The built-in tier {name} cannot be deleted"):
            admitting.request("DELETE", f"{NATIVE_ROOT}/tiers/{name}")
    admitting.request("DELETE", f"{NATIVE_ROOT}/tiers/own")


def test_where_they_are_not_served_nothing_is_filled_in() -> None:
    """Kubernetes 1.34 as it is installed; what that means for a policy is in docs/kubernetes.md."""
    native = native_cluster()
    assert f"admissionregistration.k8s.io/{SERVED}" not in native.kubectl("api-versions")
    assert "types" not in create(native, "GlobalNetworkPolicy", {"ingress": RULE})["spec"]


def test_one_version_differs_from_another_in_nothing_else() -> None:
    texts = {json.dumps(mutating_policies(version)).replace(f'/{version}"', '/v"') for version in VERSIONS}
    assert len(texts) == 1
