"""The janitor's judgement: what is lost goes, and what somebody may have stays."""

from dataclasses import replace

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.errors import DatastoreUnavailable
from cni_calico.ipam.lost.leaks import KINDS, DepartedNode
from cni_calico.model.keys import AffinityKey, BlockKey, BlockList, HandleKey, ResourceKey
from cni_calico.model.resources import Affinity, Handle
from tests.deadlines import soon
from tests.unit.ipam.cluster import GRACE_S, Cluster, Janitor
from tests.unit.ipam.world import SECOND, ip_network, request


@pytest.fixture(params=[True, False], ids=["kubernetes", "etcd"])
def lost_cluster(request):
    return Cluster(request.param)


def pass_by(cluster, seconds=GRACE_S + 1):
    cluster.world.now_ns += seconds * SECOND


def kinds(outcome):
    return {KINDS[type(subject)] for subject in outcome.released}


def test_a_pod_that_is_gone(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    lost_cluster.create_pod("b", "n1")
    gone, stays = lost_cluster.add("a", num6=1), lost_cluster.add("b")
    janitor = Janitor(lost_cluster)
    assert janitor.suspects.counts()["address"] == 0
    lost_cluster.delete_pod("a")
    janitor.see()
    assert janitor.suspects.counts()["address"] == 2
    pass_by(lost_cluster, GRACE_S - 1)
    assert janitor.run().released == []
    pass_by(lost_cluster, 2)
    assert len(janitor.run().released) == (2 if lost_cluster.is_kubernetes else 3)
    assert set(lost_cluster.world.held()) == {stays.handle}
    assert gone.handle not in lost_cluster.world.handles()
    lost_cluster.world.require_consistent()
    janitor.see()
    assert not janitor.suspects.all


def test_a_pod_that_came_back_meanwhile(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    old = lost_cluster.add("a")
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_pod("a")
    janitor.see()
    pass_by(lost_cluster)
    lost_cluster.create_pod("a", "n1")
    new = lost_cluster.add("a")
    janitor.run()  # it has not seen that
    lost_cluster.require_kept()
    janitor.settle()
    assert set(lost_cluster.world.held()) == {new.handle}, old


def test_a_suspicion_starts_anew(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    old = lost_cluster.add("a")
    janitor = Janitor(lost_cluster)
    pod = lost_cluster.pods["ns", "a"]
    del lost_cluster.pods["ns", "a"]
    janitor.see()
    pass_by(lost_cluster, GRACE_S - 1)
    lost_cluster.pods["ns", "a"] = pod
    janitor.see()
    assert not [s for s in janitor.suspects.all if getattr(s, "handle_id", "") == old.handle]
    pass_by(lost_cluster, 2)
    del lost_cluster.pods["ns", "a"]
    janitor.see()
    assert janitor.run().released == []


def test_a_new_sandbox_of_the_same_pod(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    lost_cluster.add("a")
    new = lost_cluster.add("a")
    janitor = Janitor(lost_cluster)
    janitor.settle()
    assert set(lost_cluster.world.held()) == {new.handle}


def test_a_pod_in_the_middle_of_its_add(lost_cluster):
    """Its sandbox is not recorded yet; the one that is, is the last one."""
    lost_cluster.create_pod("a", "n1")
    lost_cluster.add("a")
    pending = lost_cluster.allocate("a")
    janitor = Janitor(lost_cluster)
    assert janitor.run().released == []
    pass_by(lost_cluster, 60)
    assert janitor.run().released == []
    lost_cluster.record(pending)
    janitor.settle()
    assert set(lost_cluster.world.held()) == {pending.handle}


def test_the_same_name_on_another_node(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    lost_cluster.add("a")
    lost_cluster.create_pod("a", "n2")
    new = lost_cluster.add("a")
    janitor = Janitor(lost_cluster)
    janitor.settle()
    if lost_cluster.is_kubernetes:
        assert set(lost_cluster.world.held()) == {new.handle}
        return
    # Kubernetes' name of the old node is not known: it stays until the pod of that name is gone, or the name is
    assert len(lost_cluster.world.held()) == 2
    lost_cluster.delete_pod("a")
    janitor.settle()
    assert not lost_cluster.world.held()


def test_the_same_name_on_another_node_whose_name_is_known():
    cluster = Cluster(False)
    cluster.refer("n1", "kube-1")
    cluster.create_pod("a", "n1")
    old = cluster.add("a")
    cluster.pods["ns", "a"]["spec"]["nodeName"] = "kube-1"
    janitor = Janitor(cluster)
    assert janitor.reclaimer.confirm(next(iter(_holdings(cluster, old))), soon()) == ""
    cluster.pods["ns", "a"]["spec"]["nodeName"] = "kube-2"
    [endpoint] = [s for s in janitor.suspects._on.of(("pod", "ns", "a")) if KINDS[type(s)] == "endpoint"]
    assert "is not on node n1" in janitor.reclaimer.confirm(endpoint, soon())


def _holdings(cluster, container):
    from cni_calico.ipam.lost.leaks import reduce_block

    for block in cluster.world.blocks().values():
        yield from (held for held in reduce_block(block).holdings if held.handle_id == container.handle)


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["status"].update(phase="Succeeded"),
        lambda pod: pod["status"].update(phase="Failed"),
        lambda pod: pod["metadata"].update(deletionTimestamp="2026-11-20T12:06:00Z"),
        lambda pod: pod["metadata"].update(annotations={}),
        lambda pod: pod["spec"].update(hostNetwork=True),
        lambda pod: pod["spec"].pop("nodeName"),
        lambda pod: pod["status"].update(podIPs="nonsense"),
    ],
    ids=["completed", "failed", "terminating", "no annotations", "hostNetwork", "not bound", "unreadable"],
)
def test_pods_that_exist_keep_what_they_have(lost_cluster, change):
    lost_cluster.create_pod("a", "n1")
    kept = lost_cluster.add("a")
    change(lost_cluster.pods["ns", "a"])
    Janitor(lost_cluster).settle()
    assert kept.handle in lost_cluster.world.held()


def test_a_second_network_of_a_pod_keeps_its_address(lost_cluster):
    """Another plugin's network with calico-ipam: its address is nowhere on the pod."""
    lost_cluster.create_pod("a", "n1")
    second = lost_cluster.allocate("a", network="macvlan")
    first = lost_cluster.allocate("a")
    lost_cluster.world.allocator().release_handle(first.handle, soon())
    first.id, first.handle = second.id, f"net.{second.id}"
    first.addresses = frozenset()
    lost_cluster.record(first)
    Janitor(lost_cluster).settle()
    assert second.handle in lost_cluster.world.held()


def test_a_second_interface_of_a_pod_keeps_its_address(lost_cluster):
    """In the same network: its address is held under the container's and the interface's names, nowhere on the pod."""
    lost_cluster.create_pod("a", "n1")
    first = lost_cluster.add("a")
    handle = f"{first.handle}.net1"
    attributes = {"node": "n1", "namespace": "ns", "pod": "a"}
    lost_cluster.world.allocator().assign(replace(request(handle, "n1"), attributes=attributes), soon())
    Janitor(lost_cluster).settle()
    assert {first.handle, handle} <= set(lost_cluster.world.held())
    lost_cluster.delete_pod("a")
    Janitor(lost_cluster).settle()
    assert not lost_cluster.world.held()


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"node": "n9"},
        {"node": "n1"},
        {"namespace": "ns", "pod": "gone"},
        {"node": "n1", "namespace": "ns", "pod": "gone", "vmi": "vm-1"},
        {"service": "lb", "namespace": "ns"},
        {"node": "n9", "type": "somethingElse"},
        {"node": "n9", "namespace": "ns", "pod": "gone", "type": "somethingElse"},
    ],
)
def test_what_others_took(lost_cluster, attributes):
    kept = lost_cluster.run_container("n1", attributes, endpoint=False)
    Janitor(lost_cluster).settle()
    assert set(lost_cluster.world.held()) == {kept.handle}


