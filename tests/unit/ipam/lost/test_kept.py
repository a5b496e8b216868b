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
def kept_cluster(request):
    made = Cluster(request.param)
    made.identities.add(("ns", "vm"))
    return made


def lasting(kept_cluster):
    return LastingAddresses(kept_cluster.store, kept_cluster.world.allocator)


def owner(pod, node):
    return {"node": node, "namespace": "ns", "pod": pod, "vmi-name": "vm"}


def take(kept_cluster, pod, node="n1"):
    kept_cluster.create_pod(pod, node)
    given = lasting(kept_cluster).assign(AssignRequest(node, HANDLE, owner(pod, node), num4=1, num6=1), soon())
    return {item.address for item in given}


def is_held(kept_cluster, janitor):
    janitor.settle()
    return HANDLE in kept_cluster.world.held()


def test_a_stopped_machine_keeps_them_until_it_is_deleted(kept_cluster):
    given = take(kept_cluster, "p")
    janitor = Janitor(kept_cluster)
    assert is_held(kept_cluster, janitor)
    lasting(kept_cluster).leave(HANDLE, "ns", "p", soon(), is_over=False)
    kept_cluster.delete_pod("p")
    assert is_held(kept_cluster, janitor)
    assert take(kept_cluster, "q", "n2") == given
    kept_cluster.delete_pod("q")  # without a DEL, with its node
    kept_cluster.delete_node("n2")
    assert is_held(kept_cluster, janitor)
    kept_cluster.identities.clear()
    kept_cluster.apart = True
    with pytest.raises(Exception, match="scripted"):
        janitor.settle()
    kept_cluster.apart = False
    assert not is_held(kept_cluster, janitor) and HANDLE not in kept_cluster.world.handles()
    kept_cluster.world.require_consistent()


@pytest.mark.parametrize("first", ["p", "target"])
def test_both_pods_of_a_migration_count(kept_cluster, first):
    take(kept_cluster, "p")
    kept_cluster.create_pod("target", "n2")
    lasting(kept_cluster).join(HANDLE, owner("target", "n2"), soon())
    kept_cluster.identities.clear()
    janitor = Janitor(kept_cluster)
    assert is_held(kept_cluster, janitor)
    kept_cluster.delete_pod(first)
    assert is_held(kept_cluster, janitor)
    kept_cluster.delete_pod({"p": "target", "target": "p"}[first])
    assert not is_held(kept_cluster, janitor)


def test_a_short_grace_period_is_five_minutes_here(kept_cluster):
    take(kept_cluster, "p")
    kept_cluster.identities.clear()
    janitor = Janitor(kept_cluster)
    kept_cluster.delete_pod("p")
    janitor.see()
    kept_cluster.world.now_ns += 299 * SECOND
    assert not janitor.run(grace_s=1).confirmed
    kept_cluster.world.now_ns += 2 * SECOND
    assert janitor.run(grace_s=1).released


def test_a_machine_that_comes_back_at_the_last_moment(kept_cluster):
    """It is another one of the same name: the block says whose the address is, and its sequence number is the same."""
    given = take(kept_cluster, "p")
    janitor = Janitor(kept_cluster)
    kept_cluster.delete_pod("p")
    kept_cluster.identities.clear()
    janitor.see()
    kept_cluster.world.now_ns += (GRACE_S + 1) * SECOND
    came = []
    janitor.reclaimer._pace = lambda: True
    confirm = janitor.reclaimer.confirm

    def confirm_and_come(subject, deadline):
        reason = confirm(subject, deadline)
        if not came:
            came.append(take(kept_cluster, "q", "n2"))
        return reason

    janitor.reclaimer.confirm = confirm_and_come
    janitor.run()
    assert came == [given] and kept_cluster.world.held()[HANDLE] == given


def test_a_check_of_the_records(kept_cluster):
    take(kept_cluster, "p")
    kept_cluster.create_pod("target", "n2")
    lasting(kept_cluster).join(HANDLE, owner("target", "n2"), soon())
    for pod, node in (("p", "n1"), ("target", "n2")):
        held = frozenset(kept_cluster.world.held()[HANDLE])
        container = type("Container", (), {"id": f"c-{pod}", "node": node, "addresses": held})
        networks = [str(a) for a in held]
        from tests.unit.ipam.cluster import endpoint_key

        key = endpoint_key("ns", pod, node)
        kept_cluster.world.put(key, kept_cluster._endpoint(key, container, "k8s", pod, networks))
    records = kept_cluster.world.records()
    endpoints = [r for k, r in records.items() if getattr(k, "kind", "") == "WorkloadEndpoint"]
    blocks, handles = kept_cluster.world.blocks(), kept_cluster.world.handles()

    def problems(endpoints):
        report = check_records(Records(blocks, handles, endpoints=endpoints))
        return {finding.problem for finding in report.of(Inconsistency.DOUBLE, Inconsistency.LEAKED)}

    assert len(endpoints) == 2 and problems(endpoints) == set()
    assert problems([]) == set(), "it is kept, not leaked"
    assert problems([*endpoints, endpoints[0]]) == {Inconsistency.DOUBLE}
