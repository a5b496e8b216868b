"""Removes connections of workloads that are gone: packets of established ones would pass forever, even to the address's
next owner.

Rule: the engine's thread never waits for a list of the host's connections. A kernel that can filter them is asked at
once, for a second at most, however many addresses there are; if it cannot, or fails, a thread lists them, for all
waiting addresses together, and tries again until it succeeds. An address that has an owner again is left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from cni_calico.backoff import Backoff
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.netlink.conntrack import remove_entries, remove_listed
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import Log

AGAIN_FIRST_S, AGAIN_LAST_S = 1.0, 30.0
_AT_ONCE_S = 1.0
_LISTED_S = 60.0
_END_S = 1.0


class Connections:
    """For the network namespace of the thread that calls ``remove``; ``netlink`` is that thread's.

    ``may_go`` says whether an address has no owner; the other thread calls it too. ``trouble`` says why such
    connections may still pass, "" if none may.
    """

    def __init__(self, netlink: Nfnetlink, may_go: Callable[[bytes], bool], log: Log) -> None:
        self.trouble = ""
        self._netlink = netlink
        self._may_go = may_go
        self._log = log
        self._can_choose: dict[int, bool] = {}  # by the length of an address
        self._guard = threading.Condition()
        self._waiting: set[bytes] = set()
        self._busy: set[bytes] = set()  # for the thread
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def remove(self, addresses: Iterable[bytes]) -> None:
        """Remove the connections of these packed addresses, which nobody has now."""
        left, deadline = set[bytes](), Deadline.after(_AT_ONCE_S)
        failed = False
        for address in addresses:
            try:
                if not failed and self._removed_at_once(address, deadline):
                    continue
            except CalicoError as e:
                self._say(e)
                failed = True
            left.add(address)
        if not left:
            return
        with self._guard:
            self._waiting |= left
            self._guard.notify_all()
        if self._thread is None:  # in the namespace of the thread that creates it
            self._thread = threading.Thread(target=self._run, name="policy-connections", daemon=True)
            self._thread.start()

    def _removed_at_once(self, address: bytes, deadline: Deadline) -> bool:
        """Raises CalicoError."""
        size = len(address)
        if self._can_choose.get(size, True):
            self._can_choose[size] = remove_entries(self._netlink, address, deadline)
        return self._can_choose[size]

    @property
    def owed(self) -> frozenset[bytes]:
        """The addresses whose connections may still be there."""
        with self._guard:
            return frozenset(self._waiting | self._busy)

    def stop(self) -> None:
        self._stopped.set()
        with self._guard:
            self._guard.notify_all()
        if self._thread is not None:
            self._thread.join(_END_S)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        again = Backoff(AGAIN_FIRST_S, AGAIN_LAST_S)
        while not self._stopped.is_set():
            with self._guard:
                while not self._waiting and not self._stopped.is_set():
                    self._guard.wait()
                self._busy, self._waiting = self._waiting, set()
                addresses = self._busy
            addresses = {address for address in addresses if self._may_go(address)}
            try:
                if addresses:
                    with Nfnetlink() as netlink:
                        remove_listed(netlink, addresses, Deadline.after(_LISTED_S), self._may_go)
            except CalicoError as e:
                self._say(e)
                with self._guard:
                    self._waiting |= addresses
                    self._busy = set()
                self._stopped.wait(again.next())
            else:
                with self._guard:
                    self._busy = set()
                self.trouble = ""
                again.reset()

    def _say(self, error: CalicoError) -> None:
        if not self.trouble:
            self._log.warning(f"connections of workloads that are gone may still pass; trying again: {error}")
        self.trouble = str(error)