def test_containers_of_podman_on_nodes_without_a_record(lost_cluster):
    kept = lost_cluster.run_container("bare")
    janitor = Janitor(lost_cluster)
    janitor.settle()
    assert set(lost_cluster.world.held()) == {kept.handle}
    [cidr] = lost_cluster.world.blocks()
    assert lost_cluster.world.blocks()[cidr].node == "bare", "its block is still its own"


def test_owners_that_a_newer_release_records(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    kept = lost_cluster.add("a")
    [block] = lost_cluster.store.list(BlockList(), soon()).items
    attributes = [{**a, "alternateOwnerAttrs": {"pod": "b"}} for a in block.value["attributes"]]
    lost_cluster.store.elsewhere(Write.update(block, {**block.value, "attributes": attributes}))
    lost_cluster.delete_pod("a")
    Janitor(lost_cluster).settle()
    assert kept.handle in lost_cluster.world.held()


def test_a_node_that_is_gone(lost_cluster):
    lost_cluster.take_tunnel("n1")
    lost_cluster.take_tunnel("n2")
    for name, node in (("a", "n1"), ("b", "n2")):
        lost_cluster.create_pod(name, node)
        lost_cluster.add(name, num6=1)
    lost_cluster.world.put(HandleKey("net.idle"), Handle({next(iter(lost_cluster.world.blocks())): 1}))
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_node("n1")
    janitor.see()
    pass_by(lost_cluster)
    first = janitor.run()
    assert {"address", "handle"} <= kinds(first)
    assert any("a" in str(s) for s in lost_cluster.live.values()) and lost_cluster.world.blocks_of("n1", 4)
    lost_cluster.require_kept()  # its pod is still there as far as Kubernetes says
    lost_cluster.delete_pod("a")
    janitor.settle()
    assert not lost_cluster.leaked() and set(lost_cluster.world.held()) == {
        *lost_cluster.live,
        *lost_cluster.tunnels.values(),
    }
    assert {node for node, _ in lost_cluster.world.affinities()} == {"n2"}
    assert {block.node for block in lost_cluster.world.blocks().values()} == {"n2"}
    assert "net.idle" not in lost_cluster.world.handles()
    lost_cluster.world.require_consistent()


def test_the_record_of_a_node_that_kubernetes_has_no_more():
    """The datastore is not Kubernetes: first the record goes, then what the node had."""
    cluster = Cluster(False)
    cluster.kubernetes_nodes = {"kube-1", "kube-2"}
    for node, name in (("n1", "kube-1"), ("n2", "kube-2")):
        cluster.refer(node, name)
        cluster.take_tunnel(node)
    cluster.world.node("n3")  # Kubernetes knows nothing of it, and never did
    janitor = Janitor(cluster)
    cluster.kubernetes_nodes.discard("kube-1")
    janitor.see()
    assert {str(s) for s in janitor.suspects.all} == {"node n1"}
    pass_by(cluster, GRACE_S - 1)
    cluster.kubernetes_nodes.add("kube-1")
    janitor.see()
    pass_by(cluster, 2)
    assert janitor.run().released == [] and not janitor.suspects.all
    cluster.kubernetes_nodes.discard("kube-1")
    janitor.see()
    pass_by(cluster)
    cluster.refer("n1", "kube-2")  # it has been said otherwise since
    assert janitor.run().released == [] and cluster.has_node("n1")
    own = [
        (ResourceKey("BGPPeer", "own"), {"spec": {"node": "n1", "peerIP": "10.0.0.1"}}),
        (ResourceKey("HostEndpoint", "own"), {"spec": {"node": "n1", "interfaceName": "eth0"}}),
        (ResourceKey("FelixConfiguration", "node.n1"), {"spec": {}}),
        (ResourceKey("BGPConfiguration", "node.n1"), {"spec": {}}),
    ]
    others = [
        (ResourceKey("BGPPeer", "other"), {"spec": {"node": "n2", "peerIP": "10.0.0.1"}}),
        (ResourceKey("BGPPeer", "all"), {"spec": {"nodeSelector": "all()", "peerIP": "10.0.0.1"}}),
        (ResourceKey("FelixConfiguration", "node.n2"), {"spec": {}}),
        (ResourceKey("FelixConfiguration", "default"), {"spec": {}}),
    ]
    for key, document in (*own, *others):
        cluster.store.elsewhere(Write.put(key, document))
    cluster.refer("n1", "kube-1")
    cluster.tunnels.pop("n1")
    janitor.settle(4)
    assert not any(cluster.store.get(key, soon()) for key, _ in own)
    assert all(cluster.store.get(key, soon()) for key, _ in others)
    assert not cluster.has_node("n1") and cluster.has_node("n2") and cluster.has_node("n3")
    assert set(cluster.world.held()) == {"vxlan-tunnel-addr-n2"} and not cluster.world.blocks_of("n1", 4)


def test_a_node_that_comes_back_keeps_its_tunnel(lost_cluster):
    lost_cluster.take_tunnel("n1")
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_node("n1")
    janitor.see()
    pass_by(lost_cluster)
    lost_cluster.create_node("n1")
    assert janitor.run().released == []
    lost_cluster.take_tunnel("n1")
    assert "vxlan-tunnel-addr-n1" in lost_cluster.world.held()


def test_where_there_are_transactions_the_node_is_compared_in_the_same_one():
    cluster = Cluster(False)
    cluster.take_tunnel("n1")
    janitor = Janitor(cluster)
    cluster.delete_node("n1")
    janitor.see()
    pass_by(cluster)
    cluster.store.script.append(lambda store: cluster.create_node("n1"))
    outcome = janitor.run()
    assert outcome.released == [] and any("is back" in why for _, why in outcome.kept)
    assert "vxlan-tunnel-addr-n1" in cluster.world.held()


def test_an_empty_block_of_a_node_that_is_gone_and_one_with_others_addresses(lost_cluster):
    lost_cluster.take_tunnel("n1")
    [cidr] = lost_cluster.world.blocks_of("n1", 4)
    lost_cluster.world.allocator().assign_address(cidr[9], "net.borrowed", {"node": "n2"}, "n2", soon())
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_node("n1")
    janitor.settle()
    assert lost_cluster.world.blocks()[cidr].affinity is None and not lost_cluster.world.affinities()
    assert set(lost_cluster.world.held()) == {"net.borrowed"}


def crowd(cluster, count):
    """Pods of n1, of which sixteen fill a block; returns the containers."""
    containers = []
    for number in range(count):
        cluster.create_pod(f"p{number}", "n1")
        containers.append(cluster.add(f"p{number}"))
    return containers


def blocks_of(cluster, node):
    return {block.cidr for block in cluster.world.blocks().values() if block.node == node}


def test_an_empty_block_of_a_living_node_goes_after_an_hour_if_it_has_another(lost_cluster):
    *_, last = crowd(lost_cluster, 17)
    assert len(blocks_of(lost_cluster, "n1")) == 2
    lost_cluster.remove(last)
    lost_cluster.delete_pod("p16")
    janitor = Janitor(lost_cluster)
    assert janitor.suspects.counts()["surplus block"] == 1
    pass_by(lost_cluster)
    assert janitor.run().released == [] and len(blocks_of(lost_cluster, "n1")) == 2, "it may be a spare one"
    pass_by(lost_cluster, 3600)
    assert kinds(janitor.run()) == {"surplus block"}
    assert len(blocks_of(lost_cluster, "n1")) == 1
    lost_cluster.require_kept()
    lost_cluster.world.require_consistent()
    janitor.settle(3)
    assert len(blocks_of(lost_cluster, "n1")) == 1 and not janitor.suspects.all


def test_of_a_nodes_empty_blocks_one_stays_in_each_family(lost_cluster):
    for container in crowd(lost_cluster, 33):
        lost_cluster.remove(container)
    lost_cluster.pods.clear()
    lost_cluster.create_pod("six", "n1")
    lost_cluster.remove(lost_cluster.add("six", num6=1))
    lost_cluster.pods.clear()
    assert len(blocks_of(lost_cluster, "n1")) == 4
    Janitor(lost_cluster).settle(8)
    assert sorted(cidr.version for cidr in blocks_of(lost_cluster, "n1")) == [4, 6]
    lost_cluster.world.require_consistent()


def test_a_surplus_block_from_which_the_node_takes_an_address_meanwhile(lost_cluster):
    *_, last = crowd(lost_cluster, 17)
    lost_cluster.remove(last)
    lost_cluster.delete_pod("p16")
    janitor = Janitor(lost_cluster)
    pass_by(lost_cluster, 3601)
    taken = []

    def take(_):
        lost_cluster.create_pod("late", "n1")
        taken.append(lost_cluster.add("late"))

    lost_cluster.store.script.append(take)
    [(kept, why)] = janitor.run().kept
    assert KINDS[type(kept)] == "surplus block" and why == "it has changed meanwhile"
    assert taken and len(blocks_of(lost_cluster, "n1")) == 2
    lost_cluster.require_kept()
    lost_cluster.world.require_consistent()


def test_a_block_that_is_written_between_the_question_and_the_answer(lost_cluster):
    lost_cluster.take_tunnel("n1")
    [cidr] = lost_cluster.world.blocks_of("n1", 4)
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_node("n1")
    janitor.see()
    pass_by(lost_cluster)
    janitor.run()
    janitor.see()

    def allocate(store):
        lost_cluster.create_node("n1")
        lost_cluster.run_container("n1")

    lost_cluster.store.script.append(allocate)
    janitor.run()
    lost_cluster.require_kept()
    block = lost_cluster.world.blocks()[cidr]
    assert block.node == "n1" and (("n1", cidr) in lost_cluster.world.affinities())


def test_a_block_that_is_made_between_the_question_and_the_answer(lost_cluster):
    """Only the affinity is left; the node comes back and finishes its claim."""
    cidr = ip_network("10.65.0.0/28")
    lost_cluster.world.put(AffinityKey("n1", cidr), Affinity("pending"))
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_node("n1")
    janitor.see()
    pass_by(lost_cluster)

    def claim(store):
        lost_cluster.create_node("n1")
        lost_cluster.run_container("n1")

    lost_cluster.store.script.append(claim)
    assert janitor.run().released == []
    lost_cluster.require_kept()
    assert lost_cluster.world.blocks()[cidr].node == "n1" and ("n1", cidr) in lost_cluster.world.affinities()


def test_an_address_given_to_somebody_else_meanwhile(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    gone = lost_cluster.add("a")
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_pod("a")
    janitor.see()
    pass_by(lost_cluster)
    lost_cluster.remove(gone)
    [address] = gone.addresses
    lost_cluster.create_pod("b", "n1")
    attributes = {"node": "n1", "namespace": "ns", "pod": "b"}
    lost_cluster.world.allocator().assign_address(address, "net.other", attributes, "n1", soon())
    janitor.run()
    assert lost_cluster.world.held() == {"net.other": {address}}


def test_handles_that_hold_nothing(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    lost_cluster.add("a")
    [cidr] = [c for c in lost_cluster.world.blocks() if c.version == 4]
    for name in ("net.idle", "net.moving"):
        lost_cluster.world.put(HandleKey(name), Handle({cidr: 1}))
    janitor = Janitor(lost_cluster)
    pass_by(lost_cluster)
    lost_cluster.world.put(HandleKey("net.moving"), Handle({cidr: 2}))
    janitor.run()
    assert "net.idle" not in lost_cluster.world.handles() and "net.moving" in lost_cluster.world.handles()
    janitor.settle(2)
    assert "net.moving" not in lost_cluster.world.handles()
    lost_cluster.require_kept()


def test_an_add_in_progress_has_time_however_short_the_grace_is(lost_cluster):
    """Its handle comes first, then the address, then what says that the pod runs in this sandbox."""
    lost_cluster.create_pod("a", "n1")
    old = lost_cluster.add("a")
    lost_cluster.world.put(HandleKey("net.begun"), Handle({}))
    begun = lost_cluster.allocate("a")
    lost_cluster.remove(old)
    janitor = Janitor(lost_cluster)
    if not lost_cluster.is_kubernetes:  # there the endpoint of the old sandbox goes with its DEL
        lost_cluster.record(old)
        janitor.see()
    assert {"net.begun", begun.handle} <= {subject.handle_id for subject in janitor.suspects.all}
    pass_by(lost_cluster, 119)
    assert janitor.run(1.0, 120.0).released == []
    lost_cluster.record(begun)
    janitor.see()
    pass_by(lost_cluster, 2)
    assert kinds(janitor.run(1.0, 120.0)) == {"handle"}
    assert set(lost_cluster.world.held()) == {begun.handle} and "net.begun" not in lost_cluster.world.handles()
    lost_cluster.require_kept()


def test_the_address_of_a_pod_that_is_gone_waits_for_no_call(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    gone = lost_cluster.add("a")
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_pod("a")
    janitor.see()
    pass_by(lost_cluster, 2)
    assert "address" in kinds(janitor.run(1.0, 120.0)) and gone.handle not in lost_cluster.world.held()


def test_kubernetes_that_does_not_answer_says_nothing(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    gone = lost_cluster.add("a")
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_pod("a")
    janitor.see()
    pass_by(lost_cluster)
    lost_cluster.apart = True
    with pytest.raises(DatastoreUnavailable):
        janitor.run()
    assert gone.handle in lost_cluster.world.held()


def test_without_kubernetes_pods_are_not_judged():
    cluster = Cluster(False)
    cluster.create_pod("a", "n1")
    kept = cluster.add("a")
    cluster.delete_pod("a")
    cluster.take_tunnel("n2")
    cluster.delete_node("n2")
    janitor = Janitor(cluster, knows_pods=False)
    janitor.settle()
    assert set(cluster.world.held()) == {kept.handle}


def test_what_cannot_be_read_stays(lost_cluster):
    lost_cluster.create_pod("a", "n1")
    gone = lost_cluster.add("a")
    janitor = Janitor(lost_cluster)
    lost_cluster.delete_pod("a")
    janitor.see()
    pass_by(lost_cluster)
    [cidr] = lost_cluster.world.blocks()
    lost_cluster.store.plant(BlockKey(cidr), b'{"cidr":7}')
    assert not any(KINDS[type(s)] in ("address", "block") for s in janitor.run().released)
    janitor.see()
    pass_by(lost_cluster)
    janitor.run()
    assert lost_cluster.store.documents()[f"/calico/ipam/v2/assignment/ipv4/block/{str(cidr).replace('/', '-')}"] == {
        "cidr": 7
    }
    assert lost_cluster.store.get(HandleKey(gone.handle), soon()) is not None


def test_nothing_changed_nothing_is_looked_at(lost_cluster):
    for i in range(5):
        lost_cluster.create_pod(f"p{i}", "n1")
        lost_cluster.add(f"p{i}")
    janitor = Janitor(lost_cluster)
    reads = lost_cluster.store.round_trips.reads
    for _ in range(10):
        janitor.suspects.refresh((), janitor.now)
        janitor.run()
    assert lost_cluster.store.round_trips.reads == reads and lost_cluster.looks == 0


def test_the_pace_is_asked_before_every_look(lost_cluster):
    for name in "abc":
        lost_cluster.create_pod(name, "n1")
        lost_cluster.add(name)
        lost_cluster.delete_pod(name)
    janitor = Janitor(lost_cluster)
    pass_by(lost_cluster)
    paced = []
    janitor.reclaimer._pace = lambda: paced.append(1) or len(paced) < 3
    assert len(janitor.run().released) == 2 and len(paced) == 3


# -- what is left of a node that Kubernetes, which is the datastore, has no more ---------------------------------------

LONG_AGO, SINCE = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


def configure(cluster, node, made=LONG_AGO, name="own"):
    """Everything that names the node and no other; its keys."""
    found = {
        ResourceKey("BGPPeer", name): {"node": node, "peerIP": "10.0.0.1"},
        ResourceKey("HostEndpoint", name): {"node": node, "interfaceName": "eth0"},
        ResourceKey("FelixConfiguration", f"node.{node}"): {},
        ResourceKey("BGPConfiguration", f"node.{node}"): {},
    }
    for key, spec in found.items():
        document = {"metadata": {"name": key.name, "creationTimestamp": made}, "spec": spec}
        cluster.store.elsewhere(Write.put(key, document))
    return set(found)


def left(cluster, keys):
    return {key for key in keys if cluster.store.get(key, soon()) is not None}


def departed(janitor):
    return {subject.name for subject in janitor.suspects.all if isinstance(subject, DepartedNode)}


def look_after(janitor):
    """A round as the janitor makes it."""
    outcome = janitor.run()
    for subject in (*outcome.released, *(subject for subject, _ in outcome.kept)):
        if isinstance(subject, DepartedNode):
            janitor.suspects.looked_after(subject)
    return outcome


def test_the_configuration_of_a_node_that_was_seen_here():
    cluster = Cluster(True)
    mine, others = configure(cluster, "n1"), configure(cluster, "n2", name="other")
    planned = configure(cluster, "n9", name="planned")  # of a node that has not joined yet
    janitor = Janitor(cluster)
    assert departed(janitor) == set()
    cluster.delete_node("n1")
    janitor.see()
    pass_by(cluster, GRACE_S - 1)
    cluster.create_node("n1")
    janitor.see()
    pass_by(cluster, 2)
    assert look_after(janitor).released == [] and not departed(janitor)  # it was back in time
    cluster.delete_node("n1")
    janitor.see()
    pass_by(cluster, GRACE_S - 1)
    assert look_after(janitor).released == [] and departed(janitor) == {"n1"}
    pass_by(cluster, 2)
    assert [str(s) for s in look_after(janitor).released] == ["configuration of node n1"]
    assert left(cluster, mine) == set() and left(cluster, others | planned) == others | planned
    again = configure(cluster, "n1")  # for the node that is to come
    for _ in range(3):
        pass_by(cluster)
        janitor.see()
        look_after(janitor)
    assert left(cluster, again) == again and departed(janitor) == set()


def test_a_node_that_left_before_this_janitor_came_is_known_by_its_block():
    cluster = Cluster(True)
    cluster.take_tunnel("n1")
    mine, planned = configure(cluster, "n1"), configure(cluster, "n9", name="planned")
    cluster.delete_node("n1")
    janitor = Janitor(cluster)
    assert departed(janitor) == {"n1"}
    pass_by(cluster)
    released = [str(s) for s in look_after(janitor).released]
    assert released[0] == "configuration of node n1" and len(released) > 1  # before what proves that it was here
    assert left(cluster, mine) == set() and left(cluster, planned) == planned


def test_what_was_made_after_the_node_had_left_stays():
    cluster = Cluster(True)
    janitor = Janitor(cluster)
    old = configure(cluster, "n1")
    cluster.delete_node("n1")
    janitor.see()
    new = ResourceKey("BGPPeer", "new")
    document = {"metadata": {"name": "new", "creationTimestamp": SINCE}, "spec": {"node": "n1", "peerIP": "10.0.0.2"}}
    cluster.store.elsewhere(Write.put(new, document))
    pass_by(cluster)
    look_after(janitor)
    assert left(cluster, old | {new}) == {new}
    cluster.create_node("n1")
    janitor.see()
    cluster.delete_node("n1")
    janitor.see()
    pass_by(cluster)
    [(subject, why)] = look_after(janitor).kept
    assert isinstance(subject, DepartedNode) and "after the node had left" in why and left(cluster, {new}) == {new}


def test_a_node_that_is_back_when_it_is_asked_for_keeps_its_configuration():
    cluster = Cluster(True)
    mine = configure(cluster, "n1")
    janitor = Janitor(cluster)
    cluster.delete_node("n1")
    janitor.see()
    pass_by(cluster)
    cluster.create_node("n1")  # no cache has told it yet
    assert look_after(janitor).released == [] and left(cluster, mine) == mine


def test_elsewhere_the_node_takes_it_along_itself():
    cluster = Cluster(False)
    janitor = Janitor(cluster)
    mine = configure(cluster, "n1")
    cluster.delete_node("n1")
    janitor.see()
    assert departed(janitor) == set()
    pass_by(cluster)
    look_after(janitor)
    assert left(cluster, mine) == mine  # whoever deletes the Node removes them


def test_a_pod_and_its_node_that_are_gone_wait_a_minute(lost_cluster):
    """A pod alone, or one whose node has only just gone, waits for the whole grace."""
    lost_cluster.create_pod("a", "n1")
    lost_cluster.create_pod("b", "n2")
    lost_cluster.add("a")
    on_living_node = lost_cluster.add("b")
    janitor = Janitor(lost_cluster)
    for name in ("a", "b"):
        lost_cluster.delete_pod(name)
    janitor.see()
    pass_by(lost_cluster, 120)
    lost_cluster.delete_node("n1")
    janitor.see()
    assert janitor.run().released == []
    pass_by(lost_cluster, 59)
    assert janitor.run().released == []
    pass_by(lost_cluster, 2)
    janitor.run()
    assert set(lost_cluster.world.held()) == {on_living_node.handle}
    pass_by(lost_cluster, GRACE_S)
    janitor.run()
    assert not lost_cluster.world.held()


@pytest.mark.parametrize(
    ("status", "cleared", "kept"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, False, False),
        ({"phase": "Succeeded"}, True, False),
        ({"phase": "Failed", "reason": "Error"}, True, False),
        ({"phase": "Succeeded"}, False, True),
        ({"phase": "Running"}, True, True),
        ({"phase": "Running", "reason": "Evicted"}, False, True),
    ],
)
def test_pods_that_have_finished(status, cleared, kept):
    """With Kubernetes as the datastore: elsewhere a recorded endpoint keeps its addresses."""
    cluster = Cluster(True)
    cluster.create_pod("a", "n1")
    held = cluster.add("a")
    pod = cluster.pods["ns", "a"]
    pod["status"] = {**pod["status"], **status}
    if cleared:
        pod["metadata"]["annotations"]["cni.projectcalico.org/podIP"] = ""
    if not kept:
        del cluster.live[held.handle]
    janitor = Janitor(cluster)
    janitor.settle()
    assert set(cluster.world.held()) == ({held.handle} if kept else set())
