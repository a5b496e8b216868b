"""The manifests: rendered from their sources, taken by a real API server, and roles that grant just what is used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.model.access import DatastoreConfig
from cni_calico.model.names import kubernetes_veth
from tests.conftest import LAB_CACHE, ROOT
from tests.deadlines import until
from tests.e2e.host import etcd_in
from tests.e2e.kubernetes.cluster import CNI_USER, NODE_USER, Cluster, running_cluster
from tests.e2e.kubernetes.definitions import cluster_wide_policies
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.e2e.kubernetes.programs import agent_command, agent_environ, run_agent
from tests.e2e.kubernetes.roles import (
    LASTING,
    MACHINES,
    MANIFESTS,
    RARE,
    TAKEN_BACK,
    documents,
    node_with_role,
    plugin_role,
    used,
    with_agent_roles,
)
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

DISPUTES = {("create", "events")}  # used when two pods name one interface: test_policing.py


def test_they_are_as_their_sources_are() -> None:
    done = subprocess.run([sys.executable, MANIFESTS / "render.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_has_its_own_datastore_only() -> None:
    kubernetes, etcd = ((MANIFESTS / name).read_text() for name in ("calico.yaml", "calico-etcd.yaml"))
    assert "etcd" not in kubernetes.lower() and "only:" not in kubernetes + etcd
    assert "CustomResourceDefinition" not in etcd and '"datastore_type": "etcdv3"' in etcd
    assert {"Secret", "ConfigMap", "DaemonSet"} <= {d["kind"] for d in documents("calico-etcd.yaml")}


@pytest.mark.parametrize("name", ["calico.yaml", "calico-etcd.yaml"])
def test_the_network_configuration_in_it_becomes_one(name: str) -> None:
    from cni_calico.cni.netconf import parse_netconf
    from cni_calico.install.settings import parse_settings
    from cni_calico.install.template import render_conflist, template_values

    [config] = documents(name, "ConfigMap")
    environ = {"CNI_MTU": config["data"]["veth_mtu"], "ETCD_ENDPOINTS": config["data"].get("etcd_endpoints", "")}
    values = template_values(parse_settings(environ, bundle="/b"), node="n1", token="", tls_files=frozenset())
    plugin, *chained = yaml.safe_load(render_conflist(config["data"]["cni_network_config"], values))["plugins"]
    conf = parse_netconf({**plugin, "name": "k8s-pod-network", "cniVersion": "1.0.0"}, {})
    assert (conf.nodename, conf.mtu, conf.policy_type) == ("n1", 0, "k8s")
    assert conf.datastore.type == ("etcdv3" if "etcd" in name else "kubernetes")
    assert [p["type"] for p in chained] == ["portmap", "bandwidth"]


def test_every_variable_of_the_agent_is_one_it_reads() -> None:
    known = (ROOT / "docs" / "node-environment.md").read_text()
    felix = {line.split("`")[1].lower() for line in known.splitlines() if line.startswith("| `")}
    for name in ("calico.yaml", "calico-etcd.yaml"):
        [daemon_set] = documents(name, "DaemonSet")
        [container] = daemon_set["spec"]["template"]["spec"]["containers"]
        for variable in container["env"]:
            text = variable["name"].removeprefix("FELIX_").lower()
            assert text in felix, variable["name"]


@pytest.mark.kubernetes
@pytest.mark.parametrize(
    "name",
    [
        *("crds.yaml", "calico.yaml", "calico-etcd.yaml", "calico-csi.yaml"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("crds-v3.yaml", "calico-v3.yaml")),
    ],
)
def test_the_api_server_takes_them(name: str, kube: Cluster) -> None:
    output = kube.kubectl("apply", "--dry-run=server", "-f", str(MANIFESTS / name))
    assert len(output.splitlines()) == len(documents(name))
    assert "Warning" not in output


@pytest.mark.kubernetes
@pytest.mark.slow
def test_a_cluster_takes_them_really_and_again() -> None:
    for name in ("calico.yaml", "calico-etcd.yaml"):
        with running_cluster() as cluster:
            cluster.kubectl("apply", "-f", str(MANIFESTS / name))
            made = generations(cluster, name)
            cluster.kubectl("apply", "-f", str(MANIFESTS / name))
            assert generations(cluster, name) == made
            daemon_set = cluster.request("GET", "/apis/apps/v1/namespaces/kube-system/daemonsets/calico-node")
            stored = daemon_set["spec"]["template"]["spec"]
            assert stored["priorityClassName"] == "system-node-critical"
            assert_node_pod(stored, of_etcd="etcd" in name)
            if "etcd" in name:
                secret = cluster.request("GET", "/api/v1/namespaces/kube-system/secrets/calico-etcd-secrets")
                assert secret["type"] == "Opaque"


@pytest.mark.parametrize("name", ["calico.yaml", "calico-etcd.yaml"])
def test_the_controllers_run_where_and_as_they_must(name: str) -> None:
    """Two of them for one lease, on control planes too, never as root, with upstream's probes; one may be evicted."""
    [deployment], [budget] = documents(name, "Deployment"), documents(name, "PodDisruptionBudget")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    of_etcd = "etcd" in name
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]["type"]) == (2, "RollingUpdate")
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert {one["key"] for one in pod["tolerations"]} == {
        "CriticalAddonsOnly",
        "node-role.kubernetes.io/control-plane",
        "node-role.kubernetes.io/master",
    }
    assert pod.get("hostNetwork", False) == of_etcd
    assert pod["securityContext"]["runAsUser"] == 999 and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["readinessProbe"]["exec"]["command"] == ["/usr/bin/check-status", "-r"]
    assert container["livenessProbe"]["exec"]["command"] == ["/usr/bin/check-status", "-l"]
    assert container["startupProbe"]["exec"]["command"] == ["/usr/bin/check-status", "-r"]
    [enabled] = [one["value"] for one in container["env"] if one["name"] == "ENABLED_CONTROLLERS"]
    copying = "policy,namespace,serviceaccount,workloadendpoint,"
    assert enabled == (copying if of_etcd else "") + "node,loadbalancer"
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]


