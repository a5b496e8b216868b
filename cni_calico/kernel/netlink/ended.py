"""Connections that connection tracking has forgotten, as it tells, and those that it has.

Rule: only ends are listened to. Whoever listens to begins or updates, in any network namespace, makes every packet that
begins a connection on the host dearer. The notification of an end has counters and times, but no label.

``key``: as ``flows/packets.py`` makes it of a packet: source and destination as they are where packets are filtered.
"""

from __future__ import annotations

import _socket
from collections.abc import Iterator
from errno import EAGAIN, EINTR, ENOBUFS
from struct import Struct
from typing import NamedTuple

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.layouts import AttributePath, Layouts
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, GENERAL_BYTES, Nfnetlink, general

_GET, _DELETED = CTNETLINK << 8 | 1, CTNETLINK << 8 | 2
_DESTROYS, _SOL_NETLINK, _ADD_MEMBERSHIP = 3, 270, 1
_SO_RCVBUFFORCE = 33
_MESSAGE = Struct("=IHHII")
_START = _MESSAGE.size + GENERAL_BYTES
_DATAGRAM = 1 << 16
_NESTED = frozenset(((1,), (1, 1), (1, 2), (2,), (2, 1), (2, 2), (9,), (10,), (20,)))
_ORIGINAL, _REPLY, _COUNTED, _COUNTED_BACK, _TIMES, _LABELS = 1, 2, 9, 10, 20, 22
_PROTOCOL: AttributePath = (1, 2, 1)
_ICMP = {1: (4, 5, 6), 58: (7, 8, 9)}  # identifier, type, code
_NONE = 0, 0
_NS_PER_S = 1e9


class TrackedConnection(NamedTuple):
    """``destination`` and ``port``: where its first packet was sent. Packets and bytes in both directions are None
    where they are not counted; ``began`` and ``ended`` are seconds since 1970, 0 for unknown. ``label``: 16 bytes, or
    none.
    """

    key: bytes
    destination: bytes
    port: int
    packets: int | None
    size: int | None
    packets_back: int | None
    size_back: int | None
    began: float
    ended: float
    label: bytes


class EndedConnections(Nfnetlink):
    """Listens in the opening thread's network namespace. ``overrun``: how often some were lost, nobody knows how many;
    ``strange``: what could not be parsed. Raises KernelError.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._force(_SO_RCVBUFFORCE, room)
        self.overrun = self.strange = 0
        self._layouts = Layouts(_START, _NESTED)
        try:
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _DESTROYS)
        except OSError as e:
            self.close()
            raise KernelError(f"cannot listen to the ends of connections: {e.strerror}", errno=e.errno or 0) from e

    def take(self, datagrams: int) -> list[TrackedConnection]:
        """What has arrived, from so many datagrams at most. Raises KernelError."""
        found: list[TrackedConnection] = []
        for _ in range(datagrams):
            try:
                data = self._socket.recv(_DATAGRAM, _socket.MSG_DONTWAIT)
            except OSError as e:
                if e.errno == ENOBUFS:
                    self.overrun += 1
                    continue
                if e.errno == EINTR:
                    continue
                if e.errno != EAGAIN:
                    raise KernelError(f"cannot read ends of connections: {e.strerror}", errno=e.errno or 0) from e
                return found
            if len(data) >= _START and _MESSAGE.unpack_from(data)[1] == _DELETED:
                try:
                    found.append(_parse(data, self._layouts))
                except ValueError:
                    self.strange += 1
        return found


def read_tracked(netlink: Nfnetlink, deadline: Deadline) -> Iterator[list[TrackedConnection]]:
    """All entries, part by part. One that is there meanwhile may be missing or come twice. Raises KernelError."""
    layouts = Layouts(_START, _NESTED)
    head = bytes(_MESSAGE.size)
    for family in ("ip", "ip6"):
        for part in netlink.dump_in_parts(_GET, general(family), "list connection tracking entries", deadline):
            found = []
            for payload in part:
                try:
                    found.append(_parse(head + payload, layouts))
                except ValueError:
                    continue
            yield found


def _parse(data: bytes, layouts: Layouts) -> TrackedConnection:
    """Raises ValueError."""
    places = layouts.places(data, 0, len(data))

    def bytes_at(*path: int) -> bytes:
        begin, end = places.get(path, _NONE)
        return data[begin:end]

    def number(*path: int) -> int | None:
        found = bytes_at(*path)
        return int.from_bytes(found, "big") if found else None

    six = (_ORIGINAL, 1, 3) in places
    source, destination = bytes_at(_ORIGINAL, 1, 3 if six else 1), bytes_at(_ORIGINAL, 1, 4 if six else 2)
    reached = bytes_at(_REPLY, 1, 3 if six else 1)
    if not source or len(source) != len(reached) or len(source) != len(destination):
        raise ValueError("it has no addresses")
    protocol = number(*_PROTOCOL) or 0
    if (icmp := _ICMP.get(protocol)) is not None:
        identifier, kind, code = (bytes_at(_ORIGINAL, 2, one) for one in icmp)
        ports, port = identifier + kind + code, 0
    else:
        sport = bytes_at(_ORIGINAL, 2, 2) or b"\0\0"
        ports = sport + (bytes_at(_REPLY, 2, 2) or b"\0\0")
        port = number(_ORIGINAL, 2, 3) or 0
    return TrackedConnection(
        source + reached + bytes((protocol & 255,)) + ports,
        destination,
        port,
        number(_COUNTED, 1),
        number(_COUNTED, 2),
        number(_COUNTED_BACK, 1),
        number(_COUNTED_BACK, 2),
        (number(_TIMES, 1) or 0) / _NS_PER_S,
        (number(_TIMES, 2) or 0) / _NS_PER_S,
        bytes_at(_LABELS),
    )
