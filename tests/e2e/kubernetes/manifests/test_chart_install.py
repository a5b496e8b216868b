"""The Helm chart in a real API server: installed, upgraded, removed; what is stored stays; a manifest is taken over."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from build.distribution_pages import read_distributions
from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.kubernetes.cluster import Cluster, running_cluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.helm]

CHART = ROOT / "manifests" / "chart"


@pytest.fixture(scope="module")
def empty_cluster() -> Iterator[Cluster]:
    """Without any definition of ours."""
    with running_cluster() as cluster:
        yield cluster


def helm(cluster: Cluster, *words: str) -> str:
    command = [LAB_CACHE / "bin" / "helm", *words, "--namespace=kube-system", f"--kubeconfig={cluster.kubeconfig()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def get(cluster: Cluster, *words: str) -> Any:
    return json.loads(cluster.kubectl("get", *words, "-o", "json"))


def agent(cluster: Cluster) -> Any:
    return get(cluster, "daemonset", "calico-node", "-n", "kube-system")["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    "row", [each for each in read_distributions() if not each.get("refused")], ids=lambda row: row["title"]
)
def test_each_distribution(row: dict[str, Any], empty_cluster: Cluster) -> None:
    """What the chart makes for it suits the API server's schemas; what is said names its page and what is to be off."""
    values = f"includeCRDs=false,installation.kubernetesProvider={row['provider']}"
    said = helm(empty_cluster, "install", "calico", str(CHART), "--dry-run=server", "--set", values)
    notes = said.partition("\nNOTES:\n")[2]
    assert f"docs/distributions/{row['page']}.md" in notes
    assert f"To be switched off there: {row['disable']}\n" in f"{notes}\n"


def test_installed_changed_and_removed(empty_cluster: Cluster) -> None:
    helm(empty_cluster, "install", "calico", str(CHART))
    assert agent(empty_cluster)["resources"] == {"requests": {"cpu": "250m"}}
    pool = {
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPPool",
        "metadata": {"name": "kept"},
        "spec": {"cidr": "10.9.0.0/16"},
    }
    empty_cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pool))
    helm(empty_cluster, "upgrade", "calico", str(CHART), "--set", "node.resources.limits.memory=512Mi,vxlan=true")
    changed = agent(empty_cluster)
    assert changed["resources"]["limits"] == {"memory": "512Mi"}
    assert {"name": "CALICO_IPV4POOL_VXLAN", "value": "Always"} in changed["env"]
    helm(empty_cluster, "uninstall", "calico")
    assert "NotFound" in empty_cluster.kubectl("get", "daemonset", "calico-node", "-n", "kube-system", check=False)
    assert get(empty_cluster, "ippools.crd.projectcalico.org", "kept")["spec"]["cidr"] == "10.9.0.0/16"
    helm(empty_cluster, "install", "calico", str(CHART))
    helm(empty_cluster, "uninstall", "calico")


def test_a_cluster_that_has_the_manifest_is_taken_over(empty_cluster: Cluster) -> None:
    empty_cluster.kubectl("apply", "-f", str(ROOT / "manifests" / "calico.yaml"))
    helm(empty_cluster, "install", "calico", str(CHART), "--take-ownership", "--set", "node.priorityClassName=high")
    daemon_set = get(empty_cluster, "daemonset", "calico-node", "-n", "kube-system")
    assert daemon_set["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    assert daemon_set["spec"]["template"]["spec"]["priorityClassName"] == "high"
