"""Addresses without attributes that the janitor does not judge: which are named, and how many."""

from ipaddress import ip_network

import pytest

from cni_calico.ctl.ipam.unjudged import SHOWN, find_unjudged, render_unjudged
from cni_calico.ipam.consistency import Records
from cni_calico.model.documents.codec import decode_block
from cni_calico.model.keys import BlockKey
from cni_calico.model.resources import Metadata, Node, WorkloadEndpoint

ID = "ab" * 32
CIDR = ip_network("10.1.0.0/25")


def block(*attributes, node="n1"):
    free = CIDR.num_addresses - len(attributes)
    document = {
        "cidr": str(CIDR),
        "affinity": f"host:{node}",
        "allocations": [*range(len(attributes)), *[None] * free],
        "unallocated": [*range(len(attributes), CIDR.num_addresses)],
        "attributes": list(attributes),
        "strictAffinity": False,
    }
    return decode_block(BlockKey(CIDR), document)


def find(held, *, endpoints=(), node="n1", knows_pods=True, strict=True):
    nodes = [Node(Metadata("n1")), Node(Metadata("n2"))]
    records = Records({CIDR: block(*held, node=node)}, endpoints=endpoints, nodes=nodes)
    return [one.handle_id for one in find_unjudged(records, knows_pods=knows_pods, is_strict=lambda: strict)]


def endpoint(*nets, container=""):
    return WorkloadEndpoint(
        Metadata("e", "default"),
        orchestrator="cni",
        node="n2",
        workload="w",
        endpoint="eth0",
        interface_name="cali1",
        container_id=container,
        ip_networks=tuple(map(ip_network, nets)),
    )


@pytest.mark.parametrize(
    "attribute",
    [
        {"handle_id": ID, "secondary": {"node": "n1"}},  # it has attributes
        {"handle_id": ID, "released_at": "today"},
        {"handle_id": "net.vmi.shop.vm"},
        {"handle_id": "shop.web-0"},  # the janitor asks Kubernetes
        {"handle_id": None},
    ],
)
def test_what_others_judge_is_left_out(attribute):
    assert find([attribute]) == []


def test_with_its_node_a_container_is_the_janitors():
    held = [{"handle_id": ID}, {"handle_id": "c1"}]
    assert find(held) == [ID, "c1"]
    assert find(held, node="gone") == ["c1"]


def test_what_an_endpoint_has_or_may_have_is_left_out():
    held = [{"handle_id": f"a.b.{ID}"}, {"handle_id": "x"}]
    assert find(held) == [f"a.b.{ID}", "x"]
    assert find(held, endpoints=[endpoint("10.1.0.1/32")]) == [f"a.b.{ID}"]
    assert find(held, endpoints=[endpoint("10.2.0.1/32", container=ID.upper())]) == ["x"]


def test_many_are_counted_unless_each_is_asked_for():
    held = [{"handle_id": f"c{number}"} for number in range(SHOWN + 3)]
    records = Records({CIDR: block(*held)}, nodes=[Node(Metadata("n1"))])

    def never():
        raise AssertionError("with one node nobody asks")

    found = find_unjudged(records, knows_pods=True, is_strict=never)
    few, every = render_unjudged(found, every=False), render_unjudged(found, every=True)
    assert f"Found {SHOWN + 3} addresses" in few[0] and "  and 3 more: --show-problem-ips names each" in few
    assert len(every) == SHOWN + 3 + 2 and not any("more:" in line for line in every)
    assert render_unjudged((), every=True) == []
