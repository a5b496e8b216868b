"""The door to a command in a container, through the API server (pods/exec).

Rule: the command ends with its stream: closing the stream closes the command's standard input. Its exit status and its
last words are told when it has ended. Source: Kubernetes' v4.channel.k8s.io over WebSocket, which every API server and
kubelet since 1.6 understands; each message begins with the number of a channel.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from cni_calico.datastore.http import Connection, HttpAnswer, HTTPFailure, render_head
from cni_calico.datastore.kubernetes.answers import message_of, refusal
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.exec.frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    NotWebSocket,
    accept_of,
    read_messages,
    render_frame,
)
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreUnavailable, DeadlineExceeded

_PROTOCOL = "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_SWITCHING, _DENIED = 101, 401
_WORDS, _LINE = 4096, 16 << 20


class CommandFailedThere(CalicoError):
    """The command could not be run in the container, or has failed; the text has its last words."""


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """``words``: the command and its arguments."""

    namespace: str
    pod: str
    container: str
    words: tuple[str, ...]

    @property
    def path(self) -> str:
        asked = [*(("command", word) for word in self.words), ("container", self.container)]
        streams = [("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        place = f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods/{quote(self.pod, safe='')}/exec"
        return f"{place}?{urlencode([*asked, *streams])}"

    @property
    def doing(self) -> str:
        return f"run {self.words[0]} in pod {self.namespace}/{self.pod}"


class RunningCommand:
    """A context manager. ``deadline`` is called before each wait."""

    def __init__(self, api: KubernetesAPI, command: ContainerCommand, deadline: Callable[[], Deadline]) -> None:
        """Raises DatastoreError, DeadlineExceeded."""
        self._doing, self._deadline = command.doing, deadline
        self._connection = _open(api, command, deadline())
        self._words = bytearray()

    def __enter__(self) -> RunningCommand:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def interrupt(self) -> None:
        """End another thread's reading."""
        self._connection.interrupt()

    def write(self, data: bytes) -> None:
        """To its standard input. Raises DatastoreUnavailable."""
        self._send(BINARY, bytes((_STDIN,)) + data)

    def lines(self) -> Iterator[bytes]:
        """Of its standard output, each without its end, until it has ended well. Raises CommandFailedThere,
        DatastoreUnavailable, DeadlineExceeded.
        """
        rest = bytearray()
        for channel, data in self._messages():
            if channel == _STDOUT:
                rest += data
                *whole, last = rest.split(b"\n")
                rest = bytearray(last)
                yield from map(bytes, whole)
                if len(rest) > _LINE:
                    raise CommandFailedThere(f"cannot {self._doing}: its lines have no end")
            elif channel == _STDERR:
                self._words += data[: _WORDS - len(self._words)]
            elif channel == _STATUS:
                self._require_success(data)
                return

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        try:
            for kind, data in read_messages(self._read):
                if kind == PING:
                    self._send(PONG, data)
                elif kind == CLOSE:
                    break
                elif kind != PONG and data:
                    yield data[0], data[1:]
        except NotWebSocket as e:
            raise DatastoreUnavailable(f"cannot {self._doing}: {e}") from e
        raise DatastoreUnavailable(f"cannot {self._doing}: the connection ended before the command did")

    def _read(self, size: int) -> bytes:
        deadline = self._deadline()
        try:
            return self._connection.exactly(size, deadline)
        except HTTPFailure as e:
            raise _failure(self._doing, e, deadline) from e

    def _send(self, kind: int, data: bytes) -> None:
        deadline = self._deadline()
        try:
            self._connection.send(b"", render_frame(kind, data, os.urandom(4)), deadline)
        except HTTPFailure as e:
            raise _failure(self._doing, e, deadline) from e

    def _require_success(self, data: bytes) -> None:
        try:
            found: Any = json.loads(data)
            status, message = found["status"], str(found.get("message") or "it failed")
        except (ValueError, KeyError, TypeError, AttributeError):
            status, message = "", "its exit status cannot be read"
        if status != "Success":
            words = self._words.decode("utf-8", "replace").strip().partition("\n")[0]
            raise CommandFailedThere(f"cannot {self._doing}: {words or message}")


def _open(api: KubernetesAPI, command: ContainerCommand, deadline: Deadline) -> Connection:
    session = api.session(deadline)
    answer = _ask(api, command, deadline)
    if isinstance(answer, HttpAnswer) and answer.status == _DENIED:
        api.renew(session)  # the credentials may have been replaced since they were read
        answer = _ask(api, command, deadline)
    if isinstance(answer, Connection):
        return answer
    if answer.status < 400:
        raise DatastoreUnavailable(f"cannot {command.doing}: the API server does not change to WebSocket")
    if answer.status >= 500:
        raise DatastoreUnavailable(f"cannot {command.doing}: {message_of(answer)}")
    raise refusal(answer, command.doing)


def _ask(api: KubernetesAPI, command: ContainerCommand, deadline: Deadline) -> Connection | HttpAnswer:
    deadline.require(command.doing)
    session = api.session(deadline)
    server, key = session.pool.server, base64.b64encode(os.urandom(16)).decode()
    headers = {
        **session.headers,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": _PROTOCOL,
    }
    connection: Connection | None = None
    try:
        connection = Connection(server, deadline)
        connection.send(render_head(server, "GET", command.path, headers, 0), b"", deadline)
        status, told = connection.read_head(deadline)
        if status == _SWITCHING:
            if told.get("sec-websocket-accept") != accept_of(key) or told.get("sec-websocket-protocol") != _PROTOCOL:
                raise HTTPFailure("the answer is not the one that was asked for")
            return connection
        answer = HttpAnswer(status, told, connection.read_body(status, told, deadline))
    except OSError as e:
        if connection is not None:
            connection.close()
        raise _failure(command.doing, e, deadline) from e
    connection.close()
    return answer


def _failure(doing: str, error: OSError, deadline: Deadline) -> CalicoError:
    text = f"cannot {doing}: {error}"
    return DeadlineExceeded(text) if deadline.expired() else DatastoreUnavailable(text)
