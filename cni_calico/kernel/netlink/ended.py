"""Connections that connection tracking has forgotten, as it tells, and those that it has.

Rule: only ends are listened to. Whoever listens to begins or updates, in any network namespace, makes every packet that
begins a connection on the host dearer. The notification of an end has counters and times, but no label.

``key``: as ``flows/packets.py`` makes it of a packet: source and destination as they are where packets are filtered.
"""

from __future__ import annotations

from collections.abc import Iterator
from errno import EAGAIN, EINTR, ENOBUFS
from struct import Struct
from typing import Any, NamedTuple

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.datagrams import Datagrams
from cni_calico.kernel.netlink.layouts import AttributePath, Layouts
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, GENERAL_BYTES, Nfnetlink, general

_GET, _DELETED = CTNETLINK << 8 | 1, CTNETLINK << 8 | 2
_DESTROYS, _SOL_NETLINK, _ADD_MEMBERSHIP = 3, 270, 1
_SO_RCVBUFFORCE = 33
_MESSAGE = Struct("=IHHII")
_START = _MESSAGE.size + GENERAL_BYTES
_KIND = Struct("=4xH")
_AT_ONCE, _DATAGRAM, _SAMPLE_BYTES = 64, 1024, 64  # datagrams, each with one end: less than half of that
_NESTED = frozenset(((1,), (1, 1), (1, 2), (2,), (2, 1), (2, 2), (9,), (10,), (20,)))
# paths of attributes: what the end of nearly all has, as the kernel orders it: addresses of IPv4, protocol and ports of
# the original direction; source and its port of the reply; packets and bytes of both directions; times
_USUAL: tuple[AttributePath, ...] = (
    *((1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (1, 2, 3), (2, 1, 1), (2, 2, 2)),
    *((9, 1), (9, 2), (10, 1), (10, 2), (20, 1), (20, 2)),
)
# addresses of IPv6; label; ICMP's identifier, type and code, ICMPv6's
_WANTED: tuple[AttributePath, ...] = (
    *_USUAL,
    *((1, 1, 3), (1, 1, 4), (2, 1, 3), (22,)),
    *((1, 2, 4), (1, 2, 5), (1, 2, 6), (1, 2, 7), (1, 2, 8), (1, 2, 9)),
)
_NUMBERS = frozenset(((1, 2, 3), *_USUAL[7:]))
_PLAIN = 4, 4, 1, 2, 4, 2  # bytes of addresses, protocol and ports, where nothing special is
_ICMP, _NO_PORT = (b"\x01", b"\x3a"), b"\0\0"
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
    ``strange``: what could not be parsed; ``sample``: how the last of these began. Raises KernelError.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._force(_SO_RCVBUFFORCE, room)
        self.overrun = self.strange = 0
        self.sample = b""
        self._layouts = tracked_layouts(_DATAGRAM)
        self._datagrams = Datagrams(_AT_ONCE, _DATAGRAM)
        try:
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _DESTROYS)
        except OSError as e:
            self.close()
            raise KernelError(f"cannot listen to the ends of connections: {e.strerror}", errno=e.errno or 0) from e

    def take(self, datagrams: int) -> list[TrackedConnection]:
        """What has arrived, from so many datagrams at most. Raises KernelError."""
        found: list[TrackedConnection] = []
        descriptor, room = self._socket.fileno(), self._datagrams
        while datagrams > 0:
            try:
                lengths = room.receive(descriptor, datagrams)
            except OSError as e:
                if e.errno in (ENOBUFS, EINTR):
                    self.overrun += e.errno == ENOBUFS
                    datagrams -= 1
                    continue
                if e.errno != EAGAIN:
                    raise KernelError(f"cannot read ends of connections: {e.strerror}", errno=e.errno or 0) from e
                return found
            self._parse(room.data, lengths, found)
            datagrams -= len(lengths)
        return found

    def _parse(self, data: bytearray, lengths: list[int], found: list[TrackedConnection]) -> None:
        """``data``: datagrams with these lengths, each in its place."""
        at = 0
        while at < len(lengths):
            size, begin = lengths[at], at * _DATAGRAM
            if size < _START or _KIND.unpack_from(data, begin)[0] != _DELETED:
                at += 1
                continue
            alike = at + 1
            while alike < len(lengths) and lengths[alike] == size:
                alike += 1
            try:
                run = self._layouts.run(data, begin, size, alike - at) if size <= _DATAGRAM else [()]
            except ValueError:
                run = [()]
            if _is_plain(run[0]):  # the others have the same attributes
                found += _plain_connections(run)
                at += len(run)
                continue
            for values in run:
                try:
                    found.append(_connection(values))
                except ValueError:
                    self.strange += 1
                    begin = at * _DATAGRAM
                    self.sample = bytes(data[begin : begin + min(size, _SAMPLE_BYTES)])
                at += 1


