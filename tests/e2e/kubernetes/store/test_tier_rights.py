"""What calicoctl says about rights on tiers, against roles at a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.ctl.policy.rights import RESOURCES
from cni_calico.model.access import CRD_ROOT
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, native_cluster

pytestmark = pytest.mark.kubernetes

RBAC = "/apis/rbac.authorization.k8s.io/v1"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
ALL = ["get", "list", "watch", "create", "update", "delete"]


@pytest.fixture(params=[CRD_ROOT, NATIVE_ROOT])
def tiered(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    """alice works in tier sec, on global policies; bob's group reads tier ops, whose policies he may create as such."""
    root = request.param
    cluster: Cluster = native_cluster() if root == NATIVE_ROOT else request.getfixturevalue("kube")
    cluster.empty(root)
    for name in ("ops", "sec"):
        body = {"apiVersion": root.removeprefix("/apis/"), "kind": "Tier", "metadata": {"name": name}}
        cluster.request("POST", f"{root}/tiers", {**body, "spec": {"order": 5}})
    give(
        cluster,
        "rights-alice",
        {"kind": "User", "name": "alice"},
        [
            rule(["tiers"], ["get"], ["sec"]),
            rule(["tier.globalnetworkpolicies"], ["*"], ["sec.*"]),
            rule(["globalnetworkpolicies"], ["get", "create"]),
        ],
    )
    give(
        cluster,
        "rights-dev",
        {"kind": "Group", "name": "dev"},
        [
            rule(["tiers"], ["get"]),
            rule(["tier.networkpolicies"], ["create"], ["other.*"]),
            rule(["networkpolicies"], ["create"]),
        ],
    )
    yield cluster, root
    for name in ("rights-alice", "rights-dev"):
        for plural in ("clusterroles", "clusterrolebindings"):
            cluster.request("DELETE", f"{RBAC}/{plural}/{name}")
    cluster.empty(root)


def rule(resources: list[str], verbs: list[str], names: Any = ()) -> dict[str, Any]:
    named = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": ["projectcalico.org"], "resources": resources, "verbs": verbs, **named}


def give(cluster: Cluster, name: str, subject: dict[str, str], rules: list[dict[str, Any]]) -> None:
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    cluster.request("POST", f"{RBAC}/clusterroles", {**head, "kind": "ClusterRole", "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", **subject}]
    cluster.request(
        "POST",
        f"{RBAC}/clusterrolebindings",
        {**head, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": subjects},
    )


def rights(cluster: Cluster, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """tier -> resource -> verbs, without those that are not allowed; and why nobody checks them."""
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": cluster.kubeconfig()}
    assert run(["policy", "rights", *words, "-o", "json"], environ) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(set(each["may"]) == set(RESOURCES) for each in found["tiers"])
    may = {each["tier"]: {name: verbs for name, verbs in each["may"].items() if verbs} for each in found["tiers"]}
    return {tier: verbs for tier, verbs in may.items() if verbs}, found["unchecked"]


def test_rights_are_those_of_the_roles(tiered: tuple[Cluster, str], capsys: pytest.CaptureFixture[str]) -> None:
    cluster, root = tiered
    mine, unchecked = rights(cluster, capsys, "alice")
    if root == CRD_ROOT:
        assert mine == {"sec": {"globalnetworkpolicies": ALL}}
        assert "Calico's API server is not installed" in unchecked
    else:  # reads are a matter of the resource alone, writes of both
        assert mine == {
            "ops": {"globalnetworkpolicies": ["get"]},
            "sec": {"globalnetworkpolicies": ["get", "create"]},
        }
        assert "no webhook tiered-rbac.projectcalico.org" in unchecked
    assert rights(cluster, capsys, "bob")[0] == rights(cluster, capsys, "bob", "--group", "dev")[0] == {}


def test_a_webhook_that_checks_them_is_seen(tiered: tuple[Cluster, str], capsys: pytest.CaptureFixture[str]) -> None:
    cluster, root = tiered
    hook = {
        "name": "tiered-rbac.projectcalico.org",
        "clientConfig": {"url": "https://127.0.0.1:1/rbac"},
        "rules": [{"apiGroups": ["none"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    cluster.request("POST", HOOKS, {**head, "metadata": {"name": "api.projectcalico.org"}, "webhooks": [hook]})
    try:
        assert bool(rights(cluster, capsys, "alice")[1]) == (root == CRD_ROOT)
    finally:
        cluster.request("DELETE", f"{HOOKS}/api.projectcalico.org")


def test_the_table_and_its_warning(tiered: tuple[Cluster, str], capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": tiered[0].kubeconfig()}
    assert run(["policy", "rights", "alice"], environ) == 0
    said = capsys.readouterr()
    assert "nobody checks rights on tiers here" in said.err
    assert [line.split()[:2] for line in said.out.splitlines() if line.startswith("sec")] == [
        ["sec", each] for each in RESOURCES
    ]


def test_other_datastores_have_no_such_rights(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"DATASTORE_TYPE": "local", "DATASTORE_PATH": str(tmp_path / "d.db")}
    assert run(["get", "nodes"], environ) in (0, 1)
    assert run(["policy", "rights", "alice"], environ) == 1
