"""What Kubespray's role makes, with our image in upstream's place: its accounts' rights, and its network configuration
for etcd with TLS and three endpoints.

Rule: the rights are those that the role grants, which are upstream's of then and fewer than our manifests grant;
nothing may depend on more than these and what docs/kubespray.md adds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.model.access import DatastoreConfig
from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_ready
from tests.conftest import ROOT
from tests.contract import etcd_process
from tests.deadlines import until
from tests.e2e.etcd.certificates import make_authority
from tests.e2e.kubernetes.cluster import CNI_USER, NODE_USER, Cluster
from tests.e2e.kubernetes.node import KubeNode, Relay, kube_node
from tests.e2e.kubernetes.roles import RBAC, used
from tests.e2e.kubernetes.roles import documents as all_documents
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

CALICO = "crd.projectcalico.org"
IPAM = ["blockaffinities", "ipamblocks", "ipamhandles"]
PLUGIN = [
    ("", ["pods", "nodes", "namespaces"], ["get"]),
    ("", ["pods/status"], ["patch"]),
    (
        CALICO,
        [*IPAM, "clusterinformations", "ippools", "ipreservations", "ipamconfigs"],
        ["get", "list", "create", "update", "delete"],
    ),
]
AGENT = [
    ("", ["configmaps"], ["get"]),
    ("discovery.k8s.io", ["endpointslices"], ["list", "watch"]),
    ("", ["endpoints", "services"], ["get", "list", "watch"]),
    ("", ["nodes/status"], ["patch", "update"]),
    ("networking.k8s.io", ["networkpolicies"], ["list", "watch"]),
    ("", ["pods", "namespaces", "nodes"], ["get", "list", "watch"]),
    ("", ["serviceaccounts"], ["list", "watch"]),
    ("", ["pods/status"], ["patch"]),
    (
        CALICO,
        [
            "felixconfigurations",
            "bgppeers",
            "bgpfilters",
            "bgpconfigurations",
            "ippools",
            "ipreservations",
            "ipamblocks",
            "globalnetworkpolicies",
            "globalnetworksets",
            "networkpolicies",
            "networksets",
            "clusterinformations",
            "hostendpoints",
            "blockaffinities",
            "caliconodestatuses",
        ],
        ["get", "list", "watch"],
    ),
    (CALICO, ["ippools", "felixconfigurations", "clusterinformations"], ["create", "update"]),
    (CALICO, ["bgpconfigurations", "bgppeers"], ["create", "update"]),
    (CALICO, ["caliconodestatuses"], ["update"]),
    (CALICO, IPAM, ["get", "list", "create", "update", "delete"]),
    (CALICO, ["ipamconfigs"], ["get", "create"]),
    ("apps", ["daemonsets"], ["get"]),
    ("", ["serviceaccounts/token"], ["create"]),
]


AGENT_OF_ETCD = [
    ("", ["pods", "nodes", "namespaces", "configmaps"], ["get"]),
    ("discovery.k8s.io", ["endpointslices"], ["list", "watch"]),
    ("", ["endpoints", "services"], ["list", "watch"]),
    ("", ["nodes/status"], ["patch"]),
    ("", ["serviceaccounts/token"], ["create"]),
]
CONTROLLERS = [
    ("", ["nodes"], ["get", "list", "watch"]),
    ("", ["pods"], ["get"]),
    (CALICO, ["ippools"], ["list"]),
    (CALICO, IPAM, ["get", "list", "create", "update", "delete"]),
    (CALICO, ["clusterinformations"], ["get", "create", "update"]),
]
CONTROLLERS_OF_ETCD = [
    ("", ["pods", "namespaces", "nodes", "serviceaccounts"], ["list", "watch"]),
    ("networking.k8s.io", ["networkpolicies"], ["list", "watch"]),
]
ROLES = {
    "calico.yaml": {"calico-node": AGENT, "calico-cni-plugin": PLUGIN, "calico-kube-controllers": CONTROLLERS},
    "calico-etcd.yaml": {
        "calico-node": AGENT_OF_ETCD,
        "calico-cni-plugin": PLUGIN,
        "calico-kube-controllers": CONTROLLERS_OF_ETCD,
    },
}


def rights(roles: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """(group, resource, verb)"""
    rules = [rule for role in roles for rule in role["rules"]]
    return {
        (group, name, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    }


def page_roles() -> str:
    (found,) = re.findall(r"(?s)```yaml\n(apiVersion: rbac.*?)```", (ROOT / "docs" / "kubespray.md").read_text())
    return str(found)


@pytest.mark.parametrize("manifest", ROLES)
def test_the_page_adds_what_the_roles_lack(manifest: str) -> None:
    """All that our manifests grant, but the Secret of BGP's passwords, which the page names."""
    documents = list(yaml.safe_load_all(page_roles()))
    by_name = {d["metadata"]["name"]: d for d in documents if d["kind"] == "ClusterRole"}
    bindings = [d for d in documents if d["kind"] == "ClusterRoleBinding"]
    bound = {b["subjects"][0]["name"]: by_name[b["roleRef"]["name"]] for b in bindings}
    for account, given in ROLES[manifest].items():
        ours = [d for d in all_documents(manifest, "ClusterRole", "Role") if d["metadata"]["name"] == account]
        has = {(group, name, verb) for group, names, verbs in given for name in names for verb in verbs}
        assert rights(ours) - has - rights([bound[account]]) <= {("", "secrets", "get")}, account


