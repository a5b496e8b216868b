"""Every Kubernetes object that upstream stored is read, decoded, encoded and written back as it was."""

import json
import pathlib
from ipaddress import ip_network

import pytest

from cni_calico.model.documents import codec
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, ResourceKey
from cni_calico.model.kubernetes import custom as crd
from cni_calico.model.kubernetes import nodes as crd_nodes
from cni_calico.model.kubernetes import pods as crd_pods

VECTORS = pathlib.Path(__file__).parents[3] / "golden" / "vectors"
DUMPS = sorted(VECTORS.glob("k8s-*.json"))
OTHERS = ("nodes", "pods")


def custom_resources(dump):
    return [obj for plural, objects in json.loads(dump.read_text()).items() if plural not in OTHERS for obj in objects]


def test_all_seven_dumps_are_there():
    assert len(DUMPS) == 7


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.stem)
def test_every_custom_resource_survives(dump):
    for obj in custom_resources(dump):
        name = f"{obj['kind']} {obj['metadata']['name']}"
        key, document = crd.read_object(obj)
        assert crd.place_of(key).name == obj["metadata"]["name"], name
        assert codec.encode(codec.decode(key, document)) == document, name
        assert crd.object_of(key, document, obj) == obj, name


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.stem)
def test_every_plural_is_the_one_upstream_uses(dump):
    for plural, objects in json.loads(dump.read_text()).items():
        if plural not in OTHERS:
            assert {crd.place_of(crd.key_of(obj)).plural for obj in objects} <= {plural}


def test_keys_are_those_of_etcd():
    keys = {crd.key_of(obj) for obj in custom_resources(VECTORS / "k8s-03-borrowed.json")}
    assert BlockKey(ip_network("fd00:65::a680/122")) in keys
    assert AffinityKey("node1", ip_network("10.65.99.0/26")) in keys
    assert IPAMConfigKey() in keys
    assert ResourceKey("IPPool", "pool4b") in keys
    assert HandleKey("k8s-pod-network.c7cf3e2dc445977fcaad1342bfb2c7f5e431cc2b4a9020f305de938038a35db9") in keys


def test_a_new_object_has_what_upstream_writes_and_nothing_of_the_server():
    for obj in custom_resources(VECTORS / "k8s-06-agents.json"):
        key, document = crd.read_object(obj)
        made = crd.object_of(key, document)
        kept = {k: v for k, v in obj["metadata"].items() if k in ("name", "labels", "annotations")}
        assert made["metadata"] == kept
        assert made["spec"] == obj["spec"]


def objects(dump, plural):
    return {obj["metadata"]["name"]: obj for obj in json.loads((VECTORS / dump).read_text())[plural]}


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.stem)
def test_every_node_survives(dump):
    for name, obj in objects(dump.name, "nodes").items():
        key, document = crd_nodes.read_node(obj)
        assert key == ResourceKey("Node", name)
        assert codec.encode(codec.decode(key, document)) == document
        annotations = obj["metadata"].get("annotations", {})
        assert crd_nodes.node_annotations(document, annotations) == annotations


def test_node_fields():
    obj = objects("k8s-06-agents.json", "nodes")["node1"]
    document = crd_nodes.read_node(obj)[1]
    assert document["spec"] == {
        "bgp": {"ipv4Address": "10.99.0.11/24", "ipv6Address": "fd99::11/64"},
        "orchRefs": [{"nodeName": "node1", "orchestrator": "k8s"}],
        "addresses": [
            {"address": "10.99.0.11/24", "type": "CalicoNodeIP"},
            {"address": "fd99::11/64", "type": "CalicoNodeIP"},
            {"address": "10.99.0.11", "type": "InternalIP"},
            {"address": "fd99::11", "type": "InternalIP"},
        ],
        "interfaces": [{"name": "eth0", "addresses": ["10.99.0.11", "fd99::11", "fe80::7052:b2ff:fe47:74bd"]}],
    }
    assert document["status"] == {"podCIDRs": ["10.244.1.0/24", "fd44:1::/64"]}
    assert document["metadata"]["labels"]["kubernetes.io/hostname"] == "node1"


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.stem)
def test_every_pod_is_a_readable_endpoint_with_the_annotations_it_has(dump):
    for name, obj in objects(dump.name, "pods").items():
        found = crd_pods.read_pod(obj)
        if name == "hostnet":
            assert found is None
            continue
        key, document = found
        assert codec.encode(codec.decode(key, document)) == document
        annotations = crd_pods.endpoint_annotations(document)
        assert annotations == {k: obj["metadata"]["annotations"][k] for k in annotations}


def test_pod_fields():
    pods = objects("k8s-03-borrowed.json", "pods")
    key, document = crd_pods.read_pod(pods["dual"])
    assert key == ResourceKey("WorkloadEndpoint", "node2-k8s-dual-eth0", "vec")
    assert document["spec"] == {
        "orchestrator": "k8s",
        "node": "node2",
        "containerID": "74576a5e1be971f761a0282840122a61062587faaff7d12b426a60c0e5883d89",
        "pod": "dual",
        "endpoint": "eth0",
        "serviceAccountName": "default",
        "ipNetworks": ["10.65.104.0/32", "fd00:65::6800/128"],
        "profiles": ["kns.vec", "ksa.vec.default"],
        "interfaceName": "cali5f31907e6ad",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }
    assert document["metadata"]["labels"] == {
        "app": "web",
        "projectcalico.org/custom": "y",
        "projectcalico.org/namespace": "vec",
        "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "default",
    }
    # ran to its end: status.podIP still shows an address that is free again
    assert "ipNetworks" not in crd_pods.read_pod(pods["done"])[1]["spec"]
    assert crd_pods.read_pod(pods["hw-src"])[1]["spec"]["allowSpoofedSourcePrefixes"]
