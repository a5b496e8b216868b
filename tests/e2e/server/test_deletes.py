"""DELs in the resident server: they share the kernel's wait, and an address is free only when its old owner is gone."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.held_server import held_server
from tests.e2e.host import Node
from tests.e2e.served import call, call_all

pytestmark = pytest.mark.netns
AT_ONCE = 16


def link_batches(node: Node) -> dict[int, float]:
    """How many link deletions there were of how many links each."""
    found = {}
    for name, count in node.metrics().items():
        if match := re.fullmatch(r'calico_cni_link_batches_total\{size="(\d+)"\}', name):
            found[int(match[1])] = count
    return found


def test_parallel_dels_share_the_kernels_wait(plain_node: Node, make_pod_ns: Any):
    """It waits for all processors once for a request, however many links it deletes."""
    pods = [(f"c{i}", make_pod_ns().path) for i in range(AT_ONCE)]
    with held_server(plain_node, "netlink.link-delete") as held, ThreadPoolExecutor(1) as pool:
        assert all(reply.ok for reply in call_all(plain_node, [("ADD", *pod) for pod in pods], AT_ONCE))
        assert not link_batches(plain_node), "an ADD replaces nothing here"
        held.touch()
        answers = pool.submit(call_all, plain_node, [("DEL", *pod) for pod in pods], AT_ONCE)
        try:
            until(lambda: plain_node.metrics()["calico_cni_links_waiting"] == AT_ONCE - 1, "all others wait", 120)
        finally:
            held.unlink()
        assert all(reply.ok for reply in answers.result())
        assert link_batches(plain_node) == {1: 1, AT_ONCE - 1: 1}
    assert not plain_node.leftovers()


@pytest.fixture
def one_address(plain_node: Node) -> Node:
    """A pool of a single address."""
    plain_node.apply("IPPool", "pool4", {"cidr": "10.65.0.7/32", "blockSize": 32, "nodeSelector": "all()"})
    return plain_node


def holder(node: Node) -> set[str]:
    """The interfaces that routes to the address lead to."""
    return {str(route["dev"]) for route in node.host.routes() if str(route["dst"]).startswith("10.65.0.7")}


def cali(node: Node) -> set[str]:
    return {link["ifname"] for link in node.host.ip("link", "show") if link["ifname"].startswith("cali")}


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interface_that_cannot_be_deleted_keeps_its_address(one_address: Node, make_pod_ns: Any, when: str):
    first, second = make_pod_ns(), make_pod_ns()
    with one_address.server(fault=f"netlink.link-delete:{when}:1:fail"):
        added = call(one_address, "ADD", "c1", first.path)
        assert added.ok, added
        refused = call(one_address, "DEL", "c1", "")
        if when == "before":
            assert not refused.ok and holder(one_address) == cali(one_address) != set(), refused
            assert len(one_address.taken()) == 1 and not call(one_address, "ADD", "c2", second.path).ok
        assert call(one_address, "DEL", "c1", first.path).ok
        assert not cali(one_address) and not holder(one_address) and not one_address.taken()
        assert call(one_address, "ADD", "c2", second.path).ok and call(one_address, "DEL", "c2", second.path).ok
    assert not one_address.leftovers()


def test_who_gets_an_address_meets_nobody_who_had_it(one_address: Node, make_pod_ns: Any):
    """The next pod asks for the only address while the last one is being deleted."""
    pods = [("c0", make_pod_ns()), ("c1", make_pod_ns())]
    with one_address.server(), ThreadPoolExecutor(1) as pool:
        assert call(one_address, "ADD", pods[0][0], pods[0][1].path).ok
        for i in range(6):
            (old, old_ns), (new, new_ns) = pods[i % 2], pods[(i + 1) % 2]
            deleted = pool.submit(call, one_address, "DEL", old, old_ns.path)
            while not (reply := call(one_address, "ADD", new, new_ns.path)).ok:
                assert "No IPs available" in reply.document["msg"], reply
            own = {reply.document["interfaces"][0]["name"]}
            assert holder(one_address) == own, "one route, to the new one"
            assert cali(one_address) == own, "the old one is gone"
            assert deleted.result().ok
        last, last_ns = pods[0]
        assert call(one_address, "DEL", last, last_ns.path).ok
    assert not one_address.leftovers()
