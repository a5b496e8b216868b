"""The server's side of a connection: who is calling, what the request is, which descriptors came along.

Rule: only root may call (SO_PEERCRED); the CallRequest owns every descriptor received and closes it; a caller that
sends slowly or sends garbage only costs one limited wait. A caller that is gone is not served: it, or its runtime, may
have done the work otherwise.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
from dataclasses import dataclass, field

from cni_calico.deadline import Deadline
from cni_calico.plugin.call import protocol

RECEIVE_S = 5.0  # for a whole request
SEND_S = 5.0
_DESCRIPTORS_MAX = 8
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


class Refused(Exception):
    """The caller may not call, or did not send a request; the text says why."""


@dataclass(slots=True)
class CallRequest:
    """One received request. ``close`` closes its descriptors, not the connection."""

    connection: socket.socket
    version: int
    executable: str
    environ: dict[str, str]
    stdin: bytes
    descriptors: dict[bytes, int] = field(default_factory=dict)

    def caller_has_gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        poller = select.poll()
        poller.register(self.connection, select.POLLRDHUP)
        return bool(poller.poll(0))

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])


def require_root(connection: socket.socket) -> None:
    """Raises Refused if the caller is not root. (Its pid is 0 if it is in another pid namespace.)"""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != 0:
        raise Refused(f"user {uid} may not call the CNI server: only root may")


def read_request(connection: socket.socket, timeout_s: float = RECEIVE_S) -> CallRequest:
    """The request on a fresh connection. Raises Refused, OSError."""
    require_root(connection)
    deadline = Deadline.after(timeout_s)
    received: list[int] = []
    try:
        header = _receive(connection, protocol.HEADER_BYTES, received, deadline)
        version, length = protocol.parse_header(header)
        body = _receive(connection, length, received, deadline)
        if version not in protocol.ACCEPTED:
            _close_all(received)
            return CallRequest(connection, version, "", {}, b"")  # others check what the fields contain
        executable, environ, stdin, names = protocol.parse_request(protocol.parse_fields(body))
        if len(names) != len(received):
            raise Refused(f"{len(received)} descriptors came for {len(names)} names")
    except protocol.Malformed as e:
        _close_all(received)
        raise Refused(str(e)) from e
    except BaseException:
        _close_all(received)
        raise
    return CallRequest(connection, version, executable, environ, stdin, dict(zip(names, received, strict=True)))


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _receive(connection: socket.socket, count: int, received: list[int], deadline: Deadline) -> bytes:
    parts: list[bytes] = []
    missing = count
    while missing:
        left_s = deadline.remaining_s()
        if not left_s:
            raise Refused("the request did not come in time")
        connection.settimeout(left_s)
        space = socket.CMSG_SPACE(_DESCRIPTORS_MAX * 4)
        data, ancillary, _, _ = connection.recvmsg(missing, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                received.extend(fds)
        if not data:
            raise Refused("the connection ended in the middle of a request")
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def send_answer(connection: socket.socket, version: int, exit_code: int, stdout: bytes) -> None:
    """Send the answer; a caller that is gone is not an error."""
    try:
        connection.settimeout(SEND_S)
        connection.sendall(protocol.frame(protocol.answer_fields(exit_code, stdout), version))
    except OSError:
        pass
