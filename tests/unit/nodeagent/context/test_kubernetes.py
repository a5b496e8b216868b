"""What start-up reads of Kubernetes and tells it, over an API that answers from a table."""

from ipaddress import ip_address, ip_network

import pytest

from cni_calico.errors import DatastoreDenied, NodeNotSetUp
from cni_calico.nodeagent.context.kubernetes import ApiNode, KubernetesFacts
from tests.deadlines import SOON

NODE = {
    "status": {
        "addresses": [
            {"type": "Hostname", "address": "node1"},
            {"type": "InternalIP", "address": "10.99.0.11"},
            {"type": "InternalIP", "address": "fd99::11"},
            {"type": "InternalIP", "address": "nonsense"},
        ]
    },
    "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd44:1::/64"]},
}
MAPS = "/api/v1/namespaces/kube-system/configmaps/"


class Api:
    def __init__(self, objects):
        self.objects = objects
        self.requests = []

    def get(self, path, deadline, doing):
        self.requests.append(("GET", path, None, ""))
        found = self.objects.get(path)
        if isinstance(found, Exception):
            raise found
        return found

    def send(self, request, deadline):
        self.requests.append((request.method, request.path, request.body, request.content_type))


def facts(**objects):
    return ApiNode(Api({"/api/v1/nodes/n1": NODE, **objects}), "n1").read_facts(SOON)


def test_facts():
    assert facts() == KubernetesFacts(
        internal_ips=(ip_address("10.99.0.11"), ip_address("fd99::11")),
        pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:1::/64")),
    )


def test_kubeadm_and_rancher():
    found = facts(
        **{
            MAPS + "kubeadm-config": {"data": {"ClusterConfiguration": "networking: {}"}},
            MAPS + "full-cluster-state": {"data": {}},
        }
    )
    assert (found.kubeadm, found.rancher) == ("networking: {}", True)


def test_a_config_map_that_may_not_be_read_is_absent():
    denied = DatastoreDenied("cannot read")
    assert facts(**{MAPS + "kubeadm-config": denied, MAPS + "full-cluster-state": denied}) == facts()


def test_config_maps_are_read_once_and_the_node_every_time():
    api = Api({"/api/v1/nodes/n1": NODE})
    node = ApiNode(api, "n1")
    assert node.read_facts(SOON) == node.read_facts(SOON)
    paths = [path for _, path, _, _ in api.requests]
    assert paths.count("/api/v1/nodes/n1") == 2 and sum(path.startswith(MAPS) for path in paths) == 2


def test_a_node_that_kubernetes_does_not_know():
    with pytest.raises(NodeNotSetUp, match="Kubernetes has no node of that name"):
        ApiNode(Api({}), "n1").read_facts(SOON)


@pytest.mark.parametrize(
    ("unavailable", "status", "reason"), [(True, "True", "CalicoIsDown"), (False, "False", "CalicoIsUp")]
)
def test_the_condition(unavailable, status, reason):
    api = Api({})
    ApiNode(api, "n1").set_network_unavailable(unavailable, SOON)
    ((method, path, body, kind),) = api.requests
    (condition,) = body["status"]["conditions"]
    assert (method, path, kind) == ("PATCH", "/api/v1/nodes/n1/status", "application/strategic-merge-patch+json")
    assert (condition["type"], condition["status"], condition["reason"]) == ("NetworkUnavailable", status, reason)
