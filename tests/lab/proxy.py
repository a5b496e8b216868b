"""kube-proxy on every node of a lab, in one of its modes.

Rule: it has an account of its own with the rights that Kubernetes' own role for it gives, as kubeadm sets it up.
"""

from __future__ import annotations

import json

from tests.deadlines import until
from tests.lab.control_plane import API
from tests.lab.host import BIN
from tests.lab.lab import POOL4, POOL6, Lab

_ACCOUNT = "kube-proxy"
_RIGHTS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "lab:kube-proxy"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
    "subjects": [{"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": "kube-system"}],
}
_TABLES = {"iptables": ("table ip nat", "KUBE-SERVICES"), "nftables": ("table ip kube-proxy", "")}


def install_kube_proxy(lab: Lab, mode: str) -> None:
    """``mode``: iptables or nftables. Returns when every node has its rules."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _ACCOUNT, "namespace": "kube-system"}}
    lab.apply(account, _RIGHTS)
    for node in lab.nodes:
        token = lab.kubectl("create", "token", _ACCOUNT, "-n", "kube-system", "--duration=24h").strip()
        kubeconfig = lab.plane.authority.kubeconfig(node.directory / "kube-proxy.kubeconfig", API, token=token)
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": mode,
            "clusterCIDR": f"{POOL4},{POOL6}" if lab.dual else POOL4,
            "hostnameOverride": node.name,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "conntrack": {"maxPerCore": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
            "nodePortAddresses": [],
        }
        file = node.directory / "kube-proxy.yaml"
        file.write_text(json.dumps(settings))
        node.enable("kube-proxy", BIN / "kube-proxy", f"--config={file}")
    table, chain = _TABLES[mode]
    for node in lab.nodes:
        until(
            lambda node=node: has(node.run("nft", "list", "ruleset"), table, chain),
            f"kube-proxy of {node.name} ({mode})",
            pause_s=0.1,
        )


def has(text: str, *words: str) -> bool:
    return all(word in text for word in words)
