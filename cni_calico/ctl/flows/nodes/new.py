"""What is new at several nodes, as one stream, until whoever wants to know has gone.

Rule: a node that ends is told, and the others go on. A reader who is slow makes the nodes wait, whose recorders count
what is lost meanwhile.
"""

from __future__ import annotations

import queue
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from cni_calico.ctl.flows.nodes.agents import NoAgents, NodeAgent
from cni_calico.ctl.flows.nodes.answer import parse_missed
from cni_calico.ctl.flows.nodes.joined import ToldFlow, parse_told
from cni_calico.ctl.flows.nodes.stream import JoinedStream
from cni_calico.flows.conditions import meets
from cni_calico.flows.following import PULSE_S
from cni_calico.flows.query import Condition

_WAITING, _LOOK_S = 1000, 0.1


class NewClusterFlows:
    """A context manager; ``receive`` and ``fail`` are called in threads while it is open. ``conditions``: what joined
    flows must meet.
    """

    def __init__(self, nodes: int, conditions: Iterable[Condition]) -> None:
        self._nodes, self._conditions = nodes, tuple(conditions)
        self._queue: queue.Queue[ToldFlow | dict[str, Any]] = queue.Queue(_WAITING)
        self._closed = threading.Event()
        self._failed: dict[str, str] = {}

    def __enter__(self) -> NewClusterFlows:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def receive(self, agent: NodeAgent, document: dict[str, Any]) -> None:
        """Raises ValueError if it is not a recorder's."""
        if document.get("end"):
            return
        self._put(parse_missed(agent.node, document) if "lost" in document else parse_told(agent.node, document))

    def fail(self, agent: NodeAgent, why: str) -> None:
        self._put({"note": f"node {agent.node} does not answer: {why}"})
        self._failed[agent.node] = why

    def _put(self, item: ToldFlow | dict[str, Any]) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=_LOOK_S)
                return
            except queue.Full:
                continue

    def documents(self, asker: socket.socket | None) -> Iterator[dict[str, Any]]:
        """As ``flows.following``; also ``note``, a sentence about a node. Raises NoAgents once no node answers."""
        stream, told = JoinedStream(), time.monotonic()
        while asker is None or not select.select([asker], [], [], 0)[0]:
            found = list(self._next(stream))
            now = time.monotonic()
            found += [one for one in stream.due(now) if meets(one, self._conditions)]
            if found:
                yield from found
                told = now
            elif now - told >= PULSE_S:
                yield {}
                told = now
            if len(self._failed) >= self._nodes and self._queue.empty():
                yield from (one for one in stream.due(float("inf")) if meets(one, self._conditions))
                raise NoAgents("cannot follow flows any more: no node answers")

    def _next(self, stream: JoinedStream) -> Iterator[dict[str, Any]]:
        try:
            item = self._queue.get(timeout=_LOOK_S)
        except queue.Empty:
            return
        if isinstance(item, ToldFlow):
            yield from (one for one in stream.add(item, time.monotonic()) if meets(one, self._conditions))
        else:
            yield item
