"""The events that the policy engine waits for: other programs' changes of our tables, interfaces up and down, a
wake-up.

Rule: a notification only says "look again"; our own transactions, known by the port of the socket that sent them, are
not heard at all. If notifications are lost because the socket's buffer is full, everything counts as changed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from errno import EAGAIN, ENOBUFS
from select import POLLIN, poll

from cni_calico.doing import Doing
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.links import decode_link
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, NFTABLES
from cni_calico.kernel.netlink.notifications import NETLINK_NETFILTER, NFTABLES_GROUP, listen

_LINK_GROUP, _NEWLINK, _DELLINK = 1, 16, 17
_ANY_FAMILY = b"\0"  # others are about an interface as a bridge's port, and lack most of its attributes
_ADDRESS_GROUPS = 0x10 | 0x100  # IPv4's and IPv6's
_NEWGEN = NFTABLES << 8 | 15
_TABLE, _PROCESS_NAME = 1, 3  # a table's name is the first attribute of every message about something in it
_BUFFER_BYTES = 4 << 20
_RECEIVE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class SeenLink:
    """An interface as the kernel reported it."""

    index: int
    up: bool
    alias: str = ""


@dataclass(slots=True)
class Happened:
    """``touched_by``: the names of programs that changed one of our tables, "?" for an unknown one. ``lost``: reports
    about rules were lost, so any program may have.

    ``links``: interfaces by name, None for one that is gone, in the order of the last reports; None: ask for all.
    ``addresses``: some interface's addresses have changed.
    """

    touched_by: set[str] = field(default_factory=set)
    lost: bool = False
    links: dict[str, SeenLink | None] | None = field(default_factory=dict)
    addresses: bool = False


class FilterMonitor:
    """Events of the network namespace that the opening thread was in. Any thread may call ``wake``. ``own_port`` 0: no
    change is our own.
    """

    def __init__(self, tables: str | Sequence[str], own_port: int) -> None:
        named = (tables,) if isinstance(tables, str) else tables
        self._tables = tuple(wire.attribute(_TABLE, table.encode() + b"\0") for table in named)
        self._own_port = own_port
        self._pending = False  # an unfinished transaction of another program has changed our table
        self._happened = Happened(links=None)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = poll()
        self._poller.register(self._wake, POLLIN)
        self._rules: socket.socket | None = None
        self._addresses: socket.socket | None = None
        self._links = self._join(socket.NETLINK_ROUTE, _LINK_GROUP)

    def _join(self, family: int, groups: int, *, deaf_to: int = 0) -> socket.socket:
        with Doing("listen for kernel notifications"):
            joined = listen(family, groups, buffer_bytes=_BUFFER_BYTES, deaf_to=deaf_to)
        self._poller.register(joined.fileno(), POLLIN)
        return joined

    def watch_rules(self) -> None:
        """Report changed tables from now on."""
        if self._rules is None:
            self._rules = self._join(NETLINK_NETFILTER, NFTABLES_GROUP, deaf_to=self._own_port)

    def watch_addresses(self) -> None:
        """Report changed addresses from now on; the caller reads them after this."""
        if self._addresses is None:
            self._addresses = self._join(socket.NETLINK_ROUTE, _ADDRESS_GROUPS)

    def wait(self, timeout_s: float) -> bool:
        """Whether anything happened within that time: a notification, or ``wake``. Changes of rules count only if they
        are another program's, and of our tables. Raises KernelError.
        """
        end = time.monotonic() + timeout_s
        while True:
            fds = [fd for fd, _ in self._poller.poll(max(0.0, end - time.monotonic()) * 1000)]
            if self._wake in fds:
                os.eventfd_read(self._wake)
            if self._rules is None or fds != [self._rules.fileno()]:
                return bool(fds)
            self._read_rules(self._rules)
            if self._happened.touched_by or self._happened.lost or time.monotonic() >= end:
                return bool(self._happened.touched_by) or self._happened.lost

    def take(self) -> Happened:
        """The events since the last call. Raises KernelError."""
        if self._rules is not None:
            self._read_rules(self._rules)
        for _ in self._read(self._addresses) if self._addresses is not None else ():
            self._happened.addresses = True
        for data in self._read(self._links):
            if data is None:
                self._happened.links = None
            else:
                self._receive_links(data)
        happened, self._happened = self._happened, Happened()
        return happened

    def wake(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except OSError:
            pass  # it has been closed: nobody waits any more

    def close(self) -> None:
        for joined in (self._rules, self._addresses):
            if joined is not None:
                joined.close()
        self._links.close()
        os.close(self._wake)

    def __enter__(self) -> FilterMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _read(source: socket.socket) -> Iterator[bytes | None]:
        """Datagrams; None where some were lost."""
        while True:
            try:
                yield source.recv(_RECEIVE_BYTES)
            except OSError as e:
                if e.errno == EAGAIN:
                    return
                if e.errno != ENOBUFS:
                    raise KernelError(f"cannot read kernel notifications: {e.strerror}", errno=e.errno or 0) from e
                yield None

    def _read_rules(self, source: socket.socket) -> None:
        for data in self._read(source):
            if data is None:
                self._happened.lost = True
                self._pending = False
            else:
                self._receive_rules(data)

    def _receive_rules(self, data: bytes) -> None:
        for message in wire.split_messages(data):
            if message.kind >> 8 != NFTABLES:
                continue
            if message.kind != _NEWGEN:
                self._pending = self._pending or message.payload.startswith(self._tables, GENERAL_BYTES)
            elif self._pending:
                self._pending = False
                name = wire.attributes(message.payload, GENERAL_BYTES).get(_PROCESS_NAME)
                self._happened.touched_by.add(wire.name(name) or "?")

    def _receive_links(self, data: bytes) -> None:
        links = self._happened.links
        if links is None:
            return
        for message in wire.split_messages(data):
            if message.kind in (_NEWLINK, _DELLINK) and message.payload[:1] == _ANY_FAMILY:
                link = decode_link(message.payload)
                links.pop(link.name, None)
                links[link.name] = SeenLink(link.ifindex, link.up, link.alias) if message.kind == _NEWLINK else None