def generations(cluster: Cluster, name: str) -> dict[tuple[str, str], str]:
    """The version of each object of a manifest, except definitions, whose status the API server writes."""
    found = json.loads(cluster.kubectl("get", "-f", str(MANIFESTS / name), "-o", "json"))["items"]
    return {
        (one["kind"], one["metadata"]["name"]): one["metadata"]["resourceVersion"]
        for one in found
        if one["kind"] != "CustomResourceDefinition"
    }


def assert_node_pod(pod: dict[str, Any], *, of_etcd: bool) -> None:
    """Probes, mounts and what runs before: nothing of it may get lost on the way into the API server."""
    before = {container["name"]: container for container in pod["initContainers"]}
    [agent] = pod["containers"]
    assert list(before) == (["install-cni"] if of_etcd else ["upgrade-ipam", "install-cni"])
    assert before["install-cni"]["command"] == ["/opt/cni/bin/install"]
    assert of_etcd or before["upgrade-ipam"]["command"] == ["/opt/cni/bin/calico-ipam", "-upgrade"]
    program = "/opt/cni/bin/calico-node"
    assert agent["command"] == [program, "run"]
    assert agent["startupProbe"]["exec"]["command"] == [program, "-felix-started"]
    assert agent["livenessProbe"]["exec"]["command"] == [program, "-felix-live", "-bird-live"]
    assert agent["readinessProbe"]["exec"]["command"] == [program, "-felix-ready", "-bird-ready"]
    assert agent["lifecycle"]["preStop"]["exec"]["command"] == [program, "-shutdown"]

    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    def mounts(container: dict[str, Any]) -> dict[str, str]:
        """Where -> what of the host's; "" for a Secret."""
        return {
            mount["mountPath"]: volumes[mount["name"]].get("hostPath", {}).get("path", "")
            for mount in container["volumeMounts"]
            if not mount["mountPath"].startswith("/var/run/secrets/")
        }

    certificates = {"/calico-secrets": ""} if of_etcd else {}
    of_relay = {} if of_etcd else {"/relay": "", "/relay-token": ""}
    host = {"/host/opt/cni/bin": "/opt/cni/bin", "/host/etc/cni/net.d": "/etc/cni/net.d"}
    same = ("/lib/modules", "/run/xtables.lock", "/var/run/calico", "/var/lib/calico", "/var/log/calico/cni")
    same += ("/var/run/nodeagent",)
    assert mounts(before["install-cni"]) == {**host, **certificates}
    assert mounts(agent) == {
        "/host/etc/cni/net.d": "/etc/cni/net.d",
        **{path: path for path in same},
        **certificates,
        **of_relay,
    }
    if of_etcd:
        assert volumes["etcd-certs"]["secret"] == {"secretName": "calico-etcd-secrets", "defaultMode": 0o400}
    else:
        assert mounts(before["upgrade-ipam"]).keys() == {"/var/lib/cni/networks", "/host/opt/cni/bin"}


