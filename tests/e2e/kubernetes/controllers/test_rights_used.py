"""The controllers' roles are what they use: each grant is used once, in real work, and nothing is refused.

The API server says in its audit log which binding allowed a request. A grant that nothing uses fails the test, so each
that is there is needed: without it the request that used it would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.model.documents.codec import encode, new_metadata
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from tests.deadlines import soon, until
from tests.e2e.janitors import NOW, SPACE, KubeField
from tests.e2e.kubernetes.cluster import CONTROLLERS_USER, Cluster
from tests.e2e.kubernetes.programs import controllers
from tests.e2e.kubernetes.records import POLICY, SETTINGS, LoadBalancers, of_node, put, wipe
from tests.e2e.kubernetes.roles import RBAC, rights
from tests.unit.docs.test_controllers_rights import granted

pytestmark = pytest.mark.kubernetes

Grant = tuple[str, str, str]  # group, resource (with its object's name if the right is to one only), verb
# one that somebody else changed or removed at the same moment is read once more; what pods keep is asked about after
# five minutes (calls/test_sticky.py)
RARE = {
    ("crd.projectcalico.org", "bgppeers", "get"),
    ("kubevirt.io", "virtualmachines", "get"),
    ("kubevirt.io", "virtualmachineinstances", "get"),
    ("apps", "statefulsets", "get"),
    ("", "namespaces", "get"),
}
GONE, DUAL = "c0ffee01", {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}


def grants(manifest: str) -> set[Grant]:
    return {(group, what, verb) for (group, what), verbs in granted(manifest).items() for verb in verbs}


class Record:
    """What the controllers asked for since this was made."""

    def __init__(self, kube: Cluster) -> None:
        self._kube, self._since = kube, len(kube.audited())

    def _events(self) -> list[dict[str, Any]]:
        found = self._kube.audited(self._since)
        return [event for event in found if event["user"]["username"] == CONTROLLERS_USER and "objectRef" in event]

    def used(self, of: set[Grant]) -> set[Grant]:
        """Those of the grants that allowed a request; what another role allowed is not among them."""
        found = set()
        for event in self._events():
            reason = event.get("annotations", {}).get("authorization.k8s.io/reason", "")
            reference = event["objectRef"]
            resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
            group, verb = reference.get("apiGroup", ""), event["verb"]
            named = (group, f"{resource}/{reference.get('name', '')}", verb)
            if "calico-kube-controllers" in reason:
                found.add(named if named in of else (group, resource, verb))
        return found

    def refused(self) -> list[str]:
        codes = ((event, event.get("responseStatus", {}).get("code")) for event in self._events())
        return [f"{event['verb']} {event['requestURI']}" for event, code in codes if code == 403]


def await_all_used(record: Record, manifest: str) -> None:
    wanted = grants(manifest)
    always = wanted - RARE
    try:
        until(lambda: always <= record.used(wanted), "every grant is used", 120, pause_s=0.5)
    except AssertionError:
        unused = sorted(always - record.used(wanted))
        raise AssertionError(f"granted and not used: {unused}") from None
    assert record.refused() == []
    assert record.used(wanted) - RARE == always


def settings(store: Datastore, auto: str) -> None:
    node = {"leakGracePeriod": "1s", "hostEndpoint": {"autoCreate": auto}}
    spec = {"prometheusMetricsPort": 0, "controllers": {"node": node, "loadBalancer": {"assignIPs": "AllServices"}}}
    store.commit([Write.put(SETTINGS, {"metadata": {"name": "default"}, "spec": spec})], soon())


@contextmanager
def served_services(world: LoadBalancers) -> Iterator[None]:
    """A Service with an address of each family, one that cannot have any; both are deleted in the end."""
    world.pool("four", "203.0.113.0/28")
    world.pool("six", "2001:db8::/120")
    world.service("web", **DUAL)
    world.service("none", annotations={"projectcalico.org/loadBalancerIPs": '["192.0.2.1"]'})
    until(lambda: len(world.ingress("web")) == 2, "its addresses", 90)
    until(lambda: world.events("none"), "an event", 60)
    yield
    world.clean()


def test_on_kubernetes(kube: Cluster, tmp_path: Path) -> None:
    field, record = KubeField(kube, tmp_path), Record(kube)
    environ = {"DATASTORE_TYPE": "kubernetes", "ENABLED_CONTROLLERS": "node,loadbalancer"}
    world = LoadBalancers(kube, field.store, environ, "calico.yaml")
    world.clean()
    kube.ensure_namespace(SPACE)
    try:
        with (
            rights(kube, "calico.yaml"),
            controllers(kube, tmp_path / "run", **environ) as process,
        ):
            until(lambda: field.store.get(SETTINGS, soon()), "its configuration, which it creates", 90)
            settings(field.store, "Enabled")
            field.populate()
            field.run_pod("dies", "stays", GONE)
            put(field.store, of_node("goes"))
            own = ResourceKey("HostEndpoint", "stays-auto-hep")
            until(lambda: field.store.get(own, soon()), "the node's host endpoint", 60)
            kube.kubectl("label", "node", "stays", "zone=b")
            with served_services(world):
                field.delete_pod("dies")
                field.delete_node("goes")
                until(lambda: f"k8s-pod-network.{GONE}" not in field.held(), "the pod's address is released", 60)
                until(lambda: "goes" not in field.owners(), "the node's block is released", 90)
            settings(field.store, "Disabled")
            await_all_used(record, "calico.yaml")
            assert process.end() == 0
    finally:
        field.close()


def endpoint_of(pod: str) -> tuple[ResourceKey, WorkloadEndpoint]:
    key = ResourceKey("WorkloadEndpoint", f"n1-k8s-{pod}-eth0", SPACE)
    metadata = new_metadata(key.name, namespace=SPACE, uid="u", now=NOW)
    networks = (ip_network("10.65.0.1/32"),)
    return key, WorkloadEndpoint(metadata, "k8s", "n1", "eth0", f"cali{pod}", pod=pod, ip_networks=networks)


def test_on_etcd(kube: Cluster, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{kube.etcd_port}"
    store = EtcdStore(EtcdConfig(endpoints=(url,)))
    wipe(store)
    record = Record(kube)
    enabled = "policy,namespace,serviceaccount,workloadendpoint,node,loadbalancer"
    environ = {"ETCD_ENDPOINTS": url, "ENABLED_CONTROLLERS": enabled}
    world = LoadBalancers(kube, store, environ, "calico-etcd.yaml")
    world.clean()
    kube.ensure_namespace(SPACE)
    try:
        settings(store, "Disabled")
        key, endpoint = endpoint_of("dies")
        store.commit([Write.create(key, encode(endpoint))], soon())
        departed = {"metadata": {"name": "n1"}, "spec": {"orchRefs": [{"orchestrator": "k8s", "nodeName": "n1"}]}}
        store.commit([Write.create(ResourceKey("Node", "n1"), departed)], soon())
        # what no object stands behind any more: Kubernetes is asked before it goes
        stale = [
            ResourceKey("Profile", "kns.gone"),
            ResourceKey("Profile", f"ksa.{SPACE}.gone"),
            ResourceKey("NetworkPolicy", "knp.default.gone", SPACE),
        ]
        for each in stale:
            metadata = {"name": each.name, **({"namespace": each.namespace} if each.namespace else {})}
            store.commit([Write.create(each, {"metadata": metadata, "spec": {}})], soon())
        policies = f"/apis/networking.k8s.io/v1/namespaces/{SPACE}/networkpolicies"
        kube.ensure(policies, POLICY)
        with rights(kube, "calico-etcd.yaml"), controllers(kube, tmp_path / "run", **environ) as process:
            with served_services(world):
                until(lambda: not any(store.get(each, soon()) for each in stale), "what is stale goes", 90)
                until(lambda: store.get(key, soon()) is None, "the endpoint without a pod goes", 90)
            await_all_used(record, "calico-etcd.yaml")
            assert process.end() == 0
        kube.request("DELETE", f"{policies}/web")
    finally:
        wipe(store)
        store.close()


def test_a_right_that_is_missing_is_named_and_the_rest_goes_on(kube: Cluster, tmp_path: Path) -> None:
    """Given later, it counts at once: nothing has to be started again."""
    url = f"http://127.0.0.1:{kube.etcd_port}"
    store = EtcdStore(EtcdConfig(endpoints=(url,)))
    wipe(store)
    environ = {"ETCD_ENDPOINTS": url, "ENABLED_CONTROLLERS": "namespace,serviceaccount"}
    kube.ensure_namespace(SPACE)
    account = {"kind": "ServiceAccount", "metadata": {"name": "bot"}}
    kube.ensure(f"/api/v1/namespaces/{SPACE}/serviceaccounts", account)
    path = f"{RBAC}/clusterroles/calico-kube-controllers"
    try:
        settings(store, "Disabled")
        with rights(kube, "calico-etcd.yaml"):
            role = kube.request("GET", path)
            fewer = [
                {**rule, "resources": [name for name in rule["resources"] if name != "serviceaccounts"]}
                for rule in role["rules"]
            ]
            kube.request("PUT", path, {**role, "rules": fewer})
            with controllers(kube, tmp_path / "run", **environ) as process:
                says = "serviceaccount does nothing before it can read what it needs"
                until(lambda: says in process.log.read_text(), "what is missing", 90)
                assert 'cannot list resource "serviceaccounts"' in process.log.read_text()
                until(lambda: store.get(ResourceKey("Profile", f"kns.{SPACE}"), soon()), "the namespace's profile", 60)
                made = kube.request("GET", path)
                kube.request("PUT", path, {**made, "rules": role["rules"]})
                own = ResourceKey("Profile", f"ksa.{SPACE}.bot")
                until(lambda: store.get(own, soon()), "the account's profile", 60)
                assert process.end() == 0
    finally:
        wipe(store)
        store.close()
