"""The agent goes on hearing its datastore behind a host endpoint, whatever connection tracking forgets.

Rule: a server that speaks on a connection of which connection tracking knows nothing (any more) looks like a stranger
to a host endpoint, and is not heard until this side speaks. So while host endpoints are in force, idle connections are
probed, and several times a second the kernel is asked whether it still knows the connections that it knew, and whether
it knows new ones; only if one is missing, a probe is sent on each at once, and something to the datastore if it was
known. What stays unknown (rules may exempt a connection) is left alone after some looks. Without host endpoints nothing
is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.kernel.netlink.tracked import Ends, is_tracked
from cni_calico.kernel.own_connections import probe_now, probe_when_idle, read_own_connections
from cni_calico.model.keys import CLUSTER

_IDLE_S, _SPEAK_S = 1, 5.0
_LOOK_S = 0.25  # a server repeats what was not heard after 0.2, 0.6 and 1.4 s
_ASK_S = 1.0
_LOOKS = 3  # so often it is tried to make a connection known


class Hearing:
    """``speak`` is called in a thread of its own, to send the datastore something; that thread looks into the network
    namespace of the one that calls ``keep``.
    """

    def __init__(self, speak: Callable[[], object]) -> None:
        self._speak = speak
        self._awake = False
        self._lost, self._wake = False, threading.Event()
        self._ending = threading.Lock()  # a thread either ends, and another is begun, or it goes on
        self._thread: threading.Thread | None = None
        self._missed: dict[Ends, int] = {}  # of each connection, how many looks left it unknown

    def keep(self, *, hosts: bool, lost: bool = False) -> None:
        """Call it when rules have changed. ``hosts``: host endpoints are in force; ``lost``: entries of connection
        tracking have been removed.
        """
        if not hosts and not self._awake:
            return
        probe_when_idle(_IDLE_S if hosts else 0)
        with self._ending:
            begins, self._awake = hosts and not self._awake, hosts
            if begins or lost or not hosts:
                self._lost = hosts
                self._wake.set()
            if hosts and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="policy-hearing", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        self._awake = False
        self._wake.set()

    def _run(self) -> None:
        with ExitStack() as stack:
            netlink: Nfnetlink | None = None
            with suppress(CalicoError, OSError):
                netlink = stack.enter_context(Nfnetlink())
            while self._goes_on():
                self._wake.wait(None if netlink is None else _LOOK_S)
                self._wake.clear()
                lost, self._lost = self._lost, False
                if netlink is not None:
                    lost |= self._look(netlink)
                if lost and self._awake:
                    self._speak()

    def _goes_on(self) -> bool:
        with self._ending:
            if not self._awake:
                self._thread = None
            return self._awake

    def _look(self, netlink: Nfnetlink) -> bool:
        """Probe if a connection is missing; whether one is that was known after the last look."""
        before, own = self._missed, read_own_connections()
        try:
            missing = unknown = _untracked(netlink, own)
            if not own <= before.keys():
                probe_when_idle(_IDLE_S)
            if any(before.get(ends, 0) < _LOOKS for ends in missing):
                probe_when_idle(_IDLE_S)  # for kernels that do not probe at once
                probe_now()
                unknown = _untracked(netlink, missing)  # an entry is there as soon as the probe has left
        except CalicoError:
            return False  # it cannot be known; idle connections are probed anyway
        self._missed = {ends: before.get(ends, 0) + 1 if ends in unknown else 0 for ends in own}
        return any(before.get(ends) == 0 for ends in missing)


def _untracked(netlink: Nfnetlink, connections: set[Ends]) -> set[Ends]:
    """Raises KernelError."""
    return {ends for ends in connections if not is_tracked(netlink, ends, Deadline.after(_ASK_S))}


def speak_to(store: Datastore) -> None:
    """Send the datastore something, on the connection by which it reports changes if it has only one (etcd)."""
    with suppress(CalicoError):
        store.get(CLUSTER, Deadline.after(_SPEAK_S))