# -- what the plugin may ----------------------------------------------------------------------------------------------


@pytest.fixture
def restricted_beside(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    """The records are not in Kubernetes: etcd's manifest (which datastore it is makes no difference to Kubernetes)."""
    local = DatastoreConfig("local", path=str(tmp_path / "datastore.db"))
    with node_with_role("calico-etcd.yaml", kube, host_ns, tmp_path, local) as made:
        yield made


def every_verb(node: KubeNode, make_pod_ns: MakeNamespace, number: int) -> None:
    names, spaces = [f"p{number}-{i}" for i in range(2)], [make_pod_ns() for _ in range(2)]
    for name, space in zip(names, spaces, strict=True):
        node.kube.create_pod(node.namespace, name, node.nodename)
        container = name.encode().hex() * 4
        added = node.pod_call("ADD", name, container, space.path)
        assert added.ok, added.document
        assert node.pod_call("CHECK", name, container, space.path, prevResult=added.document).ok
    assert node.call("STATUS", "").ok
    kept = [{"containerID": names[0].encode().hex() * 4, "ifname": "eth0"}]
    collected = node.call("GC", "", **{"cni.dev/valid-attachments": kept})
    assert collected.ok, collected.document
    for name, space in zip(names, spaces, strict=True):
        assert node.pod_call("DEL", name, name.encode().hex() * 4, space.path).ok


@pytest.mark.kubernetes
@pytest.mark.netns
def test_the_plugins_role_grants_what_it_uses_and_nothing_else(
    restricted: KubeNode, make_pod_ns: MakeNamespace
) -> None:
    node, kube = restricted, restricted.kube
    since = len(kube.audited())
    # a selector that looks at labels, and a block that its pool leaves
    node.apply("IPPool", "pool4", {"cidr": "10.65.0.0/16", "blockSize": 26, "nodeSelector": "!has(nothing)"})
    every_verb(node, make_pod_ns, 1)
    with node.server():
        every_verb(node, make_pod_ns, 2)
        until(lambda: ("watch", "blockaffinities") in used(kube, CNI_USER, since)[0], "the server's watches", 20)
        node.apply("IPPool", "pool4", {"cidr": "10.65.0.0/16", "blockSize": 26, "nodeSelector": "has(nothing)"})
        node.apply("IPPool", "other", {"cidr": "10.66.0.0/16", "blockSize": 26})
        every_verb(node, make_pod_ns, 3)
    every_verb(node, make_pod_ns, 4)
    requests, refused = used(kube, CNI_USER, since)
    assert not refused
    assert granted(plugin_role("calico.yaml")) - RARE - MACHINES == requests - RARE


def granted(*roles: dict[str, Any]) -> set[tuple[str, str]]:
    """(verb, resource) of every rule."""
    rules = [rule for role in roles for rule in role["rules"]]
    return {(verb, name) for rule in rules for name in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.kubernetes
@pytest.mark.netns
@pytest.mark.cnitool
def test_beside_another_datastore_the_role_is_smaller(
    restricted_beside: KubeNode, make_pod_ns: MakeNamespace, tmp_path: Path
) -> None:
    """Pods and namespaces are read, watched by the server, and host-local asks for the node's podCIDR."""
    node, kube = restricted_beside, restricted_beside.kube
    since = len(kube.audited())
    every_verb(node, make_pod_ns, 1)
    with node.server():
        every_verb(node, make_pod_ns, 2)
        watches = {("watch", "pods"), ("watch", "namespaces")}
        until(lambda: watches <= used(kube, CNI_USER, since)[0], "the server's watches", 20)
    node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    ipam = {"type": "host-local", "dataDir": str(tmp_path / "leases"), "subnet": "usePodCidr"}
    kube.create_pod(node.namespace, "local", node.nodename)
    space = make_pod_ns()
    assert node.pod_call("ADD", "local", "ee" * 32, space.path, ipam=ipam).ok
    assert node.pod_call("DEL", "local", "ee" * 32, space.path, ipam=ipam).ok
    requests, refused = used(kube, CNI_USER, since)
    assert not refused
    assert granted(plugin_role("calico-etcd.yaml")) - MACHINES == requests


KUBEVIRT = {f"{name}.kubevirt.io" for _, name in MACHINES}


def resources_of(kube: Cluster, token: str, *arguments: str) -> set[str]:
    """What a user may do anything with, except what every user may ask the API server about."""
    rules = kube.kubectl("auth", "can-i", "--list", "--no-headers", *arguments, token=token)
    found = {line.split()[0] for line in rules.splitlines() if line and not line.startswith(" ")}
    return {name for name in found if "authorization.k8s.io" not in name and "authentication.k8s.io" not in name}


def assert_refused(kube: Cluster, token: str, *questions: tuple[str, ...]) -> None:
    for question in questions:
        answer = kube.kubectl("auth", "can-i", *question, token=token, check=False)
        assert answer.split()[0] == "no", question


NOT_THE_PLUGINS = (
    ("delete", "pods"),
    ("patch", "pods"),
    ("patch", "nodes"),
    ("patch", "nodes/status"),
    ("get", "secrets"),
    ("update", "ippools.crd.projectcalico.org"),
)


@pytest.mark.kubernetes
def test_everything_else_is_refused(restricted: KubeNode) -> None:
    assert resources_of(restricted.kube, "cni-token") == {
        "namespaces",
        "nodes",
        "pods",
        "pods/status",
        *(
            f"{name}.crd.projectcalico.org"
            for name in (
                "blockaffinities",
                "clusterinformations",
                "ipamblocks",
                "ipamconfigs",
                "ipamhandles",
                "ippools",
                "ipreservations",
            )
        ),
        *KUBEVIRT,
    }
    assert_refused(restricted.kube, "cni-token", *NOT_THE_PLUGINS)


@pytest.mark.kubernetes
def test_beside_another_datastore_nothing_is_written(restricted_beside: KubeNode) -> None:
    """No records and no annotations: three kinds of objects are read, KubeVirt's two, and that is all."""
    kube = restricted_beside.kube
    assert resources_of(kube, "cni-token") == {"namespaces", "nodes", "pods", *KUBEVIRT}
    assert {verb for verb, _ in granted(plugin_role("calico-etcd.yaml"))} == {"get", "list", "watch"}
    more = (
        ("list", "nodes"),
        ("patch", "pods/status"),
        ("get", "ippools.crd.projectcalico.org"),
        ("list", "ipamblocks"),
    )
    assert_refused(kube, "cni-token", *NOT_THE_PLUGINS, *more)


# -- what the agent may -----------------------------------------------------------------------------------------------


@pytest.fixture
def agent_rights_beside(kube: Cluster) -> Iterator[Cluster]:
    """Of the manifest for etcd."""
    with with_agent_roles(kube, "calico-etcd.yaml") as made:
        yield made


NETWORK_POLICIES = "/apis/networking.k8s.io/v1/namespaces/space/networkpolicies"
NETWORK_POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}},
}


