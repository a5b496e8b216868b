"""Two interfaces of one container in one network: each has an address of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from cni_calico.model.keys import BlockList
from tests.e2e.attachments import NAMES, VALID, Attachments, live_in_any_order, valid
from tests.e2e.host import EtcdNode, Node, Reply, added, addresses
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

C1, C2 = "c1" * 32, "c2" * 32


def ipam(node: Node, command: str, ifname: str, **changes: object) -> str:
    """The address of an ADD of calico-ipam."""
    reply = node.call(command, C1, "/proc/self/ns/net", ifname=ifname, plugin="calico-ipam", **changes)
    assert reply.ok, reply
    return str(reply.document["ips"][0]["address"]).partition("/")[0] if command == "ADD" else ""


def forget_interfaces(node: Node) -> None:
    """As upstream, and an older version, stored the addresses."""
    for path, block in node.records(BlockList()).items():
        for attribute in block["attributes"]:
            attribute["secondary"].pop("interface")
        node.put({path: block})


def test_calico_ipam_gives_each_its_own(any_node: Node) -> None:
    given = {name: ipam(any_node, "ADD", name) for name in NAMES[:2]}
    assert len(set(given.values())) == 2 and set(any_node.taken()) == set(given.values())
    assert set(any_node.taken().values()) == {f"calnet.{C1}"}  # upstream releases by handle
    assert {name: ipam(any_node, "ADD", name) for name in NAMES[:2]} == given
    ipam(any_node, "DEL", "net1")
    assert set(any_node.taken()) == {given["eth0"]}
    assert not any_node.call("CHECK", C1, "/x", ifname="net1", plugin="calico-ipam", prevResult={}).ok
    ipam(any_node, "CHECK", "eth0", prevResult={})
    again = ipam(any_node, "ADD", "net1")
    assert any_node.call("GC", "", "", plugin="calico-ipam", **{VALID: [{"containerID": C1, "ifname": "net1"}]}).ok
    assert set(any_node.taken()) == {again}
    ipam(any_node, "DEL", "net1")
    assert not any_node.leftovers()


@pytest.mark.parametrize("told", [False, True])
def test_an_address_of_an_older_version(any_node: Node, told: bool) -> None:
    """Without a record it is the first interface's, unless the runtime has the result that says otherwise."""
    old = ipam(any_node, "ADD", "net1" if told else "eth0")
    forget_interfaces(any_node)
    other = ipam(any_node, "ADD", "net2")
    assert other != old
    ipam(any_node, "DEL", "net1", prevResult={"ips": [{"address": f"{old if told else '10.9.9.9'}/32"}]})
    assert set(any_node.taken()) == ({other} if told else {old, other})
    for name in ("net2", "eth0"):
        ipam(any_node, "DEL", name)
    assert not any_node.leftovers()


def test_an_address_of_an_older_version_with_a_record(any_node: Node, make_pod_ns: MakeNamespace) -> None:
    first, second = make_pod_ns(), make_pod_ns()
    one = addresses(added(any_node, C1, first, ifname="net1"))
    forget_interfaces(any_node)
    two = addresses(added(any_node, C1, second))
    assert one != two and addresses(added(any_node, C1, first, ifname="net1")) == one
    ipam(any_node, "DEL", "eth0", prevResult={})  # of another plugin: what net1's record names stays
    assert {f"{address}/32" for address in any_node.taken()} == set(one)
    for name, pod in (("eth0", second), ("net1", first)):
        assert any_node.call("DEL", C1, pod.path, ifname=name).ok
    assert not any_node.leftovers()


def test_two_networks_of_calico(any_node: Node, make_pod_ns: MakeNamespace) -> None:
    pods: dict[tuple[str, str], Namespace] = {(n, i): make_pod_ns() for n in ("one", "two") for i in NAMES[:2]}
    given = {}
    for (network, name), pod in pods.items():
        if (network, name) != ("two", "eth0"):  # it would join the endpoint of the first
            given[network, name] = addresses(added(any_node, C1, pod, ifname=name, name=network))
    assert len(any_node.taken()) == 2 and len(any_node.endpoints()) == 2
    assert given["two", "net1"] == given["one", "net1"]  # joined
    assert any_node.call("DEL", C1, "", ifname="net1", name="two").ok and len(any_node.taken()) == 2
    assert any_node.call("DEL", C1, "", ifname="net1", name="one").ok and len(any_node.taken()) == 1
    assert any_node.call("DEL", C1, "", ifname="eth0", name="one").ok
    assert not any_node.leftovers()


