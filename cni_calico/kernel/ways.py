"""Through which interface this host's packets to an address go: the kernel's own answer.

Rule: it is looked up at most once in ten seconds for each address, and nothing is changed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import NamedTuple

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.routes import RTN_LOCAL, decode_route, match_route
from cni_calico.kernel.netlink.socket import Rtnl

_REMEMBERED_S, _MOST = 10.0, 10_000
_DEADLINE_S = 1.0


class Way(NamedTuple):
    """``is_here``: it is one of this host's own addresses, and ``interface`` the one that has it."""

    interface: str
    is_here: bool = False


class KernelWays:
    """In the network namespace of the calling thread. ``clock`` never steps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._begun = clock, float("-inf")
        self._known: dict[bytes, Way | None] = {}
        self._at: dict[bytes, str] = {}

    @property
    def version(self) -> float:
        """Another one once what was looked up may have changed."""
        now = self._clock()
        if now - self._begun >= _REMEMBERED_S:
            self._begun = now
            self._known.clear()
            self._at.clear()
        return self._begun

    def addresses(self) -> dict[bytes, str]:
        """Of all interfaces, with the interface's name. Raises KernelError, DeadlineExceeded."""
        if not self._at and self.version:
            for one in read_interfaces(Deadline.after(_DEADLINE_S)):
                self._at.update((address.ip.packed, one.name) for address in one.addresses)
        return self._at

    def of(self, packed: bytes) -> Way | None:
        """None: there is no route, or it names no interface. Raises KernelError, DeadlineExceeded."""
        if self.version and packed in self._known:
            return self._known[packed]
        if len(self._known) >= _MOST:
            self._known.clear()
        found = self._known[packed] = self._look_up(packed)
        return found

    def _look_up(self, packed: bytes) -> Way | None:
        address = ip_address(packed)
        if packed in self.addresses():
            return Way(self._at[packed], True)
        with Rtnl() as rtnl:
            try:
                route = decode_route(rtnl.one(match_route(address), Deadline.after(_DEADLINE_S)))
                name = socket.if_indextoname(route.oif) if route.oif else ""
            except (KernelError, OSError):
                return None  # no route, one that rejects packets, or an interface that has gone
        return Way(name, route.kind == RTN_LOCAL) if name else None
