"""PURE: WebSocket messages, as a client writes and reads them (RFC 6455).

Rule: what is not a message of a server is an error; nothing is read beyond the size that is allowed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MESSAGE_LIMIT = 4 << 20
_CONTINUATION, _FINAL, _MASKED = 0, 0x80, 0x80
_CONTROL_LIMIT, _SHORT = 125, 125
_LONG, _LONGER = 126, 127
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class NotWebSocket(ValueError):
    """The peer does not speak the protocol; the text says how."""


def accept_of(key: str) -> str:
    """What a server answers to a key."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def render_frame(kind: int, data: bytes, mask: bytes) -> bytes:
    """A whole message. ``mask``: four random bytes, so that no proxy takes what is sent for something else."""
    size = len(data)
    if size <= _SHORT:
        head = bytes((_FINAL | kind, _MASKED | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | kind, _MASKED | _LONG)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | kind, _MASKED | _LONGER)) + size.to_bytes(8, "big")
    repeated = mask * (size // 4 + 1)
    masked = (int.from_bytes(data, "big") ^ int.from_bytes(repeated[:size], "big")).to_bytes(size, "big")
    return head + mask + masked


def read_messages(read: Callable[[int], bytes], limit: int = MESSAGE_LIMIT) -> Iterator[tuple[int, bytes]]:
    """(kind, data), without end. ``read`` returns exactly so many bytes. Raises NotWebSocket."""
    parts, kind = bytearray(), 0
    while True:
        final, code, data = _read_frame(read, limit - len(parts))
        if code >= CLOSE:
            if not final or len(data) > _CONTROL_LIMIT:
                raise NotWebSocket("a control message is in pieces, or too long")
            yield code, data
            continue
        if (code == _CONTINUATION) != bool(kind):
            raise NotWebSocket("a message begins inside another one, or goes on without one")
        kind = kind or code
        parts += data
        if final:
            yield kind, bytes(parts)
            parts, kind = bytearray(), 0


def _read_frame(read: Callable[[int], bytes], limit: int) -> tuple[bool, int, bytes]:
    first, second = read(2)
    code = first & 0x0F
    if first & 0x70 or code not in (_CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG) or second & _MASKED:
        raise NotWebSocket("a message is none that a server may send")
    size = second
    if size > _SHORT:
        size = int.from_bytes(read(2 if size == _LONG else 8), "big")
    if size > limit:
        raise NotWebSocket(f"a message has more than {MESSAGE_LIMIT} bytes")
    return bool(first & _FINAL), code, read(size)
