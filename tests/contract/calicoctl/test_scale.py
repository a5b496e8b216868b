"""``ipam check`` over many lost addresses: judged by what is listed, not by a request for each; and over those that
nobody judges.
"""

import json
from collections import Counter
from ipaddress import ip_network
from urllib.parse import urlsplit

import pytest

from cni_calico.ctl.ipam import lost
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.model.access import CRD_ROOT
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey
from tests.contract.calicoctl.files import pool
from tests.e2e.kubernetes.cluster import shared_cluster

BLOCKS, SIZE = 8, 64


def lost_block(cidr):
    attributes = [
        {
            "handle_id": f"net.{cidr.network_address}-{i}",
            "secondary": {"node": "gone", "namespace": "space", "pod": f"p{i}"},
        }
        for i in range(SIZE)
    ]
    return {
        "cidr": str(cidr),
        "affinity": "host:gone",
        "allocations": list(range(SIZE)),
        "unallocated": [],
        "attributes": attributes,
        "sequenceNumber": 1,
        "sequenceNumberForAllocation": {},
        "deleted": False,
    }


@pytest.mark.parametrize("backend", ["kubernetes"], indirect=True)
def test_requests_do_not_grow_with_what_is_lost(calicoctl, space, monkeypatch):
    calicoctl("create", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16")))
    shared_cluster().create_pod("space", "p0", "gone")  # there, so its addresses are not lost
    for cidr in list(ip_network("10.1.0.0/16").subnets(new_prefix=26))[:BLOCKS]:
        for write in (
            Write.put(BlockKey(cidr), lost_block(cidr)),
            Write.put(AffinityKey("gone", cidr), {"state": "confirmed", "deleted": False}),
            Write.put(HandleKey(f"net.{cidr.network_address}-1"), {"block": {str(cidr): 1}, "deleted": False}),
        ):
            space.first.commit([write], Deadline.after(10))
    asked = []
    confirm = lost.Reclaimer.confirm

    def counted(self, subject, deadline):
        asked.append(subject)
        return confirm(self, subject, deadline)

    monkeypatch.setattr(lost.Reclaimer, "confirm", counted)
    cluster = shared_cluster()
    since = len(cluster.audited())
    out = calicoctl("ipam", "check", code=1)
    listed = [event["requestURI"] for event in cluster.audited(since) if event["verb"] == "list"]
    begun = Counter(urlsplit(uri).path for uri in listed if "continue=" not in uri)  # the others are further pages
    assert begun["/api/v1/pods"] == begun["/api/v1/nodes"] == 1, listed
    assert {begun[f"{CRD_ROOT}/{kind}"] for kind in ("ipamblocks", "ipamhandles")} == {1}, listed
    assert begun[f"{CRD_ROOT}/blockaffinities"] == 2, listed  # those of nodes, and those of others
    assert len(asked) == lost.ASKED_AGAIN
    found = [line for line in out.splitlines() if "is not on node gone any more" in line]
    assert len(found) == BLOCKS * (SIZE - 1)
    assert not any("pod space/p0 " in line for line in found)


@pytest.mark.parametrize("backend", ["kubernetes"], indirect=True)
def test_addresses_without_attributes_are_counted_or_asked_for(calicoctl, space):
    """Each needs a request: the first hundred are asked for, the others if one wants to see them."""
    calicoctl("create", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16")))
    shared_cluster().create_pod("space", "p3", "there")
    for cidr in list(ip_network("10.1.0.0/16").subnets(new_prefix=26))[:3]:
        block = {**lost_block(cidr), "affinity": "host:there"}
        block["attributes"] = [{"handle_id": f"space.p{i}-{cidr.network_address}"} for i in range(SIZE)]
        block["attributes"][3] = {"handle_id": "space.p3"}
        space.first.commit([Write.put(BlockKey(cidr), block)], Deadline.after(10))
    few = calicoctl("ipam", "check", code=1)
    named, lost_in_all = few.count("there is no pod space/"), 3 * (SIZE - 1)
    assert lost.ASKED_AGAIN - 3 < named <= lost.ASKED_AGAIN
    assert f"and {lost_in_all - named} more addresses without attributes" in few
    every = calicoctl("ipam", "check", "--show-problem-ips", code=1)
    assert every.count("there is no pod space/") == lost_in_all and "more addresses" not in every
    assert not any("space/p3," in line for line in every.splitlines())
    document = json.loads(calicoctl("ipam", "check", "--format", "json", code=1))
    assert document["unasked"] == lost_in_all - named


@pytest.mark.parametrize("backend", ["etcd", "kubernetes", "local"], indirect=True)
def test_addresses_of_containers_on_nodes_that_exist_are_named(calicoctl, space):
    """By whom each is released: neither the janitor nor this command knows a node's containers."""
    calicoctl("create", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16")))
    is_kubernetes = space.address.startswith("kubernetes")
    for name in ("n1", "n2"):
        node = {"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": name}, "spec": {}}
        if is_kubernetes:
            shared_cluster().create_node(name)
        else:
            calicoctl("create", "-f", "-", stdin=json.dumps(node))
    known, cidr = "ab" * 32, ip_network("10.1.0.0/26")
    handles = [known, f"net.{known}", "net.c1", "c1", "net.vmi.d1"]
    free = range(len(handles), SIZE)
    block = {**lost_block(cidr), "affinity": "host:n1", "attributes": [{"handle_id": one} for one in handles]}
    block |= {"allocations": [*range(len(handles)), *(None for _ in free)], "unallocated": [*free]}
    space.first.commit([Write.put(BlockKey(cidr), block)], Deadline.after(10))
    out = calicoctl("ipam", "check", code=1)
    borrowed = "it may be another node's container's, as affinity is not strict: only its container's DEL releases it"
    borrowed += ", or node n1's agent, if it has seen the container running there"
    assert f"  10.1.0.0 (handle {known}): {borrowed}\n" in out
    number = 3 if is_kubernetes else 4  # the janitor knows pods, and whether net.c1 is one
    assert f"Found {number} addresses without attributes that nobody seems to have and the janitor" in out
    calicoctl("ipam", "configure", "--strict-affinity=true")
    out = calicoctl("ipam", "check", code=1)
    alone = "only node n1 knows its container: GC there releases it, or its agent, if that sees the runtimes"
    assert f"  10.1.0.0 (handle {known}): {alone}\n  10.1.0.1 (handle net.{known}): {alone}\n" in out
    doubtful = "its handle is not certainly a container's ID: only who took it releases it"
    assert f"  10.1.0.3 (handle c1): {doubtful}\n" in out
    by_gc = f"{doubtful}, and GC of the network that its handle begins with, on node n1\n"
    either = "if it is pod net/c1's, a janitor that knows Kubernetes releases it; else"
    assert (f"  10.1.0.2 (handle net.c1): {either} {by_gc}" in out) is not is_kubernetes
    assert ("10.1.0.2 (handle net.c1): there is no pod net/c1, and nobody has the address" in out) is is_kubernetes
    assert "10.1.0.4 (handle" not in out
    reported = json.loads(calicoctl("ipam", "check", "--format", "json", code=1))["unjudged"]
    assert [one["ip"] for one in reported][:2] == ["10.1.0.0", "10.1.0.1"] and len(reported) == number
