"""What cannot be removed at once is removed later, by a thread that forgets nothing and nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import SILENT
from cni_calico.nodeagent.policing import connections
from cni_calico.nodeagent.policing.connections import Connections
from tests.netns.namespaces import until

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
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(connections, "remove_entries", made.remove_entries)
    monkeypatch.setattr(connections, "remove_listed", made.remove_listed)
    monkeypatch.setattr(connections, "AGAIN_FIRST_S", 0.01)
    return made


@pytest.fixture
def owned() -> set[bytes]:
    return set()


@pytest.fixture
def removing(kernel: Kernel, owned: set[bytes]) -> Iterator[Connections]:
    with Nfnetlink() as netlink:
        made = Connections(netlink, lambda address: address not in owned, SILENT)
        yield made
        made.stop()


def test_a_kernel_that_chooses(kernel: Kernel, removing: Connections) -> None:
    kernel.at_once = True
    removing.remove([A, B])
    assert set(kernel.asked) == {A, B} and not kernel.lists


def test_a_kernel_that_cannot_choose_is_asked_once(kernel: Kernel, removing: Connections) -> None:
    """Nobody waits for its list, and what comes meanwhile goes with the next one, together."""
    kernel.go_on.clear()
    removing.remove([A])
    assert kernel.reading.wait(10)
    removing.remove([B])
    removing.remove([C])
    kernel.go_on.set()
    until(lambda: kernel.removed == {A, B, C}, "all are removed")
    assert kernel.asked == [A] and kernel.lists == [{A}, {B, C}]


def test_a_failure_is_not_forgotten(kernel: Kernel, removing: Connections) -> None:
    kernel.failures = 3
    removing.remove([A])
    until(lambda: removing.trouble, "the trouble is told")
    until(lambda: kernel.removed == {A}, "removed at last")
    until(lambda: not removing.trouble, "the trouble is over")
    assert len(kernel.lists) == 4


def test_what_fails_at_once_is_done_later(kernel: Kernel, removing: Connections) -> None:
    kernel.at_once = KernelError("no buffer space")
    removing.remove([A])
    until(lambda: kernel.removed == {A}, "removed from the list")
    kernel.at_once = True
    removing.remove([B])
    assert kernel.asked == [A, B] and len(kernel.lists) == 1


def test_an_address_with_an_owner_again_is_left_alone(kernel: Kernel, removing: Connections, owned: set[bytes]) -> None:
    kernel.failures = 1
    kernel.go_on.clear()
    removing.remove([A, B])
    assert kernel.reading.wait(10)
    owned.add(A)
    kernel.go_on.set()
    until(lambda: kernel.removed == {B}, "only the other's")
    assert kernel.lists == [{A, B}, {B}]
