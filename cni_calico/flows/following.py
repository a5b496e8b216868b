"""What is new at this host's recorder, for a program that asks on somebody else's behalf.

Rule: the recorder keeps what is new from the moment of the question on; the answer ends with the recorder, or as soon
as whoever wants to know has gone.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.flows.client import RecorderMisunderstood, RecorderSilent, parse_answer, require_understood
from cni_calico.flows.query import FlowQuery, render_query

PULSE_S = 1.0
_MOST, _PIECE = 16 << 20, 64 << 10


class FollowedFlows:
    """A context manager. The question is sent when it is made."""

    def __init__(self, path: str, query: FlowQuery, deadline: Deadline) -> None:
        """Raises RecorderSilent."""
        self._path = path
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.settimeout(max(0.1, deadline.remaining_s()))
            self._connection.connect(path)
            self._connection.sendall(render_query(replace(query, follow=True)))
            self._connection.settimeout(None)
        except OSError as e:
            self._connection.close()
            raise self._silent(e) from e

    def __enter__(self) -> FollowedFlows:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def documents(self, asker: socket.socket) -> Iterator[dict[str, Any]]:
        """As they come; an empty one stands for each PULSE_S in which there was nothing. They end once ``asker`` says
        anything more or has gone. Raises RecorderSilent, RecorderMisunderstood, QueryFailed.
        """
        rest = b""
        with selectors.DefaultSelector() as selector:
            for one in (self._connection, asker):
                selector.register(one, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(PULSE_S)}
                if asker in ready:
                    return
                if not ready:
                    yield {}
                    continue
                try:
                    data = self._connection.recv(_PIECE)
                except OSError as e:
                    raise self._silent(e) from e
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                yield from map(_document, lines)
                if len(rest) > _MOST:
                    raise RecorderMisunderstood("cannot read flows: a line of the recorder's answer has no end")

    def _silent(self, error: OSError) -> RecorderSilent:
        return RecorderSilent(f"cannot follow flows at {self._path}: {error.strerror or error}")


def _document(line: bytes) -> dict[str, Any]:
    if document := parse_answer(line + b"\n"):
        require_understood(document)
    return document
