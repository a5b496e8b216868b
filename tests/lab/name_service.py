"""A name service that knows one name, run in the control plane's namespace: ``python name_service.py NAME ADDRESS``.

Rule: it answers what is asked for NAME or a name below it; of every other name it says that it does not exist.
"""

from __future__ import annotations

import socket
import struct
import sys
from ipaddress import ip_address

_A, _AAAA = 1, 28
_ANSWER, _NO_SUCH_NAME = 0x8400, 0x8403


def reply(query: bytes, name: str, address: str) -> bytes:
    number, _, _, _, _, _ = struct.unpack("!6H", query[:12])
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    question = query[12 : at + 5]
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    known = ".".join(labels).startswith(name)
    packed = ip_address(address).packed
    fits = known and kind == (_A if len(packed) == 4 else _AAAA)
    head = struct.pack("!6H", number, _ANSWER if known else _NO_SUCH_NAME, 1, int(fits), 0, 0)
    record = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 5, len(packed)) + packed
    return head + question + (record if fits else b"")


def serve(name: str, address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("0.0.0.0", 53))
        while True:
            query, peer = listener.recvfrom(4096)
            listener.sendto(reply(query, name, address), peer)


if __name__ == "__main__":
    serve(*sys.argv[1:])