def live_by_calico_ipam(node: Node, seed: int) -> None:
    """Two containers, four interfaces each, ADD, DEL and GC by processes side by side."""
    node.forks = None  # they would be one after the other

    def container(name: str) -> Attachments:
        def ask(command: str, ifname: str) -> Reply:
            return node.call(command, name, "/proc/self/ns/net", ifname=ifname, plugin="calico-ipam")

        return Attachments(name, ask)

    containers = [container(C1), container(C2)]

    def collect(kept: Sequence[str]) -> None:
        reply = node.call("GC", "", "", plugin="calico-ipam", **valid(containers, kept))
        assert reply.ok, reply

    live_in_any_order(node, containers, collect, seed)


def live_in_two_networks(node: Node, make: MakeNamespace, seed: int) -> None:
    """The same through calico: a container's interfaces are in two networks, and GC is called for each network."""
    node.forks = None  # as above
    networks = {"eth0": "one", "net1": "two", "net2": "one", "net3": "two"}

    def container(name: str) -> Attachments:
        pods = {ifname: make() for ifname in NAMES}

        def ask(command: str, ifname: str) -> Reply:
            return node.call(command, name, pods[ifname].path, ifname=ifname, name=networks[ifname])

        return Attachments(name, ask)

    containers = [container(C1), container(C2)]

    def collect(kept: Sequence[str]) -> None:
        for network in ("one", "two"):
            own = [ifname for ifname in kept if networks[ifname] == network]
            reply = node.call("GC", "", "", name=network, **valid(containers, own))
            assert reply.ok, reply

    live_in_any_order(node, containers, collect, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_by_processes_side_by_side(node: Node, seed: int) -> None:
    """No address twice, none lost."""
    live_by_calico_ipam(node, seed)


def test_any_order_in_two_networks_of_calico(node: Node, make_pod_ns: MakeNamespace) -> None:
    live_in_two_networks(node, make_pod_ns, 3)


@pytest.mark.slow
@pytest.mark.etcd
@pytest.mark.parametrize("seed", [4, 5])
def test_any_order_on_etcd(on_etcd: EtcdNode, seed: int) -> None:
    live_by_calico_ipam(on_etcd, seed)


@pytest.mark.slow
@pytest.mark.etcd
@pytest.mark.parametrize("seed", [6, 7])
def test_any_order_in_two_networks_on_etcd(on_etcd: EtcdNode, make_pod_ns: MakeNamespace, seed: int) -> None:
    live_in_two_networks(on_etcd, make_pod_ns, seed)


def test_many_at_once(any_node: Node) -> None:
    """Any order of ADD and DEL of a container's interfaces, by processes side by side: no address twice, none lost."""
    any_node.forks = None  # as above
    orders = random.Random(7)
    for _ in range(3):
        names = list(NAMES) * 2
        orders.shuffle(names)
        with ThreadPoolExecutor(4) as pool:
            given = list(zip(names, pool.map(lambda name: ipam(any_node, "ADD", name), names), strict=True))
        by_name = dict(given)
        assert set(given) == set(by_name.items()) and len(set(by_name.values())) == len(NAMES)
        assert set(any_node.taken()) == set(by_name.values())
        gone = names[:3]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: ipam(any_node, "DEL", name), gone))
        assert set(any_node.taken()) == {address for name, address in by_name.items() if name not in gone}
    for name in NAMES:
        ipam(any_node, "DEL", name)
    assert not any_node.leftovers()


@pytest.mark.etcd
def test_what_is_owed_is_one_interfaces(on_etcd: EtcdNode, make_pod_ns: MakeNamespace) -> None:
    node, first, second = on_etcd, make_pod_ns(), make_pod_ns()
    kept = addresses(added(node, C1, first))
    added(node, C1, second, ifname="net1")
    node.stop_etcd()
    assert node.call("DEL", C1, second.path, ifname="net1").ok and len(node.intents()) == 1
    node.start_etcd()
    added(node, "payer", make_pod_ns())
    assert not node.intents()
    assert [f"{a}/32" for a, handle in node.taken().items() if handle.endswith(C1)] == kept
    assert node.call("DEL", "payer").ok and node.call("DEL", C1, first.path).ok
    assert not node.leftovers()
