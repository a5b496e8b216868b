"""A node, and a cluster, on which upstream's plugin and ours take turns; what must hold, on any datastore."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from tests.e2e.host import Node, Reply
from tests.fakes.upstream import Container, Upstream
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

CONTAINERS = 40
NAMESPACES = 8  # a container that has gone makes room for the next in its namespace


@dataclass
class Turns:
    """``ours``: one call of our executable; ``check``: what ``calicoctl ipam check`` says, asserted to be clean."""

    node: Node
    upstream: Upstream
    ours: Callable[[str, Container, Namespace | None], Reply]
    check: Callable[[], None]
    make: Callable[..., Container]  # of a number, and the node's name
    living: dict[Container, tuple[str, list[str], Namespace]] = field(default_factory=dict)

    def add(self, who: str, container: Container, pod: Namespace) -> None:
        if who == "upstream":
            networks = self.upstream.add(container, pod)
        else:
            reply = self.ours("ADD", container, pod)
            assert reply.ok, reply
            networks = [ip["address"] for ip in reply.document["ips"]]
        taken = {network for _, others, _ in self.living.values() for network in others}
        assert not taken & set(networks), f"{who} gave {networks} of {container} twice"
        assert pod.addresses("eth0") == set(networks)
        self.living[container] = who, networks, pod

    def delete(self, who: str, container: Container) -> None:
        _, _, pod = self.living.pop(container)
        if who == "upstream":
            self.upstream.delete(container, pod)
        else:
            reply = self.ours("DEL", container, pod)
            assert reply.ok, reply
        assert pod.link("eth0") is None and self.node.host.link(container.veth) is None
        self.require_stays()

    def require_stays(self) -> None:
        """Everybody alive has exactly what was given, in the datastore and in the kernel."""
        wanted = {
            network.partition("/")[0]: container.handle
            for container, (_, networks, _) in self.living.items()
            for network in networks
        }
        assert self.node.taken() == wanted
        routed = {r["dst"] for v in (4, 6) for r in self.node.host.routes(v) if r["dev"].startswith("cali")}
        assert routed - {"fe80::/64"} == set(wanted)


def take_turns(turns: Turns, make_pod_ns: MakeNamespace, seed: int) -> None:
    """40 containers, added by both plugins in turn; each is deleted by the plugin that has not added it."""
    chance = random.Random(seed)
    free, waiting = [make_pod_ns() for _ in range(NAMESPACES)], list(range(CONTAINERS))
    while waiting or turns.living:
        if waiting and free and (chance.random() < 0.6 or not turns.living):
            number = waiting.pop(0)
            turns.add("upstream" if number % 2 else "ours", turns.make(number), free.pop())
        else:
            container = chance.choice(sorted(turns.living, key=str))
            by, _, pod = turns.living[container]
            turns.delete("ours" if by == "upstream" else "upstream", container)
            free.append(pod)
        if len(waiting) == CONTAINERS // 2 and len(turns.living) > 2:
            turns.check()
    turns.check()
    assert turns.node.leftovers() == {}


def repeated_calls_meet(turns: Turns, make_pod_ns: MakeNamespace) -> None:
    """What upstream has made is known to us: an ADD again, a DEL twice, a DEL after upstream's, and GC."""
    pods = [make_pod_ns() for _ in range(3)]
    for number, pod in enumerate(pods):
        turns.add("upstream", turns.make(number), pod)
    first, second, third = list(turns.living)
    again = turns.ours("ADD", first, pods[0])
    assert again.ok and [ip["address"] for ip in again.document["ips"]] == turns.living[first][1], again
    turns.require_stays()
    turns.delete("ours", first)
    assert turns.ours("DEL", first, None).ok
    turns.delete("upstream", second)
    assert turns.ours("DEL", second, None).ok
    turns.require_stays()
    valid = [{"containerID": third.id, "ifname": "eth0"}]
    for attachments, left in ((valid, 1), ([], 0)):
        reply = turns.node.call("GC", "", "", **{"cni.dev/valid-attachments": attachments})
        assert reply.ok, reply
        assert len(turns.node.endpoints()) == left
    turns.living.clear()
    turns.check()
    assert turns.node.leftovers() == {}


def borrow_from_each_other(turns: Turns, make_pod_ns: MakeNamespace) -> None:
    """Two nodes, ours and upstream's, with a block of eight each: both go on in the other's, and all is given back."""
    node, upstream = turns.node, turns.upstream
    node.put({path: None for path in node.dump() if "/ippools/" in path})
    node.apply("IPPool", "small", {"cidr": "10.77.0.0/28", "blockSize": 29, "nodeSelector": "all()"})
    node.overrides["ipam"] = {"type": "calico-ipam"}
    upstream.pools = [("10.77.0.0/28", 29)]
    order: list[tuple[str, str, int]] = [("ours", "node1", n) for n in range(3)]
    order += [("upstream", "node2", n) for n in range(3, 12)]  # its own eight, and one of node1's
    order += [("ours", "node1", n) for n in range(12, 16)]
    for who, name, number in order:
        turns.add(who, turns.make(number, name), make_pod_ns())
    assert len(turns.living) == 16 and upstream.borrowed
    owners = block_owners(node)
    assert sorted(owners.values()) == ["host:node1", "host:node2"]
    full = turns.ours("ADD", turns.make(16, "node1"), make_pod_ns())
    assert not full.ok and "No IPs available in pools: [10.77.0.0/28]" in full.document["msg"]
    turns.require_stays()
    theirs = next(ip_network(cidr) for cidr, owner in owners.items() if owner == "host:node2")
    turns.delete("upstream", next(container for container in turns.living if container.node == "node2"))
    borrower = turns.make(17, "node1")
    turns.add("ours", borrower, make_pod_ns())
    [address] = turns.living[borrower][1]
    assert ip_network(address).subnet_of(theirs)
    turns.check()
    for container in list(turns.living):
        turns.delete("upstream" if container.node == "node2" else "ours", container)
    turns.check()
    assert node.leftovers() == {}


def block_owners(node: Node) -> dict[str, Any]:
    """CIDR -> affinity of every block."""
    return {d["cidr"]: d["affinity"] for path, d in node.dump().items() if "/assignment/" in path}
