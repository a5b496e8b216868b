"""PURE: upstream's manifest for v3.32 as far as it meets ours: made from ours, with what only upstream has, and without
what only ours has. Facts of its calico.yaml.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

MANIFEST = Path(__file__).parent.parent / "manifests" / "calico.yaml"
VERSION = "v3.32.1"
NODE, CNI, CONTROLLERS = (f"quay.io/calico/{name}:{VERSION}" for name in ("node", "cni", "kube-controllers"))
_IMAGES = {"upgrade-ipam": CNI, "install-cni": CNI, "calico-node": NODE}
_PROGRAM = "/bin/calico-node"
_OURS_ALONE = ("CALICO_JANITOR", "FELIX_TYPHACAFILE", "FELIX_TYPHAK8SSERVICENAME", "FELIX_TYPHATOKENFILE")
_BIDIRECTIONAL = {"mountPropagation": "Bidirectional"}
_TIER_GETTER = "calico-tier-getter"
_RBAC, _CRD = "rbac.authorization.k8s.io", "crd.projectcalico.org"
_READ = ["get", "list", "watch"]
_STAGED = ["stagedglobalnetworkpolicies", "stagednetworkpolicies", "stagedkubernetesnetworkpolicies"]
_POLICIES = ["networkpolicies", "globalnetworkpolicies", *_STAGED[:2]]
_ALL_OF_IPAM = ["blockaffinities", "ipamblocks", "ipamhandles", "ipamconfigs", "ippools", "ipreservations"]
# what ours does without
_RIGHTS = {
    "calico-node": [
        {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch", "update"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        {"apiGroups": [_CRD], "resources": ["clusterinformations", "ipreservations", *_STAGED], "verbs": _READ},
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
    ],
    "calico-cni-plugin": [
        {"apiGroups": [_CRD], "resources": _ALL_OF_IPAM, "verbs": ["get", "list", "create", "update", "delete"]},
    ],
    "calico-kube-controllers": [
        {"apiGroups": [_CRD], "resources": _POLICIES, "verbs": [*_READ, "create", "update", "delete"]},
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"], "resourceNames": ["calico-node"]},
    ],
}


def upstreams_manifest() -> list[dict[str, Any]]:
    documents = yaml.safe_load_all(MANIFEST.read_text())
    kept = [upstreams(each) for each in documents if each and each["kind"] not in ("Role", "RoleBinding")]
    return [*kept, *_tier_getter()]


def upstreams(document: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(document)
    kind = made["kind"]
    if kind == "ConfigMap":
        made["data"]["cni_network_config"] = made["data"]["cni_network_config"].replace("1.0.0", "0.3.1")
    if kind == "ClusterRole":
        made["rules"] += _RIGHTS[made["metadata"]["name"]]
    if kind == "Deployment":
        _change_controllers(made["spec"])
    if kind == "DaemonSet":
        _change_node(made["spec"]["template"]["spec"])
    return made


def _change_controllers(spec: dict[str, Any]) -> None:
    spec |= {"replicas": 1, "strategy": {"type": "Recreate"}}
    pod = spec["template"]["spec"]
    del pod["affinity"], pod["volumes"]
    pod["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
    [container] = pod["containers"]
    del container["command"], container["volumeMounts"]
    container |= {"image": CONTROLLERS, "securityContext": {"runAsNonRoot": True}}


def _change_node(pod: dict[str, Any]) -> None:
    pod["terminationGracePeriodSeconds"] = 0
    [node] = pod["containers"]
    for container in (*pod["initContainers"], node):
        container["image"] = _IMAGES[container["name"]]
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "relay-ca"]
    pod["volumes"] += [
        _host("bpffs", "/sys/fs/bpf", "Directory"),
        _host("sys-fs", "/sys/fs/", "DirectoryOrCreate"),
        _host("nodeproc", "/proc", ""),
    ]
    node["volumeMounts"] = [each for each in node["volumeMounts"] if each["name"] != "relay-ca"]
    node["volumeMounts"].append({"name": "bpffs", "mountPath": "/sys/fs/bpf"})
    pod["initContainers"].append(
        {
            "name": "ebpf-bootstrap",
            "image": NODE,
            "command": ["calico-node", "-init", "-best-effort"],
            "volumeMounts": [
                {"name": "sys-fs", "mountPath": "/sys/fs", **_BIDIRECTIONAL},
                {"name": "var-run-calico", "mountPath": "/var/run/calico", **_BIDIRECTIONAL},
                {"name": "nodeproc", "mountPath": "/nodeproc", "readOnly": True},
            ],
            "securityContext": {"privileged": True},
        }
    )
    del node["command"]
    node["lifecycle"]["preStop"]["exec"]["command"] = [_PROGRAM, "-shutdown"]
    node["livenessProbe"]["exec"]["command"] = [_PROGRAM, "-felix-live", "-bird-live"]
    node["readinessProbe"]["exec"]["command"] = [_PROGRAM, "-felix-ready", "-bird-ready"]
    node["env"] = [each for each in node["env"] if each["name"] not in _OURS_ALONE]
    node["env"].append({"name": "CALICO_IPV6POOL_VXLAN", "value": "Never"})


def _host(name: str, path: str, kind: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": kind} if kind else {"path": path}}


def _tier_getter() -> list[dict[str, Any]]:
    """For Kubernetes' own controllers; ours needs no such role."""
    base = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": _TIER_GETTER}}
    rules = [{"apiGroups": ["projectcalico.org"], "resources": ["tiers"], "verbs": ["get"]}]
    reference = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": _TIER_GETTER}
    subject = {"apiGroup": _RBAC, "kind": "User", "name": "system:kube-controller-manager"}
    binding = {"kind": "ClusterRoleBinding", **base, "roleRef": reference, "subjects": [subject]}
    return [{"kind": "ClusterRole", **base, "rules": rules}, binding]
