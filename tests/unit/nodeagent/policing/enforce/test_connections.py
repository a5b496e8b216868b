"""What cannot be removed at once is removed later, by a thread that forgets nothing and nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import SILENT
from cni_calico.nodeagent.policing.enforce import connections
from cni_calico.nodeagent.policing.enforce.connections import Connections
from tests.deadlines import until

A, B, C = b"\x0a\0\0\1", b"\x0a\0\0\2", b"\x0a\0\0\3"


class Kernel:
    """``at_once``: what it answers when asked to choose; ``failures``: how often its list cannot be read."""

    def __init__(self) -> None:
        self.at_once: bool | KernelError = False
        self.failures = 0
        self.asked: list[bytes] = []
        self.lists: list[set[bytes]] = []
        self.removed: set[bytes] = set()
        self.reading = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def remove_entries(self, netlink: object, address: bytes, deadline: Deadline) -> bool:
        self.asked.append(address)
        if isinstance(self.at_once, KernelError):
            raise self.at_once
        return self.at_once

    def remove_listed(
        self, netlink: object, addresses: Collection[bytes], deadline: Deadline, may_go: Callable[[bytes], bool]
    ) -> None:
        self.lists.append(set(addresses))
        self.reading.set()
        assert self.go_on.wait(10)
        if self.failures:
            self.failures -= 1
            raise KernelError("cannot list: no buffer space")
        self.removed |= {address for address in addresses if may_go(address)}


@pytest.fixture
def conntrack_kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(connections, "remove_entries", made.remove_entries)
    monkeypatch.setattr(connections, "remove_listed", made.remove_listed)
    monkeypatch.setattr(connections, "AGAIN_FIRST_S", 0.01)
    return made


@pytest.fixture
def owned() -> set[bytes]:
    return set()


@pytest.fixture
def removing(conntrack_kernel: Kernel, owned: set[bytes]) -> Iterator[Connections]:
    with Nfnetlink() as netlink:
        made = Connections(netlink, lambda address: address not in owned, SILENT)
        yield made
        made.stop()


def test_a_kernel_that_chooses(conntrack_kernel: Kernel, removing: Connections) -> None:
    conntrack_kernel.at_once = True
    removing.remove([A, B])
    assert set(conntrack_kernel.asked) == {A, B} and not conntrack_kernel.lists


def test_a_kernel_that_cannot_choose_is_asked_once(conntrack_kernel: Kernel, removing: Connections) -> None:
    """Nobody waits for its list, and what comes meanwhile goes with the next one, together."""
    conntrack_kernel.go_on.clear()
    removing.remove([A])
    assert conntrack_kernel.reading.wait(10)
    removing.remove([B])
    removing.remove([C])
    conntrack_kernel.go_on.set()
    until(lambda: conntrack_kernel.removed == {A, B, C}, "all are removed")
    assert conntrack_kernel.asked == [A] and conntrack_kernel.lists == [{A}, {B, C}]


def test_a_failure_is_not_forgotten(conntrack_kernel: Kernel, removing: Connections) -> None:
    conntrack_kernel.failures = 3
    removing.remove([A])
    until(lambda: removing.trouble, "the trouble is told")
    until(lambda: conntrack_kernel.removed == {A}, "removed at last")
    until(lambda: not removing.trouble, "the trouble is over")
    assert len(conntrack_kernel.lists) == 4


def test_what_fails_at_once_is_done_later(conntrack_kernel: Kernel, removing: Connections) -> None:
    conntrack_kernel.at_once = KernelError("no buffer space")
    removing.remove([A])
    until(lambda: conntrack_kernel.removed == {A}, "removed from the list")
    conntrack_kernel.at_once = True
    removing.remove([B])
    assert conntrack_kernel.asked == [A, B] and len(conntrack_kernel.lists) == 1


def test_after_a_failure_the_others_are_not_asked_about(conntrack_kernel: Kernel, removing: Connections) -> None:
    """A kernel that takes a second for each of a hundred workloads that go together must not hold up the policies."""
    conntrack_kernel.at_once = KernelError("the deadline of this call has passed")
    removing.remove([A, B, C])
    assert conntrack_kernel.asked == [A]
    until(lambda: conntrack_kernel.removed == {A, B, C}, "removed from the list")


def test_an_address_with_an_owner_again_is_left_alone(
    conntrack_kernel: Kernel, removing: Connections, owned: set[bytes]
) -> None:
    conntrack_kernel.failures = 1
    conntrack_kernel.go_on.clear()
    removing.remove([A, B])
    assert conntrack_kernel.reading.wait(10)
    owned.add(A)
    conntrack_kernel.go_on.set()
    until(lambda: conntrack_kernel.removed == {B}, "only the other's")
    assert conntrack_kernel.lists == [{A, B}, {B}]
