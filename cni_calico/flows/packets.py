"""PURE: which connection a packet belongs to, from its first bytes.

Rule: the key of a connection is what its packets look like where they are filtered: source as the sender wrote it,
destination after translation. Connection tracking's entry has the same in its tuples (``kernel.netlink.ended``).

A key is bytes: source and destination (4 or 16 bytes each), protocol, source port, destination port. For ICMP the ports
are the identifier, and type and code.
"""

from __future__ import annotations

from struct import Struct

ICMP, ICMPV6 = 1, 58
_PORTS, _ID = Struct(">HH"), Struct(">BBHH")
_UPPER = Struct(">BHH")
_PARTS, _PARTS_SIX = Struct(">4s4sBHH"), Struct(">16s16sBHH")
_WITH_PORTS = frozenset((6, 17, 33, 132, 136))
_EXTENSIONS = frozenset((0, 43, 60))  # hop by hop, routing, destination options
_MOST_EXTENSIONS = 4
_PLAIN = 0x45  # IPv4 without options
V4_BYTES, V6_BYTES = 13, 37


def key_of(packet: bytes) -> bytes | None:
    """``packet``: from the IP header; None if it is none, or too short."""
    if len(packet) < 20:
        return None
    if packet[0] == _PLAIN and packet[9] in _WITH_PORTS and len(packet) >= 24:  # nearly all
        return packet[12:20] + packet[9:10] + packet[20:24]
    version = packet[0] >> 4
    if version == 4:
        at = (packet[0] & 15) * 4
        return _key(packet[12:20], packet[9], packet, at)
    if version != 6 or len(packet) < 40:
        return None
    protocol, at = packet[6], 40
    for _ in range(_MOST_EXTENSIONS):
        if protocol not in _EXTENSIONS or at + 2 > len(packet):
            break
        protocol, at = packet[at], at + 8 * (packet[at + 1] + 1)
    return _key(packet[8:40], protocol, packet, at)


def _key(addresses: bytes, protocol: int, packet: bytes, at: int) -> bytes | None:
    if protocol in _WITH_PORTS:
        return None if at + 4 > len(packet) else addresses + bytes((protocol,)) + packet[at : at + 4]
    if protocol in (ICMP, ICMPV6):
        if at + 8 > len(packet):
            return None
        kind, code, _, identifier = _ID.unpack_from(packet, at)
        return addresses + _UPPER.pack(protocol, identifier, kind << 8 | code)
    return addresses + _UPPER.pack(protocol, 0, 0)


def parts_of(key: bytes) -> tuple[bytes, bytes, int, int, int]:
    """(source, destination, protocol, source port, destination port) of a key."""
    return (_PARTS if len(key) == V4_BYTES else _PARTS_SIX).unpack(key)


def source_of(key: bytes) -> bytes:
    """What translation of the destination leaves alone: source, protocol and source port."""
    size = 4 if len(key) == V4_BYTES else 16
    return key[:size] + key[2 * size : -2]


def key_as_sent(key: bytes, destination: bytes, port: int) -> bytes:
    """Before translation; ``port`` 0: the protocol has none."""
    size = len(destination)
    return key[:size] + destination + key[2 * size : -2] + (port.to_bytes(2, "big") if port else key[-2:])