def agent_roles(manifest: str = "calico.yaml") -> list[dict[str, Any]]:
    return [d for d in documents(manifest, "ClusterRole", "Role") if d["metadata"]["name"] == "calico-node"]


def is_in_force(root: Path, *, policies: int) -> bool:
    """Whether the agent says that so many policies are enforced."""
    path = root / "run" / "agent-status.json"
    said = (json.loads(path.read_text()).get("policing") if path.exists() else None) or {}
    return bool(said.get("in_force")) and said["counts"]["policies"] == policies


@pytest.mark.kubernetes
@pytest.mark.netns
def test_the_agent_is_refused_nothing(agent_rights: Cluster, host_ns: Namespace, tmp_path: Path) -> None:
    kube, environ = agent_rights, agent_environ(agent_rights, tmp_path)
    prefix = agent_command(host_ns)

    def run(flag: str) -> None:
        run_agent(host_ns, environ, flag)

    with kube_node(kube, host_ns, tmp_path) as node, cluster_wide_policies(kube):
        for name in ("pool4", "pool6"):
            kube.request("DELETE", f"/apis/crd.projectcalico.org/v1/ippools/{name}")
        since = len(kube.audited())
        kube.ensure(NETWORK_POLICIES, NETWORK_POLICY)
        kube.create_pod("space", "policed", "node1", annotations={"cni.projectcalico.org/podIP": "10.68.0.9/32"})
        host_ns.do("link", "add", kubernetes_veth("space", "policed"), "up", "type", "veth", "peer", "name", "policed0")
        run("-startup")
        node.apply("IPPool", "tunnels", {"cidr": "10.67.0.0/16", "vxlanMode": "Always", "blockSize": 26})
        run("-allocate-tunnel-addrs-run-once")
        with subprocess.Popen([*prefix, "-felix", "-status-reporter"], env=environ, stderr=subprocess.DEVNULL) as agent:
            try:
                kinds = ("pods", "nodes", "ippools", "ipamblocks", "networkpolicies", "caliconodestatuses")
                watched = {("watch", name) for name in kinds}
                until(lambda: watched <= used(kube, NODE_USER, since)[0], "the agent's watches", 30)
                until(lambda: is_in_force(tmp_path, policies=1), "the policy is in force", 30)
            finally:
                agent.terminate()
        run("-shutdown")
        requests, refused = used(kube, NODE_USER, since)
        kube.request("DELETE", "/api/v1/namespaces/space/pods/policed", {"gracePeriodSeconds": 0})
        kube.request("DELETE", f"{NETWORK_POLICIES}/deny-all")
    assert not refused
    assert {("create", "ippools"), ("create", "ipamhandles"), ("patch", "nodes/status")} <= requests


