"""What BGP takes from Kubernetes itself, on a real API server: passwords and services, and how their changes arrive."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreError
from cni_calico.log import SILENT
from cni_calico.model.access import KubernetesAccess
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.bgp.config.snapshot import BgpEnvironment, BgpSnapshot
from cni_calico.nodeagent.bgp.config.values import SecretRef
from cni_calico.nodeagent.bgp.keeper import BgpKeeper
from cni_calico.nodeagent.bgp.kubernetes import AnnouncedServices, Secrets
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.driver.services import FollowedServices
from cni_calico.nodeagent.sync.felix_pb2 import ToDataplane
from cni_calico.nodeagent.view.snapshot import Snapshot
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = pytest.mark.kubernetes
BGP = "bgp-passwords"
SECRETS, SERVICES = f"/api/v1/namespaces/{NAMESPACE}/secrets", f"/api/v1/namespaces/{NAMESPACE}/services"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


def remove(kube: Cluster, path: str) -> None:
    try:
        kube.request("DELETE", path)
    except DatastoreError:
        pass  # it is not there


@pytest.fixture
def clean(kube: Cluster) -> Iterator[Cluster]:
    def empty() -> None:
        for path in (f"{SECRETS}/{BGP}", f"{SERVICES}/web", f"{SLICES}/web-1"):
            remove(kube, path)

    empty()
    yield kube
    empty()


def put_secret(kube: Cluster, **values: str) -> None:
    remove(kube, f"{SECRETS}/{BGP}")
    data = {key: b64encode(value.encode()).decode() for key, value in values.items()}
    kube.request("POST", SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": BGP}, "data": data})


def put_service(kube: Cluster) -> None:
    ports = [{"port": 80, "protocol": "TCP"}]
    spec = {"type": "NodePort", "externalTrafficPolicy": "Local", "externalIPs": ["203.0.113.7"], "ports": ports}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    kube.request("POST", SERVICES, body)


def put_endpoint(kube: Cluster, address: str, node: str) -> None:
    body: dict[str, Any] = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": [address], "nodeName": node, "conditions": {"ready": True}}],
        "ports": [{"port": 80}],
    }
    kube.request("POST", SLICES, body)


def test_a_password_comes_out_of_its_secret(clean: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    secrets = Secrets(kube_store, NAMESPACE)
    ref = SecretRef(BGP, "rack")
    assert secrets.read([ref], soon) == ({}, [])
    put_secret(clean, rack="s3cret")
    assert secrets.read([ref], soon) == ({ref: "s3cret"}, [])


@pytest.fixture
def stranger(clean: Cluster) -> Iterator[KubernetesStore]:
    """Somebody whom the API server does not know."""
    opened = KubernetesStore(KubernetesAccess(api_root=clean.access().api_root, insecure=True, token="nobody"))
    yield opened
    opened.close()


def test_who_may_not_read_secrets_is_told(clean: Cluster, stranger: KubernetesStore, soon: Deadline) -> None:
    put_secret(clean, rack="s3cret")
    values, problems = Secrets(stranger, NAMESPACE).read([SecretRef(BGP, "rack")], soon)
    assert not values
    assert [problem.about for problem in problems] == [f"Secret {NAMESPACE}/{BGP}"]


def test_who_may_not_see_services_announces_none(stranger: KubernetesStore, soon: Deadline) -> None:
    """All other routes are announced: an installation's roles may be older than this program."""
    services = AnnouncedServices(stranger, lambda: None)
    try:
        found, [problem] = services.read(soon)
    finally:
        services.stop()
    assert not found
    assert "single services are not announced: cannot list /api/v1/services" in str(problem)


def test_services_are_followed(clean: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    services = AnnouncedServices(kube_store, lambda: None)

    def web() -> Any:
        return next((service for service in services.read(soon)[0] if service.name == "web"), None)

    try:
        assert web() is None
        put_service(clean)
        until(lambda: web() is not None, "the service")
        assert [str(ip) for ip in web().external_ips] == ["203.0.113.7"]
        assert web().local and web().endpoints == ()
        put_endpoint(clean, "10.65.0.3", "n1")
        until(lambda: [(str(e.address), e.node) for e in web().endpoints] == [("10.65.0.3", "n1")], "its endpoint")
        remove(clean, f"{SERVICES}/web")
        until(lambda: web() is None, "the service's end")
    finally:
        services.stop()


def test_drivers_are_told_of_services(clean: Cluster, kube_store: KubernetesStore, stranger: KubernetesStore) -> None:
    """Of another data plane; who may not see services tells of none, and nothing waits for them."""
    woken = Event()
    services, denied = FollowedServices(kube_store, woken.set), FollowedServices(stranger, woken.set)

    def web() -> list[Any]:
        told = (ToDataplane.FromString(update).service_update for update, _ in services.facts().values())
        return [one for one in told if (one.namespace, one.name) == (NAMESPACE, "web")]

    try:
        until(lambda: services.complete and denied.complete, "they are read")
        assert denied.problem.startswith("the data plane driver is told of no services: cannot list /api/v1/services")
        assert services.changed and not services.problem and not web() and not services.changed
        assert not denied.facts()
        woken.clear()
        put_service(clean)
        assert woken.wait(60)
        until(web, "the service")
        (told,) = web()
        assert (told.type, list(told.external_ips), told.ports[0].Port) == ("NodePort", ["203.0.113.7"], 80)
        assert told.ports[0].NodePort and told.cluster_ips
        remove(clean, f"{SERVICES}/web")
        until(lambda: not web(), "the service's end")
    finally:
        services.stop()
        denied.stop()


def test_the_agent_sees_both(clean: Cluster, kube_store: KubernetesStore, soon: Deadline, tmp_path: Any) -> None:
    """A password and a service's address reach what BIRD's configuration is made of."""
    put_secret(clean, rack="s3cret")
    put_service(clean)
    put_endpoint(clean, "10.65.0.3", "n1")
    put_resource(kube_store, soon, "BGPConfiguration", "default", {"serviceExternalIPs": [{"cidr": "203.0.113.0/24"}]})
    password = {"secretKeyRef": {"name": BGP, "key": "rack"}}
    put_resource(kube_store, soon, "BGPPeer", "tor", {"peerIP": "10.9.9.9", "asNumber": 65001, "password": password})
    context = Context(
        parse_settings({"CALICO_RUN_DIR": str(tmp_path), "CALICO_BIRD_CONFIG_DIR": f"{tmp_path}/bird"}),
        kube_store,
        SILENT,
        wait=lambda _: True,
        kubernetes_store=kube_store,
    )
    keeper = BgpKeeper(context, "n1", BgpEnvironment(node_name="n1"))
    keeper._feed.secrets.namespace = NAMESPACE  # in a pod it is the pod's
    try:
        keeper._feed.wait_synced(soon)
        built: BgpSnapshot = keeper._build(Snapshot(node="n1"), soon)
        assert list(built.secrets.values()) == ["s3cret"]
        web = next(service for service in built.services if service.name == "web")
        assert [(str(e.address), e.node) for e in web.endpoints] == [("10.65.0.3", "n1")]
        assert not [problem for problem in built.problems if "Secret" in str(problem)]
    finally:
        keeper._feed.stop()


def put_resource(store: KubernetesStore, soon: Deadline, kind: str, name: str, spec: dict[str, Any]) -> None:
    document = {
        "kind": kind,
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name},
        "spec": spec,
    }
    store.commit([Write.put(ResourceKey(kind, name), document)], soon)
