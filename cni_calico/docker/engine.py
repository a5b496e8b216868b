"""The door to Docker's own API.

Rule: only questions that do not wait for the container's lock, which the call that we are answering may hold; every one
has a deadline. While dockerd starts its socket accepts connections and answers none, so nothing is asked unless the
stream of its events is open. Paths have no version: dockerd refuses those older than its oldest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from cni_calico.datastore.http import Connection, ConnectionPool, HTTPFailure, Server, render_head
from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain
from cni_calico.log import Log

ANSWER_BYTES = 16 << 20
EVENTS = "/events?filters=" + quote(json.dumps({"type": ["container"], "event": ["rename"]}))
_RECONNECT_S, _EVENT_BYTES = 1.0, 1 << 20
_QUIET_S = 3600.0  # an open stream has nothing to say for hours
_IDLE = 4  # connections


class DockerEngine:
    """``path``: the socket. ``opened`` is called when the API has begun to serve, ``renamed`` with a container's ID."""

    def __init__(self, path: str, log: Log) -> None:
        self._server, self._log = Server("docker", 80, path=path), log
        self._connections = ConnectionPool(self._server, limit=_IDLE)
        self._open = threading.Event()
        self.opened: Callable[[], None] = _nothing
        self.renamed: Callable[[str], None] = _nothing

    @property
    def is_open(self) -> bool:
        """Whether the API serves."""
        return self._open.is_set()

    def ask(self, path: str, deadline: Deadline) -> Any:
        """The answer to a GET, decoded; None for 404. Raises TryAgain."""
        if not self.is_open:
            raise TryAgain("cannot ask Docker: its API does not serve yet")
        deadline.require("ask Docker")
        try:
            connection = self._connections.borrow(deadline)
            try:
                status, headers = self._get(connection, path, deadline)
                body = connection.read_body(status, headers, deadline, ANSWER_BYTES)
            except BaseException:
                connection.close()
                raise
            self._connections.give_back(connection)
            if status == 404:
                return None
            if status != 200:
                raise TryAgain(f"cannot ask Docker: GET {path} was answered with status {status}")
            return json.loads(body)
        except (HTTPFailure, ValueError, RecursionError) as e:
            raise TryAgain(f"cannot ask Docker: {e or type(e).__name__}") from e

    def _get(self, connection: Connection, path: str, deadline: Deadline) -> tuple[int, Mapping[str, str]]:
        connection.send(render_head(self._server, "GET", path, {}, 0), b"", deadline)
        return connection.read_head(deadline)

    def follow(self, stopping: threading.Event) -> None:
        """Keep the stream of events open, until ``stopping``."""
        while not stopping.is_set():
            try:
                self._follow_once(stopping)
            except (HTTPFailure, ValueError, RecursionError) as e:
                self._log.debug(f"Docker's events: {e or type(e).__name__}")
            finally:
                self._open.clear()
            stopping.wait(_RECONNECT_S)

    def _follow_once(self, stopping: threading.Event) -> None:
        connection = Connection(self._server, _quiet())
        try:
            # dockerd answers when every container that starts with it is up
            status, _ = self._get(connection, EVENTS, _quiet())
            if status != 200:
                raise ValueError(f"status {status}")
            self._open.set()
            self.opened()
            rest = b""
            for data in connection.chunks(_quiet, None):
                *lines, rest = (rest + data).split(b"\n")
                for line in filter(bytes.strip, lines):
                    self._tell(json.loads(line))
                if stopping.is_set() or len(rest) > _EVENT_BYTES:
                    return
        finally:
            connection.close()

    def _tell(self, event: Any) -> None:
        actor = event.get("Actor") if isinstance(event, dict) else None
        if isinstance(actor, dict):
            self.renamed(str(actor.get("ID", "")))


def _quiet() -> Deadline:
    return Deadline.after(_QUIET_S)


def _nothing(*_: object) -> None:
    """Nobody wants to know."""
