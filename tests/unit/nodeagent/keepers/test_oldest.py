"""Addresses without attributes of containers that are no more: which their own node releases, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.errors import KernelError
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT, Log
from cni_calico.model.keys import CLUSTER, CONTROLLERS_DEFAULT, IPAMConfigKey, ResourceKey, ResourceList
from cni_calico.model.resources import Address
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.keepers.oldest import OldestAddresses
from cni_calico.nodeagent.keepers.seen_running import FILE, SeenRunning
from tests.deadlines import soon
from tests.netns.policing.lab import private_settings
from tests.unit.ipam.cluster import Cluster, Container
from tests.unit.ipam.world import World, request

GONE, LIVES, USED, FAR = ("c0ffee" + 58 * "0", "ab" * 32, "cd" * 32, "ef" * 32)
GRACE_S = 900
STRICT = {"strict_affinity": True, "auto_allocate_blocks": True}


class OldNode:
    """Node n1; ``shown``: the containers of which the host shows something."""

    def __init__(self, root: Path) -> None:
        self.cluster = Cluster(False)
        self.world: World = self.cluster.world
        self.shown: set[str] = {LIVES}
        self.time = 0.0
        self.hidden = ""
        self.log = root / "log"
        log = Log("info", str(self.log), stderr=False)
        context = Context(private_settings(root), self.world.store, log, lambda _: True)
        self.world.store.elsewhere(Write.put(IPAMConfigKey(), STRICT))
        self.context = context
        self.restart()

    def restart(self) -> None:
        self.keeper = OldestAddresses(
            self.context, "n1", lambda: self.time, self.trace, lambda: self.hidden, self.shown.__contains__
        )

    def trace(self, container_id: str, address: Address, deadline: Any) -> str:
        return "/run/runc" if container_id in self.shown else ""

    def hold(self, handle: str, node: str = "n1") -> Address:
        bare = replace(request(handle, node), attributes={})
        found: Address = self.world.allocator().assign(bare, soon())[0].address
        return found

    def look(self, *times: float) -> set[str]:
        """The handles that are left after looking at these times."""
        for at in times:
            self.time = at
            self.keeper.look()
        return set(self.world.held())

    def put(self, key: ResourceKey, document: dict[str, Any]) -> None:
        self.world.store.elsewhere(Write.put(key, document))


@pytest.fixture
def old_node(tmp_path: Path) -> OldNode:
    return OldNode(tmp_path)


def test_after_the_grace_period_what_nobody_shows(old_node: OldNode) -> None:
    kept = {f"calnet.{LIVES}", f"net.{FAR}", "ns.pod", "net.c1", "net.id.ns.web", f"net.{USED}"}
    for handle in kept - {f"net.{FAR}"}:
        old_node.hold(handle)
    old_node.hold(f"net.{FAR}", "n2")
    used = old_node.world.held()[f"net.{USED}"]
    old_node.cluster.create_pod("used", "n2")
    old_node.cluster.record(Container(USED, "n2", ("ns", "used"), f"net.{USED}", frozenset(used)))
    gone = {GONE, f"calnet.{GONE}", f"net.id.ns.{GONE}"}  # the last one's network is called like part of an identity
    for handle in gone:
        old_node.hold(handle)
    assert old_node.look(0, 60, GRACE_S - 1) == kept | gone
    assert old_node.look(GRACE_S) == kept
    assert set(old_node.world.handles()) == kept
    old_node.world.require_consistent()


def test_what_was_seen_meanwhile_starts_again(old_node: OldNode) -> None:
    old_node.hold(GONE)
    old_node.look(0)
    old_node.shown.add(GONE)
    old_node.look(500)
    old_node.shown.remove(GONE)
    assert old_node.look(600, 600 + GRACE_S - 1) == {GONE}
    assert old_node.look(600 + GRACE_S) == set()


def test_an_address_that_is_somebodys_again(old_node: OldNode) -> None:
    """The same address under the same handle: its sequence number tells."""
    old_node.hold(GONE)
    old_node.look(0)
    old_node.world.allocator().release_handle(GONE, soon())
    old_node.hold(GONE)
    assert old_node.look(GRACE_S, 2 * GRACE_S - 1) == {GONE}
    assert old_node.look(2 * GRACE_S) == set()


def test_the_clusters_grace_period_and_lock(old_node: OldNode) -> None:
    old_node.hold(GONE)

    def grace(text: str) -> None:
        spec = {"controllers": {"node": {"leakGracePeriod": text}}}
        old_node.put(CONTROLLERS_DEFAULT, {"metadata": {"name": "default"}, "spec": spec})

    grace("0s")
    assert old_node.look(0, 10 * GRACE_S) == {GONE}
    grace("5s")
    assert old_node.look(20 * GRACE_S) == {GONE}
    locked = {"metadata": {"name": "default"}, "spec": {"datastoreReady": False}}
    old_node.put(CLUSTER, locked)
    assert old_node.look(20 * GRACE_S + 6) == {GONE}
    old_node.put(CLUSTER, {**locked, "spec": {"datastoreReady": True}})
    assert old_node.look(20 * GRACE_S + 7) == set()


@pytest.mark.parametrize(("text", "pause_s"), [("1s", 2), ("5s", 5), ("15m", 60), ("0s", 60), ("", 60)])
def test_it_looks_again_when_a_short_grace_period_is_over(old_node: OldNode, text: str, pause_s: float) -> None:
    spec = {"controllers": {"node": {"leakGracePeriod": text}}} if text else {}
    old_node.put(CONTROLLERS_DEFAULT, {"metadata": {"name": "default"}, "spec": spec})
    assert old_node.keeper.look() == 60, "there is nothing to wait for"
    old_node.hold(GONE)
    assert old_node.keeper.look() == pause_s


def test_what_another_node_may_have_borrowed_stays(old_node: OldNode) -> None:
    """Its container may live there without an endpoint, under another network plugin."""
    old_node.put(IPAMConfigKey(), STRICT | {"strict_affinity": False})
    old_node.put(ResourceKey("Node", "n1"), {"metadata": {"name": "n1"}})
    old_node.put(ResourceKey("Node", "n2"), {"metadata": {"name": "n2"}})
    old_node.hold(GONE)
    assert old_node.look(0, GRACE_S, 2 * GRACE_S) == {GONE}
    assert SeenRunning(Files(), SILENT, old_node.context.settings.state_dir, lambda _: False).among({GONE}) == set()
    other = old_node.world.store.get(ResourceKey("Node", "n2"), soon())
    assert other is not None
    old_node.world.store.elsewhere(Write.delete(other))
    assert old_node.look(3 * GRACE_S, 4 * GRACE_S) == set()


def two_nodes_that_may_borrow(host: OldNode) -> None:
    host.put(IPAMConfigKey(), STRICT | {"strict_affinity": False})
    for name in ("n1", "n2"):
        host.put(ResourceKey("Node", name), {"metadata": {"name": name}})


@pytest.mark.parametrize("restarted", [False, True])
def test_a_container_that_has_run_on_this_host_is_no_other_nodes(old_node: OldNode, restarted: bool) -> None:
    two_nodes_that_may_borrow(old_node)
    for handle in (f"calnet.{GONE}", f"calnet.{USED}"):
        old_node.hold(handle)
    old_node.shown.add(GONE)
    old_node.look(0)
    old_node.shown.remove(GONE)
    if restarted:
        old_node.restart()
    assert old_node.look(60, 60 + GRACE_S - 1) == {f"calnet.{GONE}", f"calnet.{USED}"}
    assert old_node.look(60 + GRACE_S, 60 + 2 * GRACE_S) == {f"calnet.{USED}"}
    old_node.look(60 + 3 * GRACE_S)
    assert not list(Path(old_node.context.settings.state_dir).glob("containers-seen*")), "nobody is left to remember"


@pytest.mark.parametrize("content", ["{", "[[]]", "7", '"' + GONE + '"', "[" * 100_000])
def test_what_is_remembered_and_cannot_be_read_names_nobody(old_node: OldNode, content: str) -> None:
    two_nodes_that_may_borrow(old_node)
    old_node.hold(GONE)
    path = Path(old_node.context.settings.state_dir) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    assert old_node.look(0, GRACE_S, 2 * GRACE_S) == {GONE}


def test_a_memory_that_cannot_be_written_is_told_and_counts_until_the_restart(old_node: OldNode) -> None:
    two_nodes_that_may_borrow(old_node)
    old_node.hold(GONE)
    (Path(old_node.context.settings.state_dir) / FILE).mkdir(parents=True)
    old_node.shown.add(GONE)
    old_node.look(0)
    old_node.shown.remove(GONE)
    assert old_node.look(1, 1 + GRACE_S) == set()
    assert old_node.log.read_text().count("after a restart less is released") == 1


def test_a_look_that_failed_begins_the_grace_period_anew(old_node: OldNode) -> None:
    old_node.hold(GONE)
    assert old_node.look(0) == {GONE}
    shown = old_node.keeper.trace

    def fail(*_: Any) -> str:
        raise KernelError("cannot look", errno=0)

    old_node.keeper.trace = fail
    with pytest.raises(KernelError):
        old_node.look(GRACE_S - 1)
    old_node.keeper.trace = shown
    assert old_node.look(GRACE_S) == {GONE}
    assert old_node.look(2 * GRACE_S) == set()


def test_an_address_whose_traces_cannot_be_looked_for_stays_alone(old_node: OldNode) -> None:
    """The others are judged all the same, and its own grace period begins anew."""
    for container in (GONE, FAR):
        old_node.hold(container)
    shown = old_node.keeper.trace

    def fail(container_id: str, *more: Any) -> str:
        if container_id == GONE:
            raise KernelError("cannot look", errno=0)
        return shown(container_id, *more)

    old_node.look(0)
    old_node.keeper.trace = fail
    for at in (1, GRACE_S):
        with pytest.raises(KernelError, match=r"^[0-9.]+: cannot look$"):
            old_node.look(at)
    assert set(old_node.world.held()) == {GONE}
    old_node.keeper.trace = shown
    assert old_node.look(GRACE_S + 1, 2 * GRACE_S) == {GONE}
    assert old_node.look(2 * GRACE_S + 1) == set()


def test_an_agent_that_cannot_see_the_runtimes_releases_nothing_and_says_so_once(old_node: OldNode) -> None:
    old_node.hold(GONE)
    old_node.hidden = "no /run"
    assert old_node.look(0, GRACE_S, 2 * GRACE_S) == {GONE}
    assert old_node.log.read_text().count("no /run") == 1
    old_node.hidden = ""
    assert old_node.look(3 * GRACE_S, 4 * GRACE_S - 1) == {GONE}
    assert old_node.look(4 * GRACE_S) == set()


def test_without_such_addresses_nobody_asks_for_the_nodes(old_node: OldNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a large cluster has thousands, for each of its agents to read once a minute."""
    old_node.put(IPAMConfigKey(), STRICT | {"strict_affinity": False})
    old_node.hold("ns.pod")
    asked: list[object] = []
    lists = old_node.world.store.list

    def count(key: Any, *arguments: Any, **named: Any) -> Any:
        asked.append(key)
        return lists(key, *arguments, **named)

    monkeypatch.setattr(old_node.world.store, "list", count)
    old_node.keeper.look()
    assert asked and ResourceList("Node") not in asked
    old_node.hold(GONE)
    old_node.keeper.look()
    assert ResourceList("Node") in asked
