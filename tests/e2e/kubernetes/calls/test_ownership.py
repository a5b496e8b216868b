"""Whose an interface and an address are on the Kubernetes datastore, served and one-shot.

A pod's record is on the pod, which may be gone, spoiled, not to be read or not to be reached; none of that lets a late
DEL of an old sandbox, or a GC, take the living sandbox's network. Interfaces of one container have their own addresses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.attachments import VALID, Attachments, live_in_any_order, valid
from tests.e2e.host import Reply
from tests.e2e.kubernetes.agent import agent
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import POD_PREFIX, KubeNode, kube_node
from tests.e2e.oldest import grow_old
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace
from tests.netns.startups import add_card

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

S1, S2, S3 = "51" * 32, "52" * 32, "53" * 32
MERGE = "application/merge-patch+json"


# -- what becomes of the record ---------------------------------------------------------------------------------------


def forbidden(node: KubeNode) -> None:
    node.token = "nobody-token"


def expired(node: KubeNode) -> None:
    node.token = "a-token-that-has-expired"


def deleted(node: KubeNode) -> None:
    node.kube.delete_pod(node.kube.read_pod(node.namespace, "web-0"))


def unreadable(node: KubeNode) -> None:
    spoiled = {"metadata": {"annotations": {f"{POD_PREFIX}podIPs": "no address", f"{POD_PREFIX}podIP": "none"}}}
    path = f"/api/v1/namespaces/{node.namespace}/pods/web-0"
    node.kube.request("PATCH", path, spoiled, content_type=MERGE)


def away(node: KubeNode) -> None:
    node.relay.close()


RECORD: dict[str, Callable[[KubeNode], None]] = {
    "there": lambda node: None,
    "deleted": deleted,
    "unreadable": unreadable,
    "forbidden": forbidden,
    "expired": expired,
    "away": away,
}
OUTAGES = ("forbidden", "expired", "away")


def restore(node: KubeNode, record: str) -> None:
    node.token = "admin-token"
    if record == "away":
        node.relay.open()


def add(node: KubeNode, container: str, pod: Namespace) -> Any:
    reply = node.pod_call("ADD", "web-0", container, pod.path)
    assert reply.ok, reply.document
    return reply.document


def two_sandboxes(node: KubeNode, make: MakeNamespace) -> tuple[Any, Namespace]:
    """A pod whose first sandbox is gone and whose second lives: the first one's result, the second one's namespace."""
    node.kube.create_pod(node.namespace, "web-0", node.nodename)
    old, living = make(), make()
    first = add(node, S1, old)
    assert node.pod_call("DEL", "web-0", S1, old.path).ok
    add(node, S2, living)
    return first, living


def require_alive(node: KubeNode, pod: Namespace) -> None:
    """Both ends are up, and the address leads there."""
    link = pod.link("eth0")
    assert link is not None and "UP" in link["flags"]
    address = next(iter(pod.addresses("eth0"))).partition("/")[0]
    [device] = [route["dev"] for route in node.host.routes(4) if route["dst"] == address]
    end = node.host.link(device)
    assert end is not None and end["ifalias"].endswith(f"/k8s/{node.namespace}/web-0")


@pytest.mark.parametrize("how", ["without a namespace", "with prevResult", "in the living one's namespace"])
@pytest.mark.parametrize("record", RECORD)
def test_a_late_del_of_an_old_sandbox(
    either_kube_node: KubeNode, make_pod_ns: MakeNamespace, record: str, how: str
) -> None:
    first, living = two_sandboxes(either_kube_node, make_pod_ns)
    held = either_kube_node.taken()
    RECORD[record](either_kube_node)
    changes = {"prevResult": first} if "prevResult" in how else {}
    path = living.path if "namespace" in how.partition("'s ")[2] else ""
    reply = either_kube_node.pod_call("DEL", "web-0", S1, path, uid="", **changes)
    require_alive(either_kube_node, living)
    assert reply.ok or record == "unreadable", reply
    assert len(either_kube_node.intents()) <= 1
    restore(either_kube_node, record)
    assert either_kube_node.taken() == held
    if record in OUTAGES:  # what was owed is paid, and takes nothing from the living one
        either_kube_node.kube.create_pod(either_kube_node.namespace, "payer", either_kube_node.nodename)
        assert either_kube_node.pod_call("ADD", "payer", S3, make_pod_ns().path).ok
        require_alive(either_kube_node, living)
        assert not either_kube_node.intents() and held.items() <= either_kube_node.taken().items()


@pytest.mark.parametrize("record", RECORD)
def test_gc_leaves_the_living_sandbox(either_kube_node: KubeNode, make_pod_ns: MakeNamespace, record: str) -> None:
    _, living = two_sandboxes(either_kube_node, make_pod_ns)
    held = either_kube_node.taken()
    RECORD[record](either_kube_node)
    reply = either_kube_node.call("GC", "", "", **{VALID: [{"containerID": S2, "ifname": "eth0"}]})
    require_alive(either_kube_node, living)
    assert reply.ok or record in (*OUTAGES, "unreadable"), reply
    restore(either_kube_node, record)
    assert either_kube_node.taken() == held


def test_gc_of_addresses_that_only_name_a_pod(either_kube_node: KubeNode) -> None:
    """As the oldest releases allocated them: without attributes, under the pod's name."""
    node = either_kube_node
    node.kube.create_pod(node.namespace, "lives", "node2")
    handles = {S1: f"{node.namespace}.lives", S2: f"{node.namespace}.gone", S3: "calnet.vmi.gone.vm1"}
    for container, handle in handles.items():
        assert node.call("ADD", container, "/n", plugin="calico-ipam").ok
        grow_old(node, container, handle)
    assert set(node.taken().values()) == set(handles.values())
    for plugin in ("calico", "calico-ipam"):
        away(node)
        assert node.call("GC", "", "", plugin=plugin, **{VALID: []}).rc in (0, 1)
        restore(node, "away")
        assert set(node.taken().values()) == set(handles.values())
    for plugin in ("calico", "calico-ipam"):
        assert node.call("GC", "", "", plugin=plugin, **{VALID: []}).ok
        assert set(node.taken().values()) == {handles[S1], handles[S3]}


