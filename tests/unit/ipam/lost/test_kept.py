"""Addresses that are kept for virtual machines: released once a machine is over, and not before."""

from __future__ import annotations

import pytest

from cni_calico.ipam.assign import AssignRequest
from cni_calico.ipam.consistency import Inconsistency, Records, check_records
from cni_calico.ipam.lasting import LastingAddresses
from tests.deadlines import soon
from tests.unit.ipam.cluster import GRACE_S, Cluster, Janitor
from tests.unit.ipam.world import SECOND

HANDLE = "net.vmi.ns.vm"


@pytest.fixture(params=[True, False], ids=["kubernetes", "etcd"])
def cluster(request):
    made = Cluster(request.param)
    made.identities.add(("ns", "vm"))
    return made


def lasting(cluster):
    return LastingAddresses(cluster.store, cluster.world.allocator)


def owner(pod, node):
    return {"node": node, "namespace": "ns", "pod": pod, "vmi-name": "vm"}


def take(cluster, pod, node="n1"):
    cluster.create_pod(pod, node)
    given = lasting(cluster).take(AssignRequest(node, HANDLE, owner(pod, node), num4=1, num6=1), soon())
    return {item.address for item in given}


def is_held(cluster, janitor):
    janitor.settle()
    return HANDLE in cluster.world.held()


def test_a_stopped_machine_keeps_them_until_it_is_deleted(cluster):
    given = take(cluster, "p")
    janitor = Janitor(cluster)
    assert is_held(cluster, janitor)
    lasting(cluster).leave(HANDLE, "ns", "p", soon(), is_over=False)
    cluster.delete_pod("p")
    assert is_held(cluster, janitor)
    assert take(cluster, "q", "n2") == given
    cluster.delete_pod("q")  # without a DEL, with its node
    cluster.delete_node("n2")
    assert is_held(cluster, janitor)
    cluster.identities.clear()
    cluster.apart = True
    with pytest.raises(Exception, match="scripted"):
        janitor.settle()
    cluster.apart = False
    assert not is_held(cluster, janitor) and HANDLE not in cluster.world.handles()
    cluster.world.require_consistent()


@pytest.mark.parametrize("first", ["p", "target"])
def test_both_pods_of_a_migration_count(cluster, first):
    take(cluster, "p")
    cluster.create_pod("target", "n2")
    lasting(cluster).join(HANDLE, owner("target", "n2"), soon())
    cluster.identities.clear()
    janitor = Janitor(cluster)
    assert is_held(cluster, janitor)
    cluster.delete_pod(first)
    assert is_held(cluster, janitor)
    cluster.delete_pod({"p": "target", "target": "p"}[first])
    assert not is_held(cluster, janitor)


def test_a_short_grace_period_is_five_minutes_here(cluster):
    take(cluster, "p")
    cluster.identities.clear()
    janitor = Janitor(cluster)
    cluster.delete_pod("p")
    janitor.see()
    cluster.world.now_ns += 299 * SECOND
    assert not janitor.run(grace_s=1).confirmed
    cluster.world.now_ns += 2 * SECOND
    assert janitor.run(grace_s=1).released


def test_a_machine_that_comes_back_at_the_last_moment(cluster):
    """It is another one of the same name: the block says whose the address is, and its sequence number is the same."""
    given = take(cluster, "p")
    janitor = Janitor(cluster)
    cluster.delete_pod("p")
    cluster.identities.clear()
    janitor.see()
    cluster.world.now_ns += (GRACE_S + 1) * SECOND
    came = []
    janitor.reclaimer._pace = lambda: True
    confirm = janitor.reclaimer.confirm

    def confirm_and_come(subject, deadline):
        reason = confirm(subject, deadline)
        if not came:
            came.append(take(cluster, "q", "n2"))
        return reason

    janitor.reclaimer.confirm = confirm_and_come
    janitor.run()
    assert came == [given] and cluster.world.held()[HANDLE] == given


def test_a_check_of_the_records(cluster):
    take(cluster, "p")
    cluster.create_pod("target", "n2")
    lasting(cluster).join(HANDLE, owner("target", "n2"), soon())
    for pod, node in (("p", "n1"), ("target", "n2")):
        held = frozenset(cluster.world.held()[HANDLE])
        container = type("Container", (), {"id": f"c-{pod}", "node": node, "addresses": held})
        networks = [str(a) for a in held]
        from tests.unit.ipam.cluster import endpoint_key

        key = endpoint_key("ns", pod, node)
        cluster.world.put(key, cluster._endpoint(key, container, "k8s", pod, networks))
    records = cluster.world.records()
    endpoints = [r for k, r in records.items() if getattr(k, "kind", "") == "WorkloadEndpoint"]
    blocks, handles = cluster.world.blocks(), cluster.world.handles()

    def problems(endpoints):
        report = check_records(Records(blocks, handles, endpoints=endpoints))
        return {finding.problem for finding in report.of(Inconsistency.DOUBLE, Inconsistency.LEAKED)}

    assert len(endpoints) == 2 and problems(endpoints) == set()
    assert problems([]) == set(), "it is kept, not leaked"
    assert problems([*endpoints, endpoints[0]]) == {Inconsistency.DOUBLE}
