"""What rules of the packet filter have decided about packets, as they report it to a group (nfnetlink_log).

Rule: nothing here waits: what has arrived is taken, up to a number of datagrams at once. What was lost is counted
exactly, because reports are numbered; a report that cannot be parsed is counted, and never ends the reading. A number
tells what was lost before it: while none follows, only the caller can know how many that were.
"""

from __future__ import annotations

import _socket
import sys
from errno import EAGAIN, EINTR, ENOBUFS
from struct import Struct

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.layouts import Layouts
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general

_ULOG = 4  # the subsystem
_PACKET, _CONFIG = _ULOG << 8, _ULOG << 8 | 1
_COMMAND, _MODE, _TIMEOUT, _THRESHOLD, _FLAGS = 1, 2, 4, 5, 6  # attributes of a configuration
_BIND, _SEQUENCE = b"\1", (1).to_bytes(2, "big")
IN_DATAGRAM = 32  # packets, at most
_PREFIX_BYTES = 9  # eight digits, and the end that C wants
_MOST_KNOWN, _ALL = 5_000, 0xFFFFFFFF
_COPY, _LATE = 64, 5  # bytes of a packet; hundredths of a second that packets wait for others
_WANTED = ((10,), (12,), (9,))  # prefix, number, payload
_NUMBER = _WANTED[1]
_MESSAGE, _SIZE_AND_KIND = Struct("=IHHII"), Struct("=IH")
_DATAGRAM = 1 << 16
_SO_RCVBUFFORCE, _SO_MEMINFO, _MEMINFO_BYTES, _DROPS = 33, 55, 36, 8


ReportedDecision = tuple[int, bytes]
"""The number of the rule; the packet's first 64 bytes at most, from the IP header."""


class DecisionReports(Nfnetlink):
    """Listens to a group in the opening thread's network namespace. Raises KernelError (EPERM or EBUSY: another
    program does).

    ``lost``: reports that did not reach us; ``strange``: that could not be parsed; ``sample``: how the last of these
    began; ``read``: bytes of datagrams.
    """

    def __init__(self, group: int, room: int, deadline: Deadline) -> None:
        super().__init__()
        self.group = group
        self._force(_SO_RCVBUFFORCE, room)
        self.lost = self.strange = self.read = 0
        self.sample = b""
        self._next = self._assumed = 0
        self._dropped = self._told = 0  # datagrams: when all had been read last; of which numbers have told
        self._known: dict[bytes, int] = {}  # numbers of rules by what messages say
        self._layouts = report_layouts()
        try:
            self._configure(wire.attribute(_COMMAND, _BIND), deadline)
            self._configure(wire.attribute(_MODE, _COPY.to_bytes(4, "big") + b"\2\0"), deadline)
            waiting = wire.attribute(_TIMEOUT, _LATE.to_bytes(4, "big"))
            waiting += wire.attribute(_THRESHOLD, IN_DATAGRAM.to_bytes(4, "big"))
            self._configure(waiting + wire.attribute(_FLAGS, _SEQUENCE), deadline)
        except BaseException:
            self.close()
            raise

    def _configure(self, attribute: bytes, deadline: Deadline) -> None:
        doing = f"listen to the packet filter's decisions (group {self.group})"
        self.request(_CONFIG, 0, general("", self.group) + attribute, doing, deadline)

    @property
    def slow(self) -> int:
        """Reports of which the layout was not known."""
        return self._layouts.slow

    @property
    def waiting(self) -> int:
        """How many bytes, or some more, have arrived and are not read yet."""
        return self._figure(0)

    @property
    def has_dropped(self) -> bool:
        """Whether the kernel has dropped some for want of room, and no report has followed that tells how many."""
        return self._figure(_DROPS) != self._told

    def assume_lost(self, count: int) -> None:
        """So many were lost since the last one that was read, it seems; the next one's number corrects that."""
        self.lost += count
        self._assumed += count
        self._next = self._next + count & _ALL

    def _figure(self, index: int) -> int:
        told = self._socket.getsockopt(_socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO_BYTES)
        return int.from_bytes(told[4 * index : 4 * index + 4], sys.byteorder)

    def take(self, datagrams: int) -> list[ReportedDecision]:
        """What has arrived, from so many datagrams at most. Raises KernelError."""
        found: list[ReportedDecision] = []
        for _ in range(datagrams):
            try:
                data = self._socket.recv(_DATAGRAM, _socket.MSG_DONTWAIT)
            except OSError as e:
                if e.errno in (ENOBUFS, EINTR):
                    continue  # the numbers tell how many were lost
                if e.errno != EAGAIN:
                    raise KernelError(f"cannot read decisions: {e.strerror}", errno=e.errno or 0) from e
                self._dropped = self._figure(_DROPS)
                return found
            self.read += len(data)
            self._told = self._dropped
            self._parse(data, found)
        return found

    def _parse(self, data: bytes, found: list[ReportedDecision]) -> None:
        at, end, known = 0, len(data), self._known
        while at <= end - _MESSAGE.size:
            size, kind = _SIZE_AND_KIND.unpack_from(data, at)
            if size < _MESSAGE.size or at + size > end:
                self._note_strange(data[at:])
                return
            step = size + 3 & ~3
            try:
                reports = self._layouts.run(data, at, size) if kind == _PACKET else []
            except ValueError:
                self._note_strange(data[at : at + size])
                reports = []
            if not reports:
                at += step
                continue
            prefixes, numbers, packets = zip(*reports, strict=True)
            following = self._next + len(reports)
            if numbers == tuple(range(self._next, following)) and known.keys() >= set(prefixes):
                self._next, self._assumed = following & _ALL, 0
                found += zip(map(known.__getitem__, prefixes), packets, strict=True)
                at += len(reports) * step
                continue
            for prefix, number, packet in reports:
                self._note_number(number)
                rule = known.get(prefix)
                if rule is None:
                    rule = self._number_in(prefix)
                if rule is not None:
                    found.append((rule, packet))
                else:
                    self._note_strange(data[at : at + size])
                at += step

    def _note_number(self, number: int | bytes) -> None:
        """Of the next report; b"" if it has none."""
        if isinstance(number, int):
            missed = number - self._next & _ALL
            if missed > _ALL - self._assumed:
                missed -= _ALL + 1  # fewer than was assumed
            self.lost += missed
            self._next, self._assumed = number + 1 & _ALL, 0

    def _number_in(self, prefix: bytes) -> int | None:
        """None if it is not one of ours."""
        try:
            number = int(prefix[:-1], 16) if len(prefix) == _PREFIX_BYTES else None
        except ValueError:
            number = None
        if number is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[prefix] = number
        return number

    def _note_strange(self, message: bytes) -> None:
        self.strange += 1
        self.sample = message[:_COPY]


def report_layouts() -> Layouts:
    return Layouts(_MESSAGE.size + GENERAL_BYTES, _WANTED, numbers=frozenset((_NUMBER,)), usual=len(_WANTED))
