"""Records that cannot be read, of every kind and met by every verb: named in a CNI error by whoever needs them, never
overwritten, and once they are repaired nothing is left over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.host import Node, Reply
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.takes(3)]

RESOURCES = "/calico/resources/v3/projectcalico.org/"
IPAM = "/calico/ipam/v2/"


@dataclass(frozen=True)
class Kind:
    """``path`` is a part of the record's key; ``shape`` of the wrong kind somewhere inside; ``named`` are the verbs
    that need the record and must name it, ``word`` is how they do.
    """

    path: str
    shape: Any
    named: str
    word: str


# c1 has been added before the record is spoiled; "ADD" is of another container, "again" of c1; "GC" is told that c1 is
# valid, "collect" that nothing is
KINDS = {
    "pool": Kind(f"{RESOURCES}ippools/pool4", {"spec": {"cidr": 17}}, "ADD STATUS", "pool4"),
    "reservation": Kind(f"{RESOURCES}ipreservations/r1", {"spec": {"reservedCIDRs": "x"}}, "ADD again", "r1"),
    "cluster": Kind(
        f"{RESOURCES}clusterinformations/default",
        {"spec": {"datastoreReady": "no"}},
        "ADD again DEL GC STATUS collect",
        "default",
    ),
    "cluster without fields": Kind(
        f"{RESOURCES}clusterinformations/default", {"spec": "x"}, "ADD again DEL GC STATUS collect", "default"
    ),
    "node": Kind(f"{RESOURCES}nodes/node1", {"metadata": {"labels": ["x"]}}, "ADD again STATUS", "node1"),
    "endpoint": Kind(
        f"{RESOURCES}workloadendpoints/default/node1-cni-c1-eth0",
        {"spec": {"ipNetworks": 5}},
        "again DEL CHECK GC collect",
        "node1-cni-c1-eth0",
    ),
    "another node's endpoint": Kind(
        f"{RESOURCES}workloadendpoints/default/node2-cni-far-eth0", {"spec": {"ipNetworks": 5}}, "", ""
    ),
    "block": Kind("block of node1", {"allocations": "none"}, "ADD again DEL CHECK GC collect", "10.65."),
    "another node's block": Kind("block of node2", {"allocations": "none"}, "GC collect", "10.65."),
    "affinity": Kind(f"{IPAM}host/node1/ipv4/block/", {"state": 1}, "ADD", "10.65."),
    "another node's affinity": Kind(f"{IPAM}host/node2/ipv4/block/", {"state": 1}, "", ""),
    "handle": Kind(f"{IPAM}handle/calnet.c1", {"block": ["x"]}, "again DEL CHECK collect", "calnet.c1"),
    "configuration": Kind(f"{IPAM}config", {"auto_allocate_blocks": "yes"}, "ADD again", "config"),
    "agent's configuration": Kind(f"{RESOURCES}felixconfigurations/default", {"spec": "x"}, "", ""),
    "profile": Kind(f"{RESOURCES}profiles/calnet", None, "ADD again", "calnet"),
}
DAMAGES = ("cut", "list", "shape", "newer", "bytes")


def damaged(kind: Kind, original: bytes, damage: str) -> bytes | None:
    """The spoiled record; None where this kind cannot be damaged so."""
    if damage == "cut":
        return original[: len(original) // 2]
    if damage == "list":
        return b"[1]"
    if damage == "bytes":
        return b'{"\xff\xfe": 1}'
    document = json.loads(original)
    if damage == "newer":
        return json.dumps({**document, "apiVersion": "projectcalico.org/v4"}).encode() if "kind" in document else None
    if kind.shape is None:
        return None
    return json.dumps({**document, **kind.shape}).encode()


# the others are read and written by the same code, whatever the datastore
ALSO_ON_ETCD = pytest.mark.slow_on("etcd", but=("cluster", "endpoint", "block", "handle"))
CASES = [(name, damage) for name in KINDS for damage in DAMAGES]


def prepared(node: Node, pod: Namespace, far: Namespace) -> Reply:
    """Every kind of record, and one attachment each on two nodes."""
    node.apply("Node", "node1", {})
    node.apply("ClusterInformation", "default", {"datastoreReady": True})
    node.apply("FelixConfiguration", "default", {"logSeverityScreen": "Info"})
    node.apply("IPReservation", "r1", {"reservedCIDRs": ["10.65.255.0/24"]})
    other = Node(node.host, node.root, node.datastore, nodename="node2", environ=node.environ, forks=node.forks)
    assert other.call("ADD", "far", far.path).ok
    added = node.call("ADD", "c1", pod.path)
    assert added.ok, added
    return added


def path_of(node: Node, kind: Kind) -> str:
    if kind.path.startswith("block of "):
        affinity = f"host:{kind.path.removeprefix('block of ')}"
        (path,) = [p for p, d in node.dump().items() if "/assignment/ipv4/" in p and d["affinity"] == affinity]
        return path
    (path,) = [path for path in node.dump() if path.startswith(kind.path)]
    return path


def named_in(reply: Reply, word: str) -> bool:
    return word in json.dumps(reply.document)


def require_proper(reply: Reply, verb: str) -> None:
    if not reply.ok:
        assert reply.document["code"] in {50, 103, 132, 133}, f"{verb}: {reply}"


@pytest.mark.parametrize("name", KINDS)
@ALSO_ON_ETCD
def test_named_and_left_as_they_are(
    request: pytest.FixtureRequest, forking_node: Node, make_pod_ns: MakeNamespace, name: str
) -> None:
    kind = KINDS[name]
    # one parser reads what any datastore holds: on etcd a damage of the text and one of the fields, unless slow tests
    everything = forking_node.datastore.type == "local" or request.config.getoption("--slow")
    pod, other, far = make_pod_ns("one"), make_pod_ns("two"), make_pod_ns("far")
    added = prepared(forking_node, pod, far)
    path = path_of(forking_node, kind)
    for damage in DAMAGES if everything else ("cut", "shape"):
        original = forking_node.raw()[path]
        value = damaged(kind, original, damage)
        if value is None or (kind.shape is None and damage == "newer"):
            continue
        forking_node.spoil(path, value)
        replies = meet(forking_node, pod, other, added, f"{name} {damage}")
        require_named(kind, replies, f"{name} {damage}")
        assert forking_node.raw().get(path) == value, f"{name} {damage}: the record was overwritten"
        forking_node.spoil(path, original)
        added = repaired(forking_node, pod, other, f"{name} {damage}")
    assert forking_node.call("DEL", "c1", pod.path).ok
    left = forking_node.leftovers()
    assert set(left.get("addresses", {}).values()) == {"calnet.far"} and len(left["endpoints"]) == 1, left


# by watches; the other kinds are read
FOLLOWED = ("pool", "reservation", "cluster", "cluster without fields", "node", "configuration")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("damage", ["cut", "shape"])
@ALSO_ON_ETCD
def test_a_server_names_them_and_overwrites_nothing_either(
    forking_node: Node, make_pod_ns: MakeNamespace, name: str, damage: str
) -> None:
    """Its caches leave out what they cannot read; what it then needs it asks the datastore for. One server meets the
    record as it starts (cut), the other one while it runs.
    """
    kind = KINDS[name]
    pod, other, far = make_pod_ns("one"), make_pod_ns("two"), make_pod_ns("far")
    added = prepared(forking_node, pod, far)
    path = path_of(forking_node, kind)
    if damage == "cut" or kind.shape is None:
        spoiled = Spoiled(forking_node, path, kind, "cut")
        with forking_node.server():
            replies = meet(forking_node, pod, other, added, f"{name} {damage}")
    else:
        with forking_node.server():
            for container in ("first", "second"):  # reads, then works from what it knows
                assert (
                    forking_node.call("ADD", container, other.path).ok
                    and forking_node.call("DEL", container, other.path).ok
                )
            spoiled = Spoiled(forking_node, path, kind, damage)
            if name in FOLLOWED:
                log = forking_node.root / "server.log"
                until(lambda: "cannot read" in log.read_text(), "the server has seen the record")
            replies = meet(forking_node, pod, other, added, f"{name} {damage}")
    assert forking_node.raw().get(path) == spoiled.value, f"{name} {damage}: the record was overwritten"
    spoiled.restore()
    repaired(forking_node, pod, other, f"{name} {damage}")
    missed = {verb for verb in kind.named.split() if replies[verb].ok} - set(NOT_ASKED.get((name, damage), "").split())
    assert not missed, f"{name} {damage}: {missed}"
    for verb, reply in replies.items():
        assert reply.ok or named_in(reply, kind.word), f"{name} {damage} {verb}: {reply}"


# what the server knows for certain without the record that cannot be read any more
NOT_ASKED = {("affinity", "shape"): "ADD", ("affinity", "cut"): "ADD"}


class Spoiled:
    """A record that cannot be read, until it is restored."""

    def __init__(self, node: Node, path: str, kind: Kind, damage: str) -> None:
        self.node, self.path = node, path
        self.original = node.raw()[path]
        value = damaged(kind, self.original, damage)
        assert value is not None
        self.value = value
        node.spoil(path, value)

    def restore(self) -> None:
        self.node.spoil(self.path, self.original)


def require_named(kind: Kind, replies: dict[str, Reply], what: str) -> None:
    """Each verb either needs the record and names it, or does its work."""
    for verb, reply in replies.items():
        needs = verb in kind.named.split()
        assert reply.ok != needs, f"{what} {verb}: {reply}"
        assert not needs or named_in(reply, kind.word), f"{what} {verb}: {reply}"


def meet(node: Node, pod: Namespace, other: Namespace, added: Reply, what: str) -> dict[str, Reply]:
    """Every verb meets the record; none of them leaves what it should not."""
    valid = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}
    replies = {
        "STATUS": node.call("STATUS", "", ""),
        "CHECK": node.call("CHECK", "c1", pod.path, prevResult=added.document),
    }
    before = node.raw()
    replies["ADD"] = node.call("ADD", "c2", other.path)
    if not replies["ADD"].ok:
        after = node.raw()
        assert after.keys() == before.keys() and other.link("eth0") is None, f"{what}: a failed ADD left something"
        # blocks may have been written and put back, which their sequence numbers show
        assert all(after[path] == before[path] for path in before if "/assignment/" not in path), what
    replies["again"] = node.call("ADD", "c1", pod.path)
    replies["GC"] = node.call("GC", "", "", **valid)
    replies["DEL"] = node.call("DEL", "c1", pod.path)
    assert pod.link("eth0") is None, f"{what}: DEL takes the interface down in any case"
    replies["collect"] = node.call("GC", "", "", **{"cni.dev/valid-attachments": []})
    for verb, reply in replies.items():
        require_proper(reply, f"{what} {verb}")
    return replies


def repaired(node: Node, pod: Namespace, other: Namespace, what: str) -> Reply:
    """With the record as it was before, the runtime's repeated calls finish what was left; c1 is there again."""
    for container, namespace in (("c1", pod), ("c2", other)):
        deleted = node.call("DEL", container, namespace.path)
        assert deleted.ok, f"{what}: {deleted}"
    left = node.leftovers()
    assert set(left.pop("addresses").values()) == {"calnet.far"}, f"{what}: {left}"
    assert list(left.pop("handles")) == [f"{IPAM}handle/calnet.far"] and not left.pop("intents", None), what
    assert left.pop("links") == ["califar"] and {route["dev"] for route in left.pop("routes")} == {"califar"}, what
    assert left.pop("endpoints") == ["node2-cni-far-eth0"] and not left, f"{what}: {left}"
    added = node.call("ADD", "c1", pod.path)
    assert added.ok, f"{what}: {added}"
    return added


