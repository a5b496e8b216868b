"""PURE: one recorded connection as a value, and as the fixed number of bytes that it has in the ring.

Rule: bytes that were not written as a whole, or in another place, are no record: each has its sequence number and a
checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

_BODY = Struct("=QQ16s16s16sHHHBB5I4Q2IQ")
_FOUR, _SIX = Struct("=QQ4s12x4s12x4s12xHHHBB5I4Q2I"), Struct("=QQ16s16s16sHHHBB5I4Q2I")  # a record by its family
_FOUR_ROW, _SIX_ROW = Struct(_FOUR.format + "Q4x"), Struct(_SIX.format + "Q4x")
_CHECKSUM, _LAST, _END = Struct("=I"), Struct("=Q"), Struct("=QI")
BYTES = 144
_FLAGS_AT, _END_AT = 71, BYTES - _END.size

# flags
SIX, DENIED, ENDED, COUNTED, GONE = 1, 2, 4, 8, 32
"""Addresses are IPv6; it was denied; it has ended; packets and bytes are known; its end was not seen, but it is not
there any more.
"""


class FlowRecord(NamedTuple):
    """``began``, ``last``: microseconds since 1970. ``source``, ``destination``: as they are where packets are
    filtered; ``asked``: where the first packet was sent, as far as known, else the destination. For ICMP the ports are
    as in ``packets``. The numbers of what decided are 0 for nobody: ``egress`` and ``ingress`` of workloads (or of the
    host, where only it decides), ``host_out`` and ``host_in`` of host endpoints besides, ``denied_by``. ``packets`` and
    ``size`` (bytes) from the source, ``packets_back`` and ``size_back`` to it; of a denied one ``packets`` counts what
    was denied. ``source_end``, ``destination_end``: numbers of names, 0 for none.
    """

    began: int
    last: int
    source: bytes
    destination: bytes
    asked: bytes
    sport: int
    dport: int
    asked_port: int
    protocol: int
    flags: int
    egress: int
    ingress: int
    host_out: int
    host_in: int
    denied_by: int
    packets: int
    size: int
    packets_back: int
    size_back: int
    source_end: int
    destination_end: int

    def but(self, **changes: Any) -> FlowRecord:
        """With other values: ``_replace`` takes twice as long, and a connection needs it several times."""
        fields: list[Any] = [*self]
        for name, value in changes.items():
            fields[_PLACES[name]] = value
        return record_from(fields)

    @property
    def denied(self) -> bool:
        return bool(self.flags & DENIED)

    @property
    def key(self) -> bytes:
        """Of its connection (``flows.packets``)."""
        ports = self.sport.to_bytes(2, "big") + self.dport.to_bytes(2, "big")
        return self.source + self.destination + bytes((self.protocol,)) + ports

    def numbers(self) -> tuple[int, ...]:
        """Of all that decided."""
        return tuple(filter(None, self.decided))

    @property
    def decided(self) -> tuple[int, int, int, int, int]:
        """Numbers of what decided, from ``egress`` to ``denied_by``."""
        return self[10:15]


_PLACES = {name: place for place, name in enumerate(FlowRecord._fields)}


record_from: Callable[[Iterable[Any]], FlowRecord] = partial(tuple.__new__, FlowRecord)
"""Of all values, in their order: naming them takes longer than all else that is done for a connection."""


def encode(record: FlowRecord, sequence: int) -> bytes:
    return encode_run(((sequence, record),))


def encode_run(numbered: Iterable[tuple[int, FlowRecord]]) -> bytes:
    """Each after the one before. ``numbered``: (sequence, record)."""
    pack, add = _BODY.pack, _CHECKSUM.pack
    found: list[bytes] = []
    for sequence, record in numbered:
        body = pack(*record, sequence)
        found += body, add(crc32(body))
    return b"".join(found)


def decode(data: bytes, sequence: int, *, whole: bool = False) -> FlowRecord | None:
    """None if these bytes are not the whole record of that number. ``whole``: they are known to have been written as a
    whole, and only which one it is is looked at.
    """
    if len(data) != BYTES:
        return None
    found, checksum = _END.unpack_from(data, _END_AT)
    if found != sequence or not (whole or checksum == crc32(data[: _BODY.size])):
        return None
    return record_from((_SIX if data[_FLAGS_AT] & SIX else _FOUR).unpack_from(data))


def rows_of(data: bytes) -> list[tuple[Any, ...]]:
    """Of records that are known to have been written as a whole, one after the other: of each its values and its
    number.
    """
    rows = [*_FOUR_ROW.iter_unpack(data[: len(data) // BYTES * BYTES])]
    for at, row in enumerate(rows):
        if row[9] & SIX:
            rows[at] = _SIX_ROW.unpack_from(data, at * BYTES)
    return rows


def last_of(data: bytes, at: int) -> int:
    """``last`` of the record at that place among bytes, whole or torn."""
    return int(_LAST.unpack_from(data, at + _LAST.size)[0])
