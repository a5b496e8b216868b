"""Calls that another process carried out beside the server: what its memory does not know may cost a read, never a
container that lives.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LAB_CACHE
from tests.e2e.host import Node, Reply
from tests.e2e.served import ForkedServer, call, socket_of
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns
DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}

V6 = {"ipam": {"type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true"}}


@pytest.fixture
def beside_server(plain_node: Node, make_pod_ns: MakeNamespace) -> Iterator[ForkedServer]:
    """One that has listed the node's endpoints already."""
    with ForkedServer(plain_node) as made:
        pod = make_pod_ns("warm")
        for _ in range(2):
            assert call(plain_node, "ADD", "warm", pod.path, **DUAL).ok
            assert call(plain_node, "DEL", "warm", pod.path, **DUAL).ok
        yield made


@contextmanager
def unseen(node: Node, *, told: bool = False) -> Iterator[None]:
    """Calls meanwhile find no server, as if they had begun before it came and had died before they could tell it what
    they did; ``told``: they find one that does not answer, and tell.
    """
    path = Path(socket_of(node))
    hidden = path.rename(path.with_name("hidden.sock"))
    try:
        with socket.socket(socket.AF_UNIX) as dead:
            if told:
                dead.bind(str(path))  # and does not listen
            yield
    finally:
        hidden.rename(path)


def require(reply: Reply, why: str = "") -> Any:
    assert reply.ok, f"{why}: {reply}"
    return reply.document


def addresses_in(document: Any) -> set[str]:
    return {item["address"] for item in document["ips"]}


def test_a_repeated_add_that_fails_takes_nothing_from_the_container_that_lives(
    beside_server: ForkedServer, pod_ns: Namespace
) -> None:
    node = beside_server.node

    def add_beside(container: str) -> Any:
        with unseen(node):
            return require(call(node, "ADD", container, pod_ns.path, **DUAL))

    add_beside("c0")
    steps = beside_server.steps(lambda: call(node, "ADD", "c0", pod_ns.path, **DUAL))
    require(call(node, "DEL", "c0", pod_ns.path, **DUAL))
    failed = 0
    for number, (point, when, nth) in enumerate(steps):
        container, plan = f"c{number + 1}", f"{point}:{when}:{nth}:fail"
        document = add_beside(container)
        beside_server.arm(plan)
        failed += not call(node, "ADD", container, pod_ns.path, **DUAL).ok
        beside_server.arm("")
        checked = call(node, "CHECK", container, pod_ns.path, prevResult=document, **DUAL)
        assert checked.ok, f"{plan}: {checked}"
        require(call(node, "DEL", container, pod_ns.path, **DUAL), plan)
        assert not node.leftovers(), plan
    print(f"{len(steps)} faults, {failed} ADDs failed")
    assert failed > len(steps) // 2


def test_a_second_network_joins_an_endpoint_it_had_not_known(beside_server: ForkedServer, pod_ns: Namespace) -> None:
    node = beside_server.node
    with unseen(node):
        first = require(call(node, "ADD", "c1", pod_ns.path))
    second = require(call(node, "ADD", "c1", pod_ns.path, name="other"))
    assert addresses_in(second) == addresses_in(first) == pod_ns.addresses("eth0")
    require(call(node, "CHECK", "c1", pod_ns.path, prevResult=first))
    assert len(node.taken()) == 1
    require(call(node, "DEL", "c1", pod_ns.path, name="other"))
    require(call(node, "CHECK", "c1", pod_ns.path, prevResult=first))
    require(call(node, "DEL", "c1", pod_ns.path))
    assert not node.leftovers()


@pytest.mark.parametrize(("families", "works"), [(V6, True), ({}, False)])
def test_another_interface_of_a_container_it_had_not_known(
    beside_server: ForkedServer, pod_ns: Namespace, families: dict[str, Any], works: bool
) -> None:
    """Both of one family would want one default route; whichever way the second one ends, the first one lives."""
    node = beside_server.node
    with unseen(node, told=True):
        first = require(call(node, "ADD", "c1", pod_ns.path))
    second = call(node, "ADD", "c1", pod_ns.path, ifname="eth1", **families)
    assert second.ok == works, second
    require(call(node, "CHECK", "c1", pod_ns.path, prevResult=first))
    if works:
        assert not addresses_in(first) & addresses_in(second.document)
        require(call(node, "CHECK", "c1", pod_ns.path, ifname="eth1", prevResult=second.document, **families))
        require(call(node, "DEL", "c1", pod_ns.path, ifname="eth1"))
    assert list(node.taken()) == [address.split("/")[0] for address in addresses_in(first)]
    require(call(node, "CHECK", "c1", pod_ns.path, prevResult=first))
    require(call(node, "DEL", "c1", pod_ns.path))
    assert not node.leftovers()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("old_beside", [True, False])
def test_sandboxes_of_one_pod(
    beside_server: ForkedServer, make_pod_ns: MakeNamespace, old_beside: bool, told: bool
) -> None:
    """The endpoint and the host's interface are the pod's: a DEL of its old sandbox must see whose they are by now."""
    node, old, new = beside_server.node, make_pod_ns("old"), make_pod_ns("new")
    pod = {"args": "K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web-0"}
    if old_beside:
        with unseen(node, told=told):
            require(call(node, "ADD", "old", old.path, **pod))
        document = require(call(node, "ADD", "new", new.path, **pod))
    else:
        require(call(node, "ADD", "old", old.path, **pod))
        with unseen(node, told=told):
            document = require(call(node, "ADD", "new", new.path, **pod))
    require(call(node, "DEL", "old", old.path, **pod))
    require(call(node, "CHECK", "new", new.path, prevResult=document, **pod))
    assert set(node.taken().values()) == {"calnet.new"}
    require(call(node, "DEL", "new", new.path, **pod))
    assert not node.leftovers()


def test_a_container_deleted_and_added_beside_is_released(beside_server: ForkedServer, pod_ns: Namespace) -> None:
    """That it was deleted a moment ago is remembered, so that repeated DELs look for nothing."""
    node = beside_server.node
    require(call(node, "ADD", "c1", pod_ns.path))
    require(call(node, "DEL", "c1", pod_ns.path))
    with unseen(node, told=True):
        require(call(node, "ADD", "c1", pod_ns.path))
        node.put({path: None for path in node.dump() if "/workloadendpoints/" in path})
    require(call(node, "DEL", "c1", pod_ns.path))
    assert not node.leftovers()


@pytest.mark.cnitool
def test_another_ipam_plugins_lease_is_not_given_back(
    beside_server: ForkedServer, pod_ns: Namespace, tmp_path: Path
) -> None:
    node = beside_server.node
    node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "dataDir": str(tmp_path / "leases")}
    node.overrides["ipam"] = ipam

    def leases() -> list[str]:
        return [path.name for path in (tmp_path / "leases" / "calnet").iterdir() if path.name[0].isdigit()]

    with unseen(node):
        document = require(call(node, "ADD", "c1", pod_ns.path))
    assert leases() == ["10.88.0.2"]
    again = require(call(node, "ADD", "c1", pod_ns.path))
    assert addresses_in(again) == addresses_in(document) and leases() == ["10.88.0.2"]
    beside_server.arm("local.commit:before:1:fail")
    assert not call(node, "ADD", "c1", pod_ns.path).ok
    beside_server.arm("")
    assert leases() == ["10.88.0.2"]
    require(call(node, "CHECK", "c1", pod_ns.path, prevResult=document))
    require(call(node, "DEL", "c1", pod_ns.path))
    assert not leases() and not node.leftovers()
