"""What is owed for one interface of a container is released without what its other interfaces hold."""

from __future__ import annotations

import pytest

from tests.e2e.host import Node, added, addresses
from tests.netns.conftest import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

C1, C2 = "c1" * 32, "c2" * 32


def own_addresses(node: Node, container: str) -> set[str]:
    return {address for address, handle in node.taken().items() if f".{container}" in handle}


def require_only_first(node: Node, kept: str, make_pod_ns: MakeNamespace) -> None:
    """A call that succeeds pays; the first interface keeps its address, and gives it back itself."""
    assert len(node.intents()) == 1 and len(own_addresses(node, C1)) == 2
    added(node, C2, make_pod_ns())
    assert node.intents() == [] and own_addresses(node, C1) == {kept}
    assert [e["spec"]["endpoint"] for e in node.endpoints() if e["spec"]["containerID"] == C1] == ["eth0"]
    for container in (C1, C2):
        assert node.call("DEL", container).ok
    assert node.leftovers() == {}


def test_after_a_del_of_the_second(plain_node: Node, pod_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    first = addresses(added(plain_node, C1, pod_ns))[0].partition("/")[0]
    added(plain_node, C1, make_pod_ns(), ifname="eth1")
    assert plain_node.call("DEL", C1, "", ifname="eth1", fault="local.commit:before:1:fail").ok
    require_only_first(plain_node, first, make_pod_ns)


def test_after_an_add_of_the_second(plain_node: Node, pod_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    """It cannot have the routes of the first, and cannot give its address back."""
    first = addresses(added(plain_node, C1, pod_ns))[0].partition("/")[0]
    failed = plain_node.call("ADD", C1, pod_ns.path, ifname="eth1", fault="local.commit:before:2:fail")
    assert not failed.ok and "it exists through eth0" in failed.document["msg"], failed.document
    require_only_first(plain_node, first, make_pod_ns)
