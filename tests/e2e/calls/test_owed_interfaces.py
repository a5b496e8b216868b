"""What is owed for one interface of a container is released without what its other interfaces hold."""

from __future__ import annotations

import pytest

from cni_calico.model.keys import BlockList, ResourceList
from tests.e2e.host import EtcdNode, Node, added, addresses
from tests.e2e.served import ForkedServer
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

C1, C2, C3 = "c1" * 32, "c2" * 32, "c3" * 32


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


def forget_interfaces(node: Node) -> None:
    """As upstream, and older versions, stored the addresses."""
    for path, block in node.records(BlockList()).items():
        for attribute in block["attributes"]:
            attribute["secondary"].pop("interface")
        node.put({path: block})


@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_del_that_is_repeated_while_it_is_owed(plain_node: Node, make_pod_ns: MakeNamespace, again: int) -> None:
    """The first one has removed the endpoint; only the debt says whose an address is that names no interface."""
    node, first, second = plain_node, make_pod_ns(), make_pod_ns()
    kept = addresses(added(node, C1, first))[0].partition("/")[0]
    added(node, C1, second, ifname="net1")
    forget_interfaces(node)
    # the endpoint goes in the first commit; the addresses cannot go in the second one
    assert node.call("DEL", C1, second.path, ifname="net1", fault="local.commit:before:2:fail").ok
    assert len(node.intents()) == 1 and len(node.endpoints()) == 1
    for _ in range(again):
        assert node.call("DEL", C1, "", ifname="net1", fault="local.commit:before:1:fail").ok
        assert len(node.intents()) == 1
    assert node.call("DEL", C1, "", ifname="net1").ok
    assert own_addresses(node, C1) == {kept} and node.intents() == []
    assert node.call("DEL", C1).ok and not node.leftovers()


def test_the_handle_that_older_versions_gave_a_further_interface(plain_node: Node, make_pod_ns: MakeNamespace) -> None:
    """What is held under it goes, also when the recorded address is held under the container's."""
    node = plain_node
    kept = addresses(added(node, C1, make_pod_ns()))[0].partition("/")[0]
    added(node, C1, make_pod_ns(), ifname="net1")
    added(node, f"{C1}.net1", make_pod_ns(), plugin="calico-ipam", ifname="net1")  # makes that very handle
    assert f"calnet.{C1}.net1" in node.taken().values()
    assert node.call("DEL", C1, "", ifname="net1").ok
    assert set(node.taken()) == {kept}
    assert node.call("DEL", C1).ok and not node.leftovers()


@pytest.mark.parametrize("told", [False, True])
def test_an_address_of_an_older_version_whose_record_is_lost(
    plain_node: Node, make_pod_ns: MakeNamespace, told: bool
) -> None:
    """What the first interface's record does not name is the other's that is deleted, as calico-ipam has it."""
    node = plain_node
    kept = addresses(added(node, C1, make_pod_ns()))[0].partition("/")[0]
    reply = added(node, C1, make_pod_ns(), ifname="net1")
    forget_interfaces(node)
    for path, endpoint in node.records(ResourceList("WorkloadEndpoint")).items():
        if endpoint["spec"]["endpoint"] == "net1" or told:
            node.put({path: None})
    assert node.call("DEL", C1, "", ifname="net1", **({"prevResult": reply.document} if told else {})).ok
    assert own_addresses(node, C1) == {kept}
    assert node.call("DEL", C1).ok and not node.leftovers()


@pytest.mark.etcd
def test_an_interface_that_nobody_could_tell_goes_before_its_address(
    on_etcd: EtcdNode, make_pod_ns: MakeNamespace
) -> None:
    """Unsigned, as an older version left it, and no record could be read."""
    node, pod = on_etcd, make_pod_ns()
    added(node, C1, pod)
    (link,) = [link for link in node.host.ip("link", "show") if link["ifname"].startswith("cali")]
    node.host.do("link", "set", link["ifname"], "alias", "")
    node.stop_etcd()
    assert node.call("DEL", C1).ok and len(node.intents()) == 1
    node.start_etcd()
    added(node, C2, make_pod_ns())
    assert node.intents() == [] and pod.link("eth0") is None and node.host.link(link["ifname"]) is None
    assert node.call("DEL", C2).ok and not node.leftovers()


def test_a_network_that_joined_leaves_what_is_anothers(plain_node: Node, pod_ns: Namespace) -> None:
    """A debt of the network that joined takes nothing from the one that made the interface."""
    node = plain_node
    added(node, C1, pod_ns, name="one")
    added(node, C1, pod_ns, name="two")
    assert node.call("DEL", C1, "", name="two", fault="local.read:before:1:fail").ok and len(node.intents()) == 1
    assert node.call("DEL", C2, name="one").ok  # pays
    assert node.intents() == [] and pod_ns.link("eth0") is not None
    assert [e["spec"]["profiles"] for e in node.endpoints()] == [["one"]]
    assert node.call("DEL", C1, "", name="one").ok and not node.leftovers()


def test_an_endpoint_whose_outcome_nobody_could_learn(plain_node: Node, make_pod_ns: MakeNamespace) -> None:
    """Stored with its addresses in a commit whose answer was lost, and nothing can be read: the ADD owes all of it."""
    node = plain_node
    with ForkedServer(node) as server:
        added(node, C1, make_pod_ns())
        pod = make_pod_ns()
        steps = server.steps(lambda: node.call("ADD", C3, pod.path))
        before = steps[: steps.index(("local.commit", "before", 1))]
        reads = sum(point == "local.read" and when == "before" for point, when, _ in before)
        assert node.call("DEL", C3, pod.path).ok
        unreadable = (f"local.read:before:{n}:fail" for n in range(reads + 1, 100))
        server.arm(",".join(("local.commit:after:1:fail", *unreadable)))
        assert not node.call("ADD", C2, make_pod_ns().path).ok
        server.arm("")
        assert len(node.taken()) == 2 and len(node.intents()) == 1
        assert node.call("DEL", C1).ok
        assert not node.leftovers()
