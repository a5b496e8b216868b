"""HTTP/1.1 over the drivers' Unix sockets.

Rule: a request is read as a whole, within limits and a deadline, before anything is done for it; a connection has one
request. A call that is unknown is 404, a malformed one 400; an error's text goes out under both names that Docker
reads, and nobody is sent a stack trace. So many calls run at once, the next ones wait for their turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.docker.afterwards import Afterwards, PutOff
from cni_calico.docker.documents import MalformedRequest, RequestFields, parse_request
from cni_calico.doing import Doing
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.log import Log

DockerCall = Callable[[RequestFields], Mapping[str, Any]]

BODY_BYTES, HEAD_BYTES, CALLS = 1 << 20, 16 << 10, 64
READ_S = 10.0
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Payload Too Large"}
_TYPE = "application/vnd.docker.plugins.v1.2+json"


class DriverServer:
    """One socket. ``calls``: by path; ``bare``: those whose body is empty."""

    def __init__(
        self,
        listener: socket.socket,
        calls: Mapping[str, DockerCall],
        bare: frozenset[str],
        turns: threading.Semaphore,
        afterwards: Afterwards,
        log: Log,
    ) -> None:
        self._listener, self._calls, self._bare, self._turns, self._log = listener, calls, bare, turns, log
        self._afterwards = afterwards

    def run(self, stopping: threading.Event) -> None:
        self._listener.settimeout(0.5)
        while not stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as e:
                if not stopping.is_set():
                    self._log.error(f"cannot accept a connection: {e.strerror or e}")
                    stopping.wait(1.0)
                continue
            self._turns.acquire()
            try:
                threading.Thread(target=self._serve, args=(connection,), name="call", daemon=True).start()
            except RuntimeError:  # short of threads: in this one
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with self._afterwards.call() as rest, connection, contextlib.suppress(OSError):
                began = time.monotonic()
                status, document = self._answer(connection)
                self._log.debug(f"answered with {status} after {(time.monotonic() - began) * 1000:.0f} ms")
                body = json.dumps(document).encode()
                head = (
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {_TYPE}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                connection.settimeout(READ_S)
                connection.sendall(head.encode() + body)
            for act in rest:
                self._finish(act)
        finally:
            self._turns.release()

    def _finish(self, act: PutOff) -> None:
        try:
            act()
        except Exception as e:
            self._log.failure(f"what was put off failed: {e}", e)

    def _answer(self, connection: socket.socket) -> tuple[int, Mapping[str, Any]]:
        path = "a call"
        try:
            method, path, body = read_request(connection, Deadline.after(READ_S))
            if method != "POST":
                return 405, _failed("only POST is answered here")
            call = self._calls.get(path)
            if call is None:
                return 404, _failed(f"there is no call {path!r}")
            name = path.rpartition(".")[2]
            fields = RequestFields(name, {}) if path in self._bare else parse_request(name, body)
            return 200, call(fields)
        except TooLarge as e:
            return 413, _failed(str(e))
        except MalformedRequest as e:
            self._log.warning(f"{path}: {e}")
            return 400, _failed(str(e))
        except CalicoError as e:
            self._log.warning(f"{path}: {e}")
            return 200, _failed(f"{e} ({e.details})" if e.details else str(e))
        except OSError:
            raise
        except Exception as e:
            self._log.failure(f"{path} failed: {e}", e)
            return 200, _failed(f"calico-docker failed: {type(e).__name__}; its log has more")


class TooLarge(InvalidConfig):
    """A request that is larger than any of Docker's."""


def _failed(text: str) -> Mapping[str, Any]:
    return {"Err": text, "Error": text}


def read_request(connection: socket.socket, deadline: Deadline) -> tuple[str, str, bytes]:
    """(method, path, body). Raises MalformedRequest, TooLarge, OSError."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > HEAD_BYTES:
            raise TooLarge("cannot read the request: its head is too large")
        data += _receive(connection, deadline)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise MalformedRequest("cannot read the request: it is not HTTP/1")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return words[0], words[1], _read_chunks(connection, body, deadline)
    length = headers.get("content-length", "0")
    if not length.isdecimal():
        raise MalformedRequest("cannot read the request: its length is no number")
    if len(length) > 9 or int(length) > BODY_BYTES:
        raise TooLarge(f"cannot read the request: its body is larger than {BODY_BYTES} bytes")
    while len(body) < int(length):
        body += _receive(connection, deadline)
    return words[0], words[1], body[: int(length)]


def _read_chunks(connection: socket.socket, data: bytes, deadline: Deadline) -> bytes:
    found = b""
    while True:
        while b"\r\n" not in data:
            data += _receive(connection, deadline)
        line, _, data = data.partition(b"\r\n")
        size_text = line.split(b";")[0].strip()
        if not size_text or len(size_text) > 8 or not set(size_text.lower()) <= set(b"0123456789abcdef"):
            raise MalformedRequest("cannot read the request: a chunk has no size")
        size = int(size_text, 16)
        if len(found) + size > BODY_BYTES:
            raise TooLarge(f"cannot read the request: its body is larger than {BODY_BYTES} bytes")
        if not size:
            return found
        while len(data) < size + 2:
            data += _receive(connection, deadline)
        found, data = found + data[:size], data[size + 2 :]


def _receive(connection: socket.socket, deadline: Deadline) -> bytes:
    connection.settimeout(max(0.001, deadline.remaining_s()))
    if deadline.expired():
        raise MalformedRequest("cannot read the request: it does not end")
    try:
        data = connection.recv(1 << 16)
    except TimeoutError as e:
        raise MalformedRequest("cannot read the request: it does not end") from e
    if not data:
        raise MalformedRequest("cannot read the request: it ends too early")
    return data


# -- sockets ----------------------------------------------------------------------------------------------------------


def open_listener(directory: str, name: str) -> socket.socket:
    """A listening socket that only root can use. Raises InvalidConfig if another process listens there, KernelError."""
    path = f"{directory}/{name}.sock"
    with Doing(f"listen on {path}"):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if _is_listening(path):
            raise InvalidConfig(
                f"cannot listen on {path}: another driver does",
                details="stop it first: upstream's plugin and this one cannot serve one Docker together",
            )
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        before = os.umask(0o177)
        try:
            made.bind(path)
        finally:
            os.umask(before)
        made.listen(CALLS)
        return made


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asked:
        try:
            asked.settimeout(1.0)
            asked.connect(path)
        except OSError:
            return False
        return True
