"""Policies of a real API server, read with the manifests' own role, enforced on packets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.log import Log
from cni_calico.model.keys import BlockKey
from cni_calico.model.names import DEFAULT_PREFIX, kubernetes_veth, owner_text, signed_alias
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.kubernetes import ApiNode
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, NODE_USER, Cluster, native_cluster
from tests.e2e.kubernetes.node import Relay
from tests.netns.policing.lab import NODE, Lab, lab, private_settings, traffic
from tests.netns.policing.test_engine import _has_connections

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.never_excused]

SPACE, OTHER = "policed", "elsewhere"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{SPACE}/networkpolicies"
GLOBAL = "/apis/crd.projectcalico.org/v1/globalnetworkpolicies"


def roles(manifest: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((ROOT / "manifests" / manifest).read_text())
    return [d for d in documents if d and "rbac" in d["apiVersion"] and d["metadata"]["name"] == "calico-node"]


class KubernetesLab:
    def __init__(self, kube: Cluster, node: Lab, relay: Relay) -> None:
        self.kube, self.node, self.relay = kube, node, relay
        self.prefix = DEFAULT_PREFIX
        self._made: list[str] = []

    def pod(self, namespace: str, name: str, *addresses: str, node: str = NODE, **labels: str) -> None:
        """As the plugin does it: the interface and its routes first, the annotations last."""
        if node == NODE:
            self.node.connect(name, kubernetes_veth(namespace, name), *addresses)
        listed = [f"{address}/{128 if ':' in address else 32}" for address in addresses]
        said = {"cni.projectcalico.org/podIP": listed[0], "cni.projectcalico.org/podIPs": ",".join(listed)}
        self.kube.create_pod(namespace, name, node, labels=labels, annotations=said)
        self._made.append(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def others_pod(self, name: str, address: str, **labels: str) -> None:
        """As another plugin and the kubelet do it: the interface by that plugin's prefix, the address in the status."""
        self.node.connect(name, kubernetes_veth(SPACE, name, self.prefix), address)
        self.kube.create_pod(SPACE, name, NODE, labels=labels)
        path = f"/api/v1/namespaces/{SPACE}/pods/{name}"
        self._made.append(path)
        status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
        self.kube.request("PATCH", f"{path}/status", status, content_type="application/merge-patch+json")

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
    with policed(kube, tmp_path, "calico.yaml") as made:
        yield made


@pytest.fixture
def natively_policed_cluster(tmp_path: Path) -> Iterator[KubernetesLab]:
    """One whose records are resources of projectcalico.org/v3."""
    cluster = native_cluster()
    cluster.empty(NATIVE_ROOT)
    with policed(cluster, tmp_path, "calico-v3.yaml") as made:
        yield made


@contextmanager
def policed(kube: Cluster, tmp_path: Path, manifest: str) -> Iterator[KubernetesLab]:
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": roles(manifest)})
    kube.kubectl("apply", "-f", "-", stdin=items)
    kube.ensure_namespace(SPACE, labels={"team": "blue"})
    kube.ensure_namespace(OTHER, labels={"team": "red"})
    kube.create_node(NODE)
    with lab(tmp_path) as node:
        relay = Relay(node.host, kube.port)

        def open_context(log: Log) -> Context:
            store = KubernetesStore(kube.access("node-token"), veth_prefix=made.prefix)
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
    hold(policed_cluster, "10.65.1.0/30", _1=f"{OTHER}/far")
    until(lambda: "10.65.1.1" in node.ruleset(), "a pod of another node, which is known now")
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


