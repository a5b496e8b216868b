"""Containers with several interfaces whose ADD, DEL and GC are called in any order by processes side by side.

Rule: what an ADD answered is what must be held, until a DEL or a GC of that very interface.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.host import Node, Reply

VALID = "cni.dev/valid-attachments"
NAMES = ("eth0", "net1", "net2", "net3")
COLLECTED = "net3"  # only a GC removes it while the others come and go

Ask = Callable[[str, str], Reply]  # (command, interface)


class Attachments:
    """The interfaces of one container, and who holds which address."""

    def __init__(self, container: str, ask: Ask) -> None:
        self.id, self.ask = container, ask
        self.held: dict[str, str] = {}
        self._guard = threading.Lock()

    def add(self, ifname: str) -> None:
        reply = self.ask("ADD", ifname)
        assert reply.ok, reply
        [ip] = reply.document["ips"]
        address = ip["address"].partition("/")[0]
        with self._guard:
            others = {held for name, held in self.held.items() if name != ifname}
            assert address not in others, (ifname, address, self.held)
            assert self.held.get(ifname, address) == address, (ifname, address, self.held)
            self.held[ifname] = address

    def delete(self, ifname: str) -> None:
        with self._guard:
            self.held.pop(ifname, None)
        reply = self.ask("DEL", ifname)
        assert reply.ok, reply

    def forget(self, *ifnames: str) -> None:
        """After a GC that took them."""
        with self._guard:
            for name in ifnames:
                self.held.pop(name, None)


def valid(containers: Sequence[Attachments], names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    """The key of a GC that keeps these interfaces."""
    return {VALID: [{"containerID": container.id, "ifname": name} for container in containers for name in names]}


def require_held(node: Node, containers: Sequence[Attachments]) -> None:
    """No address twice, and none lost."""
    given = [address for container in containers for address in container.held.values()]
    assert len(given) == len(set(given)) and set(node.taken()) == set(given)


def live_in_any_order(
    node: Node, containers: Sequence[Attachments], collect: Callable[[Sequence[str]], None], seed: int
) -> None:
    """ADD, DEL and GC, side by side; ``collect`` calls GC, which keeps the interfaces of these names."""

    def life(container: Attachments, name: str, orders: random.Random) -> None:
        for _ in range(4):
            act = container.add if orders.random() < 0.6 else container.delete
            act(name)

    others = [name for name in NAMES if name != COLLECTED]
    for turn in range(2):
        for container in containers:
            container.add(COLLECTED)
        with ThreadPoolExecutor(8) as pool:
            done = [
                pool.submit(life, container, name, random.Random(f"{seed}/{turn}/{container.id}/{name}"))
                for container in containers
                for name in others
            ]
            done += [pool.submit(collect, others) for _ in range(2)]
        for each in done:
            each.result()
        for container in containers:
            container.forget(COLLECTED)
        require_held(node, containers)
        kept = random.Random(seed + turn).sample(NAMES, 2)
        collect(kept)
        for container in containers:
            container.forget(*(name for name in NAMES if name not in kept))
        require_held(node, containers)
    for container in containers:
        for name in NAMES:
            container.delete(name)
    assert not node.leftovers()