# what it would need as the janitor, which calico-kube-controllers are
NOT_THE_AGENTS: tuple[tuple[str, ...], ...] = (
    ("list", "ipamhandles"),
    ("watch", "ipamhandles"),
    ("get", "kubecontrollersconfigurations"),
    ("create", "leases.coordination.k8s.io", "-n", "kube-system"),
    ("get", "leases.coordination.k8s.io/calico-janitor", "-n", "kube-system"),
    ("update", "leases.coordination.k8s.io/calico-janitor", "-n", "kube-system"),
    ("delete", "pods"),
    ("update", "pods"),
    ("delete", "nodes"),
    ("patch", "nodes"),
    ("list", "secrets", "-n", "kube-system"),
    ("get", "secrets/other", "-n", "kube-system"),
    ("create", "serviceaccounts/calico-node", "--subresource=token", "-n", "kube-system"),
    ("delete", "ippools.crd.projectcalico.org"),
)


def may_what_its_roles_say(kube: Cluster, manifest: str) -> None:
    def own(namespace: str) -> set[str]:
        return {name.partition(".")[0] for name in resources_of(kube, "node-token", "-n", namespace)}

    roles: dict[str, set[str]] = {"ClusterRole": set(), "Role": set()}
    for role in agent_roles(manifest):
        roles[role["kind"]] |= {name for _, name in granted(role)}
    assert own("default") == roles["ClusterRole"]
    assert own("kube-system") == roles["ClusterRole"] | roles["Role"]
    assert_refused(kube, "node-token", *NOT_THE_AGENTS)


