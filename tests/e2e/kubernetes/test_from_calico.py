"""docs/from-calico.md: its commands, one after the other, at a real API server with what upstream's manifest leaves.

Rule: nothing of upstream's stays in what was taken over, and nothing of ours in what was given back: the API server has
exactly what it has where there never was the other. No node runs; what agents do on one is in tests/lab.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.e2e.kubernetes.cluster import BIN, Cluster, running_cluster
from tests.e2e.kubernetes.test_from_operator import controllers, read
from tests.e2e.manifest_documents import MANIFESTS

pytestmark = [pytest.mark.kubernetes, pytest.mark.bundle, pytest.mark.slow, pytest.mark.timeout(2700)]

PAGE = ROOT / "docs" / "from-calico.md"
WORKLOADS = (("daemonset", "calico-node"), ("deployment", "calico-kube-controllers"))
ROLES = ("calico-node", "calico-cni-plugin", "calico-kube-controllers")
IMAGES = {"upgrade-ipam": "cni", "install-cni": "cni", "calico-node": "node"}
HTTP_RULE = {"action": "Allow", "http": {"methods": ["GET"]}}
Run = Callable[[str], str]


def blocks(heading: str) -> list[str]:
    """The commands below a heading of the page."""
    section = re.split(r"(?m)^## ", PAGE.read_text().partition(f"\n## {heading}")[2])[0]
    found = re.findall(r"(?s)```sh\n(.*?)```", section)
    assert found
    return found


def upstreams(document: dict[str, Any]) -> dict[str, Any]:
    """As upstream's manifest has it: what ours lacks is there, what only ours has is not."""
    made = copy.deepcopy(document)
    kind = made["kind"]
    if kind == "ConfigMap":
        made["data"]["cni_network_config"] = made["data"]["cni_network_config"].replace("1.0.0", "0.3.1")
    if kind == "ClusterRole":
        made["rules"].append({"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]})
    if kind == "Deployment":
        made["spec"] |= {"replicas": 1, "strategy": {"type": "Recreate"}}
        pod = made["spec"]["template"]["spec"]
        del pod["affinity"], pod["volumes"]
        pod["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
        [container] = pod["containers"]
        del container["command"], container["volumeMounts"]
        container |= {"image": "quay.io/calico/kube-controllers:v3.32.1", "securityContext": {"runAsNonRoot": True}}
    if kind == "DaemonSet":
        pod = made["spec"]["template"]["spec"]
        pod["terminationGracePeriodSeconds"] = 0
        [node] = pod["containers"]
        for container in (*pod["initContainers"], node):
            container["image"] = f"quay.io/calico/{IMAGES[container['name']]}:v3.32.1"
        host = {"name": "bpffs", "hostPath": {"path": "/sys/fs/bpf", "type": "Directory"}}
        mount = {"name": "bpffs", "mountPath": "/sys/fs/bpf"}
        pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "relay-ca"] + [host]
        node["volumeMounts"] = [each for each in node["volumeMounts"] if each["name"] != "relay-ca"] + [mount]
        pod["initContainers"].append(
            {"name": "ebpf-bootstrap", "image": node["image"], "command": ["calico-node", "-init", "-best-effort"],
             "volumeMounts": [mount], "securityContext": {"privileged": True}}
        )  # fmt: skip
        del node["command"]
        node["env"] = [each for each in node["env"] if each["name"] not in ("CALICO_JANITOR", "FELIX_TYPHACAFILE")]
        node["env"].append({"name": "FELIX_WIREGUARDMTU", "value": "0"})
    return made


def upstreams_manifest() -> str:
    text = (MANIFESTS / "calico.yaml").read_text()
    kept = [d for d in yaml.safe_load_all(text) if d and d["kind"] not in ("Role", "RoleBinding")]
    return yaml.safe_dump_all(map(upstreams, kept))


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


@pytest.fixture
def taken_over(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster() as made, controllers(made, tmp_path / "controllers.log"):
        yield made


@pytest.fixture
def reader(taken_over: Cluster, bundle: Path, tmp_path: Path) -> Run:
    """Who runs a page's commands in a directory with manifests/ and upstream's manifest."""
    (tmp_path / "manifests").symlink_to(MANIFESTS)
    (tmp_path / "upstream.yaml").write_text(upstreams_manifest())
    path = f"{BIN}:{bundle}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "KUBECONFIG": taken_over.kubeconfig()}

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def test_the_pages_commands(taken_over: Cluster, reader: Run, tmp_path: Path) -> None:
    [before] = blocks("Before: what would no longer be enforced")
    save, compare, change, *_ = blocks("A cluster installed from upstream's manifest")
    back, rules = blocks("The way back")
    assert "nft delete table" in rules  # on a node

    reader("kubectl apply -f manifests/crds.yaml -f manifests/calico.yaml")
    fresh = stored(taken_over)
    reader(
        "kubectl -n kube-system delete configmap/calico-config daemonset/calico-node deployment/calico-kube-controllers"
        f"; kubectl delete clusterrole {' '.join(ROLES)}"
    )
    reader("kubectl apply -f upstream.yaml")
    given = stored(taken_over)
    pool = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": "own"}}
    taken_over.kubectl("apply", "-f", "-", stdin=json.dumps({**pool, "spec": {"cidr": "10.65.0.0/16"}}))

    assert reader(before) == ""
    reader(save)
    assert "10.65.0.0/16" in (tmp_path / "before.yaml").read_text()
    shown = reader(compare.replace("| less", "|| true"))
    assert "-      terminationGracePeriodSeconds: 0" in shown and "+      terminationGracePeriodSeconds: 10" in shown
    reader(change)
    assert stored(taken_over) == fresh
    reader(back)
    assert stored(taken_over) == given
    roles = {role["metadata"]["name"] for role in read(taken_over, "-n", "kube-system", "role")["items"]}
    assert not roles & set(ROLES)
    assert [each["metadata"]["name"] for each in read(taken_over, "ippools.crd.projectcalico.org")["items"]] == ["own"]


def test_what_only_upstream_enforces_is_named(taken_over: Cluster, reader: Run) -> None:
    taken_over.apply_definitions()
    base = {"apiVersion": "crd.projectcalico.org/v1"}
    policy = {"selector": "all()", "types": ["Ingress"], "ingress": [HTTP_RULE]}
    documents: list[dict[str, Any]] = [
        {**base, "kind": "GlobalNetworkPolicy", "metadata": {"name": "default.wide"}, "spec": policy},
        {**base, "kind": "NetworkPolicy", "metadata": {"name": "default.near", "namespace": "default"}, "spec": policy},
        {**base, "kind": "FelixConfiguration", "metadata": {"name": "default"},
         "spec": {"wireguardEnabled": True, "bpfEnabled": False}},
    ]  # fmt: skip
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    taken_over.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
    [before] = blocks("Before: what would no longer be enforced")
    said = reader(before)
    assert "wide" in said and "near" in said and '"wireguardEnabled": true' in said
    assert "bpfEnabled" not in said and "policySyncPathPrefix" not in said
