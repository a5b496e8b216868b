"""Hears a machine say where it is: gratuitous ARP or RARP frames on a workload's interface.

Rule: one socket for each of the two protocols, bound to the interface: the machine's other packets cost nothing. What a
frame says is parsed without trusting it: the machine's owner writes it.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import IPv4Address

from cni_calico.errors import KernelError
from cni_calico.model.resources import Address

ARP, RARP = 0x0806, 0x8035
_HEADER = bytes((0, 1, 8, 0, 6, 4))  # Ethernet, IPv4, and the lengths of their addresses
_SENDER, _TARGET = slice(14, 18), slice(24, 28)
_FRAME_BYTES = 2048
_FRAMES = 256  # read at a time


class Announcements:
    """Of one interface, in the network namespace of the thread that opens it. Raises KernelError."""

    def __init__(self, ifname: str, addresses: Collection[Address]) -> None:
        self.addresses = frozenset(addresses)
        self.sockets: list[socket.socket] = []
        try:
            for protocol in (ARP, RARP):
                opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 0)
                self.sockets.append(opened)
                opened.bind((ifname, protocol))
        except OSError as e:
            self.close()
            why = e.strerror or str(e)
            raise KernelError(f"cannot listen for ARP on {ifname}: {why}", errno=e.errno or 0) from e

    def has_arrived(self) -> bool:
        """Read what has come; whether the machine has announced itself."""
        arrived = False
        for opened in self.sockets:
            for _ in range(_FRAMES):
                try:
                    frame, where = opened.recvfrom(_FRAME_BYTES)
                except OSError:
                    break  # nothing more, or the interface is gone
                is_sent = where[2] == socket.PACKET_OUTGOING
                arrived = arrived or (not is_sent and is_announcement(where[1], frame, self.addresses))
        return arrived

    def close(self) -> None:
        for opened in self.sockets:
            opened.close()


def is_announcement(protocol: int, frame: bytes, addresses: Collection[Address]) -> bool:
    """PURE: whether a frame (from its ARP header on) announces one of these addresses; RARP frames name none."""
    if protocol == RARP:
        return True
    if protocol != ARP or len(frame) < _TARGET.stop or not frame.startswith(_HEADER):
        return False
    return frame[_SENDER] == frame[_TARGET] and IPv4Address(frame[_SENDER]) in addresses
