"""PURE: the few messages of a reading client in protobuf's wire format, without protobuf, which takes long to import.

Rule: unknown fields are skipped; what is no message is a ValueError. The numbers of the fields are those of etcd.proto,
and tests compare with the messages of etcd_pb2.
"""

from __future__ import annotations

from dataclasses import dataclass

from cni_calico.datastore.etcd.spans import SpanAnswer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cni_calico.datastore.etcd.spans import Span

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS = 64


@dataclass(frozen=True, slots=True)
class WireRecord:
    key: bytes
    value: bytes
    mod_revision: int


def render_range(span: Span) -> bytes:
    """A RangeRequest."""
    return _bytes(1, span.start) + _bytes(2, span.end) + _number(3, span.limit) + _number(4, span.revision)


def render_login(name: str, password: str) -> bytes:
    """An AuthenticateRequest."""
    return _bytes(1, name.encode()) + _bytes(2, password.encode())


def parse_page(message: bytes) -> SpanAnswer:
    """A RangeResponse. Raises ValueError."""
    records = []
    revision = more = 0
    for number, value in _fields(message):
        if number == 1:
            revision = _last_number(value, 3)
        elif number == 2:
            records.append(_record(value))
        elif number == 3:
            more = _plain(value)
    if more and not records:
        raise ValueError("there are more records than none")
    return SpanAnswer(records, revision, bool(more))


def parse_token(message: bytes) -> str:
    """The token of an AuthenticateResponse. Raises ValueError."""
    token = b""
    for number, value in _fields(message):
        if number == 2:
            token = _held(value)
    return token.decode("ascii")


def _record(message: int | bytes) -> WireRecord:
    key = value = b""
    revision = 0
    for number, found in _fields(_held(message)):
        if number == 1:
            key = _held(found)
        elif number == 3:
            revision = _plain(found)
        elif number == 5:
            value = _held(found)
    return WireRecord(key, value, revision)


def _last_number(message: int | bytes, wanted: int) -> int:
    last = 0
    for number, value in _fields(_held(message)):
        if number == wanted:
            last = _plain(value)
    return last


def _held(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where bytes belong")
    return value


def _plain(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes stand where a number belongs")
    return value


def _fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """(its number, its value) of each field."""
    data = _held(message)
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field has wire type {kind}")
        if size > end - at:
            raise ValueError("a field is cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number that begins there, where it has ended)."""
    value = shift = 0
    while at < len(data) and shift < _VARINT_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number is cut off, or too long")


def _bytes(number: int, value: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(value)) + value if value else b""


def _number(number: int, value: int) -> bytes:
    return _encoded(number << 3 | _VARINT) + _encoded(value) if value else b""


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
