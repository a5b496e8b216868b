"""The shipped definition of ClusterNetworkPolicy: what it takes and refuses, whose it never changes, and that a rule to
nodes means the addresses that they have at the moment.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import pytest
import yaml

from cni_calico.errors import DatastoreError
from cni_calico.nodeagent.policing.feed.changes import Refusal
from cni_calico.nodeagent.policing.feed.records import RecordFeed
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.graph import Graph
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.definitions import ADMIN_POLICIES, DEFINITIONS, is_served
from tests.fixtures.expanded import ROOT
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = pytest.mark.kubernetes

FILE = ROOT / "manifests" / "clusternetworkpolicies.yaml"
APPLY = ("apply", "--server-side", "--field-manager=cni-calico", "-f", str(FILE))
API, PLURAL = f"/apis/{ADMIN_POLICIES}/v1alpha2", "clusternetworkpolicies"
DEFINITION = f"{DEFINITIONS}/{PLURAL}.{ADMIN_POLICIES}"
BUNDLE = f"{ADMIN_POLICIES}/bundle-version"
SOME = {"namespaces": {"matchLabels": {"team": "a"}}}
TCP = {"tcp": {"destinationPort": {"number": 80}}}


def policy(**spec: Any) -> dict[str, Any]:
    basis = {"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}}
    document = {"apiVersion": f"{ADMIN_POLICIES}/v1alpha2", "kind": "ClusterNetworkPolicy"}
    return {**document, "metadata": {"name": "p"}, "spec": {**basis, **spec}}


def egress(action: str, *to: Any, **more: Any) -> dict[str, Any]:
    return policy(egress=[{"action": action, "to": list(to), **more}])


@contextmanager
def without_it_afterwards(kube: Cluster) -> Iterator[None]:
    try:
        yield
    finally:
        kube.kubectl("delete", "--ignore-not-found", "-f", str(FILE))


GOOD = [
    egress("Deny", {"nodes": {}}, protocols=[TCP, {"udp": {}}]),
    egress("Accept", {"domainNames": ["*.example.org", "a.example.org."]}),
    egress("Pass", {"networks": ["10.0.0.0/8", "fd00::/8"]}, SOME),
    policy(
        ingress=[{"name": "web", "action": "Pass", "from": [SOME], "protocols": [{"destinationNamedPort": "http"}]}]
    ),
    policy(tier="Baseline", priority=0, subject={"pods": {"podSelector": {}, "namespaceSelector": {}}}),
]
BAD = [
    policy(tier="Middle"),
    policy(priority=1001),
    policy(subject={}),
    policy(subject={"namespaces": {}, "pods": {"podSelector": {}, "namespaceSelector": {}}}),
    policy(subject={"pods": {"podSelector": {}}}),
    policy(ingress=[{"action": "Deny", "from": []}]),
    policy(ingress=[{"action": "Allow", "from": [SOME]}]),
    policy(ingress=[{"action": "Deny", "from": [SOME]}] * 26),
    egress("Deny", {"nodes": {}}, protocols=[{"destinationNamedPort": "http"}]),
    egress("Deny", {"domainNames": ["a.example.org"]}),
    egress("Accept", {"domainNames": ["a.*.org"]}),
    egress("Accept", {"networks": ["10.0.0.0/33"]}),
    egress("Accept", SOME, protocols=[{"tcp": {"destinationPort": {"range": {"start": 9, "end": 8}}}}]),
    egress("Accept", {"nodes": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}),
]


def test_what_it_takes_and_refuses(kube: Cluster) -> None:
    with without_it_afterwards(kube):
        kube.kubectl(*APPLY)
        assert "serverside-applied" in kube.kubectl(*APPLY)  # again
        until(lambda: is_served(kube, API, PLURAL), "the kind is served", 60)
        path = f"{API}/{PLURAL}?dryRun=All"
        for document in GOOD:
            assert kube.request("POST", path, document)["spec"] == document["spec"]
        for document in BAD:
            with pytest.raises(DatastoreError, match="is invalid"):
                kube.request("POST", path, document)


@pytest.mark.parametrize("how", [("apply", "--server-side"), ("create",)])
def test_another_bundle_is_never_changed(kube: Cluster, how: tuple[str, ...]) -> None:
    """One that is newer, and has a field more; however it came into the cluster."""
    [theirs] = [one for one in yaml.safe_load_all(FILE.read_text()) if one]
    theirs = copy.deepcopy(theirs)
    theirs["metadata"]["annotations"][BUNDLE] = "v9.0.0"
    with without_it_afterwards(kube):
        kube.kubectl(*how, "-f", "-", stdin=yaml.safe_dump(theirs))
        before = kube.request("GET", DEFINITION)["spec"]
        said = kube.kubectl(*APPLY, check=False)
        assert "conflict" in said.lower() and BUNDLE in said, said
        after = kube.request("GET", DEFINITION)
        assert after["metadata"]["annotations"][BUNDLE] == "v9.0.0" and after["spec"] == before


def test_a_rule_to_nodes_means_their_present_addresses(kube: Cluster) -> None:
    """Internal and external ones of both families, of those with the labels; a node's own annotations give none."""

    def put_addresses(name: str, *addresses: tuple[str, str]) -> None:
        listed = [{"type": kind, "address": text} for kind, text in addresses]
        patch = {"status": {"addresses": listed}}
        kube.request("PATCH", f"/api/v1/nodes/{name}/status", patch, content_type="application/merge-patch+json")

    def label(name: str, **labels: str | None) -> None:
        patch = {"metadata": {"labels": labels}}
        kube.request("PATCH", f"/api/v1/nodes/{name}", patch, content_type="application/merge-patch+json")

    bgp = {
        "annotations": {"projectcalico.org/IPv4Address": "192.0.2.99/24", "projectcalico.org/labels": '{"role":"db"}'}
    }
    kube.create_node("n1", metadata={"labels": {"role": "db"}})
    kube.create_node("n2", metadata={"labels": {"role": "web"}, **bgp})
    put_addresses("n1", ("InternalIP", "192.0.2.1"), ("ExternalIP", "2001:db8::1"), ("Hostname", "192.0.2.7"))
    put_addresses("n2", ("InternalIP", "192.0.2.2"))
    kube.ensure_namespace(NAMESPACE)
    store = kube.store()
    with without_it_afterwards(kube):
        kube.kubectl(*APPLY)
        until(lambda: is_served(kube, API, PLURAL), "the kind is served", 60)
        kube.request("POST", f"{API}/{PLURAL}", egress("Deny", {"nodes": {"matchLabels": {"role": "db"}}}))
        feed = RecordFeed(store, "n1", lambda: None, store)
        graph = Graph(lambda record: record.node == "n1")
        annotations = {"cni.projectcalico.org/podIP": "10.65.0.1/32", "cni.projectcalico.org/containerID": "c"}
        kube.create_pod(NAMESPACE, "p", "n1", annotations=annotations)
        try:

            def members() -> set[str]:
                for key, change in feed.take()[0].items():
                    record = feed.decoded(key, change)
                    assert not isinstance(record, Refusal), record
                    graph.put(key, record)
                needs = graph.flush().facts.needs
                feed.need(needs)
                assert needs in (OtherNeeds(), OtherNeeds(nodes=True))
                return {str(ip_address(a)) for one in graph.wanted().sets.values() for a in one.addresses}

            until(lambda: members() == {"192.0.2.1", "2001:db8::1"}, "the addresses of the node with the label", 60)
            assert any(key.kind == "WorkloadEndpoint" for key in graph.wanted().endpoints)
            put_addresses("n1", ("InternalIP", "192.0.2.5"))
            until(lambda: members() == {"192.0.2.5"}, "its new address", 60)
            label("n2", role="db")
            until(lambda: members() == {"192.0.2.2", "192.0.2.5"}, "both nodes", 60)
            kube.request("DELETE", "/api/v1/nodes/n1")
            until(lambda: members() == {"192.0.2.2"}, "the node is gone", 60)
            kube.request("DELETE", f"{API}/{PLURAL}/p")
            until(lambda: members() == set(), "no policy, no set", 60)
        finally:
            feed.stop()
            store.close()
