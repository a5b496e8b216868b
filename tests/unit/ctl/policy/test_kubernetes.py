"""``calicoctl policy`` where Kubernetes is the datastore: its own policies, services and namespaces take part."""

from argparse import Namespace

import pytest

from cni_calico.ctl.policy.explain import explain
from cni_calico.ctl.policy.show import show
from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Listing, Versioned
from cni_calico.deadline import Deadline
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.nodes import read_node
from cni_calico.model.kubernetes.pods import read_namespace, read_pod


def pod(name, address, **labels):
    found = read_pod(
        {
            "metadata": {"name": name, "namespace": "a", "labels": labels},
            "spec": {"nodeName": "n"},
            "status": {"podIP": address},
        }
    )
    assert found is not None
    return found


def policy(name, **spec):
    key = ResourceKey("KubernetesNetworkPolicy", name, "a")
    return key, {"kind": "NetworkPolicy", "metadata": {"name": name, "namespace": "a"}, "spec": spec}


class Cluster:
    """A store with the listings of a Kubernetes datastore."""

    kind = "kubernetes"

    def __init__(self, *found):
        self.found = found

    def get(self, key, deadline):
        return next((Versioned(key, value, "1") for found, value in self.found if found == key), None)

    def list(self, listing, deadline, **options):
        return Listing(tuple(Versioned(key, value, "1") for key, value in self.found if key.kind == listing.kind), "1")


SLICE = {
    "metadata": {"name": "svc-1", "namespace": "a", "labels": {"kubernetes.io/service-name": "svc"}},
    "endpoints": [{"addresses": ["10.0.0.2"]}],
    "ports": [{"port": 8080}],
}
TO_SERVICE = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "NetworkPolicy",
    "metadata": {"name": "to-svc", "namespace": "a"},
    "spec": {
        "types": ["Egress"],
        "selector": "app == 'client'",
        "egress": [{"action": "Allow", "destination": {"services": {"name": "svc"}}}],
    },
}


def ask(*more, port=8080):
    told = []
    store = Cluster(
        read_namespace({"metadata": {"name": "a", "labels": {}}}),
        pod("client", "10.0.0.1", app="client"),
        pod("server", "10.0.0.2", app="server"),
        (ResourceKey("EndpointSlice", "svc-1", "a"), SLICE),
        *more,
    )
    session = Session(store, Deadline.after(10), lambda: "", lambda: "")
    arguments = {"source": "a/client", "destination": "a/server", "namespace": "", "overlay": [], "stdin": ""}
    more_arguments = {
        "protocol": "tcp",
        "port": port,
        "source_port": 0,
        "endpoint": "a/server",
        "all": False,
        "node": "",
    }
    given = Namespace(**arguments, **more_arguments, output="table", warn=told.append)
    return explain(session, given), show(session, given), [str(one) for one in told]


def test_its_policies_take_part():
    explained, shown, _ = ask(policy("deny", podSelector={}))
    assert "ingress of a/server: DENIED at the end of tier default" in explained
    assert "1. KubernetesNetworkPolicy a/deny (0 rules)" in shown
    rule = {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}
    explained, _, _ = ask(policy("deny", podSelector={}), policy("some", podSelector={}, ingress=[rule]))
    assert "allowed by rule 1 of KubernetesNetworkPolicy a/some in tier default" in explained


def test_its_services_take_part():
    stored = ResourceKey("NetworkPolicy", "to-svc", "a"), TO_SERVICE
    assert "egress of a/client: allowed by rule 1 of NetworkPolicy a/to-svc" in ask(stored)[0]
    assert "egress of a/client: DENIED" in ask(stored, port=81)[0]


ADMIN = (
    ResourceKey("Tier", "kube-admin"),
    {"kind": "Tier", "metadata": {"name": "kube-admin"}, "spec": {"order": 1000, "defaultAction": "Pass"}},
)


def cluster_policy(name, **egress):
    rule = {"action": "Deny", "to": [{"nodes": {"matchLabels": {"role": "db"}}}], **egress}
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [rule]}
    return ResourceKey("KubernetesClusterNetworkPolicy", name), {"metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(("address", "said"), [("10.0.0.2", "DENIED"), ("192.0.2.9", "allowed")])
def test_its_nodes_take_part(address, said):
    """The addresses of those with the label: here one that the server has, too."""
    labels, status = {"role": "db"}, {"addresses": [{"type": "InternalIP", "address": address}]}
    node = read_node({"metadata": {"name": "n9", "labels": labels}, "status": status})
    explained, _, told = ask(cluster_policy("to-nodes"), ADMIN, node)
    assert f"egress of a/client: {said}" in explained and told == []


@pytest.mark.parametrize("egress", [5, "x", [5], [{"action": "Deny", "destination": "nodeSelector"}], {"a": "b"}])
def test_a_policy_of_any_form_ends_nothing(egress):
    stored = ResourceKey("NetworkPolicy", "odd", "a"), {**TO_SERVICE, "metadata": {"name": "odd", "namespace": "a"}}
    stored[1]["spec"] = {"egress": egress}
    assert "egress of a/client" in ask(stored)[0]


def test_what_cannot_be_converted_is_said():
    bad = {"from": [{"ipBlock": {"cidr": "ten"}}]}
    explained, _, told = ask(policy("p", podSelector={}, ingress=[bad]))
    assert "DENIED" in explained
    assert any("spec.ingress[0] allows nothing" in one for one in told)
