"""Addresses of the oldest releases, which have a handle and no attributes: whom they name, and when they are lost."""

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.ipam.lost.bare import Named, parse_bare_handle, suffixes
from cni_calico.ipam.lost.leaks import Holding
from cni_calico.ipam.lost.reclaim import BELIEVED_S, Reclaimer
from cni_calico.model.keys import ResourceKey, ResourceList
from tests.deadlines import soon
from tests.unit.ipam.cluster import GRACE_S, Cluster, Container, Janitor
from tests.unit.ipam.world import SECOND, request

ID = "c0ffee" + 58 * "0"


@pytest.fixture(params=[True, False], ids=["kubernetes", "etcd"])
def old_cluster(request):
    return Cluster(request.param)


def hold(cluster, handle, node="n1"):
    wanted = request(handle, node)
    fields = {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}
    return cluster.world.allocator().assign(wanted.__class__(**{**fields, "attributes": {}}), soon())[0].address


def is_bare(subject):
    return isinstance(subject, Holding) and subject.bare


@pytest.mark.parametrize(
    ("handle", "expected"),
    [
        ("shop.web-0", Named("shop", "web-0")),
        ("shop.web.0", Named("shop", "web.0")),
        (ID, Named()),
        (f"k8s-pod-network.{ID}", Named()),
        (f"My_Net.{ID}", Named()),
        ("k8s-pod-network.vmi.shop.vm1", None),
        ("net.sts.shop.db.0", None),
        ("net.id.shop.x", None),
        ("lb-0123456789abcdef", None),
        ("vxlan-tunnel-addr-n1", None),
        ("test_handle", None),
        ("Shop.web", None),
        ("", None),
    ],
)
def test_whom_a_handle_names(handle, expected):
    assert parse_bare_handle(handle) == expected


def test_which_container_a_handle_may_be_of():
    assert suffixes("a.b.C1") == {"a.b.c1", "b.c1", "c1"}
    assert suffixes("c1") == {"c1"}


def test_a_pod_that_exists_nowhere(old_cluster):
    old_cluster.create_pod("lives", "n1")
    old_cluster.create_pod("moved", "n2")
    lives, moved = hold(old_cluster, "ns.lives"), hold(old_cluster, "ns.moved")
    hold(old_cluster, "ns.gone")
    janitor = Janitor(old_cluster)
    assert janitor.suspects.counts()["address"] >= 1
    assert any(map(is_bare, janitor.suspects.all))
    assert not any(map(is_bare, janitor.run().released)), "before the grace period"
    janitor.settle()
    assert old_cluster.world.held() == {"ns.lives": {lives}, "ns.moved": {moved}}
    old_cluster.delete_pod("lives")
    janitor.settle()
    assert set(old_cluster.world.held()) == {"ns.moved"}
    assert set(old_cluster.world.handles()) == {"ns.moved"}


def test_a_container_goes_only_with_its_node(old_cluster):
    for handle in (ID, f"net.{ID}"):
        hold(old_cluster, handle)
    janitor = Janitor(old_cluster)
    janitor.settle()
    assert len(old_cluster.world.held()) == 2
    old_cluster.delete_node("n1")
    janitor.settle()
    assert not old_cluster.world.held() and not old_cluster.world.handles()


def test_a_container_that_an_endpoint_of_another_node_is_of():
    """Its address was borrowed, or the block has changed hands."""
    cluster = Cluster(False)
    address = hold(cluster, f"net.{ID}")
    key = ResourceKey("WorkloadEndpoint", f"n2-cni-{ID}-eth0", "default")
    container = Container(ID, "n2", None, f"net.{ID}", frozenset({address}))
    cluster.world.put(key, cluster._endpoint(key, container, "cni", "", [f"{address}/32"]))
    cluster.delete_node("n1")
    janitor = Janitor(cluster, knows_pods=False)
    janitor.settle()
    assert cluster.world.held() == {f"net.{ID}": {address}}
    cluster.store.elsewhere(Write.remove(key))
    janitor.settle()
    assert not cluster.world.held()


def test_an_address_that_a_pod_of_another_name_has():
    old_cluster = Cluster(False)
    old_cluster.create_pod("renamed", "n1")
    address = hold(old_cluster, "ns.gone")
    old_cluster.record(Container("c9", "n1", ("ns", "renamed"), "ns.gone", frozenset({address})))
    Janitor(old_cluster).settle()
    assert old_cluster.world.held() == {"ns.gone": {address}}


def test_nothing_is_known_while_kubernetes_does_not_answer(old_cluster):
    hold(old_cluster, "ns.gone")
    janitor = Janitor(old_cluster)
    old_cluster.apart = True
    with pytest.raises(Exception, match="scripted"):
        janitor.settle()
    assert set(old_cluster.world.held()) == {"ns.gone"}


def listings_of(cluster, monkeypatch):
    """Which listings are asked for from now on."""
    asked, listed = [], cluster.store.list

    def counted(what, deadline):
        asked.append(what)
        return listed(what, deadline)

    monkeypatch.setattr(cluster.store, "list", counted)
    return asked


def test_several_suspects_need_one_listing_of_endpoints(old_cluster, monkeypatch):
    for number in range(8):
        hold(old_cluster, f"ns.gone{number}")
    janitor = Janitor(old_cluster)
    old_cluster.world.now_ns += (GRACE_S + 1) * SECOND
    asked = listings_of(old_cluster, monkeypatch)
    assert len([subject for subject in janitor.run().released if is_bare(subject)]) == 8
    assert asked.count(ResourceList("WorkloadEndpoint")) == 1


def test_a_listing_is_not_believed_for_long(monkeypatch):
    """An endpoint that was made after it counts, however many suspects there are."""
    cluster, now = Cluster(False), [100.0]
    held = [hold(cluster, f"ns.gone{number}") for number in range(3)]
    janitor = Janitor(cluster)
    suspects = [subject for subject in janitor.suspects.all if is_bare(subject)]
    suspects.sort(key=lambda subject: subject.handle_id)

    def pace():
        """Between two suspects somebody gets the last one's address, and time passes."""
        if now[0] == 100.0 + 2 * BELIEVED_S:
            cluster.create_pod("new", "n1")
            cluster.record(Container("c9", "n1", ("ns", "new"), "ns.gone2", frozenset({held[2]})))
        now[0] += BELIEVED_S
        return True

    reclaimer = Reclaimer(
        cluster.store, cluster, is_kubernetes=False, make=cluster.world.allocator, pace=pace, now=lambda: now[0]
    )
    asked = listings_of(cluster, monkeypatch)
    assert reclaimer.reclaim(suspects, soon()).released == suspects[:2]
    assert asked.count(ResourceList("WorkloadEndpoint")) == 2, "a second one, when the first was too old"
    assert cluster.world.held() == {"ns.gone2": {held[2]}}
