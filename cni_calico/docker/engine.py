"""The door to Docker's own API.

Rule: only questions that do not wait for the container's lock, which the call that we are answering may hold; every one
has a deadline. While dockerd starts its socket accepts connections and answers none, so nothing is asked unless the
stream of its events is open. Paths have no version: dockerd refuses those older than its oldest.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain
from cni_calico.log import Log

ANSWER_BYTES = 16 << 20
EVENTS = "/events?filters=" + quote(json.dumps({"type": ["container"], "event": ["rename"]}))
_RECONNECT_S, _EVENT_BYTES = 1.0, 1 << 20
_QUIET_S = 3600.0  # an open stream has nothing to say for hours


class _EngineConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DockerEngine:
    """``path``: the socket. ``opened`` is called when the API has begun to serve, ``renamed`` with a container's ID."""

    def __init__(self, path: str, log: Log) -> None:
        self._path, self._log = path, log
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
        try:
            connection = _EngineConnection(self._path, deadline.require("ask Docker"))
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                body = response.read(ANSWER_BYTES + 1)
            finally:
                connection.close()
            if response.status == 404:
                return None
            if response.status != 200 or len(body) > ANSWER_BYTES:
                raise TryAgain(f"cannot ask Docker: GET {path} was answered with status {response.status}")
            return json.loads(body)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as e:
            raise TryAgain(f"cannot ask Docker: {e or type(e).__name__}") from e

    def follow(self, stopping: threading.Event) -> None:
        """Keep the stream of events open, until ``stopping``."""
        while not stopping.is_set():
            try:
                self._follow_once(stopping)
            except (OSError, http.client.HTTPException, ValueError) as e:
                self._log.debug(f"Docker's events: {e or type(e).__name__}")
            finally:
                self._open.clear()
            stopping.wait(_RECONNECT_S)

    def _follow_once(self, stopping: threading.Event) -> None:
        connection = _EngineConnection(self._path, _QUIET_S)
        try:
            connection.request("GET", EVENTS)
            response = connection.getresponse()  # dockerd answers when every container that starts with it is up
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            self._open.set()
            self.opened()
            while not stopping.is_set():
                line = response.readline(_EVENT_BYTES)
                if not line:
                    return
                actor = json.loads(line).get("Actor") or {}
                self.renamed(str(actor.get("ID", "")))
        finally:
            connection.close()


def _nothing(*_: object) -> None:
    """Nobody wants to know."""