@contextmanager
def granted(kube: Cluster, name: str, rules: list[tuple[str, list[str], list[str]]]) -> Iterator[None]:
    """The account has these rights and no others."""
    listed = [{"apiGroups": [group], "resources": names, "verbs": verbs} for group, names, verbs in rules]
    made = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": f"{name}-of-kubespray"}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{name}-of-kubespray"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}
    kube.ensure(f"{RBAC}/clusterroles", {**made, "kind": "ClusterRole", "rules": listed})
    binding = {**made, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]}
    kube.ensure(f"{RBAC}/clusterrolebindings", binding)
    try:
        yield
    finally:
        kube.request("DELETE", f"{RBAC}/clusterrolebindings/{name}-of-kubespray")
        kube.request("DELETE", f"{RBAC}/clusterroles/{name}-of-kubespray")


@contextmanager
def added(kube: Cluster) -> Iterator[None]:
    """What the page has people apply besides."""
    page = page_roles()
    kube.kubectl("apply", "-f", "-", stdin=page)
    try:
        yield
    finally:
        kube.kubectl("delete", "-f", "-", stdin=page)


def pods_come_and_go(node: KubeNode, make_pod_ns: MakeNamespace, *names: str, **conf: Any) -> None:
    spaces = {name: make_pod_ns() for name in names}
    for name, space in spaces.items():
        node.kube.create_pod(node.namespace, name, node.nodename)
        added = node.pod_call("ADD", name, name.encode().hex() * 4, space.path, **conf)
        assert added.ok, added.document
    for name, space in spaces.items():
        deleted = node.pod_call("DEL", name, name.encode().hex() * 4, space.path, **conf)
        assert deleted.ok, deleted.document


def test_the_plugin_with_the_rights_of_its_role(
    kube: Cluster, host_ns: Namespace, tmp_path: Path, make_pod_ns: MakeNamespace
) -> None:
    """By itself, and served, where pods and nodes cannot be watched."""
    with granted(kube, "calico-cni-plugin", PLUGIN), kube_node(kube, host_ns, tmp_path) as node:
        node.token = "cni-token"
        pods_come_and_go(node, make_pod_ns, "alone1", "alone2")
        with node.server():
            pods_come_and_go(node, make_pod_ns, "served1", "served2", "served3")
        with added(kube):
            since = len(kube.audited())
            with node.server():
                pods_come_and_go(node, make_pod_ns, "watched1", "watched2")
                until(lambda: ("watch", "blockaffinities") in used(kube, CNI_USER, since)[0], "the server's watches")
            requests, refused = used(kube, CNI_USER, since)
        assert ("create", "ipamhandles") in requests and not refused


def test_the_agent_with_the_rights_of_its_role(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "DATASTORE_TYPE": "kubernetes",
        "KUBECONFIG": kube.kubeconfig("node-token"),
        "NODENAME": "node1",
        "IP": "10.99.0.1/24",
        "CALICO_IPV4POOL_IPIP": "Off",
        "CALICO_NETWORKING_BACKEND": "vxlan",
        "CLUSTER_TYPE": "kubespray",
        "CALICO_STATE_DIR": str(tmp_path / "state"),
        "CALICO_RUN_DIR": str(tmp_path / "run"),
        "CALICO_LOG_DIR": str(tmp_path / "log"),
        "CALICO_NODENAME_FILE": str(tmp_path / "nodename"),
        "FELIX_ENDPOINTSTATUSPATHPREFIX": str(tmp_path / "run"),
        "CALICO_MANAGE_CNI": "true",
        "CALICO_JANITOR": "false",  # as the page says
        "FELIX_DEFAULTENDPOINTTOHOSTACTION": "RETURN",
        "FELIX_HEALTHHOST": "localhost",
        "FELIX_HEALTHENABLED": "true",
        "FELIX_IPTABLESBACKEND": "Auto",
        "FELIX_CHAININSERTMODE": "Insert",
    }
    command = ["nsenter", f"--net={host_ns.path}", sys.executable, "-m", "cni_calico.nodeagent.main"]

    def flag(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)

    with granted(kube, "calico-node", AGENT), added(kube), kube_node(kube, host_ns, tmp_path):
        since = len(kube.audited())
        started = flag("-startup")
        assert started.returncode == 0, started.stderr
        with open(tmp_path / "agent.log", "wb") as log:
            agent = subprocess.Popen([*command, "-felix"], cwd=ROOT, env=environ, stderr=log)
        try:
            until(
                lambda: not why_not_ready(read_status(environ["CALICO_RUN_DIR"]), since_boot()),
                f"the node is ready; see {tmp_path}/agent.log",
                120,
            )
        finally:
            agent.terminate()
            agent.wait()
        _, refused = used(kube, NODE_USER, since)
        assert not refused


