"""Kubernetes' own policies in files: what the API server refuses or leaves out is refused, and named."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.ctl.main import run
from cni_calico.ctl.policy.kubernetes_files import FORMS
from tests.unit.ctl.policy.shop import endpoints_file, write

ROOT = Path(__file__).resolve().parents[4]
WEB = {"podSelector": {"matchLabels": {"app": "web"}}}
POLICY: dict[str, Any] = {
    **{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"},
    "metadata": {"name": "database", "namespace": "shop"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "db"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [WEB], "ports": [{"port": 5432, "protocol": "TCP"}]}],
    },
}
CLUSTER: dict[str, Any] = {
    **{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy"},
    "metadata": {"name": "closed"},
    "spec": {
        **{"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}},
        "ingress": [{"name": "no", "action": "Deny", "from": [{"namespaces": {}}]}],
    },
}
HOSTILE = "a\x1b[31mb<script>"
WRONG = [
    (POLICY, ("spec", "ingres"), []),
    (POLICY, ("specs",), {}),
    (POLICY, ("spec", "podSelector", "matchLabel"), {"app": "db"}),
    (POLICY, ("spec", "policyTypes", 0), "ingress"),
    (POLICY, ("spec", "ingress", 0, "form"), [WEB]),
    (POLICY, ("spec", "ingress", 0, "from", 0, "podselector"), {}),
    (POLICY, ("spec", "ingress", 0, "ports", 0, "protocol"), "ICMP"),
    (POLICY, ("spec", "podSelector", "matchExpressions"), [{"key": "a", "operator": "Gt", "values": ["1"]}]),
    (POLICY, ("metadata", "name"), HOSTILE),
    (POLICY, ("metadata", "namespace"), HOSTILE),
    (CLUSTER, ("metadata", "name"), HOSTILE),
    (CLUSTER, ("spec", "tier"), "admin"),
    (CLUSTER, ("spec", "tier"), None),
    (CLUSTER, ("spec", "ingress", 0, "action"), "Allow"),
    (CLUSTER, ("spec", "ingress", 0, "to"), [{"namespaces": {}}]),
    (CLUSTER, ("spec", "subject", "pod"), {}),
]


@pytest.fixture
def compared_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """(status, output, errors) of a comparison with a file of this policy."""
    sides = ["--dir", write(tmp_path / "old.yaml"), "--endpoints", endpoints_file(tmp_path)]

    def do(document: Any) -> tuple[int, str, str]:
        code = run(["policy", "diff", *sides, "--with", write(tmp_path / "new.yaml", document)], {})
        return code, *capsys.readouterr()

    return do


@pytest.mark.parametrize(("document", "at", "value"), WRONG)
def test_what_is_wrong_is_named(compared_with: Any, document: dict[str, Any], at: tuple[Any, ...], value: Any) -> None:
    made = copy.deepcopy(document)
    place: Any = made
    for step in at[:-1]:
        place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
    place[at[-1]] = value
    code, out, err = compared_with(made)
    assert (code, out) == (2, "") and str(at[-2 if at[-1] in (0, "matchExpressions") else -1]) in err
    assert "error with" in err and "\x1b" not in err


def test_what_is_right_is_compared(compared_with: Any) -> None:
    code, out, err = compared_with(
        {**POLICY, "status": {}, "metadata": {**POLICY["metadata"], "managedFields": [{"x": 1}]}}
    )
    assert (code, err) == (1, "") and "ingress tcp 0-5431,5433-65535" in out
    code, out, err = compared_with(CLUSTER)
    assert (code, err) == (1, "") and "DENIED by rule 1 of KubernetesClusterNetworkPolicy closed" in out


def test_another_version_is_told_which_there_are(compared_with: Any) -> None:
    code, _, err = compared_with({**POLICY, "apiVersion": "extensions/v1beta1"})
    assert code == 2 and "known are projectcalico.org/v3, networking.k8s.io/v1 for Kubernetes' NetworkPolicy" in err


def test_the_cluster_policys_fields_are_those_of_its_definition() -> None:
    documents = yaml.safe_load_all((ROOT / "manifests" / "clusternetworkpolicies.yaml").read_text())
    (version,) = next(one for one in documents if one["kind"] == "CustomResourceDefinition")["spec"]["versions"]

    def fields(schema: Any) -> Any:
        """As in FORMS."""
        if schema.get("type") == "array":
            its = fields(schema["items"])
            return None if its is None else [its]
        if schema.get("enum"):
            return tuple(schema["enum"])
        return {name: fields(its) for name, its in schema["properties"].items()} if "properties" in schema else None

    assert FORMS["KubernetesClusterNetworkPolicy"] == fields(version["schema"]["openAPIV3Schema"])