@pytest.mark.parametrize("sizes", [(29, 30), (30, 29)])
def test_pools_that_overlap_never_give_an_address_twice(plain_node: Node, sizes: tuple[int, int]) -> None:
    """calicoctl refuses such pools; what is stored all the same may cost blocks, never an address given twice."""
    node = plain_node
    node.put({path: None for path in node.dump() if "/ippools/" in path})
    for name, cidr, size in (("wide", "10.77.0.0/28", sizes[0]), ("narrow", "10.77.0.0/29", sizes[1])):
        node.apply("IPPool", name, {"cidr": cidr, "blockSize": size, "nodeSelector": "all()"})
    given: dict[str, str] = {}
    for number in range(24):
        asked = ({}, {"ipv4_pools": ["narrow"]}, {"ipv4_pools": ["10.77.0.0/28"]}, {})[number % 4]
        args = f"IP=10.77.0.{number % 16}" if number % 4 == 3 else ""
        ipam = {"type": "calico-ipam", **asked}
        reply = node.call("ADD", f"c{number}", node.host.path, plugin="calico-ipam", ipam=ipam, args=args)
        if reply.ok:
            address = reply.document["ips"][0]["address"].split("/")[0]
            assert address not in given, f"{address}: {given[address]} and c{number}"
            given[address] = f"c{number}"
        elif "10.77.0.0/28" in str(asked):  # both were made in the same second: the first by name counts as the older
            assert "cannot use IPPool wide: it overlaps IPPool narrow (10.77.0.0/29)" in reply.document["msg"], reply
        else:
            assert reply.document["code"] in (111, 114, 115), reply
    assert len(given) == 8
    for container in given.values():
        assert node.call("DEL", container, "", plugin="calico-ipam").ok
    assert not node.leftovers()