def test_the_living_ones_own_del_works_after_all(either_kube_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Also while nothing can be read: its interface is signed."""
    for record in ("forbidden", "away"):
        _, living = two_sandboxes(either_kube_node, make_pod_ns)
        RECORD[record](either_kube_node)
        assert either_kube_node.pod_call("DEL", "web-0", S2, uid="").ok
        assert living.link("eth0") is None and len(either_kube_node.intents()) == 1
        restore(either_kube_node, record)
        deleted(either_kube_node)
        either_kube_node.kube.create_pod(either_kube_node.namespace, f"payer-{record}", either_kube_node.nodename)
        payer = make_pod_ns()
        assert either_kube_node.pod_call("ADD", f"payer-{record}", S3, payer.path).ok
        assert either_kube_node.pod_call("DEL", f"payer-{record}", S3, payer.path).ok
        assert not either_kube_node.leftovers()


@pytest.mark.parametrize("whose", ["a living pod", "another plugin", "a third namespace"])
def test_a_recorded_container_in_the_namespace_of_another(
    either_kube_node: KubeNode, make_pod_ns: MakeNamespace, whose: str
) -> None:
    """Its own interface is gone, and its path has come to mean another namespace."""
    node, other = either_kube_node, make_pod_ns()
    node.kube.create_pod(node.namespace, "gone", node.nodename)
    gone = node.pod_call("ADD", "gone", S3, make_pod_ns().path)
    assert gone.ok, gone.document
    node.host.do("link", "delete", gone.document["interfaces"][0]["name"])
    if whose == "a living pod":
        node.kube.create_pod(node.namespace, "web-0", node.nodename)
        living = add(node, S2, other)
        node.host.do("link", "set", living["interfaces"][0]["name"], "alias", "")
    else:
        place = node.host if whose == "another plugin" else make_pod_ns()
        place.do("link", "add", "vethforeign", "type", "veth", "peer", "name", "eth0", "netns", other.name)
        place.do("link", "set", "vethforeign", "up")
    for _ in range(2):
        assert node.pod_call("DEL", "gone", S3, other.path).ok
        assert other.link("eth0") is not None
    assert gone.document["ips"][0]["address"].partition("/")[0] not in node.taken()


# -- interfaces of one container --------------------------------------------------------------------------------------


class Container(Attachments):
    """A pod's container with interfaces of other plugins (macvlan, ...) that call calico-ipam, and who holds what."""

    def __init__(self, node: KubeNode, number: int) -> None:
        self.pod, container = f"multi-{number}", f"{number:02x}" * 32
        node.kube.create_pod(node.namespace, self.pod, node.nodename)
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={node.namespace};K8S_POD_NAME={self.pod}"

        def ask(command: str, ifname: str) -> Reply:
            netns = "/proc/self/ns/net"
            return node.call(command, container, netns, ifname=ifname, plugin="calico-ipam", args=args)

        super().__init__(container, ask)


def test_each_interface_has_its_own_address(either_kube_node: KubeNode) -> None:
    container = Container(either_kube_node, 1)
    for name in ("eth0", "net1", "net1", "eth0"):
        container.add(name)
    assert set(either_kube_node.taken()) == set(container.held.values()) and len(container.held) == 2
    assert set(either_kube_node.taken().values()) == {f"calnet.{container.id}"}  # upstream releases by handle
    container.delete("net1")
    assert set(either_kube_node.taken()) == {container.held["eth0"]}
    assert not container.ask("CHECK", "net1").ok
    container.delete("eth0")
    assert not either_kube_node.leftovers()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_any_order_by_processes_side_by_side(either_kube_node: KubeNode, seed: int) -> None:
    """Two containers, four interfaces each, ADD, DEL and GC: no address twice, none lost."""
    either_kube_node.forks = None  # they would be one after the other
    containers = [Container(either_kube_node, number) for number in (1, 2)]

    def collect(kept: Sequence[str]) -> None:
        reply = either_kube_node.call("GC", "", "", plugin="calico-ipam", **valid(containers, kept))
        assert reply.ok, reply

    live_in_any_order(either_kube_node, containers, collect, seed)


def test_beside_the_pods_own_interface(either_kube_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """eth0 is calico's, net1 another plugin's in the same network: neither DEL frees the other's address."""
    for number, first in enumerate(("eth0", "net1"), 1):
        container, pod = Container(either_kube_node, number), make_pod_ns()
        made = either_kube_node.pod_call("ADD", container.pod, container.id, pod.path)
        assert made.ok, made.document
        own = made.document["ips"][0]["address"].partition("/")[0]
        container.add("net1")
        assert set(either_kube_node.taken()) == {own, container.held["net1"]}
        for name in (first, "net1" if first == "eth0" else "eth0"):
            if name == "net1":
                container.delete("net1")
            else:
                assert either_kube_node.pod_call("DEL", container.pod, container.id, pod.path).ok
            left = {own} if name == "net1" and name == first else set(container.held.values())
            assert set(either_kube_node.taken()) == left
        assert not either_kube_node.leftovers()


def test_the_agent_signs_what_older_versions_made(
    kube: Cluster, host_ns: Namespace, tmp_path: Path, make_pod_ns: MakeNamespace
) -> None:
    """Of recorded pods; one that Calico 3.15 recorded names no container, so nothing can be said of its interface."""
    add_card(host_ns, "eth0", "10.0.0.5/24")
    with kube_node(kube, host_ns, tmp_path) as node:
        spaces = {name: make_pod_ns() for name in ("web-0", "old-0", "older-0")}
        ends: dict[str, str] = {}
        for name, container in (("web-0", S1), ("old-0", S2), ("older-0", S3)):
            kube.create_pod(node.namespace, name, node.nodename)
            reply = node.pod_call("ADD", name, container, spaces[name].path)
            assert reply.ok, reply
            ends[name] = reply.document["interfaces"][0]["name"]
            given = host_ns.link(ends[name])["ifalias"]
            old = given.replace("/2:", ":").partition("/")[0] if name == "older-0" else ""
            host_ns.do("link", "set", ends[name], "alias", old)
        unnamed = {"metadata": {"annotations": {f"{POD_PREFIX}containerID": None}}}
        path = f"/api/v1/namespaces/{node.namespace}/pods/old-0"
        kube.request("PATCH", path, unnamed, content_type=MERGE)
        forged = {"metadata": {"annotations": {f"{POD_PREFIX}containerID": S1}}}
        kube.request("PATCH", path.replace("old-0", "older-0"), forged, content_type=MERGE)
        with agent(node):
            until(lambda: "ifalias" in host_ns.link(ends["web-0"]), "it is signed", 60)
            assert "ifalias" not in host_ns.link(ends["old-0"])
            # IPAM's handle says whose an older version's alias is, whatever the annotation says
            until(lambda: host_ns.link(ends["older-0"])["ifalias"] == given, "it has the pod's name again", 60)
        digest = hashlib.sha1(f"/{S1}/eth0".encode()).hexdigest()
        assert host_ns.link(ends["web-0"])["ifalias"] == f"cni-calico/2:{digest}/k8s/{node.namespace}/web-0"
        # and now that a signature is there, it is what counts
        forbidden(node)
        assert node.pod_call("DEL", "web-0", S3, uid="").ok and spaces["web-0"].link("eth0") is not None
        assert node.pod_call("DEL", "web-0", S1, uid="").ok and spaces["web-0"].link("eth0") is None
        # without one only the namespace that the runtime names is touched
        assert node.pod_call("DEL", "old-0", S2, uid="").ok and spaces["old-0"].link("eth0") is not None
        assert node.pod_call("DEL", "old-0", S2, spaces["old-0"].path, uid="").ok
        assert spaces["old-0"].link("eth0") is None
