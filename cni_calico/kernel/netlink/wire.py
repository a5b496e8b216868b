"""PURE: netlink's frame: message headers, attributes, and the kernel's acknowledgement with its text.

Rule: bytes in, values out; malformed bytes raise KernelError and nothing else. Layouts: linux/netlink.h.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from struct import Struct
from typing import NamedTuple

from cni_calico.errors import KernelError

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_ECHO = 0x8
NLM_F_DUMP_INTR = 0x10
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_DUMP = 0x300  # on a read request the bits mean ROOT | MATCH
NLM_F_CAPPED = 0x100  # on an acknowledgement: the request is not repeated in it
NLM_F_ACK_TLVS = 0x200

NLMSG_NOOP = 1
NLMSG_ERROR = 2
NLMSG_DONE = 3

NLA_TYPE_MASK = 0x3FFF  # without the nested and byte-order bits
NLA_F_NESTED = 0x8000
NLMSGERR_ATTR_MSG = 1

HEADER = Struct("=IHHII")  # length, type, flags, sequence number, port
_ATTRIBUTE = Struct("=HH")
_U32 = Struct("=I")
_S32 = Struct("=i")
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")


class Message(NamedTuple):
    kind: int
    flags: int
    seq: int
    payload: bytes


class Request(NamedTuple):
    """``doing`` completes "cannot ..." in an error; ``point`` is the fault point, "" for a read."""

    kind: int
    flags: int
    body: bytes
    doing: str
    point: str = ""

    @property
    def is_dump(self) -> bool:
        return not self.point and self.flags & NLM_F_DUMP == NLM_F_DUMP


def attribute(kind: int, payload: bytes) -> bytes:
    size = len(payload)
    return _ATTRIBUTE.pack(size + 4, kind) + payload + _PADDING[size & 3]


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | NLA_F_NESTED, b"".join(attributes))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, _U32.pack(value))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def split_messages(data: bytes) -> Iterator[Message]:
    """The messages of one datagram. Raises KernelError if a length points outside of it."""
    at, end = 0, len(data)
    while at < end:
        if end - at < HEADER.size:
            raise malformed("a netlink message", "shorter than its header")
        size, kind, flags, seq, _ = HEADER.unpack_from(data, at)
        if size < HEADER.size or size > end - at:
            raise malformed("a netlink message", f"length {size} with {end - at} bytes left")
        yield Message(kind, flags, seq, data[at + HEADER.size : at + size])
        at += (size + 3) & ~3


def attributes(data: bytes, start: int = 0) -> dict[int, bytes]:
    """Attributes by type, starting at ``start``; of repeated ones the last. Raises KernelError for wrong lengths."""
    found: dict[int, bytes] = {}
    at, end = start, len(data)
    if start > end:
        raise malformed("a netlink message", f"{end} bytes where {start} are needed")
    while end - at >= 4:
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < 4 or size > end - at:
            raise malformed("a netlink attribute", f"length {size} with {end - at} bytes left")
        found[kind & NLA_TYPE_MASK] = data[at + 4 : at + size]
        at += (size + 3) & ~3
    return found


def some_attributes(data: bytes, start: int, wanted: Collection[int]) -> dict[int, bytes]:
    """Those of the ``wanted`` types; reading ends with the last one. Raises KernelError for wrong lengths before it."""
    found: dict[int, bytes] = {}
    at, end = start, len(data)
    while end - at >= 4 and len(found) < len(wanted):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < 4 or size > end - at:
            raise malformed("a netlink attribute", f"length {size} with {end - at} bytes left")
        if kind & NLA_TYPE_MASK in wanted:
            found[kind & NLA_TYPE_MASK] = data[at + 4 : at + size]
        at += (size + 3) & ~3
    return found


def number(payload: bytes | None, default: int = 0) -> int:
    """A 32-bit attribute, ``default`` if absent. Raises KernelError if it has another size."""
    if payload is None:
        return default
    if len(payload) != 4:
        raise malformed("a netlink attribute", f"{len(payload)} bytes where 4 are needed")
    value: int = _U32.unpack(payload)[0]
    return value


def signed(payload: bytes | None, default: int) -> int:
    value = number(payload, default & 0xFFFFFFFF)
    return value - (1 << 32) if value >> 31 else value


def name(payload: bytes | None) -> str:
    """A zero-terminated text; bytes that are not UTF-8 stay visible."""
    return "" if payload is None else payload.rstrip(b"\0").decode(errors="backslashreplace")


def parse_acknowledgement(message: Message) -> tuple[int, str]:
    """(errno, the kernel's own text) of an NLMSG_ERROR or NLMSG_DONE; errno 0 is success."""
    payload = message.payload
    if len(payload) < 4:
        if message.kind == NLMSG_DONE:
            return 0, ""
        raise malformed("a netlink acknowledgement", f"{len(payload)} bytes")
    error = -_S32.unpack_from(payload)[0]
    if error < 0:
        error = 0
    if not error or not message.flags & NLM_F_ACK_TLVS:
        return error, ""
    at = 4
    if message.kind == NLMSG_ERROR:  # the request's header follows, and the request itself unless capped
        at += HEADER.size
        if not message.flags & NLM_F_CAPPED and len(payload) >= at:
            at += max(0, HEADER.unpack_from(payload, 4)[0] - HEADER.size + 3 & ~3)
    return error, name(attributes(payload, at).get(NLMSGERR_ATTR_MSG))


def malformed(what: str, why: str) -> KernelError:
    return KernelError(f"cannot decode {what}: {why}")


def list_elements(payload: bytes) -> list[bytes]:
    """The elements of a list attribute, which all have the same type. Raises KernelError."""
    found, at, end = [], 0, len(payload)
    while end - at >= 4:
        size, _ = _ATTRIBUTE.unpack_from(payload, at)
        if size < 4 or size > end - at:
            raise KernelError(f"cannot decode a netlink list: length {size} with {end - at} bytes left")
        found.append(payload[at + 4 : at + size])
        at += size + 3 & ~3
    return found