@pytest.mark.kubernetes
def test_everything_else_is_refused_to_the_agent(agent_rights: Cluster) -> None:
    may_what_its_roles_say(agent_rights, "calico.yaml")


@pytest.mark.kubernetes
def test_beside_etcd_everything_else_is_refused_to_the_agent(agent_rights_beside: Cluster) -> None:
    may_what_its_roles_say(agent_rights_beside, "calico-etcd.yaml")
    of_records = (("patch", "pods/status"), ("get", "ippools.crd.projectcalico.org"), ("create", "ipamblocks"))
    of_pods = (("get", "pods"), ("list", "pods"), ("watch", "pods"))
    assert_refused(agent_rights_beside, "node-token", *of_records, *of_pods)


SERVICES = "felix confd allocate-tunnel-addrs monitor-addresses monitor-token complete-startup status-reporter"


@pytest.mark.kubernetes
@pytest.mark.netns
@pytest.mark.slow
def test_the_agents_role_grants_what_it_uses_and_nothing_else(
    agent_rights: Cluster, host_ns: Namespace, pod_ns: Namespace, tmp_path: Path
) -> None:
    """All it can be asked to do: both start-ups, tunnels, BGP, statuses, owed DELs, tokens, flows."""
    kube, role = agent_rights, granted(*agent_roles())
    (tmp_path / "net.d").mkdir()
    environ = agent_environ(kube, tmp_path)
    environ["CALICO_CNI_KUBECONFIG"] = str(tmp_path / "net.d" / "calico-kubeconfig")
    environ["FELIX_FLOWS"] = "Enabled"  # then staged policies are read
    del environ["CALICO_IPV4POOL_CIDR"]  # then kubeadm's ConfigMap is asked
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "calico-cni-plugin"}}
    kube.ensure("/api/v1/namespaces/kube-system/serviceaccounts", account)
    with kube_node(kube, host_ns, tmp_path) as node, cluster_wide_policies(kube):
        owe_a_del(node, pod_ns)
        for kind in ("ippools", "clusterinformations", "ipamconfigs"):
            kube.request("DELETE", f"/apis/crd.projectcalico.org/v1/{kind}")
        since = len(kube.audited())
        run_agent(host_ns, environ, "-startup")
        node.apply("IPPool", "tunnels", {"cidr": "10.67.0.0/16", "vxlanMode": "Always", "blockSize": 26})
        node.apply("FelixConfiguration", "default", {})
        node.apply("ClusterInformation", "default", {"clusterGUID": "0" * 32, "datastoreReady": True})
        run_agent(host_ns, environ, "-startup")
        node.apply("BGPConfiguration", "default", {"serviceClusterIPs": [{"cidr": "10.96.0.0/16"}]})
        password = {"secretKeyRef": {"name": "bgp-secrets", "key": "k"}}
        node.apply("BGPPeer", "p", {"peerIP": "10.99.0.9", "asNumber": 64512, "password": password})
        node.apply("CalicoNodeStatus", "s", {"node": node.nodename, "classes": ["BGP"], "updatePeriodSeconds": 1})
        argv = [*agent_command(host_ns), *(f"-{name}" for name in SERVICES.split())]
        with open(tmp_path / "agent.log", "wb") as log, subprocess.Popen(argv, env=environ, stderr=log) as agent:
            try:
                unused = until_nothing_new(kube, role - RARE - LASTING - TAKEN_BACK - DISPUTES, since)
            finally:
                agent.terminate()
        requests, refused = used(kube, NODE_USER, since)
    assert not refused, refused
    assert not unused, (sorted(unused), (tmp_path / "agent.log").read_text())
    assert requests - RARE - LASTING - TAKEN_BACK == role - RARE - LASTING - TAKEN_BACK - DISPUTES