def read_tracked(netlink: Nfnetlink, deadline: Deadline) -> Iterator[list[TrackedConnection]]:
    """All entries, part by part. One that is there meanwhile may be missing or come twice. Raises KernelError."""
    layouts = tracked_layouts()
    head = bytes(_MESSAGE.size)
    for family in ("ip", "ip6"):
        for part in netlink.dump_in_parts(_GET, general(family), "list connection tracking entries", deadline):
            found = []
            for payload in part:
                try:
                    data = head + payload
                    found.append(_connection(layouts.run(data, 0, len(data))[0]))
                except ValueError:
                    continue
            yield found


def tracked_layouts(place: int = 0) -> Layouts:
    """``place``: of each message, as for Layouts."""
    return Layouts(_START, _WANTED, _NESTED, place, numbers=_NUMBERS, usual=len(_USUAL))


def _is_plain(found: tuple[Any, ...]) -> bool:
    """Whether it has IPv4 addresses, ports, and all counters and times."""
    if len(found) != len(_USUAL):
        return False
    source, destination, protocol, sport, _, reached, reply_port, *_ = found
    return tuple(map(len, (source, destination, protocol, sport, reached, reply_port))) == _PLAIN


def _plain_connections(run: list[tuple[Any, ...]]) -> list[TrackedConnection]:
    """As ``_connection``: of nearly all."""
    new, kind, per_s = tuple.__new__, TrackedConnection, _NS_PER_S
    return [
        new(
            kind, (a + to + protocol + sport + reply_port, b, port, n, size, back, size_back, t / per_s, u / per_s, b"")
        )
        for a, b, protocol, sport, port, to, reply_port, n, size, back, size_back, t, u in run
    ]


def _connection(found: tuple[Any, ...]) -> TrackedConnection:
    """``found``: _WANTED, or _USUAL, or nothing. Raises ValueError."""
    if not found:
        raise ValueError("it cannot be taken apart")
    usual, rest = found[: len(_USUAL)], found[len(_USUAL) :] or (b"",) * (len(_WANTED) - len(_USUAL))
    source, destination, protocol, sport, port, reached, reply_port = usual[:7]
    if not source:
        source, destination, reached = rest[:3]
    if not source or len(source) != len(reached) or len(source) != len(destination) or len(protocol) != 1:
        raise ValueError("it has no addresses")
    packets, size, packets_back, size_back = (None if one == b"" else one for one in usual[7:11])
    began, ended = (one or 0 for one in usual[11:])
    if protocol in _ICMP:
        ends, port = (source, reached, protocol, *(rest[4:7] if protocol == _ICMP[0] else rest[7:10])), 0
    else:
        ends = source, reached, protocol, sport or _NO_PORT, reply_port or _NO_PORT
    carried = packets, size, packets_back, size_back, began / _NS_PER_S, ended / _NS_PER_S, rest[3]
    # naming them takes as long as all else
    return tuple.__new__(TrackedConnection, (b"".join(ends), destination, port or 0, *carried))