@pytest.mark.slow
def test_policies_of_the_other_api_group(natively_policed_cluster: KubernetesLab) -> None:
    """What kubectl gets through without an admission policy leaves the others in force."""
    lab, node = natively_policed_cluster, natively_policed_cluster.node
    path = f"{NATIVE_ROOT}/globalnetworkpolicies"
    lab.pod(SPACE, "a", "10.65.0.1", app="a")
    lab.pod(SPACE, "b", "10.65.0.2", app="b")
    node.start()
    node.until_in_force(endpoints=2)
    assert node.passes("a", "b", 80)

    def create(name: str, **spec: Any) -> None:
        head = {"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": name}}
        lab.create(path, {**head, "spec": spec})

    create("bad", selector="not a selector((", types=["Ingress"], ingress=[{"action": "Deny"}])
    create("default.b", order=1, selector="app == 'b'", types=["Ingress"], ingress=[{"action": "Deny"}])
    node.until_passes("a", "b", 80, False)
    assert node.passes("b", "a", 80)
    until(lambda: "GlobalNetworkPolicy bad" in str(node.standing()["problems"]), "the bad policy is named")
    lab.remove(f"{path}/default.b")
    node.until_passes("a", "b", 80)
    create("both", selector="app == 'b'", ingress=[{"action": "Allow"}])  # no types: both directions
    node.until_passes("b", "a", 80, False)
    assert node.passes("a", "b", 80)


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
    fewer = roles("calico.yaml")
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
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": roles("calico.yaml")})
    kube.kubectl("apply", "-f", "-", stdin=items)
    policed_cluster.node.until_in_force()


