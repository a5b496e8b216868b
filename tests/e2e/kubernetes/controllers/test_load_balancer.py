"""Addresses for Services of type LoadBalancer, and automatic host endpoints, on both datastores: the executable, with
the rights of the manifests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.controllers.loadbalancer.rules import handle_of
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Write
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import AffinityList, HandleKey, ResourceKey, ResourceList
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import CONTROLLERS_USER, Cluster
from tests.e2e.kubernetes.programs import ControllersProcess, controllers
from tests.e2e.kubernetes.records import SERVICES, SETTINGS, LoadBalancers, wipe
from tests.e2e.kubernetes.roles import rights
from tests.unit.nodeagent.fabric import node

pytestmark = pytest.mark.kubernetes


@pytest.fixture(params=["kubernetes", "etcd"])
def balancer_world(request: pytest.FixtureRequest, kube: Cluster) -> Iterator[LoadBalancers]:
    enabled = {"ENABLED_CONTROLLERS": "node,loadbalancer"}
    if request.param == "etcd":
        url = f"http://127.0.0.1:{kube.etcd_port}"
        store: Any = EtcdStore(EtcdConfig(endpoints=(url,)))
        wipe(store)
        made = LoadBalancers(kube, store, {"ETCD_ENDPOINTS": url, **enabled}, "calico-etcd.yaml")
    else:
        store = kube.store()
        made = LoadBalancers(kube, store, {"DATASTORE_TYPE": "kubernetes", **enabled}, "calico.yaml")
    made.clean()
    yield made
    made.clean()
    if request.param == "etcd":
        wipe(store)
    store.close()


def put_settings(world: LoadBalancers) -> None:
    document = {"kind": SETTINGS.kind, "metadata": {"name": "default"}, "spec": {"prometheusMetricsPort": 0}}
    document["spec"]["controllers"] = {"node": {}, "loadBalancer": {"assignIPs": "AllServices"}}
    world.store.commit([Write.create(SETTINGS, document)], soon())


@pytest.fixture
def process(balancer_world: LoadBalancers, tmp_path: Path) -> Iterator[ControllersProcess]:
    put_settings(balancer_world)
    since = len(balancer_world.kube.audited())
    with (
        rights(balancer_world.kube, balancer_world.manifest),
        controllers(balancer_world.kube, tmp_path, **balancer_world.environ) as process,
    ):
        yield process
        assert process.end() == 0
    refused = [
        event["requestURI"]
        for event in balancer_world.kube.audited(since)
        if event["user"]["username"] == CONTROLLERS_USER and event.get("responseStatus", {}).get("code") == 403
    ]
    assert not refused, "the manifests' role does not suffice"
    assert "Traceback" not in process.log.read_text()


def test_a_service_gets_an_address_and_gives_it_back(
    balancer_world: LoadBalancers, process: ControllersProcess
) -> None:
    balancer_world.pool("lb", "203.0.113.0/28")
    made = balancer_world.service("web")
    until(lambda: balancer_world.ingress("web"), "an address", 60)
    [address] = balancer_world.ingress("web")
    assert balancer_world.held() == {address: "web"}
    handle = handle_of("web", "space", made["metadata"]["uid"])
    assert balancer_world.store.get(HandleKey(handle), soon()) is not None
    [affinity] = balancer_world.store.list(AffinityList(type="virtual"), soon()).items
    assert affinity.key.node == "load-balancer"
    balancer_world.service("other", type="ClusterIP")
    balancer_world.service("foreign", loadBalancerClass="example.org/other")
    balancer_world.kube.request("DELETE", f"{SERVICES}/web")
    until(lambda: balancer_world.held() == {}, "it is given back", 30)
    until(lambda: balancer_world.store.get(HandleKey(handle), soon()) is None, "the handle goes", 30)
    assert balancer_world.ingress("other") == [] and balancer_world.ingress("foreign") == []


def test_an_address_that_is_asked_for(balancer_world: LoadBalancers, process: ControllersProcess) -> None:
    balancer_world.pool("lb", "203.0.113.0/28")
    asked = {"projectcalico.org/loadBalancerIPs": '["203.0.113.7"]'}
    balancer_world.service("one", annotations=asked)
    until(lambda: balancer_world.ingress("one") == ["203.0.113.7"], "that address", 60)
    balancer_world.service("two", annotations=asked)
    until(
        lambda: any("already assigned" in text for text in balancer_world.events("two")),
        "an event says that it is taken",
        30,
    )
    assert balancer_world.ingress("two") == [] and balancer_world.held() == {"203.0.113.7": "one"}
    balancer_world.annotate("two", 'projectcalico.org/loadBalancerIPs=["198.51.100.1"]')
    until(
        lambda: any("no pool" in text for text in balancer_world.events("two")), "an event says that no pool has it", 30
    )
    balancer_world.annotate("two", "projectcalico.org/loadBalancerIPs=nonsense")
    until(lambda: any("JSON list" in text for text in balancer_world.events("two")), "an event says what is wrong", 30)
    assert balancer_world.ingress("two") == []
    balancer_world.kube.request("DELETE", f"{SERVICES}/one")
    balancer_world.annotate("two", 'projectcalico.org/loadBalancerIPs=["203.0.113.7"]')
    until(lambda: balancer_world.ingress("two") == ["203.0.113.7"], "it gets what the other gave back", 60)


def test_pools_families_and_changes(balancer_world: LoadBalancers, process: ControllersProcess) -> None:
    balancer_world.pool("lb", "203.0.113.0/28")
    balancer_world.pool("six", "2001:db8::/120")
    balancer_world.pool("extra", "198.51.100.0/28", assignmentMode="Manual")
    balancer_world.service("named", annotations={"projectcalico.org/ipv4pools": '["extra"]'})
    until(lambda: balancer_world.ingress("named"), "an address of the pool", 60)
    assert balancer_world.ingress("named")[0].startswith("198.51.100.")
    balancer_world.annotate("named", "projectcalico.org/ipv4pools-")
    until(
        lambda: balancer_world.ingress("named")[:1] and balancer_world.ingress("named")[0].startswith("203."),
        "not from a Manual one",
        30,
    )
    until(lambda: list(balancer_world.held().values()) == ["named"], "the other is given back", 30)
    balancer_world.kube.request(
        "PATCH", f"{SERVICES}/named", {"spec": {"type": "ClusterIP"}}, content_type="application/merge-patch+json"
    )
    until(lambda: balancer_world.held() == {}, "a service that is none any more has none", 30)
    assert balancer_world.ingress("named") == []


def test_a_dual_stack_service_gets_an_address_of_each_family(
    balancer_world: LoadBalancers, process: ControllersProcess
) -> None:
    """In the order of its families. One that comes or goes leaves the other as it is (upstream never adds one)."""
    balancer_world.pool("lb", "203.0.113.0/28")
    dual = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    balancer_world.service("early", **dual)
    until(lambda: balancer_world.ingress("early"), "the address of the family that has a pool", 60)
    [four] = balancer_world.ingress("early")
    assert four.startswith("203.0.113.")
    until(lambda: any("IPv6" in text for text in balancer_world.events("early")), "why it lacks the other", 30)
    balancer_world.pool("six", "2001:db8::/120")
    until(lambda: len(balancer_world.ingress("early")) == 2, "the other one", 60)
    six, last = balancer_world.ingress("early")
    assert (last, six.startswith("2001:db8::")) == (four, True)
    balancer_world.service("two", **{**dual, "ipFamilies": ["IPv4", "IPv6"]})
    until(lambda: len(balancer_world.ingress("two")) == 2, "both at once", 60)
    assert [":" in text for text in balancer_world.ingress("two")] == [False, True]
    single = {"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}}
    balancer_world.kube.request("PATCH", f"{SERVICES}/early", single, content_type="application/merge-patch+json")
    until(lambda: balancer_world.ingress("early") == [six], "the family that it no longer has is given back", 60)
    until(lambda: sorted(balancer_world.held().values()) == ["early", "two", "two"], "in IPAM, too", 30)


@pytest.mark.slow
def test_killed_at_its_work_another_one_finishes_it(balancer_world: LoadBalancers, tmp_path: Path) -> None:
    """With SIGKILL, between the first and the last of many Services, and again while they go: no address is given
    twice, lost, or shown without being held.
    """
    world, names = balancer_world, [f"s{number}" for number in range(12)]
    put_settings(world)
    world.pool("four", "203.0.113.0/26")
    world.pool("six", "2001:db8::/120")

    def right(of: list[str]) -> bool:
        shown = {address: name for name in of for address in world.ingress(name)}
        return len(shown) == 2 * len(of) and world.held() == shown

    with ExitStack() as stack:
        stack.enter_context(rights(world.kube, world.manifest))
        running = [stack.enter_context(controllers(world.kube, tmp_path / name, **world.environ)) for name in "abc"]

        def leader() -> ControllersProcess | None:
            leads = [one for one in running if "these controllers lead" in one.log.read_text()]
            return leads[0] if leads else None

        def kill_the_leader() -> None:
            until(lambda: leader() is not None, "a leader", 150)
            killed = leader()
            assert killed is not None
            killed.process.kill()
            killed.process.wait()
            running.remove(killed)

        until(lambda: leader() is not None, "a leader", 90)
        for name in names:
            world.service(name, ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv4", "IPv6"])
        until(lambda: any(world.ingress(name) for name in names), "the first address", 60, pause_s=0.01)
        kill_the_leader()
        until(lambda: right(names), "each has its own address of each family", 180)
        for name in names[:8]:
            world.kube.request("DELETE", f"{SERVICES}/{name}")
        kill_the_leader()
        until(lambda: right(names[8:]), "what nobody has any more is released", 180)
        assert running[0].end() == 0


def test_only_services_that_ask(balancer_world: LoadBalancers, process: ControllersProcess) -> None:
    balancer_world.pool("lb", "203.0.113.0/28")
    found = balancer_world.store.get(SETTINGS, soon())
    assert found is not None
    spec = {**found.value["spec"], "controllers": {"loadBalancer": {"assignIPs": "RequestedServicesOnly"}, "node": {}}}
    balancer_world.store.commit([Write.put(SETTINGS, {**found.value, "spec": spec})], soon())
    until(
        lambda: (
            "RequestedServicesOnly" in str((balancer_world.store.get(SETTINGS, soon()) or found).value.get("status"))
        ),
        "it",
        60,
    )
    balancer_world.service("silent")
    balancer_world.service("classed", loadBalancerClass="calico")
    balancer_world.service("asking", annotations={"projectcalico.org/ipv4pools": '["lb"]'})
    until(lambda: balancer_world.ingress("classed") and balancer_world.ingress("asking"), "those that ask", 60)
    assert balancer_world.ingress("silent") == []


def test_what_was_left_behind_is_released(balancer_world: LoadBalancers, tmp_path: Path) -> None:
    """The service went while no controllers ran, or another of its name came; a living one keeps its address."""
    document = {"kind": SETTINGS.kind, "metadata": {"name": "default"}, "spec": {"prometheusMetricsPort": 0}}
    document["spec"]["controllers"] = {"loadBalancer": {}}
    balancer_world.store.commit([Write.create(SETTINGS, document)], soon())
    balancer_world.pool("lb", "203.0.113.0/28")
    names = ("living", "gone", "renewed")
    with rights(balancer_world.kube, balancer_world.manifest):
        with controllers(balancer_world.kube, tmp_path / "a", **balancer_world.environ) as first:
            for name in names:
                balancer_world.service(name)
            until(lambda: all(balancer_world.ingress(name) for name in names), "addresses", 60)
            assert first.end() == 0
        before = balancer_world.ingress("living")
        balancer_world.kube.request("DELETE", f"{SERVICES}/gone")
        balancer_world.kube.request("DELETE", f"{SERVICES}/renewed")
        balancer_world.service("renewed")
        with controllers(balancer_world.kube, tmp_path / "b", **balancer_world.environ) as second:
            until(lambda: sorted(balancer_world.held().values()) == ["living", "renewed"], "what is left", 60)
            until(lambda: balancer_world.ingress("renewed"), "the new one's address", 30)
            assert balancer_world.ingress("living") == before
            assert {*balancer_world.held()} == {*before, *balancer_world.ingress("renewed")}
            assert second.end() == 0


# -- host endpoints ---------------------------------------------------------------------------------------------------


def test_host_endpoints_of_nodes(balancer_world: LoadBalancers, process: ControllersProcess) -> None:
    if balancer_world.manifest == "calico.yaml":
        annotations = {
            "projectcalico.org/IPv4Address": "10.0.0.1/24",
            "projectcalico.org/IPv4VXLANTunnelAddr": "10.65.0.1",
        }
        addresses = [{"type": "InternalIP", "address": "10.9.9.9"}]
        labels = {"zone": "a"}
        balancer_world.kube.create_node(
            "n1", metadata={"annotations": annotations, "labels": labels}, status={"addresses": addresses}
        )
        expected = ["10.0.0.1", "10.65.0.1", "10.9.9.9"]
    else:
        record = encode(node("n1", "10.0.0.1/24"))
        record["metadata"]["labels"] = {"zone": "a"}
        balancer_world.store.commit([Write.create(ResourceKey("Node", "n1"), record)], soon())
        expected = ["10.0.0.1"]
    foreign = ResourceKey("HostEndpoint", "n1-eth0")
    mine = {"kind": "HostEndpoint", "metadata": {"name": "n1-eth0"}, "spec": {"node": "n1", "interfaceName": "eth0"}}
    balancer_world.store.commit([Write.create(foreign, mine)], soon())
    key = ResourceKey("HostEndpoint", "n1-auto-hep")
    found = balancer_world.store.get(SETTINGS, soon())
    assert found is not None

    def switch(auto: str, templates: list[Any]) -> None:
        spec = {
            "prometheusMetricsPort": 0,
            "controllers": {"node": {"hostEndpoint": {"autoCreate": auto, "templates": templates}}},
        }
        balancer_world.store.commit([Write.put(SETTINGS, {**found.value, "spec": spec})], soon())

    template = {"generateName": "lan", "interfaceCIDRs": ["10.0.0.0/24"], "labels": {"zone": "b"}}
    switch("Enabled", [template, {"generateName": "wrong", "interfacePattern": "("}])
    until(lambda: balancer_world.store.get(key, soon()), "the node's endpoint", 60)
    made = balancer_world.store.get(key, soon())
    assert made is not None
    assert made.value["spec"]["expectedIPs"][: len(expected)] == expected
    assert made.value["spec"]["interfaceName"] == "*" and made.value["spec"]["profiles"] == [
        "projectcalico-default-allow"
    ]
    labels = made.value["metadata"]["labels"]
    assert labels["zone"] == "a" and labels["projectcalico.org/created-by"] == "calico-kube-controllers"
    other = ResourceKey("HostEndpoint", "n1-lan-auto-hep")
    until(lambda: balancer_world.store.get(other, soon()), "the template's", 30)
    templated = balancer_world.store.get(other, soon())
    assert templated is not None
    assert (
        templated.value["spec"]["expectedIPs"] == ["10.0.0.1"] and templated.value["metadata"]["labels"]["zone"] == "b"
    )
    until(lambda: "templates[1]" in process.log.read_text(), "the wrong template is named", 30)
    # put right, and gone when it is switched off; what is not ours stays
    balancer_world.store.commit(
        [Write.put(key, {**made.value, "spec": {"node": "n1", "interfaceName": "eth7"}})], soon()
    )
    until(lambda: balancer_world.store.get(key, soon()).value["spec"]["interfaceName"] == "*", "put right", 30)
    switch("Disabled", [])
    until(
        lambda: (
            [i.key.name for i in balancer_world.store.list(ResourceList("HostEndpoint"), soon()).items] == ["n1-eth0"]
        ),
        "ours go",
        30,
    )
