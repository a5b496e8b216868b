"""Several interfaces of one container: each has addresses of its own under the container's one handle."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cni_calico.errors import AddressInUse
from cni_calico.ipam.group.allocator import GroupAllocator
from cni_calico.ipam.share import Share
from cni_calico.model.resources import Address
from cni_calico.plugin.ipam.gc import find_orphans, share_of
from tests.deadlines import soon
from tests.unit.ipam.world import World, ip_address, request

CONTAINERS, INTERFACES = ("a", "b"), ("eth0", "net1", "net2")


def share(interface: str, claimed: Collection[Address] = ()) -> Share:
    return Share(interface, lambda unnamed, _: unnamed & frozenset(claimed))


def wanted(container: str, interface: str, claimed: Collection[Address] = ()) -> Any:
    plain = request(f"net.{container}")
    return replace(plain, attributes={**plain.attributes, "interface": interface}, share=share(interface, claimed))


@pytest.fixture(params=[60, 1], ids=["transactions", "one-write-at-a-time"])
def interfaces_world(request: pytest.FixtureRequest) -> World:
    made = World(max_commit=request.param)
    made.node("n1")
    made.pool("four", "10.65.0.0/24", 28)
    return made


def test_what_is_stored(interfaces_world: World) -> None:
    """The same handle as upstream's, and one more attribute."""
    [first] = interfaces_world.allocator().assign(wanted("a", "eth0"), soon())
    [second] = interfaces_world.allocator().assign(wanted("a", "net1"), soon())
    assert first.address != second.address and interfaces_world.held() == {"net.a": {first.address, second.address}}
    [block] = interfaces_world.blocks().values()
    assert [attribute.secondary["interface"] for attribute in block.attributes] == ["eth0", "net1"]
    assert interfaces_world.allocator().release_handle("net.a", soon()) == (
        first.address,
        second.address,
    )  # as upstream does
    interfaces_world.require_consistent()


def test_an_address_that_names_no_interface(interfaces_world: World) -> None:
    """Upstream's, or an older version's: its interface is whose record names it."""
    allocator = interfaces_world.allocator()
    [old] = allocator.assign(request("net.a"), soon())
    [other] = allocator.assign(wanted("a", "net1"), soon())
    assert other.address != old.address
    [again] = allocator.assign(wanted("a", "eth0", [old.address]), soon())
    assert again.address == old.address and again.held
    assert allocator.release_handle("net.a", soon(), share("net1")) == (other.address,)
    assert allocator.release_handle("net.a", soon(), share("net2")) == ()
    assert allocator.release_handle("net.a", soon(), share("eth0", [old.address])) == (old.address,)
    assert not interfaces_world.held() and not interfaces_world.handles()


def test_an_address_asked_for_that_another_interface_has(interfaces_world: World) -> None:
    allocator, address = interfaces_world.allocator(), ip_address("10.65.0.7")
    attributes = {"node": "n1", "interface": "eth0"}
    for _ in range(2):
        allocator.assign_address(address, "net.a", attributes, "n1", soon(), share("eth0"))
    with pytest.raises(AddressInUse):
        allocator.assign_address(address, "net.a", {**attributes, "interface": "net1"}, "n1", soon(), share("net1"))
    assert interfaces_world.held() == {"net.a": {address}}


class NothingKnown:
    def facts(self, node: str) -> None:
        return None

    def affinities(self, node: str, family: int) -> dict[Any, Any]:
        return {}


class Interfaces(RuleBasedStateMachine):
    """Two processes, one of them with a server's memory, against a dictionary of who has what."""

    attachments = st.tuples(st.sampled_from(CONTAINERS), st.sampled_from(INTERFACES))

    @initialize(max_commit=st.sampled_from((60, 1)))
    def begin(self, max_commit: int) -> None:
        self.world = World(max_commit=max_commit)
        self.world.node("n1")
        self.world.pool("four", "10.65.0.0/24", 28)
        plain: Any = self.world.allocator()
        group: Any = GroupAllocator(
            self.world.store,
            NothingKnown(),
            clock=self.world.clock,
            rng=lambda: 0.5,
            sleep=self.world.sleep,
        )
        self.processes = (plain, group)
        self.has: dict[tuple[str, str], Address] = {}
        self.unnamed: set[Address] = set()

    def claims(self, attachment: tuple[str, str]) -> list[Address]:
        return [self.has[attachment]] if attachment in self.has else []

    @rule(attachment=attachments, process=st.integers(0, 1))
    def add(self, attachment: tuple[str, str], process: int) -> None:
        self.world.now_ns += 1
        [got] = self.processes[process].assign(wanted(*attachment, self.claims(attachment)), soon())
        assert got.held == (attachment in self.has)
        assert self.has.setdefault(attachment, got.address) == got.address

    @precondition(lambda self: not any(container == "a" for container, _ in self.has))
    @rule(interface=st.sampled_from(INTERFACES))
    def add_by_an_older_version(self, interface: str) -> None:
        [got] = self.processes[0].assign(request("net.a"), soon())
        self.has["a", interface] = got.address
        self.unnamed.add(got.address)

    @rule(attachment=attachments, process=st.integers(0, 1))
    def delete(self, attachment: tuple[str, str], process: int) -> None:
        container, interface = attachment
        freed = self.processes[process].release_handle(
            f"net.{container}", soon(), share(interface, self.claims(attachment))
        )
        self.require_freed(freed, self.claims(attachment), process)
        self.unnamed.discard(self.has.pop(attachment, ip_address("0.0.0.0")))

    @rule(container=st.sampled_from(CONTAINERS), process=st.integers(0, 1))
    def release_all(self, container: str, process: int) -> None:
        """Upstream's DEL, which knows no interfaces; or the GC of a container that is no more."""
        freed = self.processes[process].release_handle(f"net.{container}", soon())
        gone = {attachment for attachment in self.has if attachment[0] == container}
        self.require_freed(freed, [self.has.pop(attachment) for attachment in gone], process)
        self.unnamed -= set(freed)

    @rule(kept=st.sets(attachments), process=st.integers(0, 1))
    def collect(self, kept: set[tuple[str, str]], process: int) -> None:
        """GC of each interface that is not valid; an address that names none stays while its container is valid."""
        containers = {container for container, _ in kept}
        gone = {
            attachment
            for attachment, address in self.has.items()
            if attachment not in kept and not (address in self.unnamed and attachment[0] in containers)
        }
        orphans, unreadable = find_orphans(self.world.store, "net", "n1", kept, soon())
        assert not unreadable
        freed: set[Address] = set()
        for orphan in orphans:
            freed |= set(self.processes[process].release_handle(orphan.handle_id, soon(), share_of(orphan)))
        self.require_freed(freed, [self.has.pop(attachment) for attachment in gone], process)
        self.unnamed -= freed

    def require_freed(self, freed: Collection[Address], expected: Collection[Address], process: int) -> None:
        """A server also names what an attempt on what it remembered would have freed; what is held tells."""
        assert set(freed) == set(expected) if process == 0 else set(freed) >= set(expected)

    @invariant()
    def no_address_twice_and_none_lost(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.require_consistent()
        assert len(set(self.has.values())) == len(self.has)
        expected: dict[str, set[Address]] = {}
        for (container, _), address in self.has.items():
            expected.setdefault(f"net.{container}", set()).add(address)
        assert self.world.held() == expected


TestInterfaces = Interfaces.TestCase
TestInterfaces.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
