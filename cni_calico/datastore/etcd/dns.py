"""Looks up SRV records (RFC 2782) for etcd's discovery, with one small query per name server.

Rule: limited by the deadline; a server that does not answer, or gives a bad answer, is skipped. The system's resolver
library cannot ask for SRV records, and a DNS package would be loaded only for this.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

from cni_calico.datastore.etcd.config import EtcdEndpoint
from cni_calico.errors import DatastoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cni_calico.deadline import Deadline

RESOLV_CONF = "/etc/resolv.conf"
PORT = 53
ATTEMPT_S = 1.0
_SRV, _IN = 33, 1
_SERVICES = (("_etcd-client-ssl._tcp", True), ("_etcd-client._tcp", False))
_MAX_JUMPS = 64


@dataclass(frozen=True, slots=True)
class SrvService:
    """One SRV record."""

    priority: int
    weight: int
    port: int
    target: str


def parse_nameservers(text: str) -> list[str]:
    """The addresses in resolv.conf(5)'s nameserver lines; the local one if there are none."""
    lines = [line.split() for line in text.splitlines()]
    return [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"] or ["127.0.0.1"]


def render_query(name: str, ident: int) -> bytes:
    """A DNS query for the SRV records of a name. Raises ValueError for something that is not a domain name."""
    labels = name.rstrip(".").encode("idna" if not name.isascii() else "ascii").split(b".")
    if any(not 0 < len(label) < 64 for label in labels) or len(name) > 253:
        raise ValueError(f"{name!r} is not a domain name")
    question = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack("!6H", ident, 0x0100, 1, 0, 0, 0) + question + struct.pack("!2H", _SRV, _IN)


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    """(name, offset after it); follows compression pointers."""
    labels, end, jumps = [], 0, 0
    while True:
        length = message[at]
        if length >= 0xC0:
            end = end or at + 2
            at = struct.unpack_from("!H", message, at)[0] & 0x3FFF
            jumps += 1
            if jumps > _MAX_JUMPS:
                raise ValueError("a name points to itself")
        elif length:
            labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        else:
            return ".".join(labels), end or at + 1


def parse_answer(message: bytes, ident: int) -> tuple[list[SrvService], bool]:
    """(records, truncated). An unknown name has none. Raises ValueError if it is not an answer to our query."""
    try:
        got, flags, questions, answers, _, _ = struct.unpack_from("!6H", message)
        code = flags & 0xF
        if got != ident or not flags & 0x8000:
            raise ValueError("not the answer to our query")
        if code not in (0, 3):
            raise ValueError(f"the name server failed with code {code}")
        at, found = 12, []
        for _ in range(questions):
            at = _read_name(message, at)[1] + 4
        for _ in range(answers):
            at = _read_name(message, at)[1]
            kind, _, _, length = struct.unpack_from("!HHIH", message, at)
            at += 10
            if kind == _SRV:
                priority, weight, port = struct.unpack_from("!3H", message, at)
                found.append(SrvService(priority, weight, port, _read_name(message, at + 6)[0]))
            at += length
    except (struct.error, IndexError, UnicodeDecodeError) as e:
        raise ValueError("the answer is truncated") from e
    return found, bool(flags & 0x0200)


def _ask(server: str, name: str, timeout_s: float) -> list[SrvService]:
    """Raises OSError, ValueError."""
    ident = int.from_bytes(os.urandom(2), "big")
    query = render_query(name, ident)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(timeout_s)
        s.connect((server, PORT))
        s.send(query)
        found, truncated = parse_answer(s.recv(4096), ident)
    if not truncated:
        return found
    with socket.create_connection((server, PORT), timeout_s) as s:
        s.sendall(struct.pack("!H", len(query)) + query)
        with s.makefile("rb") as stream:
            answer = stream.read(int.from_bytes(stream.read(2), "big"))
    return parse_answer(answer, ident)[0]


def lookup_srv(name: str, servers: Sequence[str], deadline: Deadline) -> list[SrvService]:
    """The SRV records of a name, best first; [] if it has none. Raises DatastoreUnavailable, DeadlineExceeded."""
    reasons = []
    for server in servers:
        timeout_s = min(ATTEMPT_S, deadline.require(f"look up {name}"))
        try:
            return sorted(_ask(server, name, timeout_s), key=lambda r: (r.priority, -r.weight, r.target, r.port))
        except (OSError, ValueError) as e:
            reasons.append(f"{server}: {e}")
    raise DatastoreUnavailable(f"cannot look up {name}: {', '.join(reasons)}")


def discover_endpoints(domain: str, deadline: Deadline) -> list[EtcdEndpoint]:
    """The etcd endpoints of a domain, those with TLS first. Raises DatastoreUnavailable if there are none."""
    try:
        with open(RESOLV_CONF) as f:
            servers = parse_nameservers(f.read())
    except OSError:
        servers = parse_nameservers("")
    found = [
        EtcdEndpoint(record.target, record.port, tls)
        for service, tls in _SERVICES
        for record in lookup_srv(f"{service}.{domain}", servers, deadline)
        if record.target
    ]
    if not found:
        names = " nor ".join(f"{service}.{domain}" for service, _ in _SERVICES)
        raise DatastoreUnavailable(f"cannot find etcd: neither {names} has SRV records")
    return found
