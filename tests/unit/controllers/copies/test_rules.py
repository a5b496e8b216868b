"""What follows from an object, against what upstream stores of the same objects."""

from __future__ import annotations

from cni_calico.controllers.copies.rules import (
    ENDPOINTS,
    NAMESPACES,
    NODES,
    NOTHING,
    POLICIES,
    SERVICE_ACCOUNTS,
    desired,
    is_same,
)
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.pods import read_namespace, read_pod, read_service_account
from cni_calico.model.kubernetes.policies import NETWORK_POLICY


def test_a_namespace_becomes_a_profile_that_allows_and_labels():
    key, document = read_namespace({"metadata": {"name": "red", "uid": "k", "labels": {"team": "", "a": "b"}}})
    wanted = desired(NAMESPACES, {key: NAMESPACES.read_object(document)})
    record = NAMESPACES.render(key, wanted[key], None)
    assert record["metadata"] == {"name": "kns.red"}
    assert record["spec"]["labelsToApply"] == {
        "pcns.team": "",
        "pcns.a": "b",
        "pcns.projectcalico.org/name": "red",
    }
    assert [rule["action"] for rule in record["spec"]["ingress"] + record["spec"]["egress"]] == ["Allow", "Allow"]


def test_an_account_becomes_a_profile_without_rules():
    key, document = read_service_account({"metadata": {"name": "bot", "namespace": "red", "labels": {"a": "b"}}})
    record = SERVICE_ACCOUNTS.render(key, SERVICE_ACCOUNTS.read_object(document).value, None)
    assert record["metadata"]["name"] == "ksa.red.bot"
    assert record["spec"] == {"labelsToApply": {"pcsa.a": "b", "pcsa.projectcalico.org/name": "bot"}}


def test_upstreams_way_to_write_the_same_is_the_same():
    rule = {"action": "Allow", "source": {}, "destination": {}}
    assert is_same(
        {"ingress": [rule], "labelsToApply": {"x": ""}}, {"ingress": [{"action": "Allow"}], "labelsToApply": {"x": ""}}
    )
    assert not is_same({"labelsToApply": {"x": ""}}, {"labelsToApply": {}})
    assert not is_same({"ingress": [rule]}, {"ingress": []})


def test_a_policy_is_kept_under_upstreams_name_with_upstreams_label():
    key = ResourceKey(NETWORK_POLICY, "web", "red")
    document = {
        "metadata": {"name": "web", "namespace": "red", "uid": "of-kubernetes"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [
                {"ports": [{"protocol": "TCP", "port": 80}], "from": [{"podSelector": {}}]},
                {"from": [{"ipBlock": {"cidr": "nonsense"}}]},
            ],
        },
    }
    content = POLICIES.read_object(document)
    assert len(content.left_out) == 1 and "nonsense" in content.left_out[0]
    record = POLICIES.record_of(key)
    assert record == ResourceKey("NetworkPolicy", "knp.default.web", "red")
    assert POLICIES.object_of(record, None) == key
    stored = POLICIES.render(record, content.value, None)
    assert stored["metadata"] == {
        "name": "knp.default.web",
        "namespace": "red",
        "labels": {"projectcalico.org/tier": "default"},
    }
    assert stored["spec"]["order"] == 1000
    assert stored["spec"]["tier"] == "default"
    assert stored["spec"]["types"] == ["Ingress"]
    assert stored["spec"]["selector"] == "projectcalico.org/orchestrator == 'k8s' && app == 'web'"
    assert len(stored["spec"]["ingress"]) == 1
    assert is_same(content.value, POLICIES.read_record(stored))


def test_policies_of_people_are_not_ours():
    assert POLICIES.object_of(ResourceKey("NetworkPolicy", "default.web", "red"), None) is None
    assert NAMESPACES.object_of(ResourceKey("Profile", "kns"), None) is None
    assert NAMESPACES.object_of(ResourceKey("Profile", "ksa.red.bot"), None) is None
    assert SERVICE_ACCOUNTS.object_of(ResourceKey("Profile", "kns.red"), None) is None


def _pod(**status):
    pod = {
        "metadata": {"name": "p-1", "namespace": "red", "labels": {"app": "web"}},
        "spec": {"nodeName": "n-1", "serviceAccountName": "bot"},
        "status": status,
    }
    return read_pod(pod)


def test_every_endpoint_of_a_pod_gets_its_labels_and_account_and_keeps_the_rest():
    key, document = _pod(podIP="10.0.0.1")
    second = ResourceKey("WorkloadEndpoint", "n--1-k8s-p--1-net1", "red")
    assert ENDPOINTS.object_of(second, None) == ENDPOINTS.object_of(key, None) == key
    old = {
        "kind": "WorkloadEndpoint",
        "metadata": {"name": second.name, "namespace": "red", "labels": {"old": "1"}, "uid": "u"},
        "spec": {"interfaceName": "cali1", "ipNetworks": ["10.0.0.9/32"]},
    }
    new = ENDPOINTS.render(second, ENDPOINTS.read_object(document).value, old)
    assert new["metadata"] == {
        "name": second.name,
        "namespace": "red",
        "uid": "u",
        "labels": {
            "app": "web",
            "projectcalico.org/namespace": "red",
            "projectcalico.org/orchestrator": "k8s",
            "projectcalico.org/serviceaccount": "bot",
        },
    }
    assert new["spec"] == {**old["spec"], "serviceAccountName": "bot"}


def test_a_pod_without_address_says_nothing():
    _, document = _pod()
    assert ENDPOINTS.read_object(document) is NOTHING


def test_endpoints_that_are_no_pods_are_not_ours():
    assert ENDPOINTS.object_of(ResourceKey("WorkloadEndpoint", "n1-cni-abc-eth0", "red"), None) is None
    assert ENDPOINTS.object_of(ResourceKey("WorkloadEndpoint", "odd", "red"), None) is None


def _node(labels, *, kube="kube-1", **annotations):
    return {
        "kind": "Node",
        "metadata": {"name": "n1", "labels": labels, "annotations": annotations},
        "spec": {"orchRefs": [{"orchestrator": "k8s", "nodeName": kube}], "bgp": {"asNumber": 1}},
    }


def test_a_node_gets_kubernetes_labels_and_keeps_others():
    key = ResourceKey("Node", "n1")
    old = _node({"mine": "1", "gone": "x", "zone": "a"}, **{"projectcalico.org/kube-labels": '{"gone":"x","zone":"a"}'})
    found = NODES.read_record(old)
    assert NODES.object_of(key, found) == ResourceKey("Node", "kube-1")
    wanted = NODES.read_object({"metadata": {"labels": {"zone": "b", "new": ""}}}).value
    assert not NODES.is_current(wanted, found)
    new = NODES.render(key, wanted, old)
    assert new["metadata"]["labels"] == {"mine": "1", "zone": "b", "new": ""}
    assert new["spec"] == old["spec"]
    assert NODES.is_current(wanted, NODES.read_record(new))
    assert not NODES.is_current({}, NODES.read_record(new))


def test_a_label_of_others_that_kubernetes_never_had_is_never_taken_away():
    old = _node({"mine": "1"}, **{"projectcalico.org/kube-labels": "nonsense"})
    new = NODES.render(ResourceKey("Node", "n1"), {}, old)
    assert new["metadata"]["labels"] == {"mine": "1"}


def test_a_node_without_kubernetes_node_is_nobodys():
    bare = {"metadata": {"name": "n1"}, "spec": {}}
    assert NODES.object_of(ResourceKey("Node", "n1"), NODES.read_record(bare)) is None
