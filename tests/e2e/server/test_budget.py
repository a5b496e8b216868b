"""What a call costs the datastore, counted at the datastore's door by the server itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.host import Node
from tests.e2e.served import call, call_all

pytestmark = pytest.mark.netns
AT_ONCE = 32


@pytest.fixture(params=["local", pytest.param("etcd", marks=pytest.mark.etcd)])
def counted_server(request: pytest.FixtureRequest) -> Iterator[Node]:
    node: Node = request.getfixturevalue("plain_node" if request.param == "local" else "etcd_node")
    with node.server():
        yield node


def counted(node: Node, beginning: str) -> float:
    return sum(value for name, value in node.metrics().items() if name.startswith(beginning))


def trips(node: Node) -> tuple[float, float]:
    """(reads, writes) so far."""
    return counted(node, "calico_datastore_reads_total"), counted(node, "calico_datastore_writes_total")


def spent(node: Node, before: tuple[float, float]) -> tuple[float, float]:
    after = trips(node)
    return after[0] - before[0], after[1] - before[1]


def test_a_steady_add_writes_once_and_a_del_twice(counted_server: Node, make_pod_ns):
    first, pod = make_pod_ns(), make_pod_ns()
    assert call(counted_server, "ADD", "first", first.path).ok
    assert call(counted_server, "DEL", "first", first.path).ok  # the first calls of a server open and list
    before = trips(counted_server)
    assert call(counted_server, "ADD", "c1", pod.path).ok
    assert spent(counted_server, before) == (0, 1), "block, handle and endpoint in one"
    before = trips(counted_server)
    assert call(counted_server, "DEL", "c1", pod.path).ok
    reads, writes = spent(counted_server, before)
    assert reads <= 1 and writes == 2, (reads, writes)
    assert not counted_server.leftovers()


def test_a_burst_writes_less_than_once_per_add_for_its_addresses(counted_server: Node, make_pod_ns):
    pods = [make_pod_ns() for _ in range(AT_ONCE)]
    warm = make_pod_ns()
    assert call(counted_server, "ADD", "warm", warm.path).ok
    batches = counted(counted_server, "calico_ipam_batches_total")
    before = trips(counted_server)
    replies = call_all(counted_server, [("ADD", f"burst{i}", pod.path) for i, pod in enumerate(pods)], AT_ONCE)
    assert all(reply.ok for reply in replies), replies
    assert len({reply.document["ips"][0]["address"] for reply in replies}) == AT_ONCE
    reads, writes = spent(counted_server, before)
    assert counted(counted_server, "calico_ipam_batches_total") - batches < AT_ONCE
    assert writes < 2 * AT_ONCE and reads <= 2, (reads, writes)
    replies = call_all(counted_server, [("DEL", f"burst{i}", pod.path) for i, pod in enumerate(pods)], AT_ONCE)
    assert all(reply.ok for reply in replies) and call(counted_server, "DEL", "warm", warm.path).ok
    assert not counted_server.leftovers()
