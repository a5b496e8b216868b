"""docs/from-calico.md: its commands, one after the other, at a real API server with what upstream's manifest leaves.

Rule: nothing of upstream's stays in what was taken over, and nothing of ours in what was given back: the API server has
exactly what it has where there never was the other. No node runs; what agents do on one is in tests/lab.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kubernetes.cluster import BIN, Cluster, read, running_cluster
from tests.e2e.kubernetes.programs import kubernetes_controllers
from tests.e2e.manifest_documents import MANIFESTS
from tests.pages import blocks
from tests.upstream_manifest import upstreams_manifest

pytestmark = [pytest.mark.kubernetes, pytest.mark.bundle, pytest.mark.slow, pytest.mark.timeout(2700)]

PAGE = "from-calico.md"
WORKLOADS = (("daemonset", "calico-node"), ("deployment", "calico-kube-controllers"))
ROLES = ("calico-node", "calico-cni-plugin", "calico-kube-controllers")
HTTP_RULE = {"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}}
Run = Callable[[str], str]


def stored(cluster: Cluster) -> dict[str, Any]:
    """What the two manifests have under the same names, as the API server has it."""
    found = {}
    for kind, name in WORKLOADS:
        found[kind] = read(cluster, "-n", "kube-system", kind, name)["spec"]
        found[kind]["template"]["metadata"].pop("creationTimestamp", None)
    found["config"] = read(cluster, "-n", "kube-system", "configmap", "calico-config")["data"]
    for name in ROLES:
        found[name] = read(cluster, "clusterrole", name)["rules"]
    return found


# of what upstream's agent needs when it starts, and ours does not
RIGHTS = ("update nodes --subresource=status", "watch clusterinformations.crd.projectcalico.org")


def granted(cluster: Cluster) -> dict[str, bool]:
    """Of RIGHTS, to the account of calico-node."""
    user = "system:serviceaccount:kube-system:calico-node"
    return {
        right: cluster.kubectl("auth", "can-i", *right.split(), f"--as={user}", check=False).startswith("yes")
        for right in RIGHTS
    }


@pytest.fixture
def taken_over(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster() as made, kubernetes_controllers(made, tmp_path / "controllers.log"):
        yield made


@pytest.fixture
def reader(taken_over: Cluster, bundle: Path, tmp_path: Path) -> Run:
    """Who runs a page's commands in a directory with manifests/ and upstream's manifest."""
    (tmp_path / "manifests").symlink_to(MANIFESTS)
    (tmp_path / "upstream.yaml").write_text(yaml.safe_dump_all(upstreams_manifest()))
    path = f"{BIN}:{bundle}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "KUBECONFIG": taken_over.kubeconfig()}

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def forget(reader: Run) -> None:
    """What the two manifests have under the same names goes."""
    reader(
        "kubectl -n kube-system delete configmap/calico-config daemonset/calico-node deployment/calico-kube-controllers"
        f"; kubectl delete clusterrole {' '.join(ROLES)}"
    )


def test_the_pages_commands(taken_over: Cluster, reader: Run, tmp_path: Path) -> None:
    [before] = blocks(PAGE, "Before: what would no longer be enforced")
    save, _, compare, keep_rights, change, *_, last = blocks(PAGE, "A cluster installed from upstream's manifest")
    back, rules = blocks(PAGE, "The way back")
    assert "nft -f -" in rules  # on a node

    reader("kubectl apply -f manifests/crds.yaml -f manifests/calico.yaml")
    fresh = stored(taken_over)
    forget(reader)
    reader("kubectl apply -f upstream.yaml")
    given = stored(taken_over)
    pool = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": "own"}}
    taken_over.kubectl("apply", "-f", "-", stdin=json.dumps({**pool, "spec": {"cidr": "10.65.0.0/16"}}))

    assert reader(before) == ""
    reader(save)
    assert "10.65.0.0/16" in (tmp_path / "before.yaml").read_text()
    shown = reader(compare.replace("| less", "|| true"))
    assert "-      terminationGracePeriodSeconds: 0" in shown and "+      terminationGracePeriodSeconds: 10" in shown
    upstream_may = granted(taken_over)
    assert all(upstream_may.values())
    reader(keep_rights)
    reader(change)
    assert stored(taken_over) == fresh
    assert granted(taken_over) == upstream_may
    reader(last.partition("calicoctl cluster")[0])  # no node is there to look at
    assert not any(granted(taken_over).values())
    reader(back)
    assert stored(taken_over) == given
    roles = {role["metadata"]["name"] for role in read(taken_over, "-n", "kube-system", "role")["items"]}
    assert not roles & set(ROLES)
    assert [each["metadata"]["name"] for each in read(taken_over, "ippools.crd.projectcalico.org")["items"]] == ["own"]


@pytest.mark.parametrize("way", ["create", "apply --server-side"])
def test_upstreams_manifest_was_not_applied(taken_over: Cluster, reader: Run, way: str) -> None:
    _, say, _, _, change, *_ = blocks(PAGE, "A cluster installed from upstream's manifest")
    reader(f"kubectl {way} -f upstream.yaml")
    reader(say)
    reader(change)
    changed = stored(taken_over)
    forget(reader)
    reader("kubectl apply -f manifests/calico.yaml")
    assert changed == stored(taken_over)


def test_what_only_upstream_enforces_is_named(taken_over: Cluster, reader: Run) -> None:
    taken_over.apply_definitions()
    base = {"apiVersion": "crd.projectcalico.org/v1"}
    policy = {"selector": "all()", "types": ["Ingress"], "ingress": [HTTP_RULE]}
    documents: list[dict[str, Any]] = [
        {**base, "kind": "GlobalNetworkPolicy", "metadata": {"name": "default.wide"}, "spec": policy},
        {**base, "kind": "NetworkPolicy", "metadata": {"name": "default.near", "namespace": "default"}, "spec": policy},
        {**base, "kind": "FelixConfiguration", "metadata": {"name": "default"},
         "spec": {"wireguardHostEncryptionEnabled": True, "bpfEnabled": False, "wireguardListeningPort": 51999}},
    ]  # fmt: skip
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    taken_over.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
    [before] = blocks(PAGE, "Before: what would no longer be enforced")
    said = reader(before)
    assert "wide" in said and "near" in said and '"wireguardHostEncryptionEnabled": true' in said
    assert "bpfEnabled" not in said
    [encrypted] = blocks(PAGE, "Where WireGuard is enabled")
    said = reader(encrypted)
    assert '"wireguardListeningPort": 51999' in said and "bpfEnabled" not in said