@pytest.fixture
def three_endpoints(host_ns: Namespace, tmp_path: Path) -> Iterator[DatastoreConfig]:
    """An etcd that wants certificates, between two endpoints that are down; the files as the role lays them down."""
    authority = make_authority(tmp_path / "ca")
    served = authority.issue("server", "etcd-server", "serverAuth", "IP:127.0.0.1")
    client = authority.issue("node", "node1", "clientAuth")
    certificates = tmp_path / "certs"
    certificates.mkdir()
    for source, name in ((authority.certificate, "ca_cert.crt"), (client[0], "cert.crt"), (client[1], "key.pem")):
        os.link(source, certificates / name)
    files = ["--cert-file", served[0], "--key-file", served[1], "--trusted-ca-file", authority.certificate]
    with ExitStack() as undo:
        server = undo.enter_context(
            etcd_process.single(arguments=[*map(str, files), "--client-cert-auth"], scheme="https")
        )
        [url] = server.urls
        relay = Relay(host_ns, int(url.rpartition(":")[2]))
        undo.callback(relay.close)
        yield DatastoreConfig(
            "etcdv3",
            etcd_endpoints=("https://127.0.0.1:1", url, "https://127.0.0.1:2"),
            etcd_ca_cert_file=str(certificates / "ca_cert.crt"),
            etcd_cert_file=str(certificates / "cert.crt"),
            etcd_key_file=str(certificates / "key.pem"),
        )


def test_pods_with_its_configuration_for_etcd(
    kube: Cluster, host_ns: Namespace, tmp_path: Path, make_pod_ns: MakeNamespace, three_endpoints: DatastoreConfig
) -> None:
    """The pool by its calls of calicoctl, through its wrapper; pods by the configuration that it renders."""
    access = three_endpoints
    wrapper = {
        "PATH": os.environ["PATH"],
        "ETCD_ENDPOINTS": ",".join(access.etcd_endpoints),
        "ETCD_CA_CERT_FILE": access.etcd_ca_cert_file,
        "ETCD_CERT_FILE": access.etcd_cert_file,
        "ETCD_KEY_FILE": access.etcd_key_file,
    }
    program = [sys.executable, "-m", "cni_calico.ctl.main", "--allow-version-mismatch"]

    def calicoctl(*words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*program, *words], cwd=ROOT, env=wrapper, input=stdin, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    pool = {"cidr": "10.233.64.0/18", "blockSize": 26, "ipipMode": "Never", "vxlanMode": "Never", "natOutgoing": True}
    document = {"kind": "IPPool", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "default-pool"}}
    with granted(kube, "calico-cni-plugin", PLUGIN), kube_node(kube, host_ns, tmp_path, access) as node:
        for name in ("pool4", "pool6"):
            calicoctl("delete", "ippool", name)
        calicoctl("apply", "-f", "-", stdin=json.dumps({**document, "spec": pool}))
        assert "10.233.64.0/18" in calicoctl("get", "ippool")
        assert calicoctl("version").splitlines()[0].split()[2].startswith("v3.")
        node.token = "cni-token"
        rendered = {
            "name": "cni0",
            "cniVersion": "0.3.1",
            "log_level": "info",
            "etcd_endpoints": wrapper["ETCD_ENDPOINTS"],
            "etcd_ca_cert_file": access.etcd_ca_cert_file,
            "etcd_cert_file": access.etcd_cert_file,
            "etcd_key_file": access.etcd_key_file,
            "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "ipv4_pools": ["10.233.64.0/18"]},
            "feature_control": {"ip_addrs_no_ipam": True, "floating_ips": False},
            "mtu": 1450,
        }
        pods_come_and_go(node, make_pod_ns, "one", "two", **rendered)
        with node.server():
            pods_come_and_go(node, make_pod_ns, "three", "four", **rendered)
        assert "10.233.64.0/18" in calicoctl("ipam", "show")
