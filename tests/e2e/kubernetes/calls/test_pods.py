"""Endpoints on pods, nodes and profiles of the Kubernetes datastore, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.datastore.interface import CommitConflict, Versioned, Write
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreError, DatastoreUnsupported
from cni_calico.model.documents.codec import decode_endpoint, decode_node
from cni_calico.model.keys import ResourceKey, ResourceList
from tests.e2e.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = pytest.mark.kubernetes

NODE, POD = "node-1", "web-0"
ENDPOINT = ResourceKey("WorkloadEndpoint", "node--1-k8s-web--0-eth0", NAMESPACE)
CONTAINER = "cni.projectcalico.org/containerID"
POD_IP, POD_IPS = "cni.projectcalico.org/podIP", "cni.projectcalico.org/podIPs"


def endpoint(container: str, *networks: str) -> dict[str, Any]:
    return {"spec": {"containerID": container, "ipNetworks": list(networks)}}


def annotations(pod: dict[str, Any]) -> dict[str, str]:
    return {k: v for k, v in (pod["metadata"].get("annotations") or {}).items() if k.startswith("cni.projectcalico")}


# -- pods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user_annotations", [{}, {"team": "a"}], ids=["bare", "annotated"])
def test_the_life_of_a_pods_endpoint(
    user_annotations: dict[str, str], kube: Cluster, kube_store: KubernetesStore, soon: Deadline
) -> None:
    metadata = {"labels": {"app": "web"}, **({"annotations": user_annotations} if user_annotations else {})}
    kube.create_pod(NAMESPACE, POD, NODE, **metadata)
    fresh = kube_store.get(ENDPOINT, soon)
    record = decode_endpoint(ENDPOINT, fresh.value)
    assert (record.container_id, record.ip_networks, record.metadata.labels["app"]) == ("", (), "web")
    assert record.profiles == (f"kns.{NAMESPACE}", f"ksa.{NAMESPACE}.default") or record.profiles == (
        f"kns.{NAMESPACE}",
    )
    reads = kube_store.round_trips.reads
    [added] = kube_store.commit([Write.update(fresh, endpoint("c1", "10.65.0.1/32", "fd00::1/128"))], soon).stored
    assert kube_store.round_trips.reads == reads
    pod = kube.read_pod(NAMESPACE, POD)
    assert annotations(pod) == {CONTAINER: "c1", POD_IP: "10.65.0.1/32", POD_IPS: "10.65.0.1/32,fd00::1/128"}
    assert user_annotations.items() <= pod["metadata"]["annotations"].items()
    with pytest.raises(CommitConflict) as caught:
        kube_store.commit([Write.update(fresh, endpoint("c0", "10.65.0.9/32"))], soon)
    assert caught.value.failed[0].current == added
    kube_store.commit([Write.delete(added)], soon)
    assert annotations(kube.read_pod(NAMESPACE, POD)) == {CONTAINER: "c1", POD_IP: "", POD_IPS: ""}
    cleared = kube_store.get(ENDPOINT, soon)
    assert decode_endpoint(ENDPOINT, cleared.value).container_id == ""
    writes = kube_store.round_trips.writes
    kube_store.commit([Write.delete(cleared)], soon)
    assert annotations(kube.read_pod(NAMESPACE, POD))[CONTAINER] == "c1"
    kube_store.commit([Write.update(cleared, endpoint("c2", "10.65.0.2/32"))], soon)
    assert kube_store.round_trips.writes == writes + 1 + 1 or kube_store.round_trips.writes == writes + 2
    assert annotations(kube.read_pod(NAMESPACE, POD))[CONTAINER] == "c2"


def test_what_the_kubelet_writes_meanwhile_is_no_conflict(
    kube: Cluster, kube_store: KubernetesStore, soon: Deadline
) -> None:
    kube.create_pod(NAMESPACE, POD, NODE)
    fresh = kube_store.get(ENDPOINT, soon)
    status = {"status": {"phase": "Running", "hostIP": "10.0.0.1"}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{POD}/status"
    kube.request("PATCH", path, status, content_type="application/merge-patch+json")
    kube_store.commit([Write.update(fresh, endpoint("c1", "10.65.0.1/32"))], soon)
    assert annotations(kube.read_pod(NAMESPACE, POD))[CONTAINER] == "c1"


def test_a_pod_of_the_same_name_is_another_pod(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    first = kube.create_pod(NAMESPACE, POD, NODE)
    old = kube_store.get(ENDPOINT, soon)
    kube.delete_pod(first)
    second = kube.create_pod(NAMESPACE, POD, NODE)
    with pytest.raises(CommitConflict) as caught:
        kube_store.commit([Write.update(old, endpoint("c1", "10.65.0.1/32"))], soon)
    assert caught.value.failed[0].current.uid == second["metadata"]["uid"] != old.uid
    assert annotations(kube.read_pod(NAMESPACE, POD)) == {}


def test_a_late_del_leaves_the_new_containers_endpoint_alone(
    kube: Cluster, kube_store: KubernetesStore, soon: Deadline
) -> None:
    kube.create_pod(NAMESPACE, POD, NODE)
    fresh = kube_store.get(ENDPOINT, soon)
    [one] = kube_store.commit([Write.update(fresh, endpoint("c1", "10.65.0.1/32"))], soon).stored
    [two] = kube_store.commit([Write.update(one, endpoint("c2", "10.65.0.2/32"))], soon).stored
    with pytest.raises(CommitConflict) as caught:
        kube_store.commit([Write.delete(one)], soon)
    assert caught.value.failed[0].current == two
    assert annotations(kube.read_pod(NAMESPACE, POD))[POD_IP] == "10.65.0.2/32"


def test_endpoints_without_their_pod(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    assert kube_store.get(ENDPOINT, soon) is None
    with pytest.raises(DatastoreError, match=f"pod {NAMESPACE}/{POD} does not exist"):
        kube_store.commit([Write.create(ENDPOINT, endpoint("c1"))], soon)
    kube.create_pod(NAMESPACE, POD, "other-node")
    assert kube_store.get(ENDPOINT, soon) is None
    pod = kube.create_pod(NAMESPACE, "gone", NODE)
    key = ResourceKey("WorkloadEndpoint", "node--1-k8s-gone-eth0", NAMESPACE)
    stored = kube_store.get(key, soon)
    kube.delete_pod(pod)
    with pytest.raises(CommitConflict) as caught:
        kube_store.commit(
            [Write.delete(Versioned(key, stored.value, stored.revision.replace("null", '["c","x"]')))], soon
        )
    assert caught.value.failed[0].current is None


def test_endpoints_of_a_node_are_listed_without_the_pods_of_others(
    kube: Cluster, kube_store: KubernetesStore, soon: Deadline
) -> None:
    for pod, node in (("web-0", NODE), ("web-00", NODE), ("api", NODE), ("web-1", "node-2")):
        kube.create_pod(NAMESPACE, pod, node)
    kube.create_pod(NAMESPACE, "host", NODE, spec={"hostNetwork": True})
    since = len(kube.audited())
    names = [
        v.key.name for v in kube_store.list(ResourceList("WorkloadEndpoint", NAMESPACE, "node--1-k8s-web"), soon).items
    ]
    assert names == ["node--1-k8s-web--0-eth0", "node--1-k8s-web--00-eth0"]
    [event] = [e for e in kube.audited(since) if e["verb"] == "list"]
    assert "fieldSelector=spec.nodeName%3Dnode-1" in event["requestURI"]
    assert len(kube_store.list(ResourceList("WorkloadEndpoint"), soon).items) == 4


def test_endpoints_are_watched(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    listing = ResourceList("WorkloadEndpoint", "", "node--1-")
    with kube_store.watch(listing, kube_store.list(listing, soon).revision) as watch:
        pod = kube.create_pod(NAMESPACE, POD, NODE)
        kube.create_pod(NAMESPACE, "elsewhere", "node-2")
        [made] = watch.next(10)
        assert made.key == ENDPOINT and made.uid == pod["metadata"]["uid"]
        kube_store.commit(
            [Write.update(Versioned(made.key, made.value, made.revision, made.uid), endpoint("c1", "10.65.0.1/32"))],
            soon,
        )
        [changed] = watch.next(10)
        assert changed.value["spec"]["containerID"] == "c1"
        kube.delete_pod(pod)
        last = changed
        while last.value is not None and not soon.expired():
            [last] = watch.next(10)
            assert last.key == ENDPOINT
        assert last.value is None


# -- nodes and profiles -----------------------------------------------------------------------------------------------


def test_a_node_is_written_as_annotations(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    kube.create_node(NODE, metadata={"labels": {"zone": "a"}, "annotations": {"other": "kept"}})
    key = ResourceKey("Node", NODE)
    read = kube_store.get(key, soon)
    assert decode_node(key, read.value).metadata.labels["zone"] == "a"
    bgp = {"ipv4Address": "10.0.0.1/24", "asNumber": 64513}
    document = {**read.value, "spec": {**read.value["spec"], "bgp": bgp, "ipv4VXLANTunnelAddr": "10.65.0.3"}}
    kube.request(
        "PATCH",
        f"/api/v1/nodes/{NODE}",
        {"metadata": {"labels": {"zone": "b"}}},
        content_type="application/merge-patch+json",
    )
    [written] = kube_store.commit([Write.update(read, document)], soon).stored
    node = kube.request("GET", f"/api/v1/nodes/{NODE}")
    ours = {k: v for k, v in node["metadata"]["annotations"].items() if k.startswith("projectcalico.org/")}
    assert ours == {
        "projectcalico.org/ASNumber": "64513",
        "projectcalico.org/IPv4Address": "10.0.0.1/24",
        "projectcalico.org/IPv4VXLANTunnelAddr": "10.65.0.3",
    }
    assert node["metadata"]["annotations"]["other"] == "kept" and node["metadata"]["labels"]["zone"] == "b"
    with pytest.raises(CommitConflict) as caught:
        kube_store.commit([Write.update(read, document)], soon)
    assert caught.value.failed[0].current == written
    cleared = {**written.value, "spec": {"orchRefs": written.value["spec"]["orchRefs"]}}
    kube_store.commit([Write.update(written, cleared)], soon)
    left = kube.request("GET", f"/api/v1/nodes/{NODE}")["metadata"]["annotations"]
    assert left == {"other": "kept"}


def test_nodes_are_made_and_deleted_by_kubernetes(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    key = ResourceKey("Node", NODE)
    with pytest.raises(DatastoreError, match="no Kubernetes node of that name"):
        kube_store.commit([Write.create(key, {"spec": {}})], soon)
    kube.create_node(NODE)
    with pytest.raises(CommitConflict):
        kube_store.commit([Write.create(key, {"spec": {}})], soon)
    with pytest.raises(DatastoreUnsupported, match="it is the Kubernetes node itself"):
        kube_store.commit([Write.remove(key)], soon)


def test_profiles_are_derived(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    kube.ensure_namespace("labelled", labels={"tier": "gold"})
    profile = kube_store.get(ResourceKey("Profile", "kns.labelled"), soon)
    assert profile.value["spec"]["labelsToApply"]["pcns.tier"] == "gold"
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa.one", "labels": {"role": "x"}}}
    kube.request("POST", "/api/v1/namespaces/labelled/serviceaccounts", body)
    account = kube_store.get(ResourceKey("Profile", "ksa.labelled.sa.one"), soon)
    assert account.value["spec"]["labelsToApply"]["pcsa.role"] == "x"
    names = {v.key.name for v in kube_store.list(ResourceList("Profile"), soon).items}
    assert {"kns.labelled", "ksa.labelled.sa.one", "kns.default"} <= names
    for name in ("kns.nowhere", "ksa.labelled.none", "k8s-pod-network"):
        assert kube_store.get(ResourceKey("Profile", name), soon) is None
    with pytest.raises(DatastoreUnsupported, match="profiles are derived"):
        kube_store.commit([Write.create(ResourceKey("Profile", "net"), {"spec": {}})], soon)
    listing = ResourceList("Profile")
    with kube_store.watch(listing, kube_store.list(listing, soon).revision) as watch:
        body["metadata"]["name"] = "two"
        kube.request("POST", "/api/v1/namespaces/labelled/serviceaccounts", body)
        [event] = watch.next(10)
        assert event.key.name == "ksa.labelled.two"
    kube.request("DELETE", "/api/v1/namespaces/labelled/serviceaccounts/two")
    kube.request("DELETE", "/api/v1/namespaces/labelled/serviceaccounts/sa.one")
