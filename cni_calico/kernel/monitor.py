"""Notices that the kernel's network configuration has changed, but not how.

Rule: the agent is level-triggered: a notification only says "look again". What changes all the time on a busy node
(BIRD's routes, learned neighbours) is filtered out here. Things that are expensive to read count as changed only if the
notification can concern them: pods' interfaces come and go without affecting a tunnel's neighbours.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import EAGAIN, ENOBUFS
from select import POLLIN, poll

from cni_calico.doing import Doing
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.notifications import NETLINK_NETFILTER, NFTABLES_GROUP, listen

# link, neighbours, IPv4 addresses, routes, IPv6 addresses, routes, settings of interfaces (netconf)
_GROUPS = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400 | 1 << 23 | 1 << 24
# the subsystem; each of its messages begins with the table's name, attribute 1, so they need not all be decoded
_NFTABLES, _TABLE, _NFGENMSG_BYTES = 10, 1, 4
SETTINGS, NEIGHBOURS, RULES, FORWARD = "settings", "neighbours", "rules", "forward"
# iptables' chain that other programs drop in; its name is among the first attributes of messages about it and its rules
_FILTER = wire.attribute(_TABLE, b"filter\0")
_FORWARD_CHAIN = b"FORWARD\0"
_LINKS, _ROUTES, _NEIGHBOURS, _SETTINGS = (16, 17), (24, 25), (28, 29), (80, 81)
_CONCERNS = {
    **dict.fromkeys(_SETTINGS, frozenset((SETTINGS,))),
    **dict.fromkeys(_NEIGHBOURS, frozenset((NEIGHBOURS,))),
}
_PROTOCOL_AT, _STATE_AT, _NAME_AT = 5, 8, 16
_IFNAME = 3  # the first attribute of every message about an interface
_BIRD = 12
_STATIC = 0x40 | 0x80  # NUD_NOARP, NUD_PERMANENT: entries that were added on purpose
_BUFFER = 65536
_MATTERS = 1 << 32  # an eventfd adds what is written to it


class Monitor:
    """Notifications of the namespace that the opening thread was in. Any thread may call ``wake`` and ``nudge``.

    ``table`` and ``others``: nftables' tables whose changes matter too, and those of iptables' FORWARD, if the kernel
    has nftables. ``devices``: the interfaces whose neighbours are maintained. ``bell``: where programs say that FORWARD
    may have changed, since the kernel tells nobody of legacy iptables' changes.
    """

    def __init__(
        self,
        table: str = "",
        devices: Iterable[str] = (),
        others: Iterable[str] = (),
        bell: socket.socket | None = None,
    ) -> None:
        self._names = tuple(wire.text(_IFNAME, name) for name in devices)
        self._tables = tuple(wire.text(_TABLE, name) for name in (table, *others))
        with Doing("listen for kernel notifications"):
            self._socket = listen(socket.NETLINK_ROUTE, _GROUPS)
        try:
            self._rules = listen(NETLINK_NETFILTER, NFTABLES_GROUP) if table else None
        except OSError:
            self._rules = None  # the full resync covers it
        self._wake, self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), bell
        self._changed: set[str] = set()

    def wait(self, timeout_s: float) -> bool:
        """Whether something happened within ``timeout_s``: a notification that matters, or ``wake``."""
        poller = poll()
        poller.register(self._socket.fileno(), POLLIN)
        poller.register(self._wake, POLLIN)
        for source in (self._rules, self._bell):
            if source is not None:
                poller.register(source.fileno(), POLLIN)
        woken = False
        for fd, _ in poller.poll(max(0.0, timeout_s) * 1000):
            if fd == self._wake:
                woken = os.eventfd_read(self._wake) >= _MATTERS
            elif self._bell is not None and fd == self._bell.fileno():
                with suppress(BlockingIOError):
                    while self._bell.recv(1):
                        self._changed.add(FORWARD)
                woken = True
        return self.drain() or woken

    def drain(self) -> bool:
        """Read what has arrived; returns whether any of it matters."""
        matters = self._drain(self._socket, {SETTINGS, NEIGHBOURS}, self._receive)
        if self._rules is not None:
            matters = self._drain(self._rules, {RULES, FORWARD}, self._receive_rule) or matters
        return matters

    def _drain(self, source: socket.socket, everything: set[str], receive: Callable[[wire.Message], bool]) -> bool:
        matters = False
        while True:
            try:
                data = source.recv(_BUFFER)
            except OSError as e:
                if e.errno == ENOBUFS:
                    matters = True  # more than the buffer holds: everything must be read again
                    self._changed |= everything
                    continue
                if e.errno == EAGAIN:
                    return matters
                raise KernelError(f"cannot read kernel notifications: {e.strerror}", errno=e.errno or 0) from e
            for message in wire.split_messages(data):
                matters = receive(message) or matters

    def _receive(self, message: wire.Message) -> bool:
        if not _matters(message):
            return False
        if message.kind in _LINKS and message.payload.startswith(self._names, _NAME_AT):
            self._changed.add(NEIGHBOURS)  # a device takes its entries with it
        self._changed |= _CONCERNS.get(message.kind, frozenset())
        return True

    def _receive_rule(self, message: wire.Message) -> bool:
        if message.kind >> 8 != _NFTABLES:
            return False
        if message.payload.startswith(self._tables, _NFGENMSG_BYTES):
            self._changed.add(RULES)
        elif message.payload.startswith(_FILTER, _NFGENMSG_BYTES) and _FORWARD_CHAIN in message.payload:
            self._changed.add(FORWARD)
        else:
            return False
        return True

    def take_changed(self) -> set[str]:
        """The kinds of things, among those expensive to read, that have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def wake(self) -> None:
        os.eventfd_write(self._wake, _MATTERS)

    def nudge(self) -> None:
        """End a ``wait`` for which nothing has happened."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        for source in (self._socket, self._rules, self._bell):
            if source is not None:
                source.close()
        os.close(self._wake)


def _matters(message: wire.Message) -> bool:
    if message.kind in _ROUTES:
        return message.payload[_PROTOCOL_AT : _PROTOCOL_AT + 1] != bytes((_BIRD,))
    if message.kind in _NEIGHBOURS:
        state = int.from_bytes(message.payload[_STATE_AT : _STATE_AT + 2], "little")
        return bool(state & _STATIC)
    return True