@pytest.mark.parametrize("prefix", ["eni", "azv"])
def test_pods_of_anothers_network(policed_cluster: KubernetesLab, prefix: str) -> None:
    """Amazon's and Azure's plugins: their interfaces by FELIX_INTERFACEPREFIX, no annotation of ours, no IPAM."""
    policed_cluster.prefix, node = prefix, policed_cluster.node
    policed_cluster.others_pod("a", "10.65.0.1", app="a")
    policed_cluster.others_pod("b", "10.65.0.2", app="b")
    policed_cluster.others_pod("c", "10.65.0.3", app="c")
    assert all(workload.interface.startswith(prefix) for workload in node.workloads.values())
    node.start(FELIX_INTERFACEPREFIX=prefix)
    node.until_in_force(endpoints=3)
    assert node.passes("a", "b", 80) and node.passes("c", "b", 80)
    peer = {"podSelector": {"matchLabels": {"app": "a"}}}
    rule = {"from": [peer], "ports": [{"protocol": "UDP", "port": 80}]}
    policed_cluster.policy("from-a", {"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [rule]})
    node.until_passes("c", "b", 80, False)
    assert node.passes("a", "b", 80) and not node.passes("a", "b", 81) and node.passes("a", "c", 80)
    # an interface of that prefix that no pod has: nothing comes from there
    node.connect("stranger", f"{prefix}0123456789a", "10.65.0.9")
    assert not node.passes("stranger", "c", 80)


def hold(lab: KubernetesLab, cidr: str, **holders: str) -> None:
    """Write IPAM's block: ``holders`` are pods by their ordinal, such as _1="space/pod"."""
    network = ip_network(cidr)
    attributes = [
        {"handle_id": f"k8s-pod-network.{o}", "secondary": {"namespace": h.split("/")[0], "pod": h.split("/")[1]}}
        for o, h in holders.items()
    ]
    allocations: list[int | None] = [None] * network.num_addresses
    for index, ordinal in enumerate(holders):
        allocations[int(ordinal[1:])] = index
    free = [ordinal for ordinal, index in enumerate(allocations) if index is None]
    spec = {"cidr": cidr, "affinity": "host:n2", "allocations": allocations, "attributes": attributes}
    store = lab.kube.store()
    try:
        key = BlockKey(network)
        found = store.get(key, Deadline.after(10))
        document = {**spec, "unallocated": free, "strictAffinity": False, "deleted": False}
        store.commit(
            (Write.put(key, document),) if found is None else (Write.update(found, document),), Deadline.after(10)
        )
    finally:
        store.close()


def reaches(node: Lab, wanted: bool) -> None:
    for version in (4, 6):
        what = f"a {'reaches' if wanted else 'no longer reaches'} b, IPv{version}"
        until(lambda version=version: node.passes("a", "b", 80, version=version) == wanted, what)


def test_an_annotation_alone_names_nobody(policed_cluster: KubernetesLab) -> None:
    """A pod of another node claims a's addresses to pass as a friend. They count once IPAM holds them for it, and no
    longer than that; or once its status has them. The block may come first or last.
    """
    lab = policed_cluster
    node, mine, victim = lab.node, ("10.65.0.2", "fd00:65::2"), ("10.65.0.1", "fd00:65::1")
    lab.pod(SPACE, "a", *victim, app="a")
    lab.pod(SPACE, "b", *mine, app="b")
    peers = [{"podSelector": {"matchLabels": {"app": "friend"}}}]
    lab.policy("friends", {"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{"from": peers}]})
    lab.pod(SPACE, "evil", *victim, node="n2", app="friend")
    node.start()
    node.until_in_force(endpoints=2)
    reaches(node, False)
    hold(lab, "10.65.0.0/30", _1=f"{SPACE}/other")  # somebody else's
    hold(lab, "fd00:65::/126", _1=f"{SPACE}/other")
    lab.pod(SPACE, "friend", "10.65.0.3", node="n2", app="friend")
    hold(lab, "10.65.0.0/30", _1=f"{SPACE}/other", _3=f"{SPACE}/friend")
    until(lambda: "10.65.0.3" in node.ruleset(), "a friend that IPAM knows")
    reaches(node, False)
    hold(lab, "10.65.0.0/30", _1=f"{SPACE}/evil")  # now it really has them
    hold(lab, "fd00:65::/126", _1=f"{SPACE}/evil")
    reaches(node, True)
    until(lambda: "10.65.0.3" not in node.ruleset(), "what IPAM has released does not count")
    hold(lab, "10.65.0.0/30", _1=f"{SPACE}/a")
    hold(lab, "fd00:65::/126", _1=f"{SPACE}/a")
    reaches(node, False)
    hold(lab, "10.65.1.0/30", _1=f"{SPACE}/later")
    lab.pod(SPACE, "later", "10.65.1.1", node="n2", app="friend")
    until(lambda: "10.65.1.1" in node.ruleset(), "the block came first")
    lab.pod(SPACE, "foreign", "10.99.0.1", node="n2", app="friend")  # no IPAM of ours
    status = {"status": {"podIP": "10.99.0.1", "podIPs": [{"ip": "10.99.0.1"}]}}
    path = f"/api/v1/namespaces/{SPACE}/pods/foreign/status"
    lab.kube.request("PATCH", path, status, content_type="application/merge-patch+json")
    until(lambda: "10.99.0.1" in node.ruleset(), "its status names it")


def test_without_the_right_to_read_blocks_the_status_decides(policed_cluster: KubernetesLab) -> None:
    """Policies are enforced all the same, and the status says what is late."""
    lab = policed_cluster
    kept = json.loads(lab.kube.kubectl("get", "clusterrole", "calico-node", "-o", "json"))
    less = {**kept, "rules": [rule for rule in kept["rules"] if "ipamblocks" not in rule.get("resources", ())]}
    lab.kube.kubectl("apply", "-f", "-", stdin=json.dumps(less))
    lab.pod(SPACE, "a", "10.65.0.1", app="a")
    lab.pod(SPACE, "b", "10.65.0.2", app="b")
    hold(lab, "10.65.1.0/30", _1=f"{SPACE}/far")
    lab.pod(SPACE, "far", "10.65.1.1", node="n2", app="friend")
    peers = [{"podSelector": {"matchLabels": {"app": "friend"}}}]
    lab.policy("friends", {"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{"from": peers}]})
    lab.node.start()
    said = lab.node.until_in_force(endpoints=2)
    assert any("IPAM's blocks cannot be read" in text for text in said["warnings"]), said
    assert not lab.node.passes("a", "b", 80) and "10.65.1.1" not in lab.node.ruleset()
    status = {"status": {"podIPs": [{"ip": "10.65.1.1"}], "podIP": "10.65.1.1"}}
    path = f"/api/v1/namespaces/{SPACE}/pods/far/status"
    lab.kube.request("PATCH", path, status, content_type="application/merge-patch+json")
    until(lambda: "10.65.1.1" in lab.node.ruleset(), "its status names it")


def test_an_annotation_cuts_nobodys_connections(policed_cluster: KubernetesLab) -> None:
    """A pod of this node claims addresses that others talk to, and goes. What was really its own goes with it."""
    lab, outside = policed_cluster, ("192.0.2.9", "2001:db8::9")
    node = lab.node
    lab.pod(SPACE, "a", "10.65.0.1", "fd00:65::1", app="a")
    lab.pod(SPACE, "gone", "10.65.0.5", "fd00:65::5", app="a")
    node.connect("outside", "uplink1", *outside)
    lab.kube.create_pod(
        SPACE, "evil", NODE, annotations={"cni.projectcalico.org/podIPs": "192.0.2.9/32,2001:db8::9/128"}
    )
    lab.policy("closed", {"podSelector": {"matchLabels": {"app": "none"}}, "policyTypes": ["Ingress"]})
    node.start()
    node.until_in_force(endpoints=2)  # the one that claims has no interface
    for version in (4, 6):
        assert node.passes("a", "outside", 80, version=version, sport=4444)
        assert node.passes("gone", "outside", 80, version=version, sport=4444)
    assert all(node.host.call(_has_connections, own) for own in ("10.65.0.1", "fd00:65::1", "fd00:65::5"))
    lab.kube.delete_pod(lab.kube.read_pod(SPACE, "evil"))
    lab.remove(f"/api/v1/namespaces/{SPACE}/pods/gone")
    node.until_in_force(endpoints=1)
    for own, other in (("10.65.0.5", "10.65.0.1"), ("fd00:65::5", "fd00:65::1")):
        until(lambda own=own: not node.host.call(_has_connections, own), "what it really had is gone")
        assert node.host.call(_has_connections, other)


# -- two pods of one interface name -----------------------------------------------------------------------------------


TWIN_PODS = (("shop", "web-3430785"), ("tenant", "job-2308550"))  # SHA-1 begins with the same 44 bits


def policy_named(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


def annotate_pod(cluster: KubernetesLab, namespace: str, name: str, address: str) -> None:
    """A pod of this node that claims to be set up."""
    said = {"cni.projectcalico.org/podIP": f"{address}/32", "cni.projectcalico.org/podIPs": f"{address}/32"}
    cluster.kube.create_pod(namespace, name, NODE, labels={}, annotations=said)
    cluster._made.append(f"/api/v1/namespaces/{namespace}/pods/{name}")


def events_of(kube: Cluster, namespace: str, name: str) -> list[str]:
    found = kube.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    return [event["message"] for event in found if event["involvedObject"]["name"] == name]


@pytest.mark.parametrize("twin_is_first", [False, True])
def test_a_pod_that_names_anothers_interface(policed_cluster: KubernetesLab, twin_is_first: bool) -> None:
    """Anyone may annotate a pod that never gets an interface. The alias decides; both pods are told by Events, which
    the manifests' role may write; and nobody gets a name before there is an interface.
    """
    kube, node, since = policed_cluster.kube, policed_cluster.node, len(policed_cluster.kube.audited())
    owner, twin = TWIN_PODS
    for namespace, _ in TWIN_PODS:
        kube.ensure_namespace(namespace, labels={})
    policed_cluster.pod(SPACE, "a", "10.65.0.1")
    if twin_is_first:
        annotate_pod(policed_cluster, *twin, "10.65.0.9")
    node.start()
    node.until_in_force(endpoints=1)  # the twin has no interface
    policed_cluster.pod(*owner, "10.65.0.2", app="b")
    spec = {"podSelector": {"matchLabels": {"app": "b"}}, "policyTypes": ["Ingress"]}
    policed_cluster.create(POLICIES.replace(SPACE, owner[0]), policy_named("closed", spec))
    if not twin_is_first:
        node.until_in_force(endpoints=2)
        node.until_passes("a", owner[1], 80, False)
        annotate_pod(policed_cluster, *twin, "10.65.0.9")
    until(lambda: node.standing().get("counts", {}).get("disputed") == 1, "the status counts it")
    assert not node.passes("a", owner[1], 80) and not node.passes(owner[1], "a", 80)  # without an alias: closed
    until(lambda: all("/".join(twin) in str(events_of(kube, *pod)) for pod in TWIN_PODS), "both are told")
    alias = signed_alias("0" * 40, owner_text("k8s", *owner))
    node.host.do("link", "set", kubernetes_veth(*owner), "alias", alias)
    node.until_in_force(endpoints=2)
    assert not node.passes("a", owner[1], 80) and node.passes(owner[1], "a", 80)  # as its policies say
    refused = [e for e in kube.audited(since) if e.get("responseStatus", {}).get("code") == 403]
    assert [e for e in refused if e["user"]["username"] == NODE_USER] == []
