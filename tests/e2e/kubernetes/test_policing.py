"""Policies of a real API server, read with the manifests' own role, enforced on packets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.log import Log
from cni_calico.model.names import kubernetes_veth
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.kubernetes import ApiNode
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import NODE_USER, Cluster
from tests.e2e.kubernetes.node import Relay
from tests.netns.policing.lab import NODE, Lab, lab, private_settings, traffic

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

SPACE, OTHER = "policed", "elsewhere"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{SPACE}/networkpolicies"
GLOBAL = "/apis/crd.projectcalico.org/v1/globalnetworkpolicies"


def roles() -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((ROOT / "manifests" / "calico.yaml").read_text())
    return [d for d in documents if d and "rbac" in d["apiVersion"] and d["metadata"]["name"] == "calico-node"]


class KubernetesLab:
    def __init__(self, kube: Cluster, node: Lab, relay: Relay) -> None:
        self.kube, self.node, self.relay = kube, node, relay
        self._made: list[str] = []

    def pod(self, namespace: str, name: str, address: str, node: str = NODE, **labels: str) -> None:
        self.kube.create_pod(
            namespace, name, node, labels=labels, annotations={"cni.projectcalico.org/podIP": f"{address}/32"}
        )
        self._made.append(f"/api/v1/namespaces/{namespace}/pods/{name}")
        if node == NODE:
            self.node.connect(name, kubernetes_veth(namespace, name), address)

    def policy(self, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}
        self.create(POLICIES, body)

    def create(self, path: str, body: dict[str, Any]) -> None:
        self.kube.request("POST", path, body)
        self._made.append(f"{path}/{body['metadata']['name']}")

    def remove(self, path: str) -> None:
        self._made.remove(path)
        self.kube.request("DELETE", path, {"gracePeriodSeconds": 0})

    def clean(self) -> None:
        for path in reversed(list(self._made)):
            self.remove(path)


@pytest.fixture
def policed_cluster(kube: Cluster, tmp_path: Path) -> Iterator[KubernetesLab]:
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": roles()})
    kube.kubectl("apply", "-f", "-", stdin=items)
    kube.ensure_namespace(SPACE, labels={"team": "blue"})
    kube.ensure_namespace(OTHER, labels={"team": "red"})
    kube.create_node(NODE)
    with lab(tmp_path) as node:
        relay = Relay(node.host, kube.port)

        def open_context(log: Log) -> Context:
            store = KubernetesStore(kube.access("node-token"))
            return Context(
                private_settings(tmp_path),
                store,
                log,
                lambda _: True,
                kubernetes=ApiNode(store.api, NODE),
                kubernetes_store=store,
                is_kubernetes_datastore=True,
            )

        node.open_context = open_context
        made = KubernetesLab(kube, node, relay)
        try:
            yield made
        finally:
            node.stop(9)
            relay.close()
            made.clean()
            kube.kubectl("delete", "-f", "-", stdin=items)


def test_kubernetes_policies(policed_cluster: KubernetesLab) -> None:
    node, since = policed_cluster.node, len(policed_cluster.kube.audited())
    policed_cluster.pod(SPACE, "a", "10.65.0.1", app="a")
    policed_cluster.pod(SPACE, "b", "10.65.0.2", app="b")
    policed_cluster.pod(OTHER, "c", "10.65.0.3", app="a")
    policed_cluster.pod(OTHER, "far", "10.65.1.1", node="n2", app="far")
    node.start()
    node.until_in_force(endpoints=3)
    assert node.passes("a", "b", 80) and node.passes("c", "b", 80)  # no policy: open
    policed_cluster.policy("default-deny", {"podSelector": {}, "policyTypes": ["Ingress"]})
    node.until_passes("a", "b", 80, False)
    assert node.passes("a", "c", 80)
    ports = [{"protocol": "UDP", "port": 80}]
    peer = {"podSelector": {"matchLabels": {"app": "a"}}}
    policed_cluster.policy(
        "from-a", {"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{"from": [peer], "ports": ports}]}
    )
    node.until_passes("a", "b", 80)
    assert not node.passes("a", "b", 81) and not node.passes("c", "b", 80)  # c is in another namespace
    assert "10.65.1.1" not in node.ruleset()
    space = {"namespaceSelector": {"matchLabels": {"team": "red"}}}
    policed_cluster.policy("from-red", {"podSelector": {}, "ingress": [{"from": [space], "ports": ports}]})
    node.until_passes("c", "b", 80)
    assert "10.65.1.1" in node.ruleset()  # a pod of another node, which is known now
    policed_cluster.kube.kubectl("label", "--overwrite", "namespace", OTHER, "team=green")
    node.until_passes("c", "b", 80, False)
    policed_cluster.kube.kubectl("label", "--overwrite", "namespace", OTHER, "team=red")
    node.until_passes("c", "b", 80)
    spec = {
        "order": 1,
        "selector": "app == 'b'",
        "types": ["Ingress"],
        "ingress": [{"action": "Deny", "source": {"namespaceSelector": "team == 'red'"}}],
    }
    head = {
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "GlobalNetworkPolicy",
        "metadata": {"name": "default.red"},
    }
    policed_cluster.create(GLOBAL, {**head, "spec": spec})
    node.until_passes("c", "b", 80, False)
    policed_cluster.remove(f"{GLOBAL}/default.red")
    node.until_passes("c", "b", 80)
    policed_cluster.remove(f"{POLICIES}/from-red")
    policed_cluster.remove(f"{POLICIES}/from-a")
    policed_cluster.remove(f"{POLICIES}/default-deny")
    node.until_passes("b", "a", 81)
    assert node.standing()["problems"] == [] and node.standing()["warnings"] == []
    refused = [
        event["requestURI"]
        for event in policed_cluster.kube.audited(since)
        if event["user"]["username"] == NODE_USER and event.get("responseStatus", {}).get("code") == 403
    ]
    assert refused == []


def test_policies_stay_while_the_api_server_is_away(policed_cluster: KubernetesLab) -> None:
    """Also those of an engine that is killed and begins again meanwhile; what changed is made up for afterwards."""
    node = policed_cluster.node
    policed_cluster.pod(SPACE, "a", "10.65.0.1", app="a")
    policed_cluster.pod(SPACE, "b", "10.65.0.2", app="b")
    peer = {"podSelector": {"matchLabels": {"app": "a"}}}
    from_a = {"from": [peer], "ports": [{"protocol": "UDP", "port": 80}]}
    policed_cluster.policy("from-a", {"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [from_a]})
    node.start()
    node.until_in_force(endpoints=2)
    node.until_passes("a", "b", 81, False)
    before = node.ruleset()
    with traffic(node, "a", "b", allowed=80, forbidden=81) as counts:
        policed_cluster.relay.close()
        policed_cluster.policy("more", {"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{"from": [peer]}]})
        node.stop(9)
        node.start()
        until(lambda: node.standing().get("failing"), "why nothing can be read is said")
        begun = counts.sent
        until(lambda: counts.sent > begun + 200, "packets while the engine waits")
        assert node.ruleset() == before and not node.standing()["ready"]
    assert counts.sent > 200
    assert (counts.allowed_arrived, counts.forbidden_arrived) == (counts.sent, 0)
    policed_cluster.relay.open()
    node.until_passes("a", "b", 81)
    until(lambda: node.standing()["in_force"] and not node.standing()["failing"], "nothing fails any more")


def test_rights_that_are_missing_are_said(policed_cluster: KubernetesLab) -> None:
    kube = policed_cluster.kube
    fewer = roles()
    [role] = [document for document in fewer if document["kind"] == "ClusterRole"]
    role["rules"] = [rule for rule in role["rules"] if "networking.k8s.io" not in rule["apiGroups"]]
    kube.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": fewer}))
    asked = ("auth", "can-i", "list", "networkpolicies.networking.k8s.io", "-A", "--as", NODE_USER)
    until(lambda: kube.kubectl(*asked, check=False).strip() == "no", "the right is gone", pause_s=0.2)
    policed_cluster.node.start()
    until(
        lambda: "networkpolicies.networking.k8s.io" in policed_cluster.node.standing().get("failing", ""), "it is told"
    )
    assert not policed_cluster.node.standing()["in_force"]
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": roles()})
    kube.kubectl("apply", "-f", "-", stdin=items)
    policed_cluster.node.until_in_force()