@pytest.mark.kubernetes
@pytest.mark.netns
@pytest.mark.slow
def test_beside_etcd_the_agents_role_is_smaller(
    agent_rights_beside: Cluster, host_ns: Namespace, tmp_path: Path
) -> None:
    """The records are in etcd; Kubernetes is told of the node's network, and says which services there are."""
    kube, role = agent_rights_beside, granted(*agent_roles("calico-etcd.yaml"))
    (tmp_path / "net.d").mkdir()
    environ = agent_environ(kube, tmp_path)
    environ |= {
        "DATASTORE_TYPE": "etcdv3",
        "ETCD_ENDPOINTS": "http://127.0.0.1:2379",
        "CALICO_CNI_KUBECONFIG": str(tmp_path / "net.d" / "calico-kubeconfig"),
    }
    del environ["CALICO_IPV4POOL_CIDR"]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "calico-cni-plugin"}}
    kube.ensure("/api/v1/namespaces/kube-system/serviceaccounts", account)
    config = DatastoreConfig("etcdv3", etcd_endpoints=("http://127.0.0.1:2379",))
    with etcd_in(host_ns, tmp_path), kube_node(kube, host_ns, tmp_path, config) as node, cluster_wide_policies(kube):
        node.put({f"/calico/resources/v3/projectcalico.org/ippools/{name}": None for name in ("pool4", "pool6")})
        since = len(kube.audited())
        run_agent(host_ns, environ, "-startup")
        node.apply("BGPConfiguration", "default", {"serviceClusterIPs": [{"cidr": "10.96.0.0/16"}]})
        password = {"secretKeyRef": {"name": "bgp-secrets", "key": "k"}}
        node.apply("BGPPeer", "p", {"peerIP": "10.99.0.9", "asNumber": 64512, "password": password})
        argv = [*agent_command(host_ns), *(f"-{name}" for name in SERVICES.split())]
        with open(tmp_path / "agent.log", "wb") as log, subprocess.Popen(argv, env=environ, stderr=log) as agent:
            run_agent(host_ns, environ, "-shutdown")
            try:
                unused = until_nothing_new(kube, role - LASTING - DISPUTES, since)
            finally:
                agent.terminate()
        requests, refused = used(kube, NODE_USER, since)
    assert not refused, refused
    assert not unused, (sorted(unused), (tmp_path / "agent.log").read_text())
    assert requests - LASTING == role - LASTING - DISPUTES


def until_nothing_new(kube: Cluster, wanted: set[tuple[str, str]], since: int) -> set[tuple[str, str]]:
    """What of the wanted rights the agent has not used after a minute and a half; at once when it has used all."""
    missing = set(wanted)

    def all_used() -> bool:
        missing.intersection_update(wanted - used(kube, NODE_USER, since)[0])
        return not missing

    try:
        until(all_used, "every right is used", 90)
    except AssertionError:
        pass
    return missing


def owe_a_del(node: KubeNode, pod_ns: Namespace) -> None:
    """A DEL while the API server was away: the agent pays it."""
    node.kube.create_pod(node.namespace, "owed", node.nodename)
    uid = node.kube.read_pod(node.namespace, "owed")["metadata"]["uid"]
    assert node.pod_call("ADD", "owed", "0e" * 32, pod_ns.path, uid=uid).ok
    node.relay.close()
    assert node.pod_call("DEL", "owed", "0e" * 32, pod_ns.path, uid=uid).ok
    node.relay.open()
    assert node.intents()
