"""What a call costs the datastore, counted at the datastore's door by the server itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.deadlines import until
from tests.e2e.held_server import held_server
from tests.e2e.host import Node
from tests.e2e.served import call, call_all

pytestmark = pytest.mark.netns
AT_ONCE = 24  # fewer than there are workers: one has to say what is waiting
COMMITS = {"local": "local.commit", "etcdv3": "etcd.commit"}


@pytest.fixture(params=["local", pytest.param("etcd", marks=pytest.mark.etcd)])
def counted_node(request: pytest.FixtureRequest) -> Node:
    node: Node = request.getfixturevalue("plain_node" if request.param == "local" else "etcd_node")
    return node


@pytest.fixture
def counted_server(counted_node: Node) -> Iterator[Node]:
    with counted_node.server():
        yield counted_node


def counted(node: Node, beginning: str) -> float:
    return sum(value for name, value in node.metrics().items() if name.startswith(beginning))


def trips(node: Node) -> tuple[float, float]:
    """(reads, writes) so far."""
    return counted(node, "calico_datastore_reads_total"), counted(node, "calico_datastore_writes_total")


def spent(node: Node, before: tuple[float, float]) -> tuple[float, float]:
    after = trips(node)
    return after[0] - before[0], after[1] - before[1]


def until_steady(node: Node) -> None:
    """Until it follows the datastore, in threads of its own, calls read: on a busy machine more than the first ones."""
    until(lambda: counted(node, "calico_cni_caches_healthy") == 1, "the server follows the datastore")


def test_a_steady_add_writes_once_and_a_del_twice(counted_server: Node, make_pod_ns):
    first, pod = make_pod_ns(), make_pod_ns()
    assert call(counted_server, "ADD", "first", first.path).ok
    assert call(counted_server, "DEL", "first", first.path).ok  # the first calls of a server open and list
    until_steady(counted_server)
    before = trips(counted_server)
    assert call(counted_server, "ADD", "c1", pod.path).ok
    assert spent(counted_server, before) == (0, 1), "block, handle and endpoint in one"
    before = trips(counted_server)
    assert call(counted_server, "DEL", "c1", pod.path).ok
    reads, writes = spent(counted_server, before)
    assert reads <= 1 and writes == 2, (reads, writes)
    assert not counted_server.leftovers()


def batches(node: Node) -> dict[int, float]:
    """How many writes there were for so many requests each."""
    found: dict[int, float] = {}
    for name, count in node.metrics().items():
        if match := re.fullmatch(r'calico_ipam_batches_total\{.*size="(\d+)"\}', name):
            found[int(match[1])] = count
    return found


def test_who_comes_during_a_write_shares_the_next_one(counted_node: Node, make_pod_ns):
    pods = [make_pod_ns() for _ in range(AT_ONCE)]
    warm = make_pod_ns()
    with (
        held_server(counted_node, COMMITS[counted_node.datastore.type]) as held,
        ThreadPoolExecutor(1) as pool,
    ):
        assert call(counted_node, "ADD", "warm", warm.path).ok
        assert call(counted_node, "DEL", "warm", warm.path).ok
        until_steady(counted_node)
        earlier, before = batches(counted_node), trips(counted_node)
        held.touch()
        calls = [("ADD", f"burst{i}", pod.path) for i, pod in enumerate(pods)]
        answers = pool.submit(call_all, counted_node, calls, AT_ONCE)
        try:
            until(lambda: counted(counted_node, "calico_ipam_waiting") == AT_ONCE - 1, "all others wait", 120)
        finally:
            held.unlink()
        replies = answers.result()
        assert all(reply.ok for reply in replies), replies
        assert len({reply.document["ips"][0]["address"] for reply in replies}) == AT_ONCE
        reads, writes = spent(counted_node, before)
        later = batches(counted_node)
        new = {size: later[size] - earlier.get(size, 0) for size in later if later[size] != earlier.get(size)}
        assert new == {1: 1, AT_ONCE - 1: 1}
        assert writes < AT_ONCE and reads <= 2, (reads, writes)
        replies = call_all(counted_node, [("DEL", *rest) for _, *rest in calls], AT_ONCE)
        assert all(reply.ok for reply in replies)
        assert not counted_node.leftovers()
