"""Packets that rules report to a group (nfnetlink_log).

Rule: nothing here waits for packets: what has arrived is taken. The room for reports is small, and only so many are
taken at once, so that a flood of packets costs the reader little; what does not fit is lost, and only rules' counters
(kernel/filter/nf_tables/counters.py) are complete.
"""

from __future__ import annotations

import _socket
from dataclasses import dataclass
from errno import ENOBUFS

from cni_calico.deadline import Deadline
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general

_ULOG = 4  # the subsystem
_PACKET, _CONFIG = _ULOG << 8, _ULOG << 8 | 1
_COMMAND, _MODE, _BIND = 1, 2, b"\1"
_META_ONLY = b"\0\0\0\0\1\0"  # copy range, copy mode, padding
_INDEV, _OUTDEV, _PREFIX = 4, 5, 10
_ROOM = 1 << 16
_AT_ONCE = 64  # messages of the kernel, each with as many packets as it had room for


@dataclass(frozen=True, slots=True)
class ReportedPacket:
    """``incoming`` and ``outgoing`` are the indexes of interfaces, 0 for none."""

    prefix: str
    incoming: int
    outgoing: int


class PacketReports(Nfnetlink):
    """Listens to a group in the opening thread's network namespace. Raises KernelError (EBUSY: another does)."""

    def __init__(self, group: int, deadline: Deadline) -> None:
        super().__init__()
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, _ROOM)
        doing = f"listen to the packet filter's reports (group {group})"
        for attribute in (wire.attribute(_COMMAND, _BIND), wire.attribute(_MODE, _META_ONLY)):
            self.request(_CONFIG, 0, general("", group) + attribute, doing, deadline)

    def take(self) -> list[ReportedPacket]:
        """What has arrived since the last time, as far as there was room for it."""
        found: list[ReportedPacket] = []
        for _ in range(_AT_ONCE):
            try:
                data = self._socket.recv(_ROOM)
            except OSError as e:
                if e.errno == ENOBUFS:
                    continue  # some were lost
                return found
            for message in wire.split_messages(data):
                if message.kind == _PACKET:
                    a = wire.attributes(message.payload, GENERAL_BYTES)
                    indexes = (int.from_bytes(a.get(kind, b""), "big") for kind in (_INDEV, _OUTDEV))
                    found.append(ReportedPacket(wire.name(a.get(_PREFIX)), *indexes))
        return found
